"""One side of a transfer by Mooncake's engine, with every byte verified.

    transfer_peer.py target PROTOCOL ADDRESS PORT
    transfer_peer.py initiator PROTOCOL ADDRESS PORT TARGET

Run by the Python that has mooncake-transfer-engine-non-cuda. The two sides agree over a connection
of their own, at PORT of the target. The initiator writes memory of the target, which tells the hash
of what it finds; then it reads what the target has filled in anew.
"""

import ctypes
import hashlib
import mmap
import random
import socket
import sys
import time

from line import Line
from mooncake.engine import TransferEngine

BYTES = 1 << 30
BLOCK = 1 << 20
STAMP_BYTES = 8


class Memory:
    """Private memory of this process, which the engine registers."""

    def __init__(self):
        self.map = mmap.mmap(-1, BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def fill(self, seed):
        """Random bytes, each block another; their hash."""
        block = random.Random(seed).randbytes(BLOCK - STAMP_BYTES)
        digest = hashlib.sha256()
        for at in range(0, BYTES, BLOCK):
            whole = at.to_bytes(STAMP_BYTES, "little") + block
            self.map[at:at + BLOCK] = whole
            digest.update(whole)
        return digest.hexdigest()

    def hash(self):
        """The hash of all bytes."""
        return hashlib.sha256(self.map).hexdigest()


def start(protocol, address, memory):
    """An engine with the memory registered."""
    engine = TransferEngine()
    code = engine.initialize(address, "P2PHANDSHAKE", protocol, "")
    if code != 0:
        sys.exit(f"the engine does not start: {code}")
    code = engine.register_memory(memory.address, BYTES)
    if code != 0:
        sys.exit(f"the memory cannot be registered: {code}")
    return engine


def target(protocol, address, port):
    """Lends its memory, and tells what it holds."""
    with socket.create_server((address, port)) as listener:
        memory = Memory()
        engine = start(protocol, address, memory)
        connection, _ = listener.accept()
    line = Line(connection)
    line.tell({"address": memory.address, "session": f"{address}:{engine.get_rpc_port()}"})
    while True:
        request = line.hear()
        if request == "end":
            return
        line.tell(memory.hash() if request == "hash" else memory.fill(request))


def timed(transfer, *args):
    """Runs one transfer; its rate in GB/s."""
    start = time.monotonic()
    code = transfer(*args)
    seconds = time.monotonic() - start
    if code != 0:
        sys.exit(f"the transfer returned {code}")
    return BYTES / seconds / 1e9


def check(protocol, what, rate, found, wanted):
    """Prints the figure of a transfer whose bytes are right."""
    if found != wanted:
        sys.exit(f"{protocol} {what}: the bytes differ: {found}, not {wanted}")
    print(f"{protocol} {what}: {BYTES} bytes, {rate:.2f} GB/s, verified", flush=True)


def initiator(protocol, address, port, peer):
    """Writes the target's memory and reads it."""
    memory = Memory()
    engine = start(protocol, address, memory)
    line = Line(socket.create_connection((peer, port)))
    there = line.hear()
    where = (there["session"], memory.address, there["address"], BYTES)
    wanted = memory.fill("written")
    rate = timed(engine.transfer_sync_write, *where)
    check(protocol, "write", rate, line.ask("hash"), wanted)
    wanted = line.ask("read")
    rate = timed(engine.transfer_sync_read, *where)
    check(protocol, "read", rate, memory.hash(), wanted)
    line.tell("end")


if __name__ == "__main__":
    role, kind, own, number, *others = sys.argv[1:]
    if role == "target":
        target(kind, own, int(number))
    else:
        initiator(kind, own, int(number), *others)
