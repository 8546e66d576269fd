"""The tables of docs/PERFORMANCE.md, in Markdown."""

from bench import measure, series
from bench.results import ONE, Key, place_name

UNITS = {"memcpy": "GB/s", "TCP stream": "GB/s", "UDP stream": "GB/s", "idle QP": "KiB",
         "connections": "/s", "attach": "ms", "attached process": "KiB", "idle": "ms",
         "own loop of ib_read_lat": "ns", "own loop of ib_write_bw": "ns"}


def unit(key):
    """The unit of a key's figures."""
    if key.name in measure.THREADS:
        return "M/s"
    return UNITS.get(key.name, "GB/s" if key.name.endswith("_bw") else "µs")


def number(value):
    """A figure with as many digits as mean something."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def bytes_text(size):
    """A size in words: 8, 4 Ki, 1 Mi."""
    for power, name in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << power:
            return f"{size >> power} {name}"
    return str(size) if size else ""


def markdown(head, rows, left=1):
    """A Markdown table; the first `left` columns are words."""
    rule = ["---" if i < left else "---:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def place_text(place):
    """Where the processors were."""
    return f"{place_name(place)} ({place:.0f} ns)"


def targets(rows):
    """The design's table: what each kind of work is held to beside what was measured."""
    lines = []
    for target, row in rows:
        cells = [f"{target.work}, {target.hosts}", bytes_text(target.size), target.rule]
        if row is None:
            lines.append(cells + ["", "", "not measured", "", "", ""])
            continue
        beside = isinstance(target.bare, Key) or target.bare is None
        lines.append(cells + [
            number(row.bare) if beside else "",
            f"{'≥' if target.more else '≤'} {number(row.needed)}",
            f"{number(row.measured)} {unit(target.key)}",
            f"{row.ratio:.2f}" if beside else "", "ok" if row.held else "**short**",
            place_text(row.place)])
    return markdown(["work", "bytes", "held to", "bare", "target", "measured", "x bare", "",
                     "place (cache line)"], lines)


def over_size(panel, results):
    """One panel as a table: a row for each line, a column for each size."""
    lines = []
    for line in panel.series:
        found = dict(series.points(panel, line, results))
        if found:
            lines.append([line.label] + [number(found[size]) if size in found else ""
                                         for size in panel.sizes])
    if not lines:
        return ""
    return (f"**{panel.title}**, {panel.unit}:\n\n"
            + markdown([""] + [bytes_text(size) for size in panel.sizes], lines))


def ahead(panel, results):
    """A sentence on the sizes at which Causeway is ahead of every rival of the same kind."""
    parts = []
    for label, name, family in series.CAUSEWAY:
        known = [(size, verdict) for size in panel.sizes
                 if (verdict := series.ahead(panel, name, family, size, results)) is not None]
        if known:
            won = [bytes_text(size) for size, verdict in known if verdict]
            at = f"at {', '.join(won)}" if won else "nowhere"
            parts.append(f"{label} {at} ({len(won)} of {len(known)} sizes)")
    return f"Ahead of every rival measured: {'; '.join(parts)}." if parts else ""


REGISTRATION = (("register", "register"), ("first READ from it", "first READ"),
                ("register again while covered, after a sleep", "register covered"),
                ("and again at once", "register again"),
                ("deregister", "deregister"),
                ("register again after that", "register after"),
                ("bare: populate and copy", "populate and copy"))


def registration(sizes, results):
    """What registering memory costs, size by size."""
    lines = []
    for label, name in REGISTRATION:
        found = [results.median(Key(name, size, ONE)) for size in sizes]
        if any(found):
            lines.append([label] + [number(f.value) if f else "" for f in found])
    if not lines:
        return ""
    return ("**Registration with remote access**, µs:\n\n"
            + markdown([""] + [bytes_text(size) for size in sizes], lines))


def threads(sizes, results):
    """How WRITEs scale with threads, size by size."""
    lines = []
    for name in measure.THREADS:
        found = [results.median(Key(name, size, ONE)) for size in sizes]
        if any(found):
            lines.append([name] + [number(f.value) if f else "" for f in found])
    if not lines:
        return ""
    return ("**WRITEs of several threads**, millions a second, one processor for each thread:\n\n"
            + markdown([""] + [bytes_text(size) for size in sizes], lines))


def in_number(processes, results):
    """A sentence about many processes."""
    time, share = (results.median(Key(name, 0, ONE)) for name in ("attach", "attached process"))
    if not time or not share:
        return ""
    return (f"{processes} processes of one host attached, connected in pairs and exchanged a "
            f"message in {number(time.value)} ms, {number(share.value)} KiB each (PSS).")


def own_loops(results):
    """A sentence about the part of perftest's figures that is perftest."""
    loops = [results.median(Key(f"own loop of {name}", 0, ONE))
             for name in ("ib_read_lat", "ib_write_bw")]
    if not all(loops):
        return ""
    read, write = (number(loop.value) for loop in loops)
    return (f"perftest's own loop, measured with work requests that complete at once: {read} ns of "
            f"each READ of `ib_read_lat`, {write} ns of each message of `ib_write_bw`.")
