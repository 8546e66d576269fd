"""A path between two hosts whose router changes what it carries while programs send.

The router's routes name the MTU; the hosts' own interfaces keep theirs. What passes is counted by
nftables in the router, packet by packet: datagrams as long as the path carries them, and none much
shorter, show that the sender has found out.
"""

import os
import re
import subprocess
import tempfile
import time

from kill.harness import Failed
from lib import netns
from lib.lossy import on
from lib.patience import patient

WHOLE = 9000
# The MTUs of the path, one after the other.
MTUS = (1280, 4000, WHOLE)
# IPv4 and UDP headers.
HEADERS = 28
# How near a search comes to what the path carries, and how many packets show that it has.
PRECISION = 32
ENOUGH = 200
# A search begins as long as this after the one before.
FOUND_SECONDS = patient(30.0)
LOOK_SECONDS = 0.2
ADDRESSES = ("10.96.1", "10.96.2")

SILENT = """
table inet silent {
    chain output {
        type filter hook output priority 0
        icmp type destination-unreachable drop
    }
}
"""
COUNT = """
table inet path {{
    chain forward {{
        type filter hook forward priority 0
        ip daddr {to} meta l4proto udp meta length > {low} meta length <= {mtu} counter
    }}
}}
"""


class Routed(netns.World):
    """Two hosts with a router between them, all in network namespaces."""

    def __init__(self, tag):
        netns.need_root("making network namespaces")
        self.names = [f"{tag}{os.getpid()}{end}" for end in "arb"]
        ends = (self.names[0], self.names[2])
        hosts = [netns.Host(n, f"{a}.2", n, tempfile.mkdtemp(prefix=f"{n}-"))
                 for n, a in zip(ends, ADDRESSES)]
        super().__init__("two hosts and a router", hosts)
        self.router = netns.Host("router", f"{ADDRESSES[0]}.1", self.names[1])
        try:
            self.build(ends)
        except (subprocess.CalledProcessError, OSError) as error:
            self.end()
            raise netns.SetupError(
                f"cannot make network namespaces: {netns.describe(error)}") from error

    def build(self, ends):
        """Makes the namespaces and their links. Packets go over those one by one."""
        router = self.names[1]
        for name in self.names:
            netns.ip("netns", "add", name)
            netns.ip("-n", name, "link", "set", "lo", "up")
        for side, (name, net) in enumerate(zip(ends, ADDRESSES)):
            far = f"side{side}"
            netns.ip("link", "add", netns.LINK, "mtu", str(WHOLE), "netns", name, "type", "veth",
                     "peer", "name", far, "mtu", str(WHOLE), "netns", router)
            for where, device, last in ((name, netns.LINK, 2), (router, far, 1)):
                netns.ip("-n", where, "addr", "add", f"{net}.{last}/24", "dev", device)
                netns.ip("-n", where, "link", "set", device, "gso_max_segs", "1", "up")
            netns.ip("-n", name, "route", "add", "default", "via", f"{net}.1")
        on(self.router, ["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])

    def carry(self, mtu):
        """From now on the path carries packets of so many bytes, in both directions."""
        for side, net in enumerate(ADDRESSES):
            netns.ip("-n", self.names[1], "route", "replace", f"{net}.0/24", "dev", f"side{side}",
                     "mtu", "lock", str(mtu))

    def end(self):
        super().end()
        for name in self.names:
            for pid in netns.pids_in(name):
                netns.kill(pid)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)
        self.router.end()


def passed(world):
    """How many packets of the length that is counted have passed."""
    listed = on(world.router, ["nft", "list", "table", "inet", "path"])
    return int(re.search(r"counter packets (\d+)", listed).group(1))


def follows(world, both, mtu):
    """The path has an MTU from now on: returns when datagrams are as long, and no longer."""
    world.carry(mtu)
    start = time.monotonic()
    low = mtu - PRECISION - 1
    on(world.router, ["nft", "-f", "-"],
       COUNT.format(to=world.client.address, low=low, mtu=mtu))
    try:
        while passed(world) < ENOUGH:
            for program in both:
                if program.process.poll() is not None:
                    raise Failed(f"MTU {mtu}: {program.state()}")
            if time.monotonic() - start > FOUND_SECONDS:
                raise Failed(f"MTU {mtu}: {passed(world)} datagrams of that length in "
                             f"{FOUND_SECONDS} s\n{both[0].state()}")
            time.sleep(LOOK_SECONDS)
    finally:
        on(world.router, ["nft", "delete", "table", "inet", "path"])
    return f"{mtu} after {time.monotonic() - start:.1f} s"


def followed(bench, silent):
    """The datagrams' length follows the path, down and up, while programs send."""
    world = bench.world
    if silent:
        on(world.router, ["nft", "-f", "-"], SILENT)
    both = bench.traffic("--size", "65536")
    told = [follows(world, both, mtu) for mtu in (WHOLE, *MTUS)]
    counts = [program.count() for program in both]
    for program, count in zip(both, counts):
        program.wait_for("more traffic", lambda _, p=program, c=count: p.count() > c,
                         patient(5.0))
        if "failed" in program.text:
            raise Failed(program.state())
    return ", ".join(told)
