"""Peers that are held up for longer than any retry budget: stopped, frozen, or of a stranger's."""

import os
import re
import signal
import subprocess
import time

from kill.harness import UDP_SECONDS, Failed, expect_progress
from lib import netns, pair

# Longer than the budget of these programs, which is 4 s, by more than it is found late.
HELD_SECONDS = 7.0
# By version of control groups: where they may be mounted, the file that freezes one, and its words.
FREEZERS = {1: (("/sys/fs/cgroup/freezer",), "freezer.state", "FROZEN", "THAWED"),
            2: (("/sys/fs/cgroup", "/sys/fs/cgroup/unified"), "cgroup.freeze", "1", "0")}


class Contained(netns.Host):
    """A host whose programs have PID namespaces of their own, as those of containers have."""

    def command(self, argv, wire=None):
        return ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc",
                *super().command(argv, wire)]


def strangers():
    """Two sides of one user, with one broker, that do not trust each other."""
    server = netns.Host("held", "127.0.0.1")
    return netns.World("strangers",
                       (server, Contained("held", "127.0.0.1", runtime_dir=server.runtime_dir)))


def inner(program):
    """The process in the container."""
    pid = program.process.pid
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])


class Freezer:
    """A control group that one process is put into."""

    def __init__(self, version, pid):
        roots, self.file, self.on, self.off = FREEZERS[version]
        for root in roots:
            self.path = os.path.join(root, f"cwt-{os.getpid()}")
            self.home = os.path.join(root, "cgroup.procs")
            try:
                os.mkdir(self.path)
            except OSError:
                continue
            try:
                self.write("cgroup.procs", str(pid))
                self.write(self.file, self.off)
                return
            except OSError:
                os.rmdir(self.path)
        raise NotImplementedError(f"no group of version {version} can be made that freezes")

    def write(self, name, text):
        """Writes to one of its files."""
        # Never made: where no such groups are mounted, a directory may be all that there is.
        fd = os.open(os.path.join(self.path, name), os.O_WRONLY)
        try:
            os.write(fd, text.encode("ascii"))
        finally:
            os.close(fd)

    def freeze(self):
        """Holds the process up."""
        self.write(self.file, self.on)

    def thaw(self):
        """Lets it go on."""
        self.write(self.file, self.off)

    def remove(self, pid):
        """Takes the process out of it, and removes it."""
        with open(self.home, "w", encoding="ascii") as file:
            file.write(str(pid))
        os.rmdir(self.path)


def stopped_long(bench, victim, *options):
    """A trusted peer is stopped, and waited for."""
    both = bench.traffic(*options)
    both[victim].signal(signal.SIGSTOP)
    time.sleep(HELD_SECONDS)
    said = [program.text for program in both if "failed" in program.text]
    both[victim].signal(signal.SIGCONT)
    if said:
        raise Failed(f"while a trusted peer was stopped: {said}")
    expect_progress(both, f"after a stop of {HELD_SECONDS} s")
    return ""


def frozen_long(bench, version, victim, *options):
    """A trusted peer is frozen with its control group, and waited for."""
    both = bench.traffic(*options)
    pid = both[victim].process.pid
    try:
        freezer = Freezer(version, pid)
    except NotImplementedError as error:
        return f"NOT TRIED: {error}"
    try:
        freezer.freeze()
        time.sleep(HELD_SECONDS)
        said = [program.text for program in both if "failed" in program.text]
        freezer.thaw()
        if said:
            raise Failed(f"while a trusted peer was frozen: {said}")
        expect_progress(both, f"after {HELD_SECONDS} s in the freezer")
    finally:
        freezer.thaw()
        freezer.remove(pid)
    return f"by {freezer.file}"


def traced_long(bench, victim, *options):
    """A debugger looks at a trusted peer for long."""
    both = bench.traffic(*options)
    debugger = ["gdb", "-p", str(both[victim].process.pid), "-batch",
                "-ex", f"shell sleep {HELD_SECONDS}"]
    subprocess.run(debugger, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    expect_progress(both, f"after {HELD_SECONDS} s in a debugger")
    return ""


def stopped_stranger(bench, *options):
    """A peer that is not trusted is stopped: requests fail as if it were gone."""
    both = bench.traffic(*options)
    start = time.monotonic()
    pid = inner(both[1])
    os.kill(pid, signal.SIGSTOP)
    try:
        status = both[0].wait_end(UDP_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)
    took = time.monotonic() - start
    exceeded = re.search(r"^failed 0 .*retry counter exceeded$", both[0].text, re.MULTILINE)
    if status != 0 or not exceeded or "drained 0" not in both[0].text:
        raise Failed(f"the survivor ends with {pair.exit_text(status)}: {both[0].text[-500:]}")
    return f"failed after {took:.2f} s"


def endless_stranger(bench, *options):
    """A peer that is not trusted is stopped, and the program has set no time-out: it is waited
    for."""
    both = bench.traffic("--no-timeout", *options)
    pid = inner(both[1])
    os.kill(pid, signal.SIGSTOP)
    time.sleep(HELD_SECONDS)
    said = [program.text for program in both if "failed" in program.text]
    os.kill(pid, signal.SIGCONT)
    if said:
        raise Failed(f"without a time-out: {said}")
    expect_progress(both, f"after a stop of {HELD_SECONDS} s")
    return ""


SIDES = ("server", "client")


def trusting_cases():
    """Name, function and arguments of every test between processes that trust each other."""
    for victim, side in enumerate(SIDES):
        yield f"{side} stopped for long", stopped_long, victim
        yield f"{side} stopped for long, the other asleep", stopped_long, victim, "--events"
    for version in FREEZERS:
        yield f"server frozen for long, groups version {version}", frozen_long, version, 0
    yield "server in a debugger for long", traced_long, 0, "--events"


def stranger_cases():
    """The same of those who do not."""
    yield "a stranger stopped", stopped_stranger
    yield "a stranger stopped, the other asleep", stopped_stranger, "--events"
    yield "a stranger stopped, no time-out", endless_stranger
    yield "a stranger stopped, no time-out, the other asleep", endless_stranger, "--events"
