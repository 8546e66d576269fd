"""UCX: what it finds on the device, every test of ucx_perftest over each of its transports, and
clients and a server that find each other by address, through rdma_cm.

The tests of a transport run in one pair of processes, from a batch file; each test's line of
figures counts as a test. What a transport lacks UCX refuses by itself, and that is tested too.
No packaged program of UCX listens through rdma_cm: tests/ucx/by_address.c does.
"""

import os
import re
import tempfile
import time

from clients import datagrams, program
from lib import netns, pair

INFO = "ucx_info -d"
DEVICE = "cway0:1"
ITERATIONS = "300"
WARMUP = "10"
BULK = "-s 65536 -n 100"
SHORT_BULK = "-s 2048"

# Lines of a batch file: a name, and the options of ucx_perftest. UCX's lower layer, which names a
# transport, first.
ACTIVE_MESSAGES = {
    "am_short_lat": "-t am_lat -D short",
    "am_bcopy_lat": "-t am_lat -D bcopy",
    "am_zcopy_lat": "-t am_lat -D zcopy",
    "am_bcopy_bw": f"-t am_bw -D bcopy {SHORT_BULK}",
    "am_zcopy_bw": f"-t am_bw -D zcopy {SHORT_BULK}",
}
MEMORY = {
    "put_short_lat": "-t put_lat -D short",
    "put_bcopy_lat": "-t put_lat -D bcopy",
    "put_zcopy_lat": "-t put_lat -D zcopy",
    "put_bcopy_bw": f"-t put_bw -D bcopy {SHORT_BULK}",
    "put_zcopy_bw": f"-t put_bw -D zcopy {BULK}",
    "get_bcopy": "-t get -D bcopy",
    "get_zcopy": f"-t get -D zcopy {BULK}",
    "add_lat": "-t add_lat",
    "add_mr": "-t add_mr",
    "fadd": "-t fadd",
    "cswap": "-t cswap",
}
# The verbs have no unconditional swap, and UCX makes none of compare-and-swap at this layer.
SWAP = {"swap": "-t swap"}
# The upper layer, which makes of any transport what it lacks.
PROTOCOLS = {
    "tag_lat": "-t tag_lat",
    "tag_bw": f"-t tag_bw {BULK}",
    "tag_sync_lat": "-t tag_sync_lat",
    "tag_sync_bw": "-t tag_sync_bw",
    "ucp_put_lat": "-t ucp_put_lat",
    "ucp_put_bw": f"-t ucp_put_bw {BULK}",
    "ucp_get": f"-t ucp_get {BULK}",
    "ucp_add": "-t ucp_add",
    "ucp_fadd": "-t ucp_fadd",
    "ucp_swap": "-t ucp_swap",
    "ucp_cswap": "-t ucp_cswap",
    "stream_bw": "-t stream_bw",
    "stream_lat": "-t stream_lat",
    "ucp_am_lat": "-t ucp_am_lat",
    "ucp_am_bw": "-t ucp_am_bw",
}


class Batch:
    """Tests of one transport: `tls` for the upper layer, `transport` for the lower one."""

    def __init__(self, name, tests, tls, transport=None, refused=False):
        self.name = f"ucx_perftest, {name}"
        self.tests = tests
        self.tls = tls
        self.layer = ["-d", DEVICE, "-x", transport] if transport else []
        self.refused = refused


BATCHES = [
    Batch("rc_verbs, upper layer", PROTOCOLS, "rc_v,self"),
    Batch("ud_verbs, upper layer", PROTOCOLS, "ud_verbs,self"),
    Batch("rc_verbs, lower layer", {**ACTIVE_MESSAGES, **MEMORY}, "rc_v,self", "rc_verbs"),
    Batch("ud_verbs, lower layer", ACTIVE_MESSAGES, "ud_verbs,self", "ud_verbs"),
    Batch("rc_verbs, refused by UCX", SWAP, "rc_v,self", "rc_verbs", refused=True),
    Batch("ud_verbs, refused by UCX", {**MEMORY, **SWAP}, "ud_verbs,self", "ud_verbs",
          refused=True),
]
BY_ADDRESS = "UCX, a server that listens by address"
PROGRAM = os.path.join(netns.BUILD, "test", "ucx_by_address")
# Without a priority UCX tries TCP for what comes before the queue pair.
RDMA_CM = {"UCX_SOCKADDR_TLS_PRIORITY": "rdmacm", "UCX_TLS": "rc_v", "UCX_NET_DEVICES": DEVICE}
NAMES = [INFO, BY_ADDRESS] + [batch.name for batch in BATCHES]


def finds(text):
    """ucx_info tells of each transport and its device."""
    found = re.findall(r"Transport: (\S+)\s*\n# +Device: (\S+)", text)
    missing = [t for t in ("rc_verbs", "ud_verbs") if (t, DEVICE) not in found]
    return f"not found on {DEVICE}: {missing}" if missing else None


def missing_rows(batch, text):
    """The tests that have no line of figures."""
    # An interval without a finished exchange has an average of "inf".
    rows = re.findall(r"^ *(\w+) +\d+(?: +(?:[\d.]+|inf)){7}$", text, re.M)
    return [name for name in batch.tests if name not in rows]


def judge(batch, outcome):
    """What is wrong with a batch, and how many of its tests have failed."""
    missing = missing_rows(batch, outcome.client_text)
    if batch.refused:
        refused = len(re.findall(r"does not support", outcome.client_text))
        wrong = len(batch.tests) - min(refused, len(missing))
        return (f"UCX has not refused {wrong} tests" if wrong else outcome.problem), wrong
    if missing:
        return f"{outcome.problem or 'no figures'}; missing: {' '.join(missing)}", len(missing)
    return outcome.problem, 0


def run_batch(report, stage, world, wire, seconds, port, batch):
    """Runs the tests of a batch in one pair of processes."""
    with tempfile.NamedTemporaryFile("w", prefix="cwt-ucx-") as file:
        file.writelines(f"{name} {options}\n" for name, options in batch.tests.items())
        file.flush()
        both = ["ucx_perftest", "-p", str(port), *batch.layer, "-b", file.name]
        client = [*both, world.server.address, "-f", "-n", ITERATIONS, "-w", WARMUP]
        env = {"UCX_TLS": batch.tls, "UCX_NET_DEVICES": DEVICE}
        outcome = pair.Pair(world, wire, both, client, env=env).run(
            seconds, words=not batch.refused)
    problem, failed = judge(batch, outcome)
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add(stage, batch.name, problem, outcome.seconds, text,
               len(batch.tests) - failed, failed)


def came_back(text):
    """The client has got back what it sent, over a queue pair of the device."""
    if not re.search(r"^\d+ bytes came back$", text, re.M):
        return "nothing came back"
    return None if f"rc_verbs/{DEVICE}" in text else "not over rc_verbs"


def run_by_address(report, stage, world, wire, seconds, port):
    """A listener on all addresses, and a client that connects by one."""
    program.run_one(report, stage, world, wire, seconds, program.Program(
        BY_ADDRESS, [PROGRAM, "server", str(port), "1"],
        [PROGRAM, "client", world.server.address, str(port)], datagrams.owns_udp_port(port),
        came_back, RDMA_CM))


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs every batch on one pair of hosts."""
    if chosen(f"{stage} {INFO}"):
        start = time.monotonic()
        problem, text = program.run_alone(world.server, INFO.split(), wire, seconds)
        report.add(stage, INFO, problem or finds(text), time.monotonic() - start, text)
    for batch in BATCHES:
        if chosen(f"{stage} {batch.name}"):
            run_batch(report, stage, world, wire, seconds, next(ports), batch)
    if chosen(f"{stage} {BY_ADDRESS}"):
        run_by_address(report, stage, world, wire, seconds, next(ports))
