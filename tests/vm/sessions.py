"""SISCI and libcauseway between machines: the conformance programs with their processes in
different machines, programs as written for hardware, files through segments, many segments, locks.

Nobody configures nodes: all machines are one, so that programs find what they look for.
"""

import hashlib
import os
import threading
import time

from lib.netns import BUILD
from lib.report import count_closing_lines
from vm import traffic
from vm.lab import Guest, GuestError
from vm.qmp import Qmp, shown

TESTS = {name: os.path.join("sisci", name)
         for name in ("local", "pair", "three", "interrupts", "dma")}
TESTS |= {name: os.path.join("vm", name)
          for name in ("segments", "locks", "intruder", "pingpong", "intr", "reflect", "dmabench")}
# Where the conformance programs wait for each other.
CHECK_PORT = 7471
# The test of what guests have not got.
OWN_MEMORY = "memory of the program's own"
# That of what the broker does not see of other machines.
STOPPED = "is stopped"
# TCG takes its time, and the machine may be busy.
SECONDS = 180
FILE_BYTES = 3 * 1024 * 1024 + 4096
MANY = 1000
# Pages of each on average: 1 to 8.
SEGMENT_PAGES = 4
# How long they take on a busy machine; what QEMU shows at most, and between two looks at it.
MANY_SECONDS = 400
MAPPINGS_MAX = 96
LOOK_SECONDS = 0.5
LOCK_ROUNDS = 200
# How long a waiter is watched, and how often it may wake: two leases end in a second, for each of
# which it asks the host three times. One that looks every 2 ms wakes 500 times.
SLEEP_SECONDS = 2
SWITCHES_A_SECOND = 50


def programs():
    """The files that guests need."""
    return [os.path.join(BUILD, "test", path) for path in TESTS.values()]


def path_of(place, name):
    """How a program is called in a place."""
    return name if isinstance(place, Guest) else os.path.join(BUILD, "test", TESTS[name])


def begin(place, name, *args, **env):
    """Starts a program in the background."""
    traffic.start(place, [path_of(place, name), *map(str, args)], **env)


def end(place, name, seconds=SECONDS):
    """Waits for a program's end, which must be a good one; its output."""
    status, text = traffic.wait(place, name, seconds)
    if status != 0:
        raise GuestError(f"{name}: exit status {status}: {text[-1500:]}")
    return text


def conformance(name, place, peers):
    """A conformance program whose other processes run elsewhere."""
    for peer in dict.fromkeys(peers):
        begin(peer, name, CHECK_SERVE=str(CHECK_PORT))
        traffic.wait_listening(peer, CHECK_PORT)
    env = {"CHECK_SKIP": OWN_MEMORY} if isinstance(place, Guest) else {}
    if peers:
        env["CHECK_SKIP"] = f"{OWN_MEMORY};{STOPPED}"
        env["CHECK_PEERS"] = ",".join(f"{peer.address}:{CHECK_PORT}" for peer in peers)
    begin(place, name, **env)
    try:
        text = end(place, name)
    finally:
        for peer in dict.fromkeys(peers):
            traffic.stop(peer, name)
    good, bad = count_closing_lines(text)
    if bad or not good:
        raise GuestError(text[-1500:])
    return f"{good} passed"


def client(name, server, place, *args):
    """A program as written for hardware."""
    begin(server, name, "server", *args)
    begin(place, name, "client", *args)
    text = end(place, name)
    end(server, name)
    return text.strip().splitlines()[-1]


def checksum(place, path):
    """SHA-256 of a file."""
    if isinstance(place, Guest):
        return place.run(f"sha256sum {path}").split()[0]
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def file_transfer(sender, receiver, folder, how="receive"):
    """A file goes through a segment of the receiver's, or through memory of its own."""
    there = {}
    for place, what in ((sender, "sent"), (receiver, "received")):
        there[what] = f"/tmp/{what}" if isinstance(place, Guest) else os.path.join(folder, what)
    make = f"dd if=/dev/urandom of={there['sent']} bs=4096 count={FILE_BYTES // 4096} 2>/dev/null"
    if isinstance(sender, Guest):
        sender.run(make)
    else:
        with open(there["sent"], "wb") as f:
            f.write(os.urandom(FILE_BYTES))
    begin(receiver, "segments", how, there["received"], FILE_BYTES)
    begin(sender, "segments", "send", there["sent"])
    end(sender, "segments")
    end(receiver, "segments")
    sums = checksum(sender, there["sent"]), checksum(receiver, there["received"])
    if sums[0] != sums[1]:
        raise GuestError(f"{sums[0]} was sent, {sums[1]} was received")
    return f"{FILE_BYTES} bytes, sha256 {sums[0][:12]}..."


def many(server, place):
    """More segments than there may be mappings: never more are shown, where others were before."""
    seen, over = [], threading.Event()
    watcher = threading.Thread(target=watch, args=((server, place), over, seen))
    watcher.start()
    try:
        begin(server, "segments", "serve", MANY)
        begin(place, "segments", "use", MANY)
        text = end(place, "segments", MANY_SECONDS)
        end(server, "segments", MANY_SECONDS)
    finally:
        over.set()
        watcher.join()
    most = max(map(len, seen))
    far = max((int(name.rsplit("-", 1)[1], 16) for names in seen for name in names), default=0)
    # All of them side by side would take twice as much.
    if most != MAPPINGS_MAX or far > MANY * SEGMENT_PAGES // 2 * traffic.PAGE:
        raise GuestError(f"{most} were shown, one at {far:#x}")
    return f"{text.strip()}, {most} shown at most"


def watch(guests, over, seen):
    """What QEMU shows in the windows of guests, until it is over."""
    with Qmp(guests[0].qmp) as first, Qmp(guests[1].qmp) as second:
        while not over.wait(LOOK_SECONDS):
            seen.extend((shown(first), shown(second)))


def locks(first, second):
    """Every kind of lock."""
    begin(first, "locks", "first", LOCK_ROUNDS)
    begin(second, "locks", "second", LOCK_ROUNDS)
    end(second, "locks")
    return end(first, "locks").strip()


def switches(guest, name):
    """How often the threads of a guest's program have gone to sleep; 0 once it has ended."""
    return int(guest.run(f"cat /proc/$(pidof {name})/task/*/status 2>/dev/null | "
                         "awk '/^voluntary/ { n += $2 } END { print n + 0 }'").split()[0])


def expect_sleep(guest, name):
    """A program that waits for a lock sleeps, rather than look again and again."""
    before = switches(guest, name)
    time.sleep(SLEEP_SECONDS)
    count = switches(guest, name) - before
    if count > SLEEP_SECONDS * SWITCHES_A_SECOND:
        raise GuestError(f"{name} woke {count} times in {SLEEP_SECONDS} s")


def dead_owner(first, second):
    """An owner of a lock in another machine is killed; who waits for it has slept."""
    begin(first, "locks", "first", 2, "kill")
    begin(second, "locks", "second", 2, "kill")
    traffic.wait_said(second, "locks", "held")
    if isinstance(first, Guest):
        expect_sleep(first, "locks")
    traffic.stop(second, "locks")
    text = end(first, "locks")
    if "the owner was dead" not in text:
        raise GuestError(text)
    return "the next owner is told"


def tests():
    """Name and function of every test, in order; a function is called with the lab."""
    def place(lab, letter):
        return lab.host if letter == "h" else lab.guests["ab".index(letter)]

    def named(title, function, *letters, then=()):
        names = ", ".join({"h": "host"}.get(letter, letter) for letter in letters)
        return f"{title}: {names}", lambda lab: function(*(place(lab, l) for l in letters), *then)

    for name, own, peers in (("local", "a", ""), ("pair", "a", "b"), ("pair", "h", "b"),
                             ("pair", "b", "h"), ("three", "a", "bh"), ("three", "h", "ab"),
                             ("interrupts", "a", "b"), ("interrupts", "h", "a"),
                             ("interrupts", "b", "h"), ("dma", "a", "b"), ("dma", "h", "a")):
        yield named(f"sisci {name}", lambda own, *peers, name=name: conformance(name, own, peers),
                    own, *peers)
    for server, other in ("ab", "ha", "bh"):
        for name, args in (("pingpong", ["500"]), ("intr", ["50"]), ("reflect", [])):
            yield named(f"client {name}", lambda server, other, name=name, args=args:
                        client(name, server, other, *args), server, other)
        yield (f"file: {server} to {other}", lambda lab, server=server, other=other:
               file_transfer(place(lab, server), place(lab, other), lab.dir))
        yield named("locks", locks, server, other)
        yield named("a lock's owner killed", dead_owner, server, other)
    yield ("file: b to a", lambda lab: file_transfer(*reversed(lab.guests[:2]), lab.dir))
    yield ("file: a to the host's own memory", lambda lab:
           file_transfer(lab.guests[0], lab.host, lab.dir, "register"))
    yield named(f"{MANY} segments", many, "a", "b")
