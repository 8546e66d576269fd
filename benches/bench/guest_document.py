"""What is written of virtual machines: docs/PERFORMANCE.md between marks of its own."""

from bench import document, guests, series, table, targets
from bench.guests import GUESTS, HOST, beside
from bench.results import Key
from bench.series import Panel, Series

MARKS = ("<!-- bench-vm:begin -->", "<!-- bench-vm:end -->")
COMMAND = "make bench ARGS=--vm"
MEMORY_PART = 0.98
# What the papers say of their virtual machines, and the name of what stands beside it here.
PAPERS = (
    ("bandwidth between co-located guests lost to virtualization", "at most 2 % (table 5.3: KVM, "
     "EPT, SISCI segments of 1 KiB to 8 MiB, beside the same benchmark on the host)", "loss",
     "the loss against the guest's own memory, not against the host's: TCG emulates each access "
     "to either in the same way. That there is no loss is comparable, the GB/s are not"),
    ("an interrupt between co-located guests", "12.0 µs, 4 to 5 times a native one (2.3 µs; table "
     "5.7: KVM, through QEMU and the host's SISCI driver)", "doorbell",
     "the way is the same; not the time: an emulated interrupt alone takes what stands beside it"),
    ("what a call adds by being carried out on the host", "some 3 µs (API remoting, figures 10 "
     "and 11: KVM, shared memory polled by a thread of the host)", "call",
     "only for calls that make or connect something: posting and polling make none, and so add "
     "nothing. Ours sleep and wake by interrupts, theirs spin"),
    ("a notification of a completion", "130 to 140 µs (API remoting, section V: KVM, interrupts "
     "injected by software)", "event",
     "the same kind of way; theirs is on a guest that runs natively"),
)


def unit(panel_unit, value):
    """A figure of the papers' table."""
    return f"{table.number(value)} {panel_unit}"


def memory_targets():
    """The window beside the guest's memory."""
    for where in (GUESTS, HOST):
        for name, work in (("store_peer", "store to a peer's segment"),
                           ("load_peer", "load from a peer's segment"),
                           ("store_own", "store to an own segment"),
                           ("load_own", "load from an own segment")):
            for size in guests.COPY_SIZES:
                key = Key(f"{name}_bw", size, where)
                yield targets.Target(work, size, where, key, Key(beside(key.name), size, where),
                                     targets.at_most(MEMORY_PART), f"{MEMORY_PART} x own memory",
                                     True)


def verbs_targets():
    """The design's limits, the bare ways being those between the same guests."""
    hand_over = Key("hand-over", 8, GUESTS)
    yield targets.latency("WRITE latency", "ib_write_lat", 8, GUESTS, hand_over,
                          lambda bare: max(bare + 0.06, 1.5 * bare), "hand-over + 60 ns, or x 1.5")
    yield targets.latency("SEND latency", "ib_send_lat", 8, GUESTS, hand_over,
                          lambda bare: max(bare + 0.09, 2 * bare), "hand-over + 90 ns, or x 2")
    for size in guests.BANDWIDTH_SIZES:
        bare = Key("store_peer_bw", max(size, guests.COPY_SIZES[0]), GUESTS)
        part = 0.8 if size <= 4096 else 0.95
        yield targets.Target("WRITE bandwidth", size, GUESTS, Key("ib_write_bw", size, GUESTS),
                             bare, targets.at_most(part), f"{part:g} x store", True)
    kick = Key(beside("doorbell"), 0, GUESTS)
    yield targets.latency("doorbell to a sleeper", "doorbell", 0, GUESTS, kick,
                          targets.at_most(1.3), "1.3 x kick to interrupt")
    yield targets.latency("doorbell to a sleeper", "doorbell", 0, HOST,
                          Key(beside("doorbell"), 0, HOST), targets.at_most(1.3),
                          "1.3 x kick to interrupt")
    yield targets.latency("blocking SEND latency", "ib_send_lat -e", 8, GUESTS, kick,
                          targets.at_most(1.3), "1.3 x kick to interrupt")


def all_targets():
    """Every row."""
    return [*memory_targets(), *verbs_targets()]


def panels():
    """Figures over size, beside TCP between the same guests."""
    verbs = ("write", "read", "send")
    own = {kind: [Series(f"Causeway {verb.upper()}", f"ib_{verb}_{kind}", verb) for verb in verbs]
           for kind in ("lat", "bw")}
    return [
        Panel("Latency, two guests", "µs", GUESTS, guests.LATENCY_SIZES,
              [Series("bare: hand-over", "hand-over", "limit"), *own["lat"],
               Series("TCP over virtio-net", "TCP ping-pong", "tcp")]),
        Panel("Bandwidth, two guests", "GB/s", GUESTS, guests.BANDWIDTH_SIZES,
              [Series("bare: store to the window", "store_peer_bw", "limit"), *own["bw"],
               Series("TCP over virtio-net", "TCP stream", "tcp")]),
    ]


def loss(results):
    """The most that a segment's bandwidth is below that of own memory, of all sizes and ways."""
    rows = [targets.judge(target, results) for target in memory_targets()]
    ratios = [row.ratio for row in rows if row]
    return f"{100 * max(0.0, 1 - min(ratios)):.1f} %" if ratios else "not measured"


def beside_text(results, name):
    """A figure, and the bare way in the same run."""
    figure = results.median(Key(name, 0, GUESTS))
    bare = results.median(Key(beside(name), 0, GUESTS))
    if not figure or not bare:
        return "not measured"
    ratio = figure.value / bare.value
    return f"{table.number(figure.value)} µs, {ratio:.1f} x the bare {table.number(bare.value)} µs"


def papers(results):
    """The papers' figures and ours."""
    found = {"loss": loss(results), "doorbell": beside_text(results, "doorbell"),
             "call": beside_text(results, "call")}
    event = results.median(Key("ib_send_lat -e", 8, GUESTS))
    found["event"] = unit("µs", event.value) if event else "not measured"
    rows = [(what, theirs, found[name], how) for what, theirs, name, how in PAPERS]
    return table.markdown(["", "in the paper", "here, under TCG", "comparable"], rows, left=4)


def circumstances(run):
    """The command, the machine, the date, the commit, in one paragraph."""
    m, rounds = run.machine, len(run.results.rounds)
    busy = "" if m["load"] < document.BUSY_LOAD else f", load average {m['load']:.1f} at the start"
    return (f"`{COMMAND}`, {m['date']}, commit {m['commit']}: {m['processor']}, Linux "
            f"{m['kernel']}; two guests of one processor each under QEMU's TCG, each pinned; "
            f"medians of {rounds} round{'s' * (rounds != 1)}{busy}.")


def text(run):
    """Everything between the marks."""
    results = run.results
    rows = [(target, targets.judge(target, results)) for target in all_targets()]
    held = sum(bool(row and row.held) for _, row in rows)
    parts = [circumstances(run)]
    parts += [f"Failed at least once: {name}." for name in run.failed]
    parts += [f"{held} of {len(rows)} are held.", table.targets(rows)]
    parts += [table.over_size(panel, results) for panel in panels()]
    parts += ["Beside the papers:", papers(results)]
    return "\n\n".join(part for part in parts if part)


def count(run):
    """(targets held, targets)."""
    rows = [targets.judge(target, run.results) for target in all_targets()]
    return sum(bool(row and row.held) for row in rows), len(rows)


def write(root, run):
    """Writes the tables."""
    document.put(root, text(run), MARKS)
