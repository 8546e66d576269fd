"""Mooncake's transfer engine: 1 GiB written and read, over RDMA and over its own TCP."""

import os
import re

from clients import program
from clients.program import Program
from lib import netns

PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transfer_peer.py")
# scripts/setup installs the engine there.
PYTHON = os.path.join(netns.ROOT, "build", "venv", "mooncake", "bin", "python")
# A busy machine reads 1 GiB in more than a minute; the engine's own limit is 30 s.
TRANSFER_SECONDS = 300
PATIENCE = {"MC_TRANSFER_TIMEOUT": str(TRANSFER_SECONDS)}
# The engine takes an RDMA device where it finds one, whatever protocol it was given.
PROTOCOLS = {"rdma": PATIENCE, "tcp": {**PATIENCE, "MC_FORCE_TCP": "1"}}
NAMES = [f"mooncake, {protocol}" for protocol in PROTOCOLS]


def verified(protocol):
    """Both directions are verified by the initiator and its peer."""
    def expect(text):
        found = re.findall(rf"^{protocol} (\w+): \d+ bytes, [\d.]+ GB/s, verified$", text, re.M)
        return None if found == ["write", "read"] else f"verified: {found}"
    return expect


def programs(world, port):
    """A target and an initiator for each protocol."""
    for protocol, env in PROTOCOLS.items():
        target, initiator = world.server.address, world.client.address
        yield Program(f"mooncake, {protocol}",
                      [PYTHON, PEER, "target", protocol, target, port],
                      [PYTHON, PEER, "initiator", protocol, initiator, port, target],
                      expect=verified(protocol), env=env, words=False)


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each protocol."""
    found = programs(world, str(next(ports)))
    # Each direction says something when it is over.
    seconds = max(seconds, TRANSFER_SECONDS)
    program.run_all(report, stage, world, wire, seconds, found, chosen)
