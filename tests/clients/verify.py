"""Our own verification programs on both wires: every opcode, every byte, every completion."""

import os
import re
import subprocess
import time

from lib import netns, pair
from lib.report import count_closing_lines

PROGRAMS = os.path.join(netns.BUILD, "test")
CAUSEWAY = os.path.join(netns.BUILD, "bin", "causeway")
FULL = os.environ.get("CAUSEWAY_TEST_FULL") == "1"
# Of `verify`, by wire. Datagrams take much longer: there is no time for as many.
OPERATIONS = {"shm": "1000000", "udp": "1000000" if FULL else "300000"}
LIMIT_SECONDS = 420
# Another allocator, which gives memory back in other ways than the C library's.
OTHER_MALLOC = {"LD_PRELOAD": "libjemalloc.so.2"}
POLL_SECONDS = 0.02
# Of `reconnect`, eight connections each.
ROUNDS = {"shm": "500", "udp": "20"}
# Of `threads`, for each of eight.
THREAD_ROUNDS = {"shm": "2000", "udp": "400"}
LARGE_MTUS = (9000, 65535)
LARGE_OPERATIONS = "50000"
# Under valgrind a program takes 20 to 50 times as long.
VALGRIND_OPERATIONS = "500"


def programs(wire):
    """Name, arguments of the server, arguments of the client."""
    return [
        ("verify, polling", ["verify", "--threads", "2"],
         ["--qps", "8", "--ops", OPERATIONS[wire]]),
        ("verify, events, few receives", ["verify", "--events", "--recv-depth", "4"],
         ["--qps", "4", "--ops", "50000", "--seed", "2"]),
        ("idle", ["idle"], []),
        ("waits, at every distance", ["waits"], []),
    ]


def churning():
    """Runs in which memory is registered and reallocated meanwhile: name, program, environment."""
    return [("verify, registering", "verify", {}),
            ("verify, registering, jemalloc", "verify", OTHER_MALLOC),
            ("verify, registering, AddressSanitizer", "verify-asan", {}),
            ("verify, registering, memory that stays", "verify", {"CAUSEWAY_MOVE": "off"})]


def directly():
    """Runs in which the only direct accesses are those that the settings leave: name, settings."""
    return [("direct accesses are made, shm", {"CAUSEWAY_CMA": "off"}),
            ("memory that stays is read in its process, shm", {"CAUSEWAY_MOVE": "off"})]


def run_valgrind(report, words, world):
    """Under valgrind one thread runs at a time: none may wait for another in the kernel."""
    title = "verify, valgrind, shm"
    if not all(word in title for word in words):
        return
    argv = ["valgrind", "-q", os.path.join(PROGRAMS, "verify")]
    client = [*argv, "--qps", "2", "--ops", VALGRIND_OPERATIONS, world.server.address]
    outcome = pair.Pair(world, "shm", argv, client,
                        env={"CAUSEWAY_MOVE": "eager"}).run(LIMIT_SECONDS, words=False)
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add("verify", title, outcome.problem, outcome.seconds, text)


def run_churning(report, words, world):
    """The verification program with registration going on in other threads."""
    for name, program, env in churning():
        title = f"{name}, shm"
        if not all(word in title for word in words):
            continue
        argv = [os.path.join(PROGRAMS, program), "--threads", "2", "--churn"]
        client = [*argv, "--qps", "8", "--ops", "100000", world.server.address]
        outcome = pair.Pair(world, "shm", argv, client, env=env).run(LIMIT_SECONDS, words=False)
        text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
        report.add("verify", title, outcome.problem, outcome.seconds, text)


def run_direct(report, words, world, title, settings):
    """Both sides must reach into each other's memory: everything could travel by ring."""
    if not all(word in title for word in words):
        return
    start = time.monotonic()
    argv = [os.path.join(PROGRAMS, "verify")]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "env": settings}
    server = world.server.popen(argv, "shm", **silent)
    pair.wait_listening(server, start + LIMIT_SECONDS)
    client = world.client.popen([*argv, "--ops", OPERATIONS["shm"], world.server.address], "shm",
                                **silent)
    problem, text = "none were made", ""
    while client.poll() is None and time.monotonic() < start + LIMIT_SECONDS:
        text = subprocess.run([CAUSEWAY, "status"], env=world.server.environment(None),
                              stdout=subprocess.PIPE, text=True, check=False).stdout
        if sum(int(n) > 0 for n in re.findall(r"\bdirect (\d+)", text)) == 2:
            problem = None
            break
        time.sleep(POLL_SECONDS)
    for process in (server, client):
        pair.end_group(process)
    report.add("verify", title, problem, time.monotonic() - start, text)


def run(report, text=""):
    """Runs each program on one host and on two."""
    words = text.split()
    places = [("shm", netns.one_host, "shm"), ("udp", lambda: netns.TwoHosts(1500), "udp")]
    for wire_name, make, wire in places:
        try:
            with make() as world:
                for name, both, client_only in programs(wire):
                    title = f"{name}, {wire_name}"
                    if all(word in title for word in words):
                        run_pair(report, title, world, wire, both, client_only)
                run_two(report, words, f"reconnecting, {wire}",
                        (world.server, wire, ["reconnect", ROUNDS[wire]]))
                run_two(report, words, f"paced, {wire}", (world.server, wire, ["paced"]))
                run_threads(report, words, world.server, wire)
                if wire == "shm":
                    # One process of the two talks by datagrams.
                    run_two(report, words, "protected where it was moved, both wires",
                            (world.server, "auto", ["protected"]))
                    for title, settings in directly():
                        run_direct(report, words, world, title, settings)
                    run_churning(report, words, world)
                    run_valgrind(report, words, world)
                if all(word in f"errors, {wire_name}" for word in words):
                    run_errors(report, f"errors, {wire_name}", world.server, wire)
        except netns.SetupError as error:
            report.add("verify", wire_name, str(error), 0.0)
    for mtu in LARGE_MTUS:
        run_large(report, words, mtu)


def run_threads(report, words, host, wire):
    """Threads of one process, with queues of their own and with common ones; once with an engine
    for each group of queues that are connected, and once with one for all."""
    for mode in ("own", "cq", "qp", "split", "joined"):
        for engines in ("8", "1"):
            title = f"8 threads, {mode}, engines {engines}, {wire}"
            run_two(report, words, title, (host, wire, ["threads", mode, "8", THREAD_ROUNDS[wire]]),
                    {"CAUSEWAY_ENGINES": engines})


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


def run_two(report, words, title, what, env=None):
    """A program that makes two processes itself: where, on which wire, and its arguments."""
    if not all(word in title for word in words):
        return
    host, wire, argv = what
    start = time.monotonic()
    argv = [os.path.join(PROGRAMS, argv[0]), *argv[1:]]
    process = host.popen(argv, wire, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True)
    text, problem = "", None
    try:
        text, _ = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode:
            problem = pair.exit_text(process.returncode)
    except subprocess.TimeoutExpired:
        problem = "hangs"
    pair.end_group(process)
    report.add("verify", title, problem, time.monotonic() - start, text)


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
