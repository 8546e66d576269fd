"""What a greedy tenant leaves another, with a limit and without one, and how soon a changed limit
holds."""

import contextlib
import copy
import os
import statistics
import subprocess
import tempfile
import time

from bench import document, measure, table
from lib import netns, pair, perftest
from operations import limits

MARKS = ("<!-- bench-qos:begin -->", "<!-- bench-qos:end -->")

CONFIG = """
[[tenant]]
name = "{name}"
socket = "{dir}/{name}/broker.sock"
users = ["root"]
"""
GREEDY, OTHER = "greedy", "other"
# The greedy one is limited to this part of what it reaches alone.
PART = 10
LATENCY, BANDWIDTH = 8, 65536
# How long the greedy one is at it before others are measured beside it.
HEAD_START = 0.5
# Without end: the most that perftest takes. It takes no duration with events.
MANY = 100_000_000
SECONDS = 60
# What the other's latency may become, and what it must keep of its bandwidth.
SLOWER, KEPT = 1.5, 0.8
# A changed limit holds within so many seconds.
AT_ONCE = 0.1


class Wire:
    """A way of data, and the tools that take it."""

    def __init__(self, name, wire, latency, bandwidth, hosts):
        self.name, self.wire, self.hosts = name, wire, hosts
        self.latency, self.bandwidth = latency, bandwidth


WIRES = [
    Wire("direct", "shm", "ib_read_lat", "ib_read_bw", netns.one_host),
    Wire("ring", "shm", "ib_send_lat", "ib_send_bw", netns.one_host),
    Wire("UDP", "udp", "ib_send_lat", "ib_send_bw",
         lambda: netns.TwoHosts(measure.MTU, prefix="10.85")),
]


@contextlib.contextmanager
def tenants(wire):
    """Hosts with a broker each that knows both tenants: the world of either, by name."""
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(wire.hosts())
        of = {name: {} for name in (GREEDY, OTHER)}
        for host in {world.server.name: world.server, world.client.name: world.client}.values():
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-bench-"))
            path = os.path.join(folder, "causewayd.toml")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(CONFIG.format(name=name, dir=folder) for name in of)
            # It returns when the broker serves.
            argv = [os.path.join(netns.BUILD, "bin", "causewayd"), "--config", path]
            subprocess.run(host.command(argv), env=host.environment(), check=True,
                           timeout=SECONDS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for name, places in of.items():
                places[host.name] = copy.copy(host)
                places[host.name].settings = {
                    "CAUSEWAY_SOCKET": os.path.join(folder, name, "broker.sock")}
        names = world.server.name, world.client.name
        yield world, {name: netns.World(name, [places[one] for one in names])
                      for name, places in of.items()}


def run(world, wire, tool, size, count):
    """A tool's figure; its programs sleep until there is something to do."""
    return measure.tool(world, wire.wire, f"{tool} -e", size, count, pin=False)


class Greedy:
    """`with Greedy(world, wire)`: the greedy tenant sends as fast as it may."""

    def __init__(self, world, wire):
        argv = [wire.bandwidth, "-F", "-e", "-s", str(BANDWIDTH), "-n", str(MANY), "-N", "-p",
                str(next(perftest.ports))]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.running = [world.server.popen(argv, wire.wire, **quiet)]
        if not pair.wait_listening(self.running[0], time.monotonic() + SECONDS):
            raise measure.Failed("the greedy tenant's server does not listen")
        argv.append(world.server.address)
        self.running.append(world.client.popen(argv, wire.wire, **quiet))

    def __enter__(self):
        time.sleep(HEAD_START)
        return self

    def __exit__(self, *_):
        ended = [process.poll() for process in self.running]
        for process in self.running:
            pair.end_group(process)
        if ended != [None, None]:
            raise measure.Failed(f"the greedy tenant's programs ended: {ended}")


def counts(quick):
    """How many exchanges, and how many long messages, are measured."""
    return (2000, 2000) if quick else (10000, 10000)


def of_other(world, wire, quick):
    """The other tenant's latency (µs) and bandwidth (GB/s)."""
    exchanges, messages = counts(quick)
    return (run(world, wire, wire.latency, LATENCY, exchanges),
            run(world, wire, wire.bandwidth, BANDWIDTH, messages))


def take_wire(wire, quick):
    """One round on a wire: a row."""
    with tenants(wire) as (world, of):
        reached = run(of[GREEDY], wire, wire.bandwidth, BANDWIDTH, counts(quick)[1])
        alone = of_other(of[OTHER], wire, quick)
        with Greedy(of[GREEDY], wire):
            beside = of_other(of[OTHER], wire, quick)
        limits.limit(world.client, GREEDY, "--bytes", str(int(reached * 1e9 / PART)))
        with Greedy(of[GREEDY], wire):
            limited = of_other(of[OTHER], wire, quick)
    return {"wire": wire.name, "reached": reached, "alone": alone, "beside": beside,
            "limited": limited}


def take_changes(wire):
    """How long it takes until a tenant's limit holds, and until it is gone, seconds: medians."""
    slowed, quick, _ = limits.measured(wire, 1, lambda _: ["default"])
    return {"wire": wire, "slowed": statistics.median(slowed), "quick": statistics.median(quick)}


def take(quick):
    """One round: rows of the wires, and of changes."""
    rows = [take_wire(wire, quick) for wire in WIRES]
    return rows, [take_changes(wire) for wire in ("shm", "udp")]


def medians(rounds):
    """Of each wire the first round's name and the medians of the figures."""
    for rows in zip(*(rows for rows, _ in rounds)):
        middle = {key: [statistics.median(row[key][at] for row in rows) for at in (0, 1)]
                  for key in ("alone", "beside", "limited")}
        # Compared within a round: the machine may be another in the next.
        ratios = [statistics.median(row["limited"][at] / row["alone"][at] for row in rows)
                  for at in (0, 1)]
        reached = statistics.median(row["reached"] for row in rows)
        yield {"wire": rows[0]["wire"], "reached": reached, "ratios": ratios, **middle}


def changes(rounds):
    """Of each wire the medians of what changes take."""
    for rows in zip(*(rows for _, rows in rounds)):
        yield {"wire": rows[0]["wire"],
               **{key: statistics.median(row[key] for row in rows) for key in ("slowed", "quick")}}


def verdict(good):
    """A word for what is held to something."""
    return "ok" if good else "**short**"


def text(rounds, machine, seconds):
    """Everything between the marks."""
    m = machine
    head = (f"`make bench ARGS=--qos`, {m['date']}, commit {m['commit']}: {m['processor']}, "
            f"{m['processors']} processors, Linux {m['kernel']}; medians of {len(rounds)} rounds, "
            f"{seconds / 60:.0f} minutes{document.busy(m)}.")
    shown = []
    for row in medians(rounds):
        latency, bandwidth = row["ratios"]
        for at, name, unit, ratio, held, good in (
                (0, "latency, 8 bytes", "µs", latency, f"≤ {SLOWER} x", latency <= SLOWER),
                (1, "bandwidth, 64 KiB", "GB/s", bandwidth, f"≥ {KEPT} x", bandwidth >= KEPT)):
            figures = [f"{row[key][at]:.2f}" for key in ("alone", "beside", "limited")]
            shown.append((row["wire"], f"{name}, {unit}", *figures, f"{ratio:.2f}", held,
                          verdict(good)))
    titles = ("wire", "the other's", "alone", "beside the greedy one", "beside it, limited",
              "limited to alone", "target", "")
    rows = [(row["wire"], f"{row['slowed'] * 1e3:.0f}", f"{row['quick'] * 1e3:.0f}",
             f"≤ {AT_ONCE * 1e3:.0f} ms", verdict(max(row["slowed"], row["quick"]) <= AT_ONCE))
            for row in changes(rounds)]
    change = ("`CAUSEWAY_WIRE`", "a limit holds after, ms", "and is gone after, ms", "target", "")
    return "\n\n".join([head, table.markdown(titles, shown, left=2),
                        table.markdown(change, rows, left=1)])
