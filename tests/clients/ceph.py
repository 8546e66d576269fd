"""Ceph: a monitor and its clients, whose messenger is `async+rdma`.

The monitor's store of keys takes and returns data of every size that it allows, which is compared.
There is no storage daemon: what travels is the messenger's, whoever uses it.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
import time

from clients import program
from lib import pair

# Bytes of a value; the monitor takes no more than the last.
SIZES = [1, 4096, 65536]
# Starts of a client, each with several connections.
STARTS = 5
# The level of an error in a monitor's own log.
ERROR = " -1 "
FSID = "6b8f9a36-5d1c-4c43-9d1f-0d3b6a1c9e77"
CONFIG = """
[global]
fsid = {fsid}
mon_host = [v2:{address}:{port}]
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
ms_type = async+rdma
ms_async_rdma_device_name = cway0
ms_async_rdma_receive_buffers = 1024
ms_async_rdma_send_buffers = 1024
ms_async_rdma_receive_queue_len = 256
run_dir = {folder}
log_file = {folder}/log
mon_cluster_log_file = /dev/null
mon_data = {folder}/mon
# A monitor ends at its start where the file system has less than this left: of a disk as large as
# this one's may be, a twentieth is far more than the test takes.
mon_data_avail_crit = 0
mon_data_avail_warn = 0
"""
NAMES = ["ceph status", "ceph config-key"]


class Monitor:
    """A cluster of one monitor."""

    def __init__(self, world, wire, port):
        self.host = world.server
        self.wire = wire
        self.folder = tempfile.mkdtemp(prefix="cwt-ceph-")
        self.config = os.path.join(self.folder, "ceph.conf")
        self.address = f"[v2:{self.host.address}:{port}]"
        with open(self.config, "w", encoding="ascii") as f:
            f.write(CONFIG.format(fsid=FSID, address=self.host.address, port=port,
                                  folder=self.folder))
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        self.process = None

    def set_up(self, seconds):
        """Makes the monitor's store and starts it; a problem, if any."""
        plan = os.path.join(self.folder, "monmap")
        store = os.path.join(self.folder, "mon")
        os.mkdir(store)
        for argv in (["monmaptool", "--create", "--fsid", FSID, "--addv", "a", self.address, plan],
                     ["ceph-mon", "--mkfs", "-i", "a", "--monmap", plan, "-c", self.config]):
            problem, text = program.run_alone(self.host, argv, None, seconds)
            if problem:
                return f"{argv[0]}: {problem}: {text}"
        self.process = self.host.popen(["ceph-mon", "-f", "-i", "a", "-c", self.config], self.wire,
                                       stdout=self.log, stderr=subprocess.STDOUT)
        if pair.wait_listening(self.process, time.monotonic() + seconds):
            return None
        if self.process.poll() is None:
            return "ceph-mon does not listen"
        return f"ceph-mon ended early: {pair.exit_text(self.process.returncode)}"

    def command(self, *words):
        """A client's command line."""
        return ["ceph", "-c", self.config, "--connect-timeout", "30", *words]

    def end(self):
        """Ends it; what it said."""
        if self.process:
            pair.end_group(self.process)
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        with contextlib.suppress(FileNotFoundError):
            with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as f:
                text += "".join(line for line in f if ERROR in line)
        shutil.rmtree(self.folder, ignore_errors=True)
        return text


def status(monitor, host, seconds):
    """Several clients come and go; the monitor has used queue pairs for them."""
    said = ""
    for _ in range(STARTS):
        problem, text = program.run_alone(host, monitor.command("-s"), monitor.wire, seconds)
        said += text
        if problem or "1 daemons, quorum a" not in text:
            return problem or "no quorum", said
    problem, text = program.run_alone(monitor.host, [monitor.host.program, "status"], None, seconds)
    row = next((line for line in text.splitlines() if "ceph-mon" in line), "")
    if not problem and monitor.wire not in row.split():
        problem = f"the monitor has no endpoint on {monitor.wire}"
    return problem, said + text


def keys(monitor, host, seconds):
    """Values of each size, written and read by clients of their own."""
    said = ""
    place = os.path.join(monitor.folder, "value")
    for size in SIZES:
        wanted = os.urandom(size)
        with open(place, "wb") as f:
            f.write(wanted)
        for words in (["set", f"test/{size}", "-i", place], ["get", f"test/{size}", "-o", place]):
            argv = monitor.command("config-key", *words)
            problem, text = program.run_alone(host, argv, monitor.wire, seconds)
            said += text
            if problem:
                return f"{' '.join(words)}: {problem}", said
        with open(place, "rb") as f:
            if f.read() != wanted:
                return f"a value of {size} bytes comes back changed", said
    return None, said


TESTS = dict(zip(NAMES, [status, keys]))


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each test against one monitor."""
    tests = [(name, test) for name, test in TESTS.items() if chosen(f"{stage} {name}")]
    if not tests:
        return
    monitor = Monitor(world, wire, next(ports))
    outcomes = []
    try:
        start = time.monotonic()
        broken = monitor.set_up(seconds)
        for name, test in tests:
            problem, text = (broken, "") if broken else test(monitor, world.client, seconds)
            outcomes.append((name, problem, time.monotonic() - start, text))
            start = time.monotonic()
    finally:
        said = monitor.end()
    for name, problem, took, text in outcomes:
        report.add(stage, name, problem, took, f"{text}\n--- monitor\n{said}")
