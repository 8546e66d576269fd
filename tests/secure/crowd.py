"""A host that floods another's queue pairs with handshakes, or its listeners with requests, while
a third connects."""

import json
import os
import subprocess
import sys
import time

from kill.harness import START_SECONDS, Failed
from lib import netns, pair
from lib.output import rest_of_output
from lib.patience import patient

MEET = os.path.join(netns.BUILD, "test", "meet")
PEER = os.path.join(netns.BUILD, "test", "cm_peer")
FLOOD = os.path.join(netns.ROOT, "tests", "secure", "flood.py")
CM_FLOOD = os.path.join(netns.ROOT, "tests", "secure", "cm_flood.py")
# Where librdmacm's listener is, the connections that are made while it is flooded, and what one may
# take at all.
CM_PORT, CM_CONNECTS, CM_SECONDS = "7471", 10, 60
# The issue's: what a flood leaves of another host's connect.
CONNECT_SECONDS = 1.0
# Queue pairs whose peer is the host that floods, and those that connect.
OWN, OTHERS = 4, 8
LINK = "cw1"
# Forged senders, whose addresses lead to the third host.
FORGED = {4: "10.128.0.0/9", 6: "fd99::/16"}
# What a flood draws at least that arrives.
LEAST_DRAWN = 100
# Numbers of queue pairs that nobody has: the first of slot 7.
FIRST_QPN = 7 << 12


def server_v6(host):
    """The IPv6 address of a host of lib.netns.TwoHosts."""
    _, _, third, last = host.address.split(".")
    return f"fd83:0:0:{third}::{last}"


class Stranger:
    """A third host, with a link to the first."""

    def __init__(self, world):
        self.server = world.server
        self.name = f"{world.server.netns}c"
        third = world.server.address.split(".")[2]
        self.address = f"10.84.{third}.2"
        self.gateway = f"10.84.{third}.1"
        self.both = {4: (f"{self.gateway}/24", f"{self.address}/24"),
                     6: (f"fd84:0:0:{third}::1/64", f"fd84:0:0:{third}::2/64")}
        self.host = netns.Host(self.name, self.address, self.name)

    def __enter__(self):
        server, own = self.server.netns, self.name
        netns.ip("netns", "add", own)
        netns.ip("link", "add", LINK, "netns", server, "type", "veth", "peer", "name", LINK,
                 "netns", own)
        # It speaks in the name of others, whose datagrams come by another link.
        netns.ip("netns", "exec", server, "sh", "-c",
                 f"for i in all {LINK}; do echo 0 > /proc/sys/net/ipv4/conf/$i/rp_filter; done")
        # No search for duplicates: IPv6 addresses are usable at once, also that of the link, from
        # which neighbours are asked for in the name of forged senders.
        for name in (server, own):
            netns.ip("netns", "exec", name, "sh", "-c",
                     f"echo 0 > /proc/sys/net/ipv6/conf/{LINK}/accept_dad")
        reached = {4: self.server.address, 6: server_v6(self.server)}
        for family, (gateway, address) in self.both.items():
            for name, one in ((server, gateway), (own, address)):
                netns.ip("-n", name, "addr", "add", one, "dev", LINK)
                netns.ip("-n", name, "link", "set", LINK, "up")
            route = ("via", gateway.split("/")[0], "dev", LINK)
            netns.ip("-n", own, "route", "add", reached[family], *route)
            netns.ip("-n", server, "route", "add", FORGED[family], "via", address.split("/")[0],
                     "dev", LINK)
        return self

    def __exit__(self, *_):
        for pid in netns.pids_in(self.name):
            netns.kill(pid)
        subprocess.run(["ip", "netns", "del", self.name], stderr=subprocess.DEVNULL, check=False)
        self.host.end()


class Spoken:
    """A program that is spoken to line by line."""

    def __init__(self, host, argv, wire=None):
        self.argv = argv
        self.process = host.popen(argv, wire, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True)

    def line(self):
        """What it says next."""
        said = self.process.stdout.readline()
        if not said:
            raise Failed(f"{self.argv[0]} has ended: {self.process.wait()}")
        return said.strip()

    def ask(self, line):
        """Says something to it, and returns the answer."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.line()

    def last(self):
        """Ends its input, and returns what it says to that."""
        return rest_of_output(self.process, self.process.stdout, START_SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pair.end_group(self.process)


def met(client, index, qpn, address):
    """Connects a queue pair of the client's, and has it send. Returns the seconds that took."""
    said = client.ask(f"meet {index} {qpn} {address}")
    words = said.split()
    if words[:2] != ["met", "in"] or not said.endswith("success"):
        raise Failed(f"connection {index}: {said}")
    return int(words[2]) / 1e6


def flooded(scene, key):
    """Connections are made in a second while a host floods the same queue pairs, and some of its
    own, with handshakes: such as the key has made, such as are forged, and rubbish."""
    scene.start([key])
    server_host, client_host = scene.world.server, scene.world.client
    with Stranger(scene.world) as stranger, \
            Spoken(server_host, [MEET, str(OWN + OTHERS)], "udp") as server, \
            Spoken(client_host, [MEET, str(OTHERS)], "udp") as client:
        theirs = [int(qpn) for qpn in server.line().split()]
        ours = [int(qpn) for qpn in client.line().split()]
        own_pairs = [(qpn, FIRST_QPN + at) for at, qpn in enumerate(theirs[:OWN])]
        pairs = list(zip(theirs[OWN:], ours))
        for at, (_, qpn) in enumerate(own_pairs):
            server.ask(f"hear {at} {qpn} {stranger.address}")
        for at, (_, qpn) in enumerate(pairs):
            server.ask(f"hear {OWN + at} {qpn} {client_host.address}")
        quiet = met(client, 0, pairs[0][0], server_host.address)
        plan = {"key": key, "target": server_host.address, "own": stranger.address,
                "other": client_host.address, "own_pairs": own_pairs, "other_pairs": pairs[1:]}
        argv = [sys.executable, FLOOD, json.dumps(plan)]
        with Spoken(stranger.host, argv) as flood:
            took = []
            begun = time.monotonic()
            for at in range(1, OTHERS):
                flood.line()
                took.append(met(client, at, pairs[at][0], server_host.address))
            lasted = time.monotonic() - begun
            counts = json.loads(flood.last().splitlines()[-1])
    if not counts.get("answers") or not counts.get("cookies"):
        raise Failed(f"the flood came to nothing: {counts}")
    if max(took) > patient(CONNECT_SECONDS):
        raise Failed(f"{max(took):.2f} s, {quiet:.3f} s without the flood; {counts}")
    return (f"at most {max(took):.3f} s, {quiet:.3f} s without the flood, over {lasted:.1f} s; "
            f"{counts}")


def connected(scene, address):
    """Has a program connect, and exchange messages. Returns the seconds that took."""
    begun = time.monotonic()
    program = scene.bench.start(scene.world.client, [PEER, "sequential", address, CM_PORT, "1"])
    if program.wait_end(CM_SECONDS):
        raise Failed(f"after {time.monotonic() - begun:.1f} s: {program.text[-500:]}")
    return time.monotonic() - begun


def listener_flooded(scene, forge=False, v6=False, plain=False):
    """Connections by librdmacm take a second at most while a host floods their listener with
    requests that no key has sealed, or `plain` ones; it may `forge` their senders, also those who
    connect."""
    server, client = scene.world.server, scene.world.client
    addresses = [server_v6(host) if v6 else host.address for host in (server, client)]
    plan = {"target": addresses[0], "other": addresses[1], "port": int(CM_PORT), "plain": plain,
            "forge": FORGED[6 if v6 else 4] if forge else None}
    with Stranger(scene.world) as stranger, \
            Spoken(server, [PEER, "server", CM_PORT], "udp") as listener:
        listener.line()
        quiet = connected(scene, addresses[0])
        with Spoken(stranger.host, [sys.executable, CM_FLOOD, json.dumps(plan)]) as flood:
            flood.line()
            begun = time.monotonic()
            took = [connected(scene, addresses[0]) for _ in range(CM_CONNECTS)]
            lasted = time.monotonic() - begun
            counts = json.loads(flood.last().splitlines()[-1])
    if not LEAST_DRAWN < counts["drawn"] <= counts["sent"]:
        raise Failed(f"the flood did not arrive, or draws more than it is: {counts}")
    if max(took) > patient(CONNECT_SECONDS) + quiet:
        raise Failed(f"{max(took):.2f} s, {quiet:.3f} s without the flood; {counts}")
    return (f"at most {max(took):.3f} s, {quiet:.3f} s without the flood, over {lasted:.1f} s; "
            f"{counts}")
