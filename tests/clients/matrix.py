"""The distribution's own programs over Causeway: every tool, every option it has, both wires."""

import itertools
import os
import re
import subprocess
import time

from clients import (ceph, datagrams, fio, iser, libfabric, migration, mpi, pyverbs, qperf,
                     rsockets, secured, transfer, ucx)
from lib import netns, pair, perftest

# A run that is silent for longer hangs. The slowest takes a few seconds where both sides have a
# processor each; where twenty programs want one, 20,000 exchanges have taken more than 90.
LIMIT_SECONDS = float(os.environ.get("CAUSEWAY_TEST_SECONDS", "300"))
# perftest's own numbers of exchanges are meant for hardware. Only CAUSEWAY_TEST_FULL=1 keeps them.
FULL = os.environ.get("CAUSEWAY_TEST_FULL") == "1"
# Of a run with -a, for each size: bandwidth is measured with up to 100 under way, and a latency by
# one exchange after another.
ALL_SIZES_BW = ["-n", "100"]
ALL_SIZES_LAT = ["-n", "25"]
# Of `ib_write_bw -q 16`, for each queue pair; its own number is five times that of other tools.
MANY_PAIRS_WRITES = ["-n", "1000"]
# Sizes of a run with -a: 2 to 2^23.
ALL_SIZES = [str(1 << n) for n in range(1, 24)]
DEVICE = "cway0"
# Programs that are not tables of options, and where they run.
SUITES = (datagrams, rsockets, libfabric, ucx, qperf, fio, mpi, transfer, iser, ceph,
          migration)
SUITE_STAGES = ("shm", "udp-1500", secured.STAGE)
# Where the suite of pyverbs runs: both ends are one process, or two of one host.
PYVERBS_STAGE = "shm"

ports = itertools.count(18600)


class Case:
    """A program with its options, and what its output must show."""

    def __init__(self, tool, options, expect):
        self.tool = tool
        self.options = options
        self.expect = expect

    @property
    def name(self):
        """The command line as a person would type it."""
        return " ".join([self.tool, *self.options])

    def argv(self, server=None):
        """The server's command line, or the client's if `server` is an address."""
        port = ["-p", str(self.port)]
        # Line by line, so that the record of a hung program shows how far it came.
        return ["stdbuf", "-oL", self.tool, *self.options, *port] + ([server] if server else [])


def pingpong_rows(text):
    """ibv_*_pingpong ends with two lines of figures."""
    if re.search(r"^\d+ bytes in [\d.]+ seconds", text, re.M) and \
            re.search(r"^\d+ iters in [\d.]+ seconds", text, re.M):
        return None
    return "no figures in the client's output"


def perftest_rows(sizes):
    """perftest prints one row of figures per size."""
    def expect(text):
        found = perftest.sizes(text)
        if found != sizes:
            return f"rows for sizes {' '.join(found) or 'none'}, wanted {' '.join(sizes)}"
        return None
    return expect


def pingpong_cases(one_host):
    """The pingpong programs of rdma-core."""
    variants = [[], ["-c"], ["-e"], ["-s", "1"], ["-s", "1048576"], ["-m", "4096"],
                ["-n", "20000"]]
    cases = [Case("ibv_rc_pingpong", ["-g", "0", *v], pingpong_rows) for v in variants]
    for tool in ("ibv_uc_pingpong", "ibv_ud_pingpong"):
        few = [v for v in variants if "1048576" not in v or "uc" in tool]
        cases += [Case(tool, ["-g", "0", *v], pingpong_rows) for v in few
                  if tool == "ibv_uc_pingpong" or "-m" not in v]
    cases.append(Case("ibv_srq_pingpong", ["-g", "0"], pingpong_rows))
    if one_host:
        cases.append(Case("ibv_rc_pingpong", [], pingpong_rows))
    return cases


# Which options a tool has: see its --help. -F silences a word about frequency scaling.
TOOLS = {
    "ib_write_lat": "aI",
    "ib_write_bw": "abqI",
    "ib_read_lat": "ae",
    "ib_read_bw": "abqe",
    "ib_send_lat": "aeIs",
    "ib_send_bw": "abqeIs",
    "ib_atomic_lat": "e",
    "ib_atomic_bw": "bqe",
}
OPTIONS = {
    "a": ["-a"],
    "b": ["-b"],
    "q": ["-q", "16"],
    "e": ["-e"],
    "I": ["-I", "64"],
    "s": ["--use-srq"],
}


def iterations(tool, letter):
    """How many exchanges a run with an option is told to make; perftest's own number if none."""
    if FULL:
        return []
    if letter == "a":
        return ALL_SIZES_BW if "bw" in tool else ALL_SIZES_LAT
    return MANY_PAIRS_WRITES if (tool, letter) == ("ib_write_bw", "q") else []


def perftest_cases():
    """Each perftest tool plain, and with each option it has."""
    cases = []
    for tool, letters in TOOLS.items():
        default = ["8"] if "atomic" in tool else (["65536"] if "bw" in tool else ["2"])
        cases.append(Case(tool, ["-F"], perftest_rows(default)))
        for letter in letters:
            rows = perftest_rows(ALL_SIZES if letter == "a" else default)
            cases.append(Case(tool, ["-F", *OPTIONS[letter], *iterations(tool, letter)], rows))
    return cases


def unreliable_cases():
    """perftest over UC and UD."""
    cases = []
    for tool in ("ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw"):
        for service in ("UC", "UD"):
            if service == "UD" and "write" in tool:
                continue
            size = "4096" if service == "UD" else "65536"
            default = [size if "bw" in tool else "2"]
            cases.append(Case(tool, ["-F", "-c", service], perftest_rows(default)))
    cases.append(Case("ib_send_lat", ["-F", "-c", "UD", "-e"], perftest_rows(["2"])))
    cases.append(Case("ib_send_lat", ["-F", "-c", "UD", "-R"], perftest_rows(["2"])))
    return cases


def single_programs(report, stage, host, wire, chosen):
    """Programs that need no partner."""
    wanted = {"ibv_devices": [DEVICE], "ibv_devinfo -v": [
        DEVICE, "PORT_ACTIVE", "Ethernet", "GID[  0]", "RoCE v2", "max_qp:"]}
    for line, words in wanted.items():
        if not chosen(f"{stage} {line}"):
            continue
        start = time.monotonic()
        process = host.popen(line.split(), wire, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True)
        try:
            text, _ = process.communicate(timeout=LIMIT_SECONDS)
            problem = None if process.returncode == 0 else pair.exit_text(process.returncode)
        except subprocess.TimeoutExpired:
            pair.end_group(process)
            text, problem = process.stdout.read(), "hangs"
        missing = [word for word in words if word not in text]
        if missing and not problem:
            problem = f"no {', '.join(missing)} in its output"
        report.add(stage, line, problem, time.monotonic() - start, text)


def run_case(report, stage, world, wire, case):
    """Runs one program as server and client."""
    case.port = next(ports)
    # With -R the connection manager listens, at the UDP port of that number.
    listening = datagrams.owns_udp_port(case.port) if "-R" in case.options else pair.listens
    runner = pair.Pair(world, wire, case.argv(), case.argv(world.server.address),
                       listening=listening)
    outcome = runner.run(LIMIT_SECONDS, case.expect)
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add(stage, case.name, outcome.problem, outcome.seconds, text)


def run_world(report, stage, world, wire, cases, chosen):
    """Runs every case on one pair of hosts."""
    single_programs(report, stage, world.server, wire, chosen)
    if stage in SUITE_STAGES:
        for suite in SUITES:
            suite.run(report, stage, world, wire, LIMIT_SECONDS, ports, chosen)
    if stage == PYVERBS_STAGE and chosen(f"{stage} {pyverbs.NAME}"):
        pyverbs.run(report, stage, world.server, wire, LIMIT_SECONDS)
    for case in cases:
        if chosen(f"{stage} {case.name}"):
            run_case(report, stage, world, wire, case)


def short(cases):
    """The cases that a second way to choose the wire can tell apart. Between two hosts `auto` goes
    by UDP as well: it has shown what each size comes to, unless there is time for both."""
    return [c for c in cases if "pingpong" in c.tool or FULL and "-a" in c.options]


def without_repeats(cases):
    """The cases at a second MTU. Every size is sent, many at a time; the first MTU has shown that
    it arrives one at a time as well, unless there is time for both."""
    return [c for c in cases if FULL or not ("-a" in c.options and "lat" in c.tool)]


def worlds():
    """Stage name, how to make the hosts, wire, cases."""
    full = perftest_cases() + unreliable_cases()
    two = pingpong_cases(one_host=False)
    return [
        ("shm", netns.one_host, "shm", pingpong_cases(one_host=True) + full),
        ("udp-1500", lambda: netns.TwoHosts(1500), "udp", two + full),
        ("auto-9000", lambda: netns.TwoHosts(9000), "auto",
         without_repeats(two + full)),
        ("udp-9000", lambda: netns.TwoHosts(9000), "udp", short(two + full)),
        ("auto-1500", lambda: netns.TwoHosts(1500), "auto", two),
    ]


def secured_worlds():
    """As `worlds`, where the wire is secured."""
    cases = pingpong_cases(one_host=False) + perftest_cases() + unreliable_cases()
    return [(secured.STAGE, secured.Hosts, "udp", cases)]


def run_secured(report, text=""):
    """Runs the matrix on a secured wire, where all of it runs."""
    run(report, text, secured_worlds())


def run(report, text="", where=None):
    """Runs the matrix; `text` chooses the tests whose stage and name hold all its words."""
    words = text.split()

    def chosen(name):
        return all(word in f"{name} " for word in words)

    for stage, make, wire, cases in where or worlds():
        names = [f"{stage} {c.name}" for c in cases] + [f"{stage} ibv_dev"]
        if stage in SUITE_STAGES:
            names += [f"{stage} {name}" for suite in SUITES for name in suite.NAMES]
        if stage == PYVERBS_STAGE:
            names.append(f"{stage} {pyverbs.NAME}")
        if not any(map(chosen, names)):
            continue
        try:
            with make() as world:
                run_world(report, stage, world, wire, cases, chosen)
        except netns.SetupError as error:
            report.add(stage, "hosts", str(error), 0.0)
