"""Programs that need unreliable services: UD and UC queue pairs, multicast, SIDR."""

import itertools
import os
import re

from clients import program
from clients.program import Program
from lib import pair

MESSAGES = "100"
UDADDY_PORT = 7174

NAMES = ["udaddy", "mckey"]

groups = itertools.count(1)


def done(text):
    """udaddy and mckey end with these words."""
    if re.search(r"return status 0", text):
        return None
    return "no 'return status 0' in the client's output"


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


def programs(world):
    """Every program for a pair of hosts."""
    server, client = world.server.address, world.client.address
    group = f"239.83.{os.getpid() % 250}.{next(groups)}"
    udaddy = ["udaddy", "-C", MESSAGES]
    mckey = ["mckey", "-m", group, "-C", MESSAGES]
    return [
        Program("udaddy", udaddy, [*udaddy, "-s", server], owns_udp_port(UDADDY_PORT), done),
        Program("mckey", [*mckey, "-b", server], [*mckey, "-b", client, "-s"],
                in_group(group), done),
    ]


def run(report, stage, world, wire, seconds, _ports, chosen):
    """Runs every program on one pair of hosts."""
    program.run_all(report, stage, world, wire, seconds, programs(world), chosen)
