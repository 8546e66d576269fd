"""iSCSI over RDMA: tgt as the target, libiscsi's tools and QEMU's as initiators.

What an initiator writes the target fetches by RDMA READ, and what it reads comes by RDMA WRITE; the
target's file is compared, too.
"""

import os
import re
import subprocess
import tempfile
import time

from clients import program
from lib import pair

TARGET = "iqn.2026-01.test:disk"
# The names by which the initiators call themselves: tgt admits none that it was not told of.
INITIATORS = ["iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq",
              "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-readcapacity16",
              "iqn.2010-11.libiscsi:iscsi-perf", "iqn.2008-11.org.linux-kvm"]
DISK_BYTES = 16 << 20
# libiscsi's own buffers are of 256 KiB; what is longer it refuses.
SIZES = [512, 4096, 65536, 131072, 262144]
STEP = 1 << 20
# Logins fail one by one where completions come in the wrong order: several are needed to see it.
LOGINS = 8
NAMES = ["iser iscsi-inq", "iser iscsi-readcapacity16", "iser qemu-io", "iser iscsi-perf"]


class Target:
    """tgtd with one disk, which begins with random bytes."""

    def __init__(self, world, wire, port):
        self.host = world.server
        self.port = port
        self.disk = tempfile.NamedTemporaryFile(prefix="cwt-iser-")
        self.disk.truncate(DISK_BYTES)
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        # It takes its place for data from the portal for TCP, which is not used, and from a pool.
        argv = ["tgtd", "-f", "-C", str(port), "--iscsi", f"portal={self.host.address}:{port}",
                "--iser", f"port={port},pool_sz_mb=32"]
        self.process = self.host.popen(argv, wire, stdout=self.log, stderr=subprocess.STDOUT)

    def set_up(self, deadline):
        """Makes the target; a problem, if any."""
        if not pair.wait_listening(self.process, deadline):
            return "tgtd does not listen"
        steps = [["--op", "new", "--mode", "target", "--tid", "1", "-T", TARGET],
                 ["--op", "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b",
                  self.disk.name],
                 ["--op", "bind", "--mode", "target", "--tid", "1", "-I", "ALL"]]
        steps += [["--op", "bind", "--mode", "target", "--tid", "1", "-Q", name]
                  for name in INITIATORS]
        for step in steps:
            argv = ["tgtadm", "-C", str(self.port), "--lld", "iser", *step]
            problem, text = program.run_alone(self.host, argv, None, 20)
            if problem:
                return f"{' '.join(argv)}: {problem}: {text}"
        return None

    @property
    def url(self):
        """What initiators are told."""
        return f"iser://{self.host.address}:{self.port}/{TARGET}/1"

    def end(self):
        """Ends it; what it said."""
        pair.end_group(self.process)
        for name in (f"socket.{self.port}", f"socket.{self.port}.lock"):
            try:
                os.unlink(os.path.join("/var/run/tgtd", name))
            except OSError:
                pass
        self.disk.close()
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        return text


def has(*patterns):
    """The problem of an output in which one of these is missing."""
    def expect(text):
        missing = [p for p in patterns if not re.search(p, text)]
        return f"no {', '.join(missing)} in its output" if missing else None
    return expect


def data(host, wire, target, seconds):
    """Writes files and patterns of every size; reads the patterns back, and looks at the disk."""
    with tempfile.NamedTemporaryFile(prefix="cwt-iser-") as source:
        wanted = os.urandom(max(SIZES))
        source.write(wanted)
        source.flush()
        script = []
        for i, size in enumerate(SIZES):
            at = 2 * i * STEP
            script += ["-c", f"write -s {source.name} {at} {size}",
                       "-c", f"write -P {i + 1} {at + STEP} {size}",
                       "-c", f"read -P {i + 1} {at + STEP} {size}"]
        argv = ["qemu-io", "-f", "raw", *script, "-c", "flush", target.url]
        problem, text = program.run_alone(host, argv, wire, seconds)
    problem = problem or pair.find_trouble([text])
    with open(target.disk.name, "rb") as disk:
        for i, size in enumerate(SIZES):
            disk.seek(2 * i * STEP)
            same = disk.read(size) == wanted[:size]
            disk.seek((2 * i + 1) * STEP)
            if not problem and not (same and disk.read(size) == bytes([i + 1]) * size):
                problem = f"the disk has not what was written: {size} bytes"
    reads = len(re.findall(r"^read (\d+)/\1 bytes", text, re.M))
    if not problem and reads != len(SIZES):
        problem = f"{reads} reads instead of {len(SIZES)}"
    return problem, text


def logins(host, wire, target, seconds):
    """Logs in and out several times."""
    said = ""
    for _ in range(LOGINS):
        problem, text = program.run_alone(host, ["iscsi-inq", target.url], wire, seconds)
        said += text
        problem = problem or has("VIRTUAL-DISK")(text)
        if problem:
            return problem, said
    return None, said


def alone(argv, expect):
    """A test that is one command, to which the address is added."""
    def test(host, wire, target, seconds):
        problem, text = program.run_alone(host, [*argv, target.url], wire, seconds)
        return problem or expect(text), text
    return test


TESTS = dict(zip(NAMES, [
    logins, alone(["iscsi-readcapacity16"], has(f"Total size:{DISK_BYTES}")), data,
    alone(["iscsi-perf", "-t", "1"], has(r"iops average [1-9]", "finished"))]))


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each initiator against one target."""
    tests = [(name, test) for name, test in TESTS.items() if chosen(f"{stage} {name}")]
    if not tests:
        return
    target = Target(world, wire, next(ports))
    outcomes = []
    try:
        broken = target.set_up(time.monotonic() + seconds)
        for name, test in tests:
            start = time.monotonic()
            problem, text = (broken, "") if broken else test(world.client, wire, target, seconds)
            outcomes.append((name, problem, time.monotonic() - start, text))
    finally:
        said = target.end()
    for name, problem, took, text in outcomes:
        report.add(stage, name, problem, took, f"{text}\n--- target\n{said}")
