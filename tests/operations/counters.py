"""The counters of the device's port in sysfs move by what perftest has moved."""

import re
import subprocess
import time

from lib import perftest
from lib.netns import CAUSEWAY, TwoHosts, one_host
from operations.schema import listens

PORT = "/sys/class/infiniband/cway0/ports/1"
SIZE, MESSAGES = 65536, 500
# They are at most so old (hw_counters/lifespan), and this machine may be busy.
SECONDS = 20
# A datagram's own headers are a part of its bytes; what is lost is sent again.
HEADERS = 1.25


def read(host, *names):
    """Counters as a program sees them, by name."""
    paths = [f"{PORT}/{name}" for name in names]
    argv = host.command([CAUSEWAY, "run", "--", "cat", *paths])
    done = subprocess.run(argv, env=host.environment(), stdout=subprocess.PIPE, text=True,
                          timeout=60, check=True)
    return dict(zip(names, map(int, done.stdout.split())))


def moved(host, before, least):
    """By how much they have moved, once the first is far enough."""
    first = next(iter(least))
    until = time.monotonic() + SECONDS
    while True:
        now = read(host, *before)
        change = {name: now[name] - before[name] for name in before}
        if change[first] >= least[first] or time.monotonic() > until:
            return change
        time.sleep(0.1)


def shared():
    """Shared memory: exactly the payload, in either direction."""
    names = ("counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_packets")
    with one_host() as world:
        for tool in ("ib_write_bw", "ib_send_bw", "ib_read_bw"):
            # The broker of the last run may have gone: a keeper makes all runs one broker's.
            before = read(world.server, *names)
            with world.server.popen(["sleep", "600"], wire="shm") as keeper:
                before = read(world.server, *names)
                perftest.run(world, "shm", tool, SIZE, MESSAGES)
                words = SIZE * MESSAGES // 4
                change = moved(world.server, before, {names[0]: words})
                keeper.kill()
            expected = {names[0]: words, names[1]: words, names[2]: MESSAGES}
            assert change == expected, f"{tool}: {change}, not {expected}"


def datagrams():
    """UDP: the payload and headers, at the side that sends and at the one that receives."""
    with TwoHosts(1500, prefix="10.92", tag="ops") as world:
        sent, received = "counters/port_xmit_data", "counters/port_rcv_data"
        keepers = [host.popen(["sleep", "600"], wire="udp") for host in
                   (world.client, world.server)]
        try:
            before = [read(host, sent, received) for host in (world.client, world.server)]
            perftest.run(world, "udp", "ib_write_bw", SIZE, MESSAGES)
            words = SIZE * MESSAGES // 4
            client = moved(world.client, before[0], {sent: words})
            server = moved(world.server, before[1], {received: words})
        finally:
            for keeper in keepers:
                keeper.kill()
                keeper.wait()
        assert words < client[sent] < HEADERS * words, f"{client[sent]} words for {words}"
        assert words < server[received] < HEADERS * words, f"{server[received]} for {words}"
        assert client[received] < words / 4 and server[sent] < words / 4, (client, server)
        return f"{client[sent] / words - 1:.1%} headers"


def reported():
    """perftest reports the change of a counter that it keeps open."""
    with one_host() as world:
        extra = ["-D", "3", "-W", "counters/port_xmit_data"]
        port = next(perftest.ports)
        side = ["ib_write_bw", "-F", "-s", str(SIZE), "-p", str(port), *extra]
        server = world.server.popen(side, wire="shm", stdout=subprocess.DEVNULL)
        try:
            listens(world.server, port)
            client = subprocess.run(
                world.client.command(["timeout", "60", *side, "127.0.0.1"], wire="shm"),
                env=world.client.environment(), stdout=subprocess.PIPE, text=True, timeout=90,
                check=True)
        finally:
            server.kill()
            server.wait()
    found = re.search(r"port_xmit_data\D+(\d+)", client.stdout)
    assert found and int(found[1]) > SIZE, client.stdout


def listed():
    """Every counter is a number, and those of the kernel's names are there."""
    with one_host() as world:
        listing = [CAUSEWAY, "run", "--", "sh", "-c",
                   f"cd {PORT}; grep -c . counters/* hw_counters/*; cat counters/* hw_counters/*"]
        done = subprocess.run(world.server.command(listing), env=world.server.environment(),
                              stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    names = set(re.findall(r"^(\w+/\w+):1$", done.stdout, re.MULTILINE))
    values = re.findall(r"^\d+$", done.stdout, re.MULTILINE)
    assert {"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_packets",
            "counters/port_rcv_packets", "hw_counters/lifespan"} <= names, done.stdout
    assert len(values) == len(names), done.stdout
    return f"{len(names)} counters"


TESTS = [("port counters: listed", listed), ("port counters: shared memory", shared),
         ("port counters: UDP", datagrams), ("port counters: perftest -W", reported)]
