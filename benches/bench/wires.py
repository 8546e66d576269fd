"""What a wire between two hosts costs by packet size, family of addresses and protection:
`causeway bench net`, beside bare UDP and TCP of the same place."""

import contextlib
import json
import os
import secrets
import statistics
import subprocess
import tempfile

from bench import document, sides, table
from lib import netns

MARKS = ("<!-- bench-wires:begin -->", "<!-- bench-wires:end -->")

MTUS = (1500, 9000)
FAMILIES = ("IPv4", "IPv6")
# What protects the datagrams, and the settings that ask for it. CRC is the default between hosts.
CRC, PLAIN, SEALED = "CRC", "without", "sealed"
SETTINGS = {CRC: {"CAUSEWAY_CRC": "on"}, PLAIN: {"CAUSEWAY_CRC": "off"},
            SEALED: {"CAUSEWAY_SECURE": "required"}}
CONFIG = """
[wire]
secure = "{secure}"
key = "{key}"
"""
READY_SECONDS = 20

# What a row with the defaults is held to, by the words of work and rival: the most of times.
HELD_TO = {
    ("SEND, 8 B, one way", "UDP, 8 B, one way"): 1.15,
    ("WRITE, 8 B, one way", "UDP, 8 B, one way"): 1.15,
    ("WRITE, 64 KiB, in a stream", "TCP, 64 KiB, in a stream"): 1.0,
    ("WRITE, 64 KiB, in a stream", "UDP, full datagrams, for 64 KiB"): 1 / 0.85,
    ("WRITE, 1 MiB, in a stream", "TCP, 1 MiB, in a stream"): 1.0,
}
# What a sealed stream may take, of times of the default's.
SEALED_TO = 1 / 0.6


class Pair:
    """Two hosts whose brokers protect datagrams in one way."""

    def __init__(self, mtu, protection):
        self.world = netns.TwoHosts(mtu, prefix="10.86")
        self.protection = protection
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        self.stack.enter_context(self.world)
        folder = self.stack.enter_context(tempfile.TemporaryDirectory(prefix="cw-bench-"))
        config, key = os.path.join(folder, "causewayd.toml"), os.path.join(folder, "wire.key")
        with open(key, "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(secrets.token_hex(32) + "\n")
        with open(config, "w", encoding="utf-8") as file:
            secure = "required" if self.protection == SEALED else "off"
            file.write(CONFIG.format(secure=secure, key=key))
        for host in (self.world.server, self.world.client):
            host.settings = SETTINGS[self.protection]
            # It returns when the broker serves.
            argv = [os.path.join(netns.BUILD, "bin", "causewayd"), "--config", config]
            subprocess.run(host.command(argv), env=host.environment(), check=True,
                           timeout=READY_SECONDS, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
        return self

    def __exit__(self, *args):
        return self.stack.__exit__(*args)

    def address(self, family):
        """The server's."""
        server = self.world.server
        if family == "IPv4":
            return server.address
        shown = subprocess.run(["ip", "-n", server.netns, "-j", "-6", "addr", "show", "dev",
                                netns.LINK, "scope", "global"], check=True,
                               stdout=subprocess.PIPE, text=True)
        return json.loads(shown.stdout)[0]["addr_info"][0]["local"]

    def take(self, family, quick):
        """One run: its rows."""
        return sides.rows(self.world, "net", [self.address(family)], quick)


def take(quick):
    """One round: rows by (MTU, family, protection)."""
    found = {}
    for mtu in MTUS:
        for protection in SETTINGS:
            with Pair(mtu, protection) as hosts:
                for family in FAMILIES:
                    found[mtu, family, protection] = hosts.take(family, quick)
    return found


def middle(rounds, place, index, name):
    """The median over the rounds of one figure."""
    return statistics.median(found[place][index][name] for found in rounds)


def verdict(ratio, most):
    """Whether a ratio meets what it is held to, if anything."""
    return "" if most is None else "ok" if ratio <= most else "**short**"


def rows_of(rounds, mtu, family):
    """A place's rows: work, rival, its time, then of each protection the time and the ratio, the
    verdict on the default's, and that on the sealed stream beside the default's."""
    for index, row in enumerate(rounds[0][mtu, family, CRC]):
        figures = {one: [middle(rounds, (mtu, family, one), index, name)
                         for name in ("ns", "rival_ns", "ratio")] for one in SETTINGS}
        held = verdict(figures[CRC][2], HELD_TO.get((row["what"], row["rival"])))
        sealed = figures[SEALED][0] / figures[CRC][0]
        kept = verdict(sealed, SEALED_TO if "stream" in row["what"] else None)
        yield row, figures, held, sealed, kept


def place_table(rounds, mtu, family):
    """The Markdown table of one place."""
    head = ["`causeway bench net`", "beside", "ns, with CRC", "beside, ns", "ratio", "",
            "without, ns", "ratio", "sealed, ns", "ratio", "sealed : CRC", ""]
    lines = []
    for row, figures, held, sealed, kept in rows_of(rounds, mtu, family):
        cells = [row["what"], row["rival"], f"{figures[CRC][0]:,.0f}", f"{figures[CRC][1]:,.0f}",
                 f"{figures[CRC][2]:.2f}", held]
        for one in (PLAIN, SEALED):
            cells += [f"{figures[one][0]:,.0f}", f"{figures[one][2]:.2f}"]
        lines.append(cells + [f"{sealed:.2f}", kept])
    return f"**MTU {mtu}, {family}:**\n\n" + table.markdown(head, lines, left=2)


def text(rounds, machine, seconds):
    """Everything between the marks."""
    m = machine
    met, total = count(rounds)
    many = "one round" if len(rounds) == 1 else f"medians of {len(rounds)} rounds"
    head = (f"`make bench ARGS=--wires`, {m['date']}, commit {m['commit']}: {m['processor']}, "
            f"{m['processors']} processors, Linux {m['kernel']}; two namespaces joined by veth; "
            f"{many}, {seconds / 60:.0f} minutes{document.busy(m)}.")
    tables = [place_table(rounds, mtu, family) for mtu in MTUS for family in FAMILIES]
    return "\n\n".join([head, f"{met} of {total} are held.", *tables])


def count(rounds):
    """(targets held, targets)."""
    said = [word for mtu in MTUS for family in FAMILIES
            for _, _, held, _, kept in rows_of(rounds, mtu, family) for word in (held, kept)]
    return said.count("ok"), said.count("ok") + said.count("**short**")
