"""Memory of a guest's program (tests/vm/owner.c) that peers reach, and what becomes of it."""

import os
import re
import time

from lib.netns import BUILD
from vm import traffic
from vm.lab import Guest, GuestError

PROGRAM = os.path.join(BUILD, "test", "vm", "owner")
# What peers in guests are called, beside an owner; and what the owner waits for in the end.
PEER = "/tmp/peer"
GO = "/tmp/owner.go"
FIRST_PORT = 18900
# A peer maps as much as this of a segment at once, and of nothing else.
WINDOW = 64 << 30


def begin(owner, *peers, rounds=()):
    """A program registers memory, and peers come to reach it, each as often."""
    owner.run(f"rm -f {GO}")
    traffic.start(owner, ["owner", "own", str(len(peers)), GO], "shm")
    for number, place in enumerate(peers, 1):
        traffic.wait_listening(owner, FIRST_PORT + number)
        path = PROGRAM
        if isinstance(place, Guest):
            place.run(f"ln -sf /opt/causeway/bin/owner {PEER}")
            path = PEER
        traffic.start(place, [path, "reach", owner.address, str(number), *rounds], "shm")
        traffic.wait_said(owner, "owner", f"served {number}")
    segment_after(owner)
    if not all(isinstance(place, Guest) for place in peers):
        wait_mapped(traffic.running[traffic.name_of([PROGRAM])])


def wait_mapped(process):
    """A peer on the host has mapped the segment that the owner's memory is in. Before it first used
    that, all its accesses went by ring: it holds nothing, and its end moves nothing."""
    deadline = traffic.deadline_after()
    while time.monotonic() < deadline:
        with open(f"/proc/{process.pid}/maps", encoding="utf-8", errors="replace") as f:
            ranges = [line.split()[0].split("-") for line in f]
        if any(int(end, 16) - int(start, 16) >= WINDOW for start, end in ranges):
            return
        time.sleep(traffic.PAUSE)
    raise GuestError("the peer on the host has not mapped the owner's segment")


def segment_after(owner, last=None):
    """The segment that the owner's memory has come to be in, when it is not the last one."""
    deadline = traffic.deadline_after()
    while time.monotonic() < deadline:
        text = owner.run("cat /tmp/owner.out")
        segments = re.findall(r"^in (\d+)$", text, re.MULTILINE)
        if segments and segments[-1] != last:
            return segments[-1]
        time.sleep(traffic.PAUSE)
    raise GuestError(f"the owner's memory is where it was: {text[-600:]}")


def rounds(guest):
    """How often a peer in a guest has written and read."""
    return guest.run("cat /tmp/peer.out").count("round")


def expect_rounds(guest):
    """It goes on."""
    before, deadline = rounds(guest), traffic.deadline_after()
    while rounds(guest) < before + 2:
        if time.monotonic() > deadline:
            raise GuestError(f"the peer does not go on: {guest.run('cat /tmp/peer.out')[-600:]}")
        time.sleep(traffic.PAUSE)


def end(owner):
    """The owner has all that it had, and what was its own is its own again."""
    owner.run(f"touch {GO}")
    status, text = traffic.wait(owner, "owner")
    if status != 0 or "private" not in text or "still there" not in text:
        raise GuestError(f"the owner ends with {status}: {text[-800:]}")


def renewed(lab):
    """A peer of another machine is gone, who may keep its descriptor: everything moves to a segment
    that it has not, while another peer and the owner use it."""
    a, b = lab.guests[:2]
    begin(a, lab.host, b)
    first = segment_after(a)
    traffic.stop(lab.host, "owner")
    segment_after(a, first)
    expect_rounds(b)
    traffic.stop(b, "peer")
    end(a)
    return "nothing lost"


def in_one_machine(lab):
    """What a peer in the same guest has mapped and touched becomes private again."""
    a = lab.guests[0]
    # More than a region waits for before it is moved.
    begin(a, a, rounds=["100"])
    traffic.wait_said(a, "peer", "rests")
    end(a)
    traffic.stop(a, "peer")


def tests():
    """Name and function of every test, in order."""
    yield "memory moved to another segment", renewed
    yield "memory shared within a guest", in_one_machine
