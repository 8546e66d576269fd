"""What a round measures, and in which order: what is compared stands side by side."""

import collections

from bench import measure, peers, targets
from bench.results import ONE, TWO, Key
from lib import netns

MB = 1 << 20
VERBS = ("write", "read", "send")
# A datagram that is not fragmented.
UDP_PAYLOAD_MAX = measure.MTU - 28
# perftest's option for completion events.
BLOCKING = "-e"
WAKE_TURNS = 3000
UDP_TURNS = 10000
STREAM_MEGABYTES = 512
UDP_STREAM_MEGABYTES = 1024
# What ib_write_bw moves on one host by messages of that size and more, so that what a connection
# and a region cost once, up to some 0.3 s, is a small part.
LONG_RUN_SIZE, LONG_RUN_VOLUME = MB, 32 * 1024 * MB
CHURN_CONNECTIONS = 1024
OWN_LOOP_SIZE = 4096
# What an exchange may take (seconds, bytes a second) for the time planned, the most exchanges and
# messages of a test, and the bytes it moves.
Pace = collections.namedtuple("Pace", "start speed turns messages volume")
PACES = {ONE: Pace(1e-6, 3e9, 50000, 300000, 1024 * MB),
         TWO: Pace(30e-6, 1e9, 5000, 20000, 256 * MB)}
LATENCY_SECONDS = 0.1
SHORT_SIZE, LONG_TURNS = 4096, 1000
TURNS_MIN, MESSAGES_MIN = 100, 20
# What a quick run divides counts by.
QUICK_PART = 10

# keys: what a step measures; call: measures it, a list of values in the order of the keys.
Step = collections.namedtuple("Step", "keys call")


class Sizes:
    """The sizes of a run, in bytes."""

    def __init__(self, quick):
        self.latency = (8, 4096) if quick else (8, 256, 4096, 65536, MB)
        self.bandwidth = (65536, MB) if quick else (4096, 65536, MB, 16 * MB, 64 * MB)
        self.register = (4096, MB) if quick else targets.REGISTER_SIZES
        self.threads = targets.THREAD_SIZES[:1] if quick else targets.THREAD_SIZES

    def network(self, sizes):
        """Those that are measured between hosts, or over a network stack."""
        return [size for size in sizes if size <= targets.NETWORK_SIZE_MAX]


def turns(size, hosts, quick=False):
    """Exchanges of a latency test: enough for a steady median, not for a minute."""
    pace = PACES[hosts]
    most = pace.turns if size <= SHORT_SIZE else LONG_TURNS
    count = LATENCY_SECONDS / (pace.start + size / pace.speed)
    return int(max(TURNS_MIN, min(most, count)) / (QUICK_PART if quick else 1)) + 1


def messages(size, hosts, quick=False):
    """Messages of a bandwidth test."""
    pace = PACES[hosts]
    count = max(MESSAGES_MIN, min(pace.messages, pace.volume // size))
    return count // (QUICK_PART if quick else 1) + MESSAGES_MIN


def step(name, size, hosts, call, *args, **kwargs):
    """A step that measures one figure."""
    return Step([Key(name, size, hosts)], lambda: [call(*args, **kwargs)])


def microseconds(call, *args, **kwargs):
    """The figure of a baseline that prints nanoseconds."""
    return call(*args, **kwargs) / measure.NS_PER_US


class Plan:
    """The steps of a round on one host and on two."""

    def __init__(self, one, two, quick):
        self.one, self.two, self.quick = one, two, quick
        self.sizes = Sizes(quick)
        self.part = QUICK_PART if quick else 1
        self.peers = [name for name in (peers.UCX, peers.FABRIC) if name not in peers.missing()]

    def steps(self, first):
        """Every step of a round. Figures that do not vary are taken in the first one only."""
        for size in self.sizes.latency:
            yield from self.latency_one(size)
        for size in self.sizes.bandwidth:
            yield from self.bandwidth_one(size)
        yield from self.blocking_one()
        for size in self.sizes.network(self.sizes.latency):
            yield from self.latency_two(size)
        for size in self.sizes.network(self.sizes.bandwidth):
            yield from self.bandwidth_two(size)
        yield from self.blocking_two()
        yield from self.registration()
        yield from self.threads()
        yield from self.number(first)

    def tool(self, name, size, hosts, pin=True, count=None):
        """A perftest tool on the wire that these hosts have; as many messages as are worth the
        time, unless it is said."""
        world, wire = (self.one, "shm") if hosts == ONE else (self.two, "udp")
        label = name if pin else name + targets.ANY_PROCESSOR
        if count:
            label = f"{name}, {count:,} messages"
        elif name.endswith(BLOCKING):
            count = WAKE_TURNS
        else:
            count = (turns if "_lat" in name else messages)(size, hosts, self.quick)
        return step(label, size, hosts, measure.tool, world, wire, name, size, count, (), pin)

    def ucx(self, test, transports, size, hosts):
        """ucx_perftest's test over each of the transports."""
        if peers.UCX not in self.peers:
            return
        world, device = (self.one, "lo") if hosts == ONE else (self.two, netns.LINK)
        for transport in transports:
            slow = TWO if transport == "tcp" else hosts
            count = turns if test.endswith("lat") else messages
            yield step(f"UCX {transport} {test}", size, hosts, peers.ucx, world, test, transport,
                       size, count(size, slow, self.quick), device)

    def fabric(self, providers, size, hosts):
        """fi_pingpong over each of the providers."""
        if peers.FABRIC not in self.peers:
            return
        world = self.one if hosts == ONE else self.two
        for provider in providers:
            slow = TWO if provider == "tcp" else hosts
            yield step(f"libfabric {provider}", size, hosts, peers.fabric, world, provider, size,
                       turns(size, slow, self.quick))

    def tcp(self, kind, size, hosts):
        """TCP's ping-pong or stream."""
        world = self.one if hosts == ONE else self.two
        if kind == "ping-pong":
            return step("TCP ping-pong", size, hosts, microseconds, measure.between, world,
                        "tcp_pingpong", size, turns(size, TWO, self.quick))
        return step("TCP stream", size, hosts, measure.between, world, "tcp_stream", size,
                    STREAM_MEGABYTES // self.part)

    def latency_one(self, size):
        """Latencies of one size on one host."""
        yield step("hand-over", size, ONE, microseconds, measure.sized, "handover", size)
        for verb in VERBS:
            yield self.tool(f"ib_{verb}_lat", size, ONE)
            if verb == "write":
                yield from self.ucx("put_lat", ("posix", "cma", "tcp"), size, ONE)
        yield from self.ucx("tag_lat", ("posix", "cma", "tcp"), size, ONE)
        if size == 8:
            yield self.tool("ib_atomic_lat", size, ONE)
        yield from self.fabric(("shm", "tcp"), size, ONE)
        yield self.tcp("ping-pong", size, ONE)

    def bandwidth_one(self, size):
        """Bandwidths of one size on one host."""
        yield step("memcpy", size, ONE, measure.sized, "copy", size)
        yield self.long_run(size)
        if size == targets.DEFAULT_SIZE:
            yield self.tool("ib_write_bw", size, ONE, count=targets.DEFAULT_COUNT)
        through = ("posix", "cma", "tcp") if size <= targets.NETWORK_SIZE_MAX else ("posix", "cma")
        yield from self.ucx("put_bw", through, size, ONE)
        yield self.tool("ib_read_bw", size, ONE)
        yield self.tool("ib_send_bw", size, ONE)
        yield from self.ucx("tag_bw", through, size, ONE)
        if size <= targets.NETWORK_SIZE_MAX:
            yield self.tcp("stream", size, ONE)

    def long_run(self, size):
        """ib_write_bw on one host."""
        if size < LONG_RUN_SIZE:
            return self.tool("ib_write_bw", size, ONE)
        count = LONG_RUN_VOLUME // size // self.part
        return step("ib_write_bw", size, ONE, measure.tool, self.one, "shm", "ib_write_bw", size,
                    count)

    def blocking_one(self):
        """The wake-up of a sleeping process on one host, and of one that may look instead: that
        takes a choice of processors."""
        yield step("eventfd wake-up", 0, ONE, microseconds, lambda: float(
            measure.program("wake", 0, 1, WAKE_TURNS)))
        for pin in (True, False):
            yield self.tool(f"ib_send_lat {BLOCKING}", 8, ONE, pin)

    def udp(self, name, how, size, count):
        """A ping-pong over UDP between the two hosts."""
        return step(name, size, TWO, microseconds, measure.between, self.two, "udp_pingpong",
                    size, count, first=(how,))

    def latency_two(self, size):
        """Latencies of one size between two hosts."""
        if size <= UDP_PAYLOAD_MAX:
            yield self.udp("UDP ping-pong", "poll", size, UDP_TURNS)
        for verb in VERBS:
            yield self.tool(f"ib_{verb}_lat", size, TWO)
        if size == 8:
            yield self.tool("ib_atomic_lat", size, TWO)
            for name, mode in (("SEND and answer", "send"), ("WRITE, wait, SEND", "write")):
                yield step(name, size, TWO, measure.round_trip, self.two, "udp", mode,
                           turns(size, TWO, self.quick))
        for test in ("put_lat", "tag_lat"):
            yield from self.ucx(test, ("tcp",), size, TWO)
        yield from self.fabric(("tcp",), size, TWO)
        yield self.tcp("ping-pong", size, TWO)

    def bandwidth_two(self, size):
        """Bandwidths of one size between two hosts."""
        yield self.tcp("stream", size, TWO)
        yield self.tool("ib_write_bw", size, TWO)
        if size == MB:
            yield step("UDP stream", 0, TWO, measure.between, self.two, "udp_stream", measure.MTU,
                       UDP_STREAM_MEGABYTES // self.part)
        for verb in ("read", "send"):
            yield self.tool(f"ib_{verb}_bw", size, TWO)
        for test in ("put_bw", "tag_bw"):
            yield from self.ucx(test, ("tcp",), size, TWO)

    def blocking_two(self):
        """The same of a process on the other host."""
        yield self.udp("UDP wake-up", "sleep", 8, WAKE_TURNS)
        for pin in (True, False):
            yield self.tool(f"ib_send_lat {BLOCKING}", 8, TWO, pin)
        for name, how, wire in (("TCP, two sends", "tcp", None),
                                ("rsocket, two sends", "rsocket", "udp")):
            yield step(name, targets.TWO_SENDS_BYTES, TWO, microseconds, measure.between, self.two,
                       "two_sends", WAKE_TURNS // self.part, first=(how,), wire=wire)

    def registration(self):
        """Registration, size by size."""
        for size in self.sizes.register:
            names = measure.REGISTRATION
            yield Step([Key(name, size, ONE) for name in names],
                       lambda size=size: measure.registration(self.one, "shm", size))

    def threads(self):
        """How WRITEs scale with threads, size by size."""
        for size in self.sizes.threads:
            yield Step([Key(name, size, ONE) for name in measure.THREADS],
                       lambda size=size: measure.threads(self.one, "shm", size))

    def number(self, first):
        """What queue pairs cost in number."""
        def churn(mode, count):
            return measure.churn(self.one, "shm", mode, count)

        yield Step([Key("connections", 0, ONE)],
                   lambda: churn("rate", CHURN_CONNECTIONS // self.part))
        if not first:
            return
        yield Step([Key("idle QP", 0, ONE)],
                   lambda: [sum(churn("memory", targets.QPS // self.part)) / 1024])
        yield Step([Key("attach", 0, ONE), Key("attached process", 0, ONE)],
                   lambda: churn("attach", targets.PROCESSES))
        yield step("idle", 0, ONE, measure.idle, self.one, "shm")
        for name in ("ib_read_lat", "ib_write_bw"):
            yield step(f"own loop of {name}", 0, ONE, measure.own_loop, self.one, "shm", name,
                       OWN_LOOP_SIZE, turns(8, ONE))
