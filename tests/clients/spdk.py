"""SPDK's NVMe over fabrics: its target and its initiators, with what was written verified.

SPDK is in no distribution that the tests run on: `CAUSEWAY_SPDK` names a source tree of it in which
it was built with RDMA (docs/programs/spdk.md).
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import time

from clients import datagrams, program
from lib import pair

TREE = "CAUSEWAY_SPDK"
PROGRAMS = {"target": "build/bin/nvmf_tgt", "identify": "build/bin/spdk_nvme_identify",
            "perf": "build/bin/spdk_nvme_perf", "bdevperf": "build/examples/bdevperf"}
SUBSYSTEM = "nqn.2026-11.org.causeway:test"
SERIAL = "CAUSEWAY"
DISK_BYTES = 64 << 20
# Of a block; then what fits a capsule, what does not, and what is split into several requests.
SIZES = [512, 4096, 65536, 1 << 20]
VERIFY_SECONDS = 2
# Long enough that the target is killed, comes back, and serves.
KILLED_SECONDS = 20
PERF_REQUESTS = 2000
# Without claims to processors and PCI devices, and with MiB of memory that is not huge pages.
PLAIN = ["--disable-cpumask-locks", "-u", "--no-huge", "-s", "512", "--iova-mode", "va"]
# How long a controller is sought that is gone, and how often.
ABSENT_SECONDS = 120
AGAIN_SECONDS = 1
# How long bdevperf waits for an answer while it connects. A target that has to share its processor
# may need longer than SPDK's own 0.5 s and 1 s.
PATIENCE_SECONDS = 60
POLL_SECONDS = 0.005
IDENTIFY, PERF, PERF_SRQ, VERIFY, VERIFY_NO_SRQ, KILLED = NAMES = [
    "spdk, identify", "spdk, perf", "spdk, perf with a shared receive queue", "spdk, verify",
    "spdk, verify without the target's", "spdk, killed"]


def path(name):
    """Where a program of SPDK is."""
    return os.path.join(os.environ[TREE], PROGRAMS[name])


def prepare():
    """Whether SPDK is there; a problem, if not."""
    if not os.environ.get(TREE):
        return f"{TREE} is not set: it names a tree in which SPDK was built with RDMA"
    missing = [name for name in PROGRAMS if not os.access(path(name), os.X_OK)]
    return f"no {', '.join(map(path, missing))}" if missing else None


def configuration(**subsystems):
    """A configuration of an SPDK program: for each subsystem its calls, as (method, params)."""
    return json.dumps({"subsystems": [
        {"subsystem": name,
         "config": [{"method": method, "params": params} for method, params in calls]}
        for name, calls in subsystems.items()]})


def core(last):
    """A program's processor, which it never leaves idle: the target has one, initiators another."""
    cores = sorted(os.sched_getaffinity(0))
    return hex(1 << cores[-1 if last else 0])


class Fabric:
    """A target with a disk in a file, and those who use it."""

    def __init__(self, world, wire, port):
        self.world = world
        self.wire = wire
        self.port = port
        self.folder = tempfile.mkdtemp(prefix="cwt-spdk-")
        self.disk = os.path.join(self.folder, "disk")
        with open(self.disk, "wb") as f:
            f.truncate(DISK_BYTES)
        self.where = {"trtype": "RDMA", "adrfam": "IPv4", "traddr": world.server.address,
                      "trsvcid": str(port)}
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = None

    def place(self, name, text):
        """A file that holds a text; its path."""
        file = os.path.join(self.folder, name)
        with open(file, "w", encoding="ascii") as f:
            f.write(text)
        return file

    def start(self, seconds, srq=True):
        """Starts the target; a problem, if any."""
        subsystem = {"nqn": SUBSYSTEM}
        text = configuration(
            bdev=[("bdev_aio_create",
                   {"name": "Disk", "filename": self.disk, "block_size": SIZES[0]})],
            nvmf=[("nvmf_create_transport", {"trtype": "RDMA", "no_srq": not srq}),
                  ("nvmf_create_subsystem",
                   {**subsystem, "allow_any_host": True, "serial_number": SERIAL}),
                  ("nvmf_subsystem_add_ns",
                   {**subsystem, "namespace": {"nsid": 1, "bdev_name": "Disk"}}),
                  ("nvmf_subsystem_add_listener",
                   {**subsystem, "listen_address": self.where})])
        argv = [path("target"), "-m", core(last=False), *PLAIN,
                "-r", os.path.join(self.folder, "target.sock"),
                "-c", self.place("target.json", text)]
        self.process = self.world.server.popen(argv, self.wire, stdout=self.log,
                                               stderr=subprocess.STDOUT)
        if pair.wait_listening(self.process, time.monotonic() + seconds,
                               datagrams.owns_udp_port(self.port)):
            return None
        if self.process.poll() is None:
            return "the target does not listen"
        return f"the target ended early: {pair.exit_text(self.process.returncode)}"

    def transport(self):
        """The disk, as identify and perf name it."""
        return " ".join(f"{k}:{v}" for k, v in {**self.where, "subnqn": SUBSYSTEM}.items())

    def alone(self, argv, seconds):
        """Runs an initiator to its end: its problem and what it printed."""
        return program.run_alone(self.world.client, argv, self.wire, seconds)

    def bdevperf(self, size, depth, seconds):
        """The command line that writes blocks and verifies them."""
        text = configuration(bdev=[
            ("bdev_nvme_set_options",
             {"bdev_retry_count": -1, "rdma_cm_event_timeout_ms": PATIENCE_SECONDS * 1000}),
            ("bdev_nvme_attach_controller",
             {**self.where, "name": "Nvme0", "subnqn": SUBSYSTEM,
              "fabrics_connect_timeout_us": PATIENCE_SECONDS * 1000000,
              "ctrlr_loss_timeout_sec": ABSENT_SECONDS, "reconnect_delay_sec": AGAIN_SECONDS})])
        return [path("bdevperf"), "-m", core(last=True), *PLAIN,
                "-r", os.path.join(self.folder, "bdevperf.sock"),
                "-c", self.place("bdevperf.json", text), "-w", "verify", "-o", str(size),
                "-q", str(depth), "-t", str(seconds)]

    def end(self):
        """Ends the target; what it said."""
        if self.process:
            pair.end_group(self.process)
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return text


def identify(fabric, seconds):
    """The controller says who it is."""
    problem, text = fabric.alone([path("identify"), "--no-huge", "-r", fabric.transport()],
                                 seconds)
    if not problem and not re.search(rf"Serial Number: +{SERIAL}$", text, re.M):
        problem = "no serial number of the controller"
    return problem, text


def perf(*options):
    """Reads and writes of 4 KiB."""
    def test(fabric, seconds):
        problem, text = fabric.alone(
            [path("perf"), "--no-huge", "-s", "256", "-c", core(last=True), "-q", "16", "-o",
             "4096", "-w", "randrw", "-M", "50", "-t", str(int(seconds)), "-d",
             str(PERF_REQUESTS), *options, "-r", fabric.transport()], seconds)
        if not problem and not re.search(r"^Total +: +[\d.]+ ", text, re.M):
            problem = "no figures"
        return problem, text
    return test


def verified(text):
    """A problem of a run of bdevperf, if any: its row tells IO/s, MiB/s, failures, timeouts."""
    row = re.search(r"^\s*Nvme0n1\s+: +[\d.]+ +([\d.]+) +[\d.]+ +([\d.]+) +([\d.]+) ", text, re.M)
    if not row:
        return "no figures"
    done, failed, late = map(float, row.groups())
    return None if done > 0 and failed == late == 0 else f"failures: {row.group(0).strip()}"


def verify(fabric, seconds):
    """Blocks of each size, written, read and compared."""
    said = ""
    for size in SIZES:
        problem, text = fabric.alone(fabric.bdevperf(size, 16, VERIFY_SECONDS), seconds)
        said += f"--- {size}\n{text}"
        problem = problem or verified(text)
        if problem:
            return f"{size} bytes: {problem}", said
    return None, said


def killed(fabric, seconds):
    """The target is killed while it writes; its successor serves what is left, and what was."""
    deadline = time.monotonic() + seconds
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = fabric.world.client.popen(fabric.bdevperf(4096, 16, KILLED_SECONDS), fabric.wire,
                                            stdout=out, stderr=subprocess.STDOUT)
        try:
            problem = kill_and_return(fabric, process, deadline)
        finally:
            pair.end_group(process)
        out.seek(0)
        text = out.read()
    problem = problem or verified(text)
    if not problem and not re.search(r"Resetting controller successful", text):
        problem = "the initiator was not reconnected"
    return problem, text


def kill_and_return(fabric, process, deadline):
    """Kills the target once it has written, starts it again; whether the initiator ends well."""
    while os.stat(fabric.disk).st_blocks == 0:
        if process.poll() is not None or time.monotonic() > deadline:
            return "nothing was written"
        time.sleep(POLL_SECONDS)
    pair.end_group(fabric.process)
    problem = fabric.start(deadline - time.monotonic())
    if problem:
        return problem
    try:
        code = process.wait(deadline - time.monotonic())
    except subprocess.TimeoutExpired:
        return "the initiator hangs"
    return pair.exit_text(code) if code else None


TESTS = {IDENTIFY: identify, PERF: perf(), PERF_SRQ: perf("--rdma-srq-size", "256"),
         VERIFY: verify, VERIFY_NO_SRQ: verify, KILLED: killed}


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each test with a target of its own."""
    for name, test in TESTS.items():
        if not chosen(f"{stage} {name}"):
            continue
        fabric = Fabric(world, wire, next(ports))
        start = time.monotonic()
        try:
            problem, text = fabric.start(seconds, srq=name != VERIFY_NO_SRQ), ""
            if not problem:
                problem, text = test(fabric, seconds)
        finally:
            said = fabric.end()
        report.add(stage, name, problem, time.monotonic() - start, f"{text}\n--- target\n{said}")
