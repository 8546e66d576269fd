"""A run and what is written of it: docs/PERFORMANCE.md between its marks, docs/performance.svg."""

import datetime
import os
import platform
import subprocess

from bench import chart, interfaces, measure, plan, series, table
from bench import targets as held_to
from bench.results import ONE, Results

MARKS = ("<!-- bench:begin -->", "<!-- bench:end -->")
COMMAND = "make bench"
# From here on other work disturbs the figures, and the document says so.
BUSY_LOAD = 1.0


class Run:
    """What was measured, and on what."""

    def __init__(self, results, failed, left_out, machine, seconds, quick, partial=False,
                 interfaces_found=()):
        self.results, self.failed, self.left_out = results, failed, left_out
        # Of each round what `causeway bench` said.
        self.interfaces = list(interfaces_found)
        # Only some figures were asked for: what was not measured is then no news.
        self.partial = partial
        self.machine, self.seconds, self.quick = machine, seconds, quick
        self.sizes = plan.Sizes(quick)

    def to_json(self):
        """What from_json() reads."""
        return {"rounds": self.results.to_json(), "failed": self.failed,
                "left_out": self.left_out, "machine": self.machine, "seconds": self.seconds,
                "quick": self.quick, "interfaces": self.interfaces}

    @classmethod
    def from_json(cls, data):
        """A run of earlier."""
        return cls(Results.from_json(data["rounds"]), data["failed"], data["left_out"],
                   data["machine"], data["seconds"], data["quick"],
                   interfaces_found=data.get("interfaces", ()))

    def rows(self):
        """(target, its row or None) of every row of the design's table."""
        sizes = self.sizes
        rows = [(target, held_to.judge(target, self.results)) for target in
                held_to.all_targets(sizes.latency, sizes.bandwidth, sizes.register,
                                    sizes.threads)]
        return [row for row in rows if row[1]] if self.partial else rows

    def panels(self):
        """The panels of the figure and of the tables over size."""
        return series.panels(self.sizes.latency, self.sizes.bandwidth, self.sizes.network)


def key_text(key):
    """A key in words."""
    where = "" if key.hosts == ONE else f", {key.hosts}"
    return f"{key.name} {table.bytes_text(key.size).replace(' ', '')}".strip() + where


def processor():
    """The processor's name."""
    with open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def commit(root):
    """The commit that was measured; "+" if the tree held more than it."""
    said = subprocess.run(["git", "-C", root, "describe", "--always", "--dirty=+"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return said.stdout.strip() or "unknown"


def machine(root):
    """The circumstances of a run."""
    return {"processor": processor(), "processors": os.cpu_count(), "kernel": platform.release(),
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "commit": commit(root), "load": os.getloadavg()[0]}


def busy(about):
    """What is to be said of other work on the machine, if anything."""
    load = about["load"]
    return "" if load < BUSY_LOAD else f", load average {load:.1f} at the start"


def circumstances(run):
    """The command, the machine, the date, the commit, in one paragraph."""
    m = run.machine
    rounds = len(run.results.rounds)
    return (f"`{COMMAND}`, {m['date']}, commit {m['commit']}: {m['processor']}, "
            f"{m['processors']} processors, Linux {m['kernel']}; two hosts: namespaces joined by "
            f"veth, MTU {measure.MTU}; medians of {rounds} round{'s' * (rounds != 1)}, "
            f"{run.seconds / 60:.0f} minutes{busy(m)}.")


def count(run):
    """(targets held, targets)."""
    rows = [row for _, row in run.rows()]
    return sum(bool(row and row.held) for row in rows), len(rows)


def text(run):
    """Everything between the marks."""
    held, total = count(run)
    parts = [circumstances(run)]
    parts += [f"Left out: {name} is not installed." for name in run.left_out]
    parts += [f"Failed at least once: {name}." for name in run.failed]
    parts += ["### Targets", f"{held} of {total} are held.",
              table.targets(run.rows())]
    parts += ["### Beside the limits and other transports"]
    for panel in run.panels():
        parts += [table.over_size(panel, run.results), table.ahead(panel, run.results)]
    parts += ["### Registration and number",
              table.registration(run.sizes.register, run.results)]
    parts += [table.threads(run.sizes.threads, run.results)]
    parts += [table.in_number(held_to.PROCESSES, run.results), table.own_loops(run.results)]
    if run.interfaces:
        parts += ["### Shared memory as an interface", interfaces.text(run.interfaces)]
    return "\n\n".join(part for part in parts if part)


def replaced(document, tables, marks=MARKS):
    """A document with `tables` between its marks."""
    before, rest = document.split(marks[0], 1)
    return f"{before}{marks[0]}\n{tables}\n{marks[1]}{rest.split(marks[1], 1)[1]}"


def put(root, tables, marks):
    """Writes tables between their marks."""
    path = os.path.join(root, "docs", "PERFORMANCE.md")
    with open(path, encoding="utf-8") as file:
        document = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(replaced(document, tables, marks))


def write(root, run):
    """Writes the tables and the figure."""
    put(root, text(run), MARKS)
    with open(os.path.join(root, "docs", "performance.svg"), "w", encoding="utf-8") as file:
        file.write(chart.svg(run.panels(), run.results, circumstances(run).replace("`", "")))
