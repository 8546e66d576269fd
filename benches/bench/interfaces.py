"""What shared memory costs as an interface: `causeway bench` of locks, SISCI and DMA."""

import json
import statistics
import subprocess

from bench import measure, table
from lib import netns, pair

KINDS = ("locks", "sisci", "dma")
LIMIT_SECONDS = 120
# What a row is held to, by how its name begins: the most that it may take, as a multiple of what
# it stands beside, or nanoseconds.
RATIO, NANOSECONDS = "x", "ns"
LIMITS = (
    ("mutex: lock and unlock", NANOSECONDS, 50.0),
    ("polled ping-pong", RATIO, 1.1),
    ("interrupt to a sleeper, one way", RATIO, 1.3),
    ("store, 128 KiB", RATIO, 1 / 0.98),
    ("store, 1 MiB", RATIO, 1 / 0.98),
    ("SCIMemCpy, 1 MiB", RATIO, 1 / 0.98),
    ("DMA waited for, 1 MiB", RATIO, 1 / 0.9),
    ("DMA posted, 1 MiB", RATIO, 1 / 0.9),
    ("DMA posted, 1 MiB, 1 ms apart", RATIO, 1 / 0.9),
)


def take(host, quick):
    """One run of each; rows by kind."""
    found = {}
    for kind in KINDS:
        argv = [netns.CAUSEWAY, "bench", kind, "--json"] + (["--quick"] if quick else [])
        child = host.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            out, said = child.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise measure.Failed(f"causeway bench {kind}: hangs") from error
        finally:
            pair.end_group(child)
        if child.returncode:
            raise measure.Failed(f"causeway bench {kind}: {said.strip()}")
        found[kind] = json.loads(out)["rows"]
    return found


def limit(what):
    """What a row is held to, or None."""
    held = [(unit, most) for begin, unit, most in LIMITS if what.startswith(begin)]
    return held[0] if held else None


def medians(rounds, kind):
    """Rows of a kind: what, its rival, nanoseconds of both, the ratio within a round."""
    for rows in zip(*(found[kind] for found in rounds if kind in found)):
        yield (rows[0]["what"], rows[0]["rival"],
               statistics.median(row["ns"] for row in rows),
               statistics.median(row["rival_ns"] for row in rows),
               statistics.median(row["ratio"] for row in rows))


def judged(what, ns, ratio):
    """Target and verdict of a row."""
    held = limit(what)
    if held is None:
        return "", ""
    unit, most = held
    value = ratio if unit == RATIO else ns
    text = f"≤ {most:.2f} x" if unit == RATIO else f"≤ {most:.0f} ns"
    return text, "ok" if value <= most else "**short**"


def text(rounds):
    """The tables."""
    parts = []
    for kind in KINDS:
        rows = [(what, rival, f"{ns:,.1f}", f"{rival_ns:,.1f}", f"{ratio:.2f}",
                 *judged(what, ns, ratio))
                for what, rival, ns, rival_ns, ratio in medians(rounds, kind)]
        if rows:
            head = (f"`causeway bench {kind}`", "beside", "ns", "beside, ns", "ratio", "target", "")
            parts.append(table.markdown(head, rows, left=2))
    return "\n\n".join(parts)
