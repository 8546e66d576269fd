"""Our own verification programs on both wires: every opcode, every byte, every completion."""

import os
import subprocess
import time

from lib import netns, pair
from lib.report import count_closing_lines

PROGRAMS = os.path.join(netns.BUILD, "test")
OPERATIONS = "1000000"
LIMIT_SECONDS = 420
LARGE_MTUS = (9000, 65535)
LARGE_OPERATIONS = "50000"


def programs():
    """Name, arguments of the server, arguments of the client."""
    return [
        ("verify, polling", ["verify", "--threads", "2"],
         ["--qps", "8", "--ops", OPERATIONS]),
        ("verify, events, few receives", ["verify", "--events", "--recv-depth", "4"],
         ["--qps", "4", "--ops", "50000", "--seed", "2"]),
        ("idle", ["idle"], []),
    ]


def run(report, text=""):
    """Runs each program on one host and on two."""
    words = text.split()
    places = [("shm", netns.one_host, "shm"), ("udp", lambda: netns.TwoHosts(1500), "udp")]
    for wire_name, make, wire in places:
        try:
            with make() as world:
                for name, both, client_only in programs():
                    title = f"{name}, {wire_name}"
                    if all(word in title for word in words):
                        run_pair(report, title, world, wire, both, client_only)
                if all(word in f"errors, {wire_name}" for word in words):
                    run_errors(report, f"errors, {wire_name}", world.server, wire)
        except netns.SetupError as error:
            report.add("verify", wire_name, str(error), 0.0)
    for mtu in LARGE_MTUS:
        run_large(report, words, mtu)


def run_large(report, words, mtu):
    """Datagrams of a link's MTU, up to the largest there are."""
    title = f"verify, udp, MTU {mtu}"
    if not all(word in title for word in words):
        return
    argv = ["verify", "--threads", "2"]
    try:
        with netns.TwoHosts(mtu) as world:
            run_pair(report, title, world, "udp", argv, ["--qps", "4", "--ops", LARGE_OPERATIONS])
    except netns.SetupError as error:
        report.add("verify", title, str(error), 0.0)


def run_pair(report, title, world, wire, both, client_only):
    """Runs one program as server and client."""
    argv = [os.path.join(PROGRAMS, both[0]), *both[1:]]
    client = [*argv, *client_only, world.server.address]
    outcome = pair.Pair(world, wire, argv, client).run(LIMIT_SECONDS, words=False)
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add("verify", title, outcome.problem, outcome.seconds, text)


def run_errors(report, title, host, wire):
    """Runs the error cases, which need no partner and count themselves."""
    start = time.monotonic()
    process = host.popen([os.path.join(PROGRAMS, "errors")], wire, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
        problem = None if process.returncode == 0 else pair.exit_text(process.returncode)
    except subprocess.TimeoutExpired:
        pair.end_group(process)
        text, problem = process.stdout.read(), "hangs"
    passed, failed = count_closing_lines(text)
    if not problem and passed + failed == 0:
        problem = "ran no test"
    report.add("verify", title, problem, time.monotonic() - start, text, passed, failed)
