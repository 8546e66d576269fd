"""`causeway trace` of SISCI to another host."""

import os
import tempfile

from operations.trace import INBOUND, OUTBOUND, WRITE, Tracer
from sisci.actors import Actor
from sisci.cluster import Cluster

OWNER_NODE = "8"
# Bytes of the owner's segment, which the copy fills (tests/sisci/session.c).
COPIED = 64 * 4096
# More than any datagram has.
WHOLE = "--payload=9000"
CONFIGURATION = """[sisci]
node_daemon = false
[[sisci.node]]
id = 4
addresses = ["10.0.0.1"]
trust = "address"
[[sisci.node]]
id = 8
addresses = ["10.0.0.2"]
trust = "address"
"""


def sisci():
    """A copy: WRITEs of the process, which come to the node daemon of the owner."""
    with tempfile.TemporaryDirectory(prefix="cwt-traced-") as scratch, Cluster(2) as hosts:
        path = os.path.join(scratch, "nodes.toml")
        with open(path, "w", encoding="ascii") as file:
            file.write(CONFIGURATION)
        here, there = [hosts.side(number, path) for number in range(2)]
        # Of a bundle, what lies behind the first payload is recorded with that only.
        asking, serving = (Tracer(side.host, "--all", WHOLE) for side in (here, there))
        with asking, serving:
            owner, client = Actor(there, "owner"), Actor(here, "client", OWNER_NODE)
            owner.well("create")
            for step in ("connect", "map", "copy"):
                client.well(step)
            asking.end()
            serving.end()
            sides = [(asking.packets(), OUTBOUND, client.process.pid),
                     (serving.packets(), INBOUND, there.node.pid)]
        for packets, direction, pid in sides:
            assert {packet.comment for packet in packets} == {f"udp, process {pid}"}, pid
            total = sum(length for packet in packets if packet.direction == direction
                        for opcode, length in zip(packet.opcode, packet.length)
                        if opcode == WRITE)
            assert total >= COPIED, f"{total} bytes"
    return f"{total} bytes"


TESTS = [("trace: SISCI to another host", sisci)]
