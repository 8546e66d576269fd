"""qperf: its tests of RC, UC and UD in one pair of processes; each figure counts as a test."""

import re

from lib import pair

# Seconds, qperf's least.
DURATION = "1"
# What a side may take to notice that the other is done, on a busy machine.
TIMEOUT = "30"
# qperf exchanges LIDs and nothing else, see docs/programs/qperf.md.
ENVIRONMENT = {"CAUSEWAY_LID": "1"}
NAME = "qperf"
NAMES = [NAME]
TESTS = """rc_lat rc_bw rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_bw
    rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr uc_lat uc_bw uc_bi_bw
    uc_rdma_write_lat uc_rdma_write_bw uc_rdma_write_poll_lat ud_lat ud_bw ud_bi_bw
    ver_rc_compare_swap ver_rc_fetch_add""".split()


# What qperf puts before a unit.
SCALE = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
# Datagrams may be lost. But who sends is to receive, too: at least this part of it.
RECEIVED_LEAST = 0.01


def figures(block):
    """The figures of one test, by name."""
    found = re.findall(r"^ +(\w+) += +([\d.]+) ([KMG]?)", block, re.M)
    return {name: float(figure) * SCALE[scale] for name, figure, scale in found}


def is_good(block):
    """Whether a test has figures, none of which is zero."""
    told = figures(block)
    if not told or not all(told.values()):
        return False
    return told.get("recv_bw", 1) >= RECEIVED_LEAST * told.get("send_bw", 0)


def missing_figures(tests, text):
    """The tests of which qperf tells no figure, or one that is as good as zero."""
    blocks = dict(re.findall(r"^(\w+):\n((?: +\w+ += +[\d.]+ [^\n]*\n)+)", text, re.M))
    return [name for name in tests if not is_good(blocks.get(name, ""))]


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs every test in one pair of processes, and has the server end."""
    if not chosen(f"{stage} {NAME}"):
        return
    port = ["-lp", str(next(ports))]
    client = ["qperf", world.server.address, *port, "-to", TIMEOUT, "-t", DURATION, *TESTS, "quit"]
    outcome = pair.Pair(world, wire, ["qperf", *port], client, env=ENVIRONMENT).run(seconds)
    missing = missing_figures(TESTS, outcome.client_text)
    problem = outcome.problem
    if missing:
        problem = f"{problem or 'no figures'}; missing: {' '.join(missing)}"
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add(stage, NAME, problem, outcome.seconds, text, len(TESTS) - len(missing), len(missing))
