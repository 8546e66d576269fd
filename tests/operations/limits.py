"""Limits of a tenant and of a process, set while programs send: they hold for all of its processes
together, on each wire, and take effect at once."""

import bisect
import json
import os
import statistics
import subprocess
import time

from lib.netns import BUILD, CAUSEWAY, one_host
from lib.output import rest_of_output

PACED = os.path.join(BUILD, "test", "paced")
RATE = 1 << 20
# What a limit lets through beyond its rate: a burst of 10 ms, and a message of each process.
BEYOND = RATE // 100 + 2 * 1000
# A change is to take effect at once where nothing else wants the processors: of several one does,
# and each does before the next.
AT_ONCE = 0.1
CYCLES = 3
LIMITED, FREE = 2.0, 1.0
# How much faster a program is that is not limited.
FASTER = 4


def limit(host, *arguments):
    """`causeway limit`: what it prints."""
    done = subprocess.run([CAUSEWAY, "limit", *arguments], env=host.environment(),
                          stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout


class Sent:
    """How much a process had sent at any time."""

    def __init__(self, text):
        lines = [line.split() for line in text.splitlines()]
        self.times = [float(when) for when, _ in lines]
        self.bytes = [int(count) for _, count in lines]

    def at(self, when):
        """The bytes that it had told of."""
        place = bisect.bisect_right(self.times, when) - 1
        return self.bytes[place] if place >= 0 else 0


class Flood:
    """Processes that send as fast as they may."""

    def __init__(self, host, wire, count):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.running = [host.popen([PACED, "flood"], wire, **pipes) for _ in range(count)]
        self.first = [process.stdout.readline() for process in self.running]

    def end(self):
        """Stops them: what each has sent."""
        # All of them first: what one sends while another is asked must not count against it.
        texts = [rest_of_output(process, process.stdout, 60) for process in self.running]
        assert all(process.returncode == 0 for process in self.running), "a program failed"
        return [Sent(first + text) for first, text in zip(self.first, texts)]


def slowed_after(sent, begin, end):
    """How long after `begin` what is sent until `end` is within the rate."""
    total = sum(one.at(end) for one in sent)
    for step in range(int((end - begin) / 0.01)):
        since = begin + step * 0.01
        if total - sum(one.at(since) for one in sent) <= RATE * (end - since) + BEYOND:
            return step * 0.01
    return end - begin


def quick_after(sent, begin, end):
    """How long after `begin` more is sent than the rate allows."""
    before = sum(one.at(begin) for one in sent)
    for step in range(int((end - begin) / 0.01)):
        until = begin + step * 0.01
        if sum(one.at(until) for one in sent) - before > RATE * (until - begin) + 2 * BEYOND:
            return step * 0.01
    return end - begin


def measured(wire, count, whose):
    """A limit comes and goes while processes send; `whose` names it, of these processes. Returns
    how long it took each time until they were limited and until they were free, and what part of
    the rate they used."""
    with one_host() as world:
        flood = Flood(world.server, wire, count)
        named = whose(flood.running)
        marks = []
        for _ in range(CYCLES):
            time.sleep(FREE)
            limit(world.server, *named, "--bytes", str(RATE))
            begin = time.monotonic()
            time.sleep(LIMITED)
            end = time.monotonic()
            limit(world.server, *named, "--none")
            marks.append((begin, end, time.monotonic()))
        time.sleep(FREE)
        last = time.monotonic()
        sent = flood.end()
    slowed = [slowed_after(sent, begin, end) for begin, end, _ in marks]
    begun = [begin + after for (begin, _, _), after in zip(marks, slowed)]
    used = [sum(one.at(end) - one.at(begin) for one in sent) / RATE / (end - begin)
            for begin, (_, end, _) in zip(begun, marks)]
    ends = [begin - 0.05 for begin, _, _ in marks[1:]] + [last]
    quick = [quick_after(sent, gone, end) for (_, _, gone), end in zip(marks, ends)]
    free = sum(one.at(marks[0][0] - 0.05) for one in sent)
    assert free > FASTER * RATE * FREE, f"{free} bytes before there was a limit"
    return slowed, quick, used


def changes(wire, count, whose):
    """A limit comes and goes while processes send, in time."""
    slowed, quick, used = measured(wire, count, whose)
    what = f"limited after {slowed}, free after {quick}"
    assert min(slowed) <= AT_ONCE and max(slowed) < LIMITED - 0.05, what
    assert min(quick) <= AT_ONCE and max(quick) < FREE - 0.05, what
    assert min(used) > 1 / FASTER, f"{used} of the rate"
    return (f"within {max(slowed):.2f} s, gone within {max(quick):.2f} s, "
            f"{statistics.mean(used):.0%} of the rate")


def tenant(wire):
    """All processes of a tenant together."""
    return lambda: changes(wire, 2, lambda _: ["default"])


def process(wire):
    """One process."""
    return lambda: changes(wire, 1, lambda running: ["--pid", str(running[0].pid)])


def listed():
    """What is set is shown, and nothing is set for who is not there."""
    with one_host() as world:
        host = world.server
        flood = Flood(host, "shm", 1)
        pid = flood.running[0].pid
        limit(host, "default", "--messages", "1000", "--burst", "64 KiB")
        limit(host, "--pid", str(pid), "--bytes", "1 GiB")
        shown = json.loads(limit(host, "--json"))
        assert shown[0] == {"name": "default", "bytes": 0, "messages": 1000, "burst": 65536}, shown
        assert (shown[1]["pid"], shown[1]["bytes"]) == (pid, 1 << 30), shown
        limit(host, "--pid", str(pid), "--none")
        limit(host, "default", "--none")
        assert len(json.loads(limit(host, "--json"))) == 1
        for nobody in (["nobody"], ["--pid", "1"]):
            done = subprocess.run([CAUSEWAY, "limit", *nobody, "--none"], env=host.environment(),
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            assert done.returncode == 125, f"{nobody}: {done.returncode}, {done.stderr}"
        flood.end()


TESTS = [
    ("limits are listed", listed),
    ("a tenant's limit comes and goes, shm", tenant("shm")),
    ("a tenant's limit comes and goes, udp", tenant("udp")),
    ("a process's limit comes and goes, shm", process("shm")),
]
