"""Figures of virtual machines: two guests under TCG, each with a processor of its own.

`causeway bench vm` runs in one of them against the other, and against the host: the window beside
the guest's memory, hand-overs by a segment, doorbells and calls of the broker beside the bare way
to the host. Beside these run perftest's tools and bare TCP between the same guests.
"""

import json
import math
import os
import shutil
import subprocess

from bench import measure
from bench.results import Key
from lib import netns, perftest
from vm import traffic
from vm.lab import GuestError, Lab, quote
from vm.qmp import Qmp

GUESTS, HOST = "two guests", "guest and host"
MB = 1 << 20
LATENCY_SIZES = (8, 4096, 65536)
BANDWIDTH_SIZES = (4096, 65536, MB)
VERBS = ("write", "read", "send")
TOOLS = [f"ib_{verb}_{kind}" for verb in VERBS for kind in ("lat", "bw")]
BARE = ("tcp_pingpong", "tcp_stream")
# How often, by size: half a second each where every instruction is emulated, since what is new to
# the emulator, code and pages, takes milliseconds. Requests that wait for the other guest's helper
# thread take that long a thousand times sooner.
TURNS = {8: 100_000, 4096: 50_000, 65536: 10_000}
MESSAGES = {4096: 200_000, 65536: 20_000, MB: 1500}
SLOW, SLOW_PART = "ib_read_", 50
BLOCKING, BLOCKING_TURNS = "-e", 200
TCP_TURNS = {8: 500, 4096: 300, 65536: 100}
STREAM_MEGABYTES = 32
# What a quick run divides counts by.
QUICK_PART = 10
PORT = 26000
SECONDS = 60
# perftest may find that its sample of the clock's rate was none.
ATTEMPTS = 4

# The rows of `causeway bench vm`: how they begin, by the figures that are made of them.
COPIES = {"store to the peer's segment": "store_peer", "store to an own segment": "store_own",
          "load from the peer's segment": "load_peer", "load from an own segment": "load_own"}
SIZES = {"8 B": 8, "4 KiB": 4096, "64 KiB": 65536, "1 MiB": MB, "8 MiB": 8 * MB}
COPY_SIZES = (65536, MB, 8 * MB)
REQUESTS = {"doorbell to a sleeper, one way": "doorbell", "call of the broker, to and fro": "call"}


def beside(name):
    """What a figure stands beside, in the same run."""
    return f"beside {name}"


def window_keys(where):
    """The figures of one `causeway bench vm`, in a fixed order."""
    names = [(f"{name}_bw", size) for size in COPY_SIZES for name in COPIES.values()]
    pairs = names + [(name, 0) for name in REQUESTS.values()]
    keys = [Key(text, size, where) for name, size in pairs for text in (name, beside(name))]
    return keys + [Key("hand-over", size, where) for size in LATENCY_SIZES]


def window_figures(rows, where):
    """The figures by key: GB/s of copies, microseconds of all else."""
    found = {}
    for row in rows:
        what, _, rest = row["what"].partition(",")
        size = SIZES.get(rest.split(",")[0].strip(), 0)
        if what in COPIES:
            name = f"{COPIES[what]}_bw"
            found[Key(name, size, where)] = size / row["ns"]
            found[Key(beside(name), size, where)] = size / row["rival_ns"]
        elif row["what"] in REQUESTS:
            name = REQUESTS[row["what"]]
            found[Key(name, 0, where)] = row["ns"] / measure.NS_PER_US
            found[Key(beside(name), 0, where)] = row["rival_ns"] / measure.NS_PER_US
        elif what == "hand-over":
            found[Key(what, size, where)] = row["ns"] / measure.NS_PER_US
    return found


class Guests:
    """Two guests that have booted; `with Guests() as guests`."""

    def __init__(self):
        self.lab = Lab()
        self.server = self.client = None

    def __enter__(self):
        bare = [measure.path(name) for name in BARE]
        tools = [shutil.which(name) or name for name in TOOLS]
        try:
            subprocess.run(["guest/make-image", *tools, *bare], cwd=netns.ROOT, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise netns.SetupError(f"no image for the guests: {error}") from error
        self.lab.__enter__()
        try:
            self.server, self.client = self.lab.boot("a"), self.lab.boot("b")
            for cpu, guest in enumerate((self.server, self.client)):
                guest.wait_ready()
                with Qmp(guest.qmp) as qmp:
                    for virtual in qmp.execute("query-cpus-fast"):
                        os.sched_setaffinity(virtual["thread-id"], {cpu})
        except GuestError as error:
            self.lab.__exit__()
            raise netns.SetupError(str(error)) from error
        return self

    def __exit__(self, *_):
        self.lab.__exit__()

    def pair(self, server, argv, client_argv, listening, wire=None):
        """Runs a server and its client to their ends; the client's output. Nobody asks the guests
        anything meanwhile."""
        if server is self.lab.host:
            # The client is on the other processor.
            argv = ["taskset", "-c", "0", *argv]
        name = traffic.name_of(argv)
        try:
            traffic.start(server, argv, wire)
            listening(server)
            env = ["env", f"CAUSEWAY_WIRE={wire}"] if wire else []
            text = self.client.run(quote(*env, *client_argv), SECONDS)
            status, said = traffic.wait(server, name)
            if status:
                raise measure.Failed(f"{name}, server: {said[-500:]}")
            return text
        except GuestError as error:
            raise measure.Failed(f"{' '.join(client_argv)}: {error}") from error
        finally:
            traffic.stop_all(self.lab)
            self.server.run("killall -9 -q causeway tcp_pingpong tcp_stream; true")

    def window(self, where, quick):
        """`causeway bench vm` in a guest; its figures in the order of window_keys()."""
        server = self.server if where == GUESTS else self.lab.host
        short = ["--quick"] if quick else []
        program = "causeway" if where == GUESTS else netns.CAUSEWAY
        text = self.pair(server, [program, "bench", "vm", "--serve"],
                         ["causeway", "bench", "vm", "--json", *short], lambda _: None)
        figures = window_figures(json.loads(text)["rows"], where)
        return [figures[key] for key in window_keys(where)]

    def tool(self, name, size, count):
        """A perftest tool's figure; a name may end in an option."""
        words = name.split()
        argv = [words[0], "-F", "-x", "0", "-s", str(size), "-n", str(count), *words[1:]]
        argv.append("-C" if perftest.is_latency(words[0]) else "--report_gbits")
        for _ in range(ATTEMPTS):
            text = self.pair(self.server, argv, argv + [self.server.address],
                             lambda server: traffic.wait_listening(server, 18515), "shm")
            value = perftest.figure(words[0], size, text)
            if value is not None and not math.isnan(value):
                break
        if value is None or math.isnan(value):
            raise measure.Failed(f"{name} {size}: no figure: {text[-500:]}")
        if not perftest.is_latency(words[0]):
            return value
        # An emulated processor's time stamps are the host's.
        with open("/proc/cpuinfo", encoding="utf-8") as cpuinfo:
            return value / measure.cycles_per_us(cpuinfo.read())

    def tcp(self, name, size, count):
        """A bare TCP program's figure."""
        def ready(server):
            traffic.wait_said(server, name, "ready")
        argv = [name, self.server.address, str(PORT), str(size), str(count)]
        client = [name, self.client.address, *argv[2:], self.server.address]
        return float(self.pair(self.server, argv, client, ready))


def steps(guests, quick, make):
    """The steps of a round; `make` makes one from keys and what measures them."""
    part = QUICK_PART if quick else 1
    for where in (GUESTS, HOST):
        yield make(window_keys(where), lambda where=where: guests.window(where, quick))

    def one(name, size, call, *args):
        return make([Key(name, size, GUESTS)], lambda: [call(*args)])

    for size in LATENCY_SIZES:
        for verb in VERBS:
            name = f"ib_{verb}_lat"
            turns = TURNS[size] // (SLOW_PART if name.startswith(SLOW) else 1)
            yield one(name, size, guests.tool, name, size, turns // part)
        yield make([Key("TCP ping-pong", size, GUESTS)], lambda size=size: [
            guests.tcp("tcp_pingpong", size, TCP_TURNS[size] // part) / measure.NS_PER_US])
    name = f"ib_send_lat {BLOCKING}"
    yield one(name, 8, guests.tool, name, 8, BLOCKING_TURNS // part)
    for size in BANDWIDTH_SIZES:
        for verb in VERBS:
            name = f"ib_{verb}_bw"
            messages = MESSAGES[size] // (SLOW_PART if name.startswith(SLOW) else 1)
            yield one(name, size, guests.tool, name, size, messages // part)
        yield one("TCP stream", size, guests.tcp, "tcp_stream", size, STREAM_MEGABYTES // part)
