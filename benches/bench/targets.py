"""What Causeway is held to: each row of the design's table of speed, beside what was measured."""

import collections
import statistics

from bench.results import ONE, TWO, Key

US_PER_NS = 1e-3
# Sizes above this take a network stack too long to be worth the time.
NETWORK_SIZE_MAX = 1 << 20
REGISTER_SIZES = (4096, 65536, 1 << 20, 64 << 20, 1 << 30)
THREAD_SIZES = (8, 4096, 65536)
COVERED_US = 5.0
# A blocking SEND where exchanges are frequent and both sides may look before they sleep. A side
# that is bound to one processor does not, so these run unbound.
FREQUENT_US = 2.0
ANY_PROCESSOR = ", unbound"
IDLE_QP_BYTES = 64 << 10
CONNECTIONS_PER_SECOND = 10000
# "Zero", over the three seconds that the test looks.
IDLE_MS = 1.0
PROCESSES = 256
QPS = 4000
# perftest's own choice for bandwidths.
DEFAULT_SIZE, DEFAULT_COUNT = 64 << 10, 1000
# A request of two_sends: head and body.
TWO_SENDS_BYTES = 64

# work, size, hosts: what the row is about; key: the figure; bare: the Key of the limit, None for
# the cache line taken after the figure itself, or a number; limit: from the bare value to the one
# that must be met; rule: that in words; more: True if a larger figure is better.
Target = collections.namedtuple("Target", "work size hosts key bare limit rule more")

# rounds: how many could be compared; bare, target, measured: medians; ratio: measured to bare,
# met: measured to target, both medians of ratios; held: met or not; place: nanoseconds.
Row = collections.namedtuple("Row", "target rounds bare needed measured ratio held place")


def latency(work, tool, size, hosts, bare, limit, rule):
    """A time that must stay below a limit."""
    return Target(work, size, hosts, Key(tool, size, hosts), bare, limit, rule, False)


def at_most(factor):
    """A limit as a multiple of the bare value."""
    return lambda bare: factor * bare


def one_host(latency_sizes, bandwidth_sizes):
    """The rows about processes of one host."""
    yield latency("WRITE latency", "ib_write_lat", 8, ONE, None, lambda line: line + 0.025,
                  "cache line + 25 ns")
    for work, tool in (("READ latency", "ib_read_lat"), ("atomic latency", "ib_atomic_lat")):
        yield latency(work, tool, 8, ONE, None, lambda line: line + 0.06, "cache line + 60 ns")
    yield latency("SEND latency", "ib_send_lat", 8, ONE, None, lambda line: line + 0.08,
                  "cache line + 80 ns")
    for size in latency_sizes:
        yield latency("SEND latency", "ib_send_lat", size, ONE, Key("UCX posix tag_lat", size, ONE),
                      at_most(1.0), "UCX posix tag")
    for size in bandwidth_sizes:
        part = 0.8 if size <= 4096 else 0.95
        yield Target("WRITE bandwidth", size, ONE, Key("ib_write_bw", size, ONE),
                     Key("memcpy", size, ONE), at_most(part), f"{part:g} x memcpy", True)
    for size in bandwidth_sizes[:1]:
        yield Target("WRITE bandwidth", size, ONE, Key("ib_write_bw", size, ONE),
                     Key("UCX posix put_bw", size, ONE), at_most(1.0), "UCX posix put", True)
    short = f"ib_write_bw, {DEFAULT_COUNT:,} messages"
    yield Target(f"WRITE bandwidth, {DEFAULT_COUNT:,} messages", DEFAULT_SIZE, ONE,
                 Key(short, DEFAULT_SIZE, ONE), Key("ib_write_bw", DEFAULT_SIZE, ONE),
                 at_most(0.8), "0.8 x a long run", True)
    yield latency("blocking SEND latency", "ib_send_lat -e", 8, ONE, Key("eventfd wake-up", 0, ONE),
                  at_most(1.1), "1.1 x eventfd wake-up")
    yield latency("blocking SEND, a processor free", "ib_send_lat -e" + ANY_PROCESSOR, 8, ONE,
                  FREQUENT_US, at_most(1.0), "2 us")


def two_hosts(latency_sizes, bandwidth_sizes):
    """The rows about two hosts."""
    for work, tool in (("WRITE latency", "ib_write_lat"), ("SEND latency", "ib_send_lat")):
        yield latency(work, tool, 8, TWO, Key("UDP ping-pong", 8, TWO), at_most(1.15),
                      "1.15 x UDP ping-pong")
    yield latency("WRITE, wait, SEND", "WRITE, wait, SEND", 8, TWO, Key("SEND and answer", 8, TWO),
                  at_most(2.3), "2.3 x SEND and answer")
    size = 1 << 20
    yield Target("WRITE bandwidth", size, TWO, Key("ib_write_bw", size, TWO),
                 Key("UDP stream", 0, TWO), at_most(0.85), "0.85 x UDP stream", True)
    for size in bandwidth_sizes:
        yield Target("WRITE bandwidth", size, TWO, Key("ib_write_bw", size, TWO),
                     Key("TCP stream", size, TWO), at_most(1.0), "TCP stream", True)
    yield from network_peers(latency_sizes, bandwidth_sizes)
    yield latency("blocking SEND latency", "ib_send_lat -e", 8, TWO, Key("UDP wake-up", 8, TWO),
                  at_most(1.1), "1.1 x blocking UDP")
    yield latency("blocking SEND, a processor free", "ib_send_lat -e" + ANY_PROCESSOR, 8, TWO,
                  10.0, at_most(1.0), "10 us")
    size = TWO_SENDS_BYTES
    yield latency("rsocket, request in two sends", "rsocket, two sends", size, TWO,
                  Key("TCP, two sends", size, TWO), at_most(3.0), "3 x TCP")


def network_peers(latency_sizes, bandwidth_sizes):
    """The rows about two hosts beside other transports: ahead of each at every size."""
    for work, tool, rivals in (
            ("WRITE latency", "ib_write_lat", ("UCX tcp put_lat",)),
            ("SEND latency", "ib_send_lat", ("UCX tcp tag_lat", "libfabric tcp"))):
        for rival in rivals:
            for size in latency_sizes:
                yield latency(work, tool, size, TWO, Key(rival, size, TWO), at_most(1.0), rival)
    for work, tool, rival in (("WRITE bandwidth", "ib_write_bw", "UCX tcp put_bw"),
                              ("SEND bandwidth", "ib_send_bw", "UCX tcp tag_bw")):
        for size in bandwidth_sizes:
            yield Target(work, size, TWO, Key(tool, size, TWO), Key(rival, size, TWO), at_most(1.0),
                         rival, True)


def registration(sizes):
    """The rows about registering memory. The first use counts: it pays for what was put off."""
    for size in sizes:
        yield latency("register, first READ", "register and READ", size, ONE,
                      Key("populate and copy", size, ONE), at_most(1.5), "1.5 x populate and copy")
    for size in sizes:
        yield latency("register again", "register again", size, ONE, COVERED_US, at_most(1.0),
                      "5 us")


def threads(sizes):
    """The rows about two threads of a process, and about queues that they share."""
    for name, bare, part in (("two threads", "two processes", 0.95),
                             ("two threads", "one thread", 1.8),
                             ("one posts, one polls", "one thread", 0.8),
                             ("two threads on one CQ", "one thread", 0.8)):
        for size in sizes:
            yield Target(f"WRITEs, {name}", size, ONE, Key(name, size, ONE), Key(bare, size, ONE),
                         at_most(part), f"{part:g} x {bare}", True)


def number():
    """The rows about many queue pairs and processes, and about idleness."""
    yield Target("memory of an idle QP", 0, ONE, Key("idle QP", 0, ONE), IDLE_QP_BYTES / 1024,
                 at_most(1.0), f"64 KiB, {QPS} in a process", False)
    yield Target("connections", 0, ONE, Key("connections", 0, ONE), CONNECTIONS_PER_SECOND,
                 at_most(1.0), "10,000 a second", True)
    yield Target("idle processor time in 3 s", 0, ONE, Key("idle", 0, ONE), IDLE_MS, at_most(1.0),
                 "none (below 1 ms)", False)


def all_targets(latency_sizes, bandwidth_sizes, register_sizes=REGISTER_SIZES,
                thread_sizes=THREAD_SIZES):
    """Every row in the order of the table."""
    network = [[size for size in sizes if size <= NETWORK_SIZE_MAX]
               for sizes in (latency_sizes, bandwidth_sizes)]
    return [*one_host(latency_sizes, bandwidth_sizes), *two_hosts(*network),
            *registration(register_sizes), *threads(thread_sizes), *number()]


def pairs(target, results):
    """(measured, bare value, place) of each round that can be compared."""
    if isinstance(target.bare, Key):
        return [(f.value, b.value, f.place) for f, b in
                results.comparable(target.key, target.bare)]
    taken = [f for f, in results.comparable(target.key)]
    if target.bare is None:
        return [(f.value, f.place * US_PER_NS, f.place) for f in taken]
    return [(f.value, target.bare, f.place) for f in taken]


def judge(target, results):
    """The Row of a target, or None if a figure it needs is missing."""
    taken = pairs(target, results)
    if not taken:
        return None
    met = statistics.median(value / target.limit(bare) for value, bare, _ in taken)
    return Row(target, len(taken),
               bare=statistics.median(bare for _, bare, _ in taken),
               needed=statistics.median(target.limit(bare) for _, bare, _ in taken),
               measured=statistics.median(value for value, _, _ in taken),
               ratio=statistics.median(value / bare for value, bare, _ in taken),
               held=met >= 1.0 if target.more else met <= 1.0,
               place=statistics.median(place for _, _, place in taken))
