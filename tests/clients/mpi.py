"""OpenMPI and MPICH over UCX: four ranks of one host exchange data and verify it, over queue pairs.

That nothing went another way the endpoints' counters show, while the ranks wait for a file.
"""

import json
import os
import re
import subprocess
import tempfile
import threading
import time

from lib import netns, pair

RANKS = 4
# More ranks than processors: ranks that wait give way.
OPENMPI = ["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", str(RANKS), "--mca",
           "pml", "ucx", "--mca", "btl", "self", "--mca", "osc", "ucx", "--mca",
           "mpi_yield_when_idle", "1"]
# Ranks of one host do without MPICH's own shared memory.
MPICH = ["mpiexec.hydra", "-n", str(RANKS), "-genv", "MPIR_CVAR_NOLOCAL", "1"]
LAUNCHERS = {"openmpi": OPENMPI, "mpich": MPICH}
ENVIRONMENT = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "cway0:1"}
NAMES = [f"{name}, {RANKS} ranks" for name in LAUNCHERS]
# Where both sides are one host.
WIRE = "shm"
EXCHANGED = re.compile(rf"{RANKS} ranks exchanged (\d+) bytes")


def endpoints(host):
    """The endpoints of the ranks, as `causeway status` tells them."""
    text = subprocess.run([netns.CAUSEWAY, "status", "--json"], env=host.environment(),
                          stdout=subprocess.PIPE, text=True, check=False).stdout
    found = json.loads(text)["endpoints"]
    return [e for e in found if e["command"].startswith("exchange")]


def judge(host, exchanged):
    """What speaks against all having gone over queue pairs."""
    found = endpoints(host)
    if len(found) != RANKS:
        return f"{len(found)} ranks are attached"
    sent = sum(e["counters"]["tx_bytes"] for e in found)
    if sent < exchanged:
        return f"{exchanged} bytes were exchanged, and {sent} sent by queue pairs"
    return None


def run_one(host, wire, seconds, launcher, program, go_on):
    """Runs the ranks; what is wrong, and their output."""
    argv = [*launcher, netns.CAUSEWAY, "run", "--wire", wire, "--", program, go_on]
    process = host.popen(argv, None, ENVIRONMENT, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    expiry = threading.Timer(seconds, pair.end_group, [process])
    expiry.start()
    problem, lines = "the ranks tell of no exchange", []
    for line in process.stdout:
        lines.append(line)
        told = EXCHANGED.search(line)
        if told:
            problem = judge(host, int(told[1]))
            with open(go_on, "w", encoding="ascii"):
                pass
    code = process.wait()
    expiry.cancel()
    if code:
        problem = f"{problem or 'failed'}; {pair.exit_text(code)}"
    return problem, "".join(lines)


def run(report, stage, world, wire, seconds, _ports, chosen):
    """Runs the program of each implementation."""
    for name, title in zip(LAUNCHERS, NAMES):
        if wire != WIRE or not chosen(f"{stage} {title}"):
            continue
        start = time.monotonic()
        program = os.path.join(netns.BUILD, "test", f"exchange.{name}")
        with tempfile.TemporaryDirectory(prefix="cwt-mpi-") as folder:
            problem, text = run_one(world.server, wire, seconds, LAUNCHERS[name], program,
                                    os.path.join(folder, "go"))
        report.add(stage, title, problem, time.monotonic() - start, text)
