"""What segments and interrupts of another host's node cost: `causeway bench sisci --node`."""

import os
import statistics
import subprocess
import tempfile
import time

from bench import document, measure, sides, table
from lib import netns, pair

MARKS = ("<!-- bench-nodes:begin -->", "<!-- bench-nodes:end -->")

HERE, THERE = 4, 8
READY_SECONDS = 20
LOG_BYTES = 1 << 16
CONFIG = """
[[sisci.node]]
id = {}
addresses = ["{}"]
trust = "address"
[[sisci.node]]
id = {}
addresses = ["{}"]
trust = "address"
"""


class Nodes:
    """Two hosts with a broker each that knows both as nodes; the brokers start the daemons."""

    def __init__(self):
        self.world = netns.TwoHosts(measure.MTU, prefix="10.84")
        self.brokers = []

    def __enter__(self):
        self.world.__enter__()
        here, there = self.world.client, self.world.server
        # pylint: disable-next=consider-using-with
        self.config = tempfile.NamedTemporaryFile("w", prefix="cw-bench-", suffix=".toml")
        self.config.write(CONFIG.format(HERE, here.address, THERE, there.address))
        self.config.flush()
        for host in (here, there):
            self.brokers.append(self.broker(host))
        return self

    def broker(self, host):
        """Starts a host's broker, and waits until it serves."""
        # pylint: disable-next=consider-using-with
        log = tempfile.TemporaryFile("w+", prefix="cw-bench-")
        broker = host.popen([os.path.join(netns.BUILD, "bin", "causewayd"), "--foreground",
                             "--idle", "0", "--config", self.config.name],
                            stdout=subprocess.DEVNULL, stderr=log)
        until = time.monotonic() + READY_SECONDS
        while " ready" not in said(log):
            if broker.poll() is not None or time.monotonic() > until:
                raise measure.Failed(f"the broker of {host.name} does not start: {said(log)}")
            time.sleep(0.05)
        return broker

    def __exit__(self, *args):
        for broker in self.brokers:
            pair.end_group(broker)
        self.config.close()
        self.world.__exit__(*args)

    def take(self, quick):
        """One run: its rows."""
        return sides.rows(self.world, "sisci", ["--node", str(THERE)], quick)


def said(log):
    """What a log holds."""
    return os.pread(log.fileno(), LOG_BYTES, 0).decode(errors="replace")


def medians(rounds):
    """Rows over all rounds: the first's words, medians of the figures."""
    for rows in zip(*rounds):
        middle = {name: statistics.median(row[name] for row in rows)
                  for name in ("ns", "rival_ns", "ratio")}
        yield {**rows[0], **middle}


def verdict(row):
    """Whether a row is held to something, and meets it."""
    if "held_to" not in row:
        return "", ""
    target = f"≤ {row['held_to']:.2f} x"
    # With fewer, its threads keep each other from running.
    if os.cpu_count() < row.get("processors", 0):
        return target, f"needs {row['processors']} processors"
    return target, "ok" if row["ratio"] <= row["held_to"] else "**short**"


def text(rounds, machine, seconds):
    """Everything between the marks."""
    m = machine
    head = (f"`make bench ARGS=--nodes`, {m['date']}, commit {m['commit']}: {m['processor']}, "
            f"{m['processors']} processors, Linux {m['kernel']}; two namespaces joined by veth, "
            f"MTU {measure.MTU}; medians of {len(rounds)} rounds, {seconds / 60:.0f} minutes"
            f"{document.busy(m)}.")
    rows = list(medians(rounds))
    shown = [(row["what"], row["rival"], f"{row['ns']:,.0f}", f"{row['rival_ns']:,.0f}",
              f"{row['ratio']:.2f}", *verdict(row)) for row in rows]
    titles = ("`causeway bench sisci --node`", "beside", "ns", "beside, ns", "ratio", "target", "")
    met, total = count(rounds)
    return "\n\n".join([head, f"{met} of {total} are held.",
                        table.markdown(titles, shown, left=2)])


def count(rounds):
    """(targets held, targets)."""
    said = [verdict(row)[1] for row in medians(rounds)]
    return said.count("ok"), said.count("ok") + said.count("**short**")


def missing(rounds):
    """Rows whose bytes have not all arrived in some round."""
    return sorted({row["what"] for rows in rounds for row in rows
                   if row.get("bytes") != row.get("arrived")})
