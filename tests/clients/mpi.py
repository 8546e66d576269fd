"""OpenMPI and MPICH over UCX: four ranks of one host, or of two, exchange data and verify it, over
queue pairs.

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
# In place of a remote shell: what a launcher calls with the name of a host and a command.
AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec ip netns exec %s env CAUSEWAY_RUNTIME_DIR=%s PATH="$PATH" sh -c "$*"
"""
ENVIRONMENT = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "cway0:1"}
NAMES = [f"{name}, {RANKS} ranks" for name in LAUNCHERS]
EXCHANGED = re.compile(rf"{RANKS} ranks exchanged (\d+) bytes")


def endpoints(host):
    """The endpoints of a host's ranks, as `causeway status` tells them."""
    text = subprocess.run([netns.CAUSEWAY, "status", "--json"], env=host.environment(),
                          stdout=subprocess.PIPE, text=True, check=False).stdout
    found = json.loads(text)["endpoints"]
    return [e for e in found if e["command"].startswith("exchange")]


def judge(hosts, exchanged):
    """What speaks against all having gone over queue pairs."""
    found = [endpoint for host in hosts for endpoint in endpoints(host)]
    if len(found) != RANKS:
        return f"{len(found)} ranks are attached"
    sent = sum(e["counters"]["tx_bytes"] for e in found)
    if sent < exchanged:
        return f"{exchanged} bytes were exchanged, and {sent} sent by queue pairs"
    return None


def across(name, world, folder):
    """What has half of the ranks run on the world's other host."""
    there = world.client
    agent = os.path.join(folder, "agent")
    with open(agent, "w", encoding="ascii") as f:
        f.write(AGENT % (there.netns, there.runtime_dir))
    os.chmod(agent, 0o755)
    here, half = world.server.address, RANKS // 2
    if name == "openmpi":
        exports = [word for key in ENVIRONMENT for word in ("-x", key)]
        return ["--host", f"{here}:{half},{there.address}:{half}", *exports, "--mca",
                "plm_rsh_agent", agent, "--mca", "oob_tcp_if_include", netns.LINK]
    return ["-launcher", "rsh", "-launcher-exec", agent, "-ppn", str(half), "-hosts",
            f"{here},{there.address}", "-iface", netns.LINK]


def run_one(hosts, wire, seconds, launcher, program, go_on):
    """Runs the ranks; what is wrong, and their output."""
    argv = [*launcher, netns.CAUSEWAY, "run", "--wire", wire, "--", program, go_on]
    process = hosts[0].popen(argv, None, ENVIRONMENT, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    expiry = threading.Timer(seconds, pair.end_group, [process])
    expiry.start()
    problem, lines = "the ranks tell of no exchange", []
    for line in process.stdout:
        lines.append(line)
        told = EXCHANGED.search(line)
        if told:
            problem = judge(hosts, int(told[1]))
            with open(go_on, "w", encoding="ascii"):
                pass
    code = process.wait()
    expiry.cancel()
    if code:
        problem = f"{problem or 'failed'}; {pair.exit_text(code)}"
    return problem, "".join(lines)


def run(report, stage, world, wire, seconds, _ports, chosen):
    """Runs the program of each implementation."""
    one = world.client is world.server
    hosts = [world.server] if one else [world.server, world.client]
    for name, title in zip(LAUNCHERS, NAMES):
        if not chosen(f"{stage} {title}"):
            continue
        start = time.monotonic()
        program = os.path.join(netns.BUILD, "test", f"exchange.{name}")
        with tempfile.TemporaryDirectory(prefix="cwt-mpi-") as folder:
            launcher = LAUNCHERS[name] + ([] if one else across(name, world, folder))
            problem, text = run_one(hosts, wire, seconds, launcher, program,
                                    os.path.join(folder, "go"))
        report.add(stage, title, problem, time.monotonic() - start, text)
