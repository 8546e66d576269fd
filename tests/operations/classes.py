"""Traffic classes and service levels become the DSCP of datagrams, by the broker's table: seen in
the headers of packets between two hosts."""

import contextlib
import os
import subprocess
import tempfile

from clients import datagrams
from dissector.capture import Capture, frames
from lib import netns, pair, perftest

MTU = 1500
# Queue pairs' ports; the connection manager's messages, whose first byte begins with 2, have others
# or the same, and no class.
PORTS = range(20481, 24577)
MESSAGE = "2"
# DSCPs by service level, and a traffic class whose lower bits a program has set.
LEVELS = [0, 10, 46]
CLASS = 0x6B
# The bits for congestion notification, of which connections' data have ECT(0) (RFC 3168).
ECN, ECT = 3, 2
CONFIG = f"[wire]\ndscp = {LEVELS}\n"
# Longer than a packet: the kernel, or the link, cuts it.
LONG = MTU + 100


@contextlib.contextmanager
def two_hosts():
    """Two hosts whose brokers have the table."""
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(netns.TwoHosts(MTU))
        file = stack.enter_context(tempfile.NamedTemporaryFile("w", prefix="cwt-", suffix=".toml"))
        file.write(CONFIG)
        file.flush()
        for host in (world.server, world.client):
            # It returns when the broker serves.
            argv = [os.path.join(netns.BUILD, "bin", "causewayd"), "--config", file.name]
            subprocess.run(host.command(argv), env=host.environment(), check=True, timeout=60,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield world


def exchange(world, tool, size, count, options):
    """One run; a server that waits for the connection manager listens by UDP."""
    if "-R" not in options:
        perftest.run(world, "udp", tool, size, count, extra=options)
        return
    port = next(perftest.ports)
    argv = [tool, "-F", "-n", str(count), "-s", str(size), "-p", str(port), *options]
    both = pair.Pair(world, "udp", argv, [*argv, world.server.address],
                     listening=datagrams.owns_udp_port(port))
    outcome = both.run(perftest.LIMIT_SECONDS)
    assert outcome.problem is None, f"{outcome.problem}: {outcome.client_text[-600:]}"


def seen(world, tool, size, *options, count=50):
    """Of the datagrams from the client, of one run: the classes, the transport's bits of them, and
    the greatest length."""
    with Capture(world.server) as capture:
        exchange(world, tool, size, count, options)
        capture.stop()
        fields = ["ip.dsfield", "udp.length", "udp.srcport", "udp.payload"]
        rows = frames(capture.path, fields, f"ip.src == {world.client.address}")
    rows = [row for row in rows
            if int(row[2][0]) in PORTS and not row[3][0].startswith(MESSAGE)]
    assert rows, "no datagrams"
    whole = {int(row[0][0], 16) for row in rows}
    classes, ecn = {one & ~ECN for one in whole}, {one & ECN for one in whole}
    return classes, ecn, max(int(row[1][0]) for row in rows)


def marked(what, wanted, *options, tool="ib_send_lat", others=(), ect=True):
    """A test that datagrams are of a class, but for those of `others` that there may be."""
    def test():
        with two_hosts() as world:
            classes, ecn, _ = seen(world, tool, 8, *options)
        found = [hex(one) for one in sorted(classes - set(others))]
        assert found == [hex(wanted)], f"{found}, not {wanted:#x}"
        assert ecn <= {0, ECT} and (ECT in ecn) == ect, f"congestion notification: {ecn}"
    return f"class of datagrams: {what}", test


def stream():
    """A stream's datagrams have it, and are cut by the kernel as ever."""
    with two_hosts() as world:
        classes, _, longest = seen(world, "ib_write_bw", 65536, "-S", "2", count=100)
    assert classes == {LEVELS[2] << 2}, f"{[hex(one) for one in classes]}"
    assert longest > LONG, f"no more than {longest} bytes at a time"


TESTS = [
    marked("none", 0),
    marked("a service level's", LEVELS[1] << 2, "-S", "1"),
    marked("a level beyond the table", 0, "-S", "7"),
    marked("a traffic class's before a level's, without the transport's bits", CLASS & 0xFC,
           f"--tclass={CLASS}", "-S", "1"),
    marked("READs", LEVELS[2] << 2, "-S", "2", tool="ib_read_lat"),
    marked("UD", LEVELS[2] << 2, "-c", "UD", "-S", "2", ect=False),
    # With -R perftest has a second connection, for its own parameters, which may have no class.
    marked("the connection manager's RDMA_OPTION_ID_TOS", CLASS & 0xFC, "-R", "-T", str(CLASS),
           others=[0]),
    ("class of datagrams: a stream", stream),
]
