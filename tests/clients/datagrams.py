"""Programs that need unreliable services: UD and UC queue pairs, multicast, SIDR."""

import itertools
import os
import re

from lib import pair

MESSAGES = "100"
UDADDY_PORT = 7174
UCX_ITERATIONS = "10000"
FI_ITERATIONS = "1000"

NAMES = ["udaddy", "mckey", "fi_pingpong -p verbs -e dgram", "ucx_perftest -t tag_lat, ud_verbs",
         "ucx_perftest -t tag_bw, ud_verbs"]

groups = itertools.count(1)


def done(text):
    """udaddy and mckey end with these words."""
    if re.search(r"return status 0", text):
        return None
    return "no 'return status 0' in the client's output"


def ucx_rows(text):
    """ucx_perftest ends with a line of figures."""
    if re.search(r"^Final: +\d+ +[\d.]+ ", text, re.M):
        return None
    return "no figures in the client's output"


def fi_rows(text):
    """fi_pingpong prints a line of figures for each size."""
    rows = re.findall(r"^\d+k? +\d+k? +=?\d+k? ", text, re.M)
    return None if len(rows) >= 3 else f"{len(rows)} rows in the client's output"


def table_ports(pid, tables):
    """Ports by inode in the socket tables of a process's network namespace."""
    ports = {}
    for table in tables:
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        for row in rows:
            ports[row[9]] = int(row[1].rpartition(":")[2], 16)
    return ports


def owns_udp_port(port):
    """Whether a process has bound a UDP port, as the connection manager's listeners do."""
    def listens(process):
        ports = table_ports(process.pid, ("udp", "udp6"))
        return any(ports.get(inode) == port for inode in pair.owned_sockets(process.pid))
    return listens


def in_group(group):
    """Whether a process's host has joined a group that nobody else uses."""
    word = "".join(f"{int(part):02X}" for part in reversed(group.split(".")))

    def listens(process):
        try:
            with open(f"/proc/{process.pid}/net/igmp", encoding="ascii") as table:
                return word in table.read()
        except OSError:
            return False
    return listens


class Program:
    """Two command lines, when the first listens, and what the second must print."""

    def __init__(self, name, server, client, listening, expect, env=None):
        self.name = name
        self.server = server
        self.client = client
        self.listening = listening
        self.expect = expect
        self.env = env


def programs(world, port):
    """Every program for a pair of hosts; `port` is free."""
    server, client = world.server.address, world.client.address
    group = f"239.83.{os.getpid() % 250}.{next(groups)}"
    udaddy = ["udaddy", "-C", MESSAGES]
    mckey = ["mckey", "-m", group, "-C", MESSAGES]
    ucx = ["ucx_perftest", "-p", str(port)]
    ucx_env = {"UCX_TLS": "ud_verbs,self", "UCX_NET_DEVICES": "cway0:1"}
    found = [
        Program("udaddy", udaddy, [*udaddy, "-s", server], owns_udp_port(UDADDY_PORT), done),
        Program("mckey", [*mckey, "-b", server], [*mckey, "-b", client, "-s"],
                in_group(group), done),
        Program("fi_pingpong -p verbs -e dgram",
                ["fi_pingpong", "-p", "verbs", "-e", "dgram", "-I", FI_ITERATIONS, "-B",
                 str(port)],
                ["fi_pingpong", "-p", "verbs", "-e", "dgram", "-I", FI_ITERATIONS, "-P",
                 str(port), server], pair.listens, fi_rows),
    ]
    for test in ("tag_lat", "tag_bw"):
        found.append(Program(f"ucx_perftest -t {test}, ud_verbs", ucx,
                             [*ucx, server, "-t", test, "-n", UCX_ITERATIONS],
                             pair.listens, ucx_rows, ucx_env))
    return found


def run(report, stage, world, wire, seconds, port, chosen):
    """Runs every program on one pair of hosts."""
    for program in programs(world, port):
        if not chosen(f"{stage} {program.name}"):
            continue
        runner = pair.Pair(world, wire, program.server, program.client, env=program.env,
                           listening=program.listening)
        outcome = runner.run(seconds, program.expect)
        text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
        report.add(stage, program.name, outcome.problem, outcome.seconds, text)
