"""rsockets: rstream and riostream, socket programs under librspreload, our own tests."""

import hashlib
import os
import re

from clients import datagrams
from lib import pair

HERE = os.path.dirname(os.path.abspath(__file__))
# The distribution's Python, which is there wherever the other programs are.
PYTHON = "/usr/bin/python3"
PRELOAD = {"LD_PRELOAD": "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"}
# With it a server's connections become rsockets after it has forked.
FORKING = {**PRELOAD, "RDMAV_FORK_SAFE": "1"}
SIZES = ["-S", "70000", "-I", "20", "-C", "10"]
SMALL = ["-S", "64", "-I", "500", "-C", "2"]

NAMES = ["rsocket calls", "rstream -T b", "rstream -T n", "rstream -T a", "rstream -T r, small",
         "riostream -T b", "riostream -T a", "iperf3, librspreload", "iperf3 -R, librspreload",
         "curl, librspreload", "rstream -T s, librspreload", "rstream -T f, librspreload"]


def stream_rows(text):
    """rstream and riostream print a row of figures for each size."""
    if re.search(r"^custom +\S+ +\S+ +\S+ +\S+ +[\d.]+s +[\d.]+ +[\d.]+$", text, re.M):
        return None
    return "no figures in the client's output"


def words(wanted):
    """The output must hold these words."""
    return lambda text: None if wanted in text else f"no '{wanted}' in the client's output"


def sender_row(text):
    """iperf3 ends with a line for either end."""
    rows = re.findall(r" sec +[\d.]+ [KMG]Bytes +[\d.]+ [KMG]?bits/sec.*(sender|receiver)", text)
    return None if {"sender", "receiver"} <= set(rows) else "no figures in the client's output"


def programs(server, ports):
    """Every program; `ports` gives free ones. A server that has bound the UDP port of its number
    and no TCP port is an rsocket's: no client reaches it otherwise."""
    def one(name, server_argv, client_argv, expect, env=None, tcp=False):
        port = next(ports)
        filled = [[word.format(port=port, server=server) for word in argv]
                  for argv in (server_argv, client_argv)]
        listening = pair.listens if tcp else datagrams.owns_udp_port(port)
        return datagrams.Program(name, *filled, listening, expect, env)

    peer = [PYTHON, os.path.join(HERE, "rsocket_peer.py")]
    httpd = [PYTHON, os.path.join(HERE, "rsocket_httpd.py")]
    found = [one("rsocket calls", [*peer, "server", "{port}"],
                 [*peer, "client", "{server}", "{port}"], words("went well"))]
    for tool, kind, options in (("rstream", "b", SIZES), ("rstream", "n", SIZES),
                                ("rstream", "a", SIZES), ("rstream", "r", SMALL),
                                ("riostream", "b", SIZES), ("riostream", "a", SIZES)):
        argv = [tool, "-p", "{port}", "-T", kind, "-T", "v", *options]
        name = f"{tool} -T {kind}" + (", small" if options is SMALL else "")
        found.append(one(name, argv, [*argv, "-s", "{server}"], stream_rows))
    iperf = ["iperf3", "-p", "{port}"]
    for name, more in (("iperf3", []), ("iperf3 -R", ["-R"])):
        found.append(one(f"{name}, librspreload", [*iperf, "-s", "-1"],
                         [*iperf, "-c", "{server}", "-n", "20M", *more], sender_row, PRELOAD))
    digest = hashlib.sha256(body()).hexdigest()
    found.append(one("curl, librspreload", [*httpd, "{port}"],
                     ["sh", "-c", "curl -sS http://{server}:{port}/ | sha256sum"],
                     words(digest), PRELOAD))
    plain = ["rstream", "-p", "{port}", *SIZES]
    found.append(one("rstream -T s, librspreload", [*plain, "-T", "s"],
                     [*plain, "-T", "s", "-s", "{server}"], stream_rows, PRELOAD))
    found.append(one("rstream -T f, librspreload", [*plain, "-T", "f"],
                     [*plain, "-T", "s", "-s", "{server}"], stream_rows, FORKING, tcp=True))
    return found


def body():
    """What the HTTP server serves."""
    return bytes(i * 31 % 253 for i in range(253)) * 9001


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs every program on one pair of hosts."""
    for program in programs(world.server.address, ports):
        if not chosen(f"{stage} {program.name}"):
            continue
        runner = pair.Pair(world, wire, program.server, program.client, env=program.env,
                           listening=program.listening)
        outcome = runner.run(seconds, program.expect)
        text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
        report.add(stage, program.name, outcome.problem, outcome.seconds, text)
