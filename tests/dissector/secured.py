"""Refusals of secured connections: two hosts whose brokers have different keys."""

import contextlib
import os
import secrets
import subprocess
import tempfile

from clients import datagrams
from dissector.capture import Capture, Failed, frames
from lib import netns, pair

SECONDS = 60
RPING_PORT = 7174
CONFIG = '[wire]\nsecure = "required"\nkey = "{key}"\n'
# The reason of a refusal, and what the tree says of it.
ANOTHER_KEY, WORDS = "1", "Secured connection refused: another key"


@contextlib.contextmanager
def keyed(host):
    """A broker on a host, with a key that nobody else has; it accepts when this is entered."""
    with tempfile.TemporaryDirectory(prefix="cwt-keyed-") as folder:
        key, config = (os.path.join(folder, name) for name in ("wire.key", "causewayd.toml"))
        with open(key, "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f"{secrets.token_hex(32)}\n")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(key=key))
        # It returns when the daemon is ready; the host ends that.
        argv = [os.path.join(netns.BUILD, "bin", "causewayd"), "--runtime-dir", host.runtime_dir,
                "--config", config]
        subprocess.run(host.command(argv), env=host.environment(), stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, check=True, timeout=SECONDS)
        yield


def captured(world, server, client, **more):
    """What fails to connect, and each packet's opcodes, reasons and warnings."""
    fields = ("_ws.col.Protocol", "causeway.opcode", "causeway.cm.opcode",
              "causeway.handshake.reason", "_ws.expert.message", "causeway.malformed")
    with keyed(world.server), keyed(world.client), Capture(world.client) as seen:
        outcome = pair.Pair(world, "udp", server, client, **more).run(SECONDS)
        if not outcome.problem or "another key" not in outcome.client_text:
            raise Failed(f"another key is no reason: {outcome.client_text}")
        seen.stop()
        rows = frames(seen.path, fields, "udp")
    for protocol, *_, malformed in rows:
        if not protocol[0].startswith("Causeway") or malformed:
            raise Failed(f"a packet is not dissected: {rows}")
    return rows


def refusals(rows, column, opcode):
    """Looks for those that name the reason."""
    found = [row for row in rows if row[column] == [opcode] and row[3] == [ANOTHER_KEY]]
    if not found or any(WORDS not in row[4] for row in found):
        raise Failed(f"no refusal that says why: {rows}")


def handshake(world, port):
    """Of a queue pair's handshake."""
    argv = ["ibv_rc_pingpong", "-g", "0", "-n", "10", "-p", str(port)]
    refusals(captured(world, argv, [*argv, world.server.address]), 1, "14")


def request(world, _):
    """Of a request of the connection manager's: sealed, as is what draws no answer."""
    address = world.server.address
    rows = captured(world, ["rping", "-s", "-a", address, "-C", "5"],
                    ["rping", "-c", "-a", address, "-C", "5"],
                    listening=datagrams.owns_udp_port(RPING_PORT))
    refusals(rows, 2, "15")
    if ["14"] not in [row[2] for row in rows]:
        raise Failed(f"no sealed message: {rows}")
