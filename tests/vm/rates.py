"""Rates of a virtual machine and of a tenant: they hold for all processes of a guest together, and
change while these send; what a machine is limited to says nothing of its neighbour."""

import json
import os
import time

from lib.netns import BUILD
from vm import traffic
from vm.lab import GuestError

PACED = os.path.join(BUILD, "test", "paced")
# What a limit is set to, bytes each second; and that of the configuration, messages each second.
# TCG on a busy machine sends little without a limit, too.
RATE = 16 << 10
MESSAGES = 50
# For how long is looked, in seconds, and how long a limit has to take effect before.
LOOK, SETTLE = 3, 1
# Processes that send at the same time, and how much: bytes of a message.
COUNT = 2
LENGTH = 1000
# What a limit lets through beyond its rate: a burst of 10 ms, and a message of each process.
BEYOND = RATE // 100 + COUNT * LENGTH
# How much faster processes are that are not limited; how much slower ones that are may be, where
# TCG and a neighbour leave them little of a processor.
FASTER, SLOWER = 2, 100
# How long they send if nobody ends them.
LONG = 120


def programs():
    """The files of ours that guests need."""
    return [PACED]


def begin(guest):
    """Has processes send, and waits until each does."""
    names = " ".join(str(number) for number in range(COUNT))
    guest.run(f"rm -f /tmp/flood.*; for i in {names}; do "
              f"(sleep {LONG} | CAUSEWAY_WIRE=shm paced flood > /tmp/flood.$i) & done")
    deadline = traffic.deadline_after()
    while guest.run(f"for i in {names}; do test -s /tmp/flood.$i && echo sends; done; true"
                    ).count("sends") < COUNT:
        if time.monotonic() > deadline:
            raise GuestError(f"{guest.name}: they do not send")
        time.sleep(traffic.PAUSE)


def now(guest):
    """The time of a guest's clock."""
    return float(guest.run("cut -d' ' -f1 /proc/uptime"))


def end(guest):
    """Ends them: of each, lines of a time and the bytes sent by then."""
    guest.run("killall sleep; wait; true")
    texts = [guest.run(f"cat /tmp/flood.{number}") for number in range(COUNT)]
    return [[(float(when), int(count)) for when, count in map(str.split, text.splitlines())]
            for text in texts]


def between(sent, begin_at, end_at):
    """Bytes each second that all of them sent from one time to the other."""
    def by(lines, when):
        return max((count for at, count in lines if at <= when), default=0)
    total = sum(by(lines, end_at) - by(lines, begin_at) for lines in sent)
    return total / (end_at - begin_at)


def expect_limited(guest, speed, rate):
    """They are as fast as a limit allows."""
    if not rate / SLOWER < speed < rate + BEYOND / LOOK:
        raise GuestError(f"{guest.name}: {speed:.0f} bytes/s, where {rate} are allowed")
    return f"{speed / rate:.0%} of the rate"


def expect_fast(guest, speed):
    """They are faster than the limit that others have."""
    if speed < FASTER * RATE:
        raise GuestError(f"{guest.name} sends {speed:.0f} bytes/s without a limit")


def look(guests):
    """Begin and end of a while, by each guest's clock."""
    begun = [now(guest) for guest in guests]
    time.sleep(LOOK)
    return list(zip(begun, [now(guest) for guest in guests]))


def changed(lab, whose, others=()):
    """A limit comes while guest a sends; guests `others`, which it is not for, stay fast."""
    guests = [lab.guests[0], *others]
    for guest in guests:
        begin(guest)
    free = look(guests)
    try:
        lab.causeway("limit", *whose, "--bytes", str(RATE))
        time.sleep(SETTLE)
        limited = look(guests)
    finally:
        lab.causeway("limit", *whose, "--none")
    time.sleep(SETTLE)
    gone = look(guests)
    sent = [end(guest) for guest in guests]
    expect_fast(guests[0], between(sent[0], *free[0]))
    outcome = expect_limited(guests[0], between(sent[0], *limited[0]), RATE)
    expect_fast(guests[0], between(sent[0], *gone[0]))
    for guest, lines, times in zip(others, sent[1:], limited[1:]):
        expect_fast(guest, between(lines, *times))
    return outcome


def configured(lab):
    """A limit that the configuration gives to a virtual machine."""
    listed = json.loads(lab.causeway("limit", "--json"))
    c = lab.guests[2]
    if not any(entry.get("vm") and entry["name"] == c.name for entry in listed):
        raise GuestError(f"the limit of {c.name} is not listed: {listed}")
    begin(c)
    time.sleep(SETTLE)
    times = look([c])[0]
    return expect_limited(c, between(end(c), *times), MESSAGES * LENGTH)


def unchanged_by_guest(lab):
    """A guest's root has no say in it."""
    a = lab.guests[0]
    said = a.run("causeway limit --vm a --bytes 1 2>&1 || echo status $?")
    if "status 125" not in said:
        raise GuestError(f"a guest sets limits: {said}")


def tests():
    """Name and function of every test, in order."""
    yield ("a machine's limit, and its neighbour",
           lambda lab: changed(lab, ["--vm", "a"], [lab.guests[1]]))
    yield "a tenant's limit in a guest", lambda lab: changed(lab, ["default"])
    yield "a machine's limit by the configuration", configured
    yield "a guest sets no limits", unchanged_by_guest
