"""Runs one program, or a pair, on the pinned processors and reads its figure."""

import itertools
import math
import os
import re
import subprocess

from lib import netns, pair, perftest

BENCH = os.path.join(netns.BUILD, "bench")
IDLE = os.path.join(netns.BUILD, "test", "idle")
LIMIT_SECONDS = 90
MTU = 1500
NS_PER_US = 1e3
# How often perftest may fail to sample the processor's frequency.
CALIBRATIONS = 3
REGISTRATION = ("register", "first READ", "register covered", "register again", "deregister",
                "populate and copy", "register after", "register and READ")
# What the program threads prints after the size.
THREADS = ("bare loop", "two bare loops", "one thread", "two threads", "two processes",
           "one posts, one polls", "two threads on one CQ")
IDLE_LINE = re.compile(r"without work: ([\d.]+) ms .* broker (\d+) ms")

# Above the UDP ports of endpoints (20481 to 24575), below those that the system hands out.
ports = itertools.count(26000)


class Failed(Exception):
    """A figure could not be taken; the text says why."""


def path(name):
    """The full path of one of the bench's own programs."""
    return os.path.join(BENCH, name)


def program(name, *args, host=None, wire=None):
    """Runs one of the bench's programs, on a host under a wire if given; its output."""
    argv = [path(name), *map(str, args)]
    try:
        if host is None:
            done = subprocess.run(argv, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  timeout=LIMIT_SECONDS, check=False)
            out, said, code = done.stdout, done.stderr, done.returncode
        else:
            child = host.popen(argv, wire, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               text=True)
            try:
                out, said = child.communicate(timeout=LIMIT_SECONDS)
            finally:
                pair.end_group(child)
            code = child.returncode
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{name}: hangs") from error
    if code:
        raise Failed(f"{name}: {pair.exit_text(code)}: {said.strip()}")
    return out


def place():
    """The time of a cache line one way, now, in nanoseconds."""
    return float(program("cacheline", 0, 1))


def sized(name, size):
    """The figure of a program that prints "SIZE FIGURE"."""
    return float(program(name, 0, 1, size).split()[1])


def between(world, name, *args, first=(), wire=None):
    """Runs a baseline's server and client on the hosts of a world, under a wire if given; the
    client's figure. `first` are arguments before the address."""
    port = str(next(ports))
    commands = [["taskset", "-c", str(cpu), path(name), *first, host.address, port,
                 *map(str, args)] for cpu, host in enumerate((world.server, world.client))]
    server = world.server.popen(commands[0], wire, stdout=subprocess.PIPE, text=True)
    try:
        if server.stdout.readline() != "ready\n":
            raise Failed(f"{name}: the server does not start")
        client = world.client.popen(commands[1] + [world.server.address], wire,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, said = client.communicate(timeout=LIMIT_SECONDS)
            if client.returncode or server.wait(10):
                raise Failed(f"{name}: {pair.exit_text(client.returncode)}: {said.strip()}")
        finally:
            pair.end_group(client)
        return float(out)
    except subprocess.TimeoutExpired as error:
        raise Failed(f"{name}: hangs") from error
    finally:
        pair.end_group(server)


def cycles_per_us(cpuinfo):
    """The frequency of the processor's time stamps, which perftest counts, from the text of
    /proc/cpuinfo: the kernel's bogomips are twice that."""
    found = re.search(r"^bogomips\s*: ([\d.]+)$", cpuinfo, re.MULTILINE)
    if not found:
        raise Failed("/proc/cpuinfo does not tell bogomips")
    return float(found.group(1)) / 2


def tool(world, wire, name, size, count, client_prefix=(), pin=True):
    """A perftest tool's figure; a name may end in an option ("ib_send_lat -e"). A run that
    perftest could not time, having no use for its sample of the frequency, is repeated."""
    for _ in range(CALIBRATIONS):
        figure = tool_once(world, wire, name, size, count, client_prefix, pin)
        if not math.isnan(figure):
            return figure
    raise Failed(f"{name} {size}: perftest could not sample the frequency {CALIBRATIONS} times")


def tool_once(world, wire, name, size, count, client_prefix, pin):
    """One run of a perftest tool. Latencies are asked for in cycles: perftest's microseconds have
    a grain of 10 ns, and rest on a frequency that it samples at each start and that other work on
    the processor falsifies. For bandwidths there is no such option."""
    words = name.split()
    latency = perftest.is_latency(words[0])
    options = words[1:] + (["-C"] if latency else [])
    try:
        value = perftest.run(world, wire, words[0], size, count, pin=pin, extra=options,
                             client_prefix=client_prefix)
    except perftest.Failed as error:
        raise Failed(str(error)) from error
    if not latency:
        return value
    with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
        return value / cycles_per_us(cpuinfo.read())


def own_loop(world, wire, name, size, count):
    """Nanoseconds that a one-sided tool takes for a message itself: its client's work requests
    complete at once and move nothing."""
    preloaded = ["sh", "-c", 'LD_PRELOAD="$0:$LD_PRELOAD" exec "$@"', path("null_verbs.so")]
    figure = tool(world, wire, name, size, count, preloaded)
    return figure * NS_PER_US if perftest.is_latency(name) else size / figure


def registration(world, wire, size):
    """What registering `size` bytes costs: microseconds in the order of REGISTRATION."""
    words = program("reg_cost", 0, 1, size, host=world.server, wire=wire).split()
    costs = [float(word) for word in words[1:]]
    return costs + [costs[0] + costs[1]]


def threads(world, wire, size):
    """Millions of WRITEs a second, in the order of THREADS."""
    words = program("threads", 0, 1, size, host=world.server, wire=wire).split()
    return [float(word) for word in words[1:]]


def churn(world, wire, mode, count):
    """The figures that qp_churn prints."""
    return [float(word) for word in
            program("qp_churn", mode, count, host=world.server, wire=wire).split()]


def round_trip(world, wire, mode, turns):
    """Microseconds of write_send's round trip: SENDs alone, or each after a WRITE."""
    args = [path("write_send"), mode, str(turns), str(next(ports))]
    run = pair.Pair(world, wire, args, [*args, world.server.address], {}, pin=True)
    outcome = run.run(LIMIT_SECONDS)
    if outcome.problem:
        raise Failed(f"write_send {mode}: {outcome.problem}")
    return float(outcome.client_text.split()[-1]) / NS_PER_US


def idle(world, wire):
    """Milliseconds of processor that two idle sides and their broker use in three seconds."""
    env = {"IDLE_PORT": str(next(ports))}
    run = pair.Pair(world, wire, [IDLE], [IDLE, world.server.address], env, pin=True)
    outcome = run.run(LIMIT_SECONDS)
    # A side that was busier than its test allows fails it, and says how busy it was all the same.
    found = [IDLE_LINE.search(text) for text in (outcome.server_text, outcome.client_text)]
    if not all(found):
        raise Failed(f"idle: {outcome.problem}\n{outcome.server_text}{outcome.client_text}")
    # Both look at the same broker.
    return sum(float(f.group(1)) for f in found) + max(float(f.group(2)) for f in found)
