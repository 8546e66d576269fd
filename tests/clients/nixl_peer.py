"""One side of transfers by NIXL's UCX backend between two agents, with every byte verified.

    nixl_peer.py target PORT ADDRESS
    nixl_peer.py initiator PORT ADDRESS TEST

Run by the Python that has nixl. The two sides agree over a connection of their own, at PORT of the
target's ADDRESS. The target serves a session after the other, each in a process of its own, until
one ends as it should: so a session may be killed, and the next one be reached.
"""

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy
from line import Line
from nixl import nixl_agent, nixl_agent_config

BYTES = 16 << 20
# What a cache of keys and values moves: blocks that lie anywhere, to blocks that lie elsewhere.
BLOCK = 16 << 10
BLOCKS = 512
SMALL = 8
SMALL_TRANSFERS = 1000
NOTICE = b"written"
SEED = "causeway"


class Side:
    """An agent with memory that it has registered."""

    def __init__(self, name):
        self.agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
        self.memory = numpy.zeros(BYTES, dtype=numpy.uint8)
        self.address = self.memory.ctypes.data
        self.agent.register_memory([(self.address, BYTES, 0, "")], "DRAM")

    def fill(self, seed):
        """Other bytes than before; their hash."""
        self.memory[:] = numpy.frombuffer(random.Random(seed).randbytes(BYTES), numpy.uint8)
        return self.hash()

    def hash(self):
        """The hash of all bytes."""
        return hashlib.sha256(self.memory).hexdigest()

    def describe(self):
        """What the other side needs of this one."""
        return {"agent": self.agent.get_agent_metadata().hex(), "address": self.address}


class Peer:
    """The target, as the initiator sees it."""

    def __init__(self, side, where):
        self.side = side
        self.line = Line(socket.create_connection(where))
        there = self.line.ask(side.describe())
        self.address = there["address"]
        self.name = side.agent.add_remote_agent(bytes.fromhex(there["agent"]))

    def transfer(self, operation, places, notice=b""):
        """Moves (own offset, its offset, bytes) for each of the places; how it ended."""
        agent = self.side.agent
        own = [(self.side.address + at, size, 0) for at, _, size in places]
        its = [(self.address + at, size, 0) for _, at, size in places]
        handle = agent.initialize_xfer(operation, agent.get_xfer_descs(own, "DRAM"),
                                       agent.get_xfer_descs(its, "DRAM"), self.name, notice)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        agent.release_xfer_handle(handle)
        return state

    def move(self, operation, places, notice=b""):
        """The same, which has to end well; its rate in GB/s."""
        start = time.monotonic()
        state = self.transfer(operation, places, notice)
        if state != "DONE":
            sys.exit(f"{operation} ended by {state}")
        return sum(size for _, _, size in places) / (time.monotonic() - start) / 1e9


def check(what, found, wanted):
    """Prints what was verified, or ends the program."""
    if found != wanted:
        sys.exit(f"{what}: the bytes differ: {found}, not {wanted}")
    print(f"{what}: verified", flush=True)


def whole(peer):
    """All memory, written with a notice and read."""
    wanted = peer.side.fill("write")
    rate = peer.move("WRITE", [(0, 0, BYTES)], NOTICE)
    check(f"write, {rate:.2f} GB/s", peer.line.ask("notified hash"), wanted)
    wanted = peer.line.ask("fill")
    rate = peer.move("READ", [(0, 0, BYTES)])
    check(f"read, {rate:.2f} GB/s", peer.side.hash(), wanted)


def blocks(peer):
    """Many blocks in one transfer, each to a place of its own; and small transfers, one by one."""
    chance = random.Random(SEED)
    places = list(zip(chance.sample(range(BYTES // BLOCK), BLOCKS),
                      chance.sample(range(BYTES // BLOCK), BLOCKS)))
    peer.side.fill("blocks")
    peer.line.ask("fill")
    for operation in ("WRITE", "READ"):
        if operation == "READ":
            peer.side.fill("other")
        peer.move(operation, [(own * BLOCK, its * BLOCK, BLOCK) for own, its in places])
        found = hashlib.sha256()
        for own, _ in places:
            found.update(peer.side.memory[own * BLOCK:(own + 1) * BLOCK])
        check(f"{operation} of {BLOCKS} blocks", found.hexdigest(),
              peer.line.ask([its * BLOCK for _, its in places]))
    for i in range(SMALL_TRANSFERS):
        peer.move("WRITE", [(i * SMALL, i * SMALL, SMALL)])
    end = SMALL * SMALL_TRANSFERS
    wanted = hashlib.sha256(peer.side.memory[:end]).hexdigest()
    check(f"{SMALL_TRANSFERS} small writes", peer.line.ask(end), wanted)


def killed(peer, where):
    """The target is killed: a transfer fails, and its successor is reached by the same agent."""
    whole(peer)
    peer.line.tell("die")
    peer.line.wait_end()
    start = time.monotonic()
    try:
        ended = peer.transfer("WRITE", [(0, 0, BYTES)])
    except Exception as error:  # pylint: disable=broad-except
        ended = type(error).__name__
    if ended != "ERR" and not ended.startswith("nixl"):
        sys.exit(f"a transfer to a killed target ended by {ended}")
    print(f"refused by {ended} after {time.monotonic() - start:.1f} s", flush=True)
    peer.side.agent.remove_remote_agent(peer.name)
    successor = Peer(peer.side, where)
    whole(successor)
    return successor


def initiator(where, test):
    """Runs one of the tests."""
    peer = Peer(Side("initiator"), where)
    if test == "killed":
        peer = killed(peer, where)
    else:
        {"whole": whole, "blocks": blocks}[test](peer)
    peer.line.tell("end")
    peer.line.wait_end()


def answer(side, request):
    """What the target says to a request."""
    if request == "fill":
        return side.fill("fill")
    if request == "notified hash":
        while not side.agent.check_remote_xfer_done("initiator", NOTICE):
            pass
        return side.hash()
    if isinstance(request, int):
        return hashlib.sha256(side.memory[:request]).hexdigest()
    found = hashlib.sha256()
    for at in request:
        found.update(side.memory[at:at + BLOCK])
    return found.hexdigest()


def session(listener):
    """Lends its memory to one initiator."""
    side = Side("target")
    line = Line(listener.accept()[0])
    side.agent.add_remote_agent(bytes.fromhex(line.hear()["agent"]))
    line.tell(side.describe())
    while True:
        request = line.hear()
        if request == "end":
            return
        if request == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        line.tell(answer(side, request))


def target(where):
    """Serves sessions until one ends as it should."""
    with socket.create_server(where) as listener:
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            number = listener.fileno()
            code = subprocess.call([sys.executable, __file__, "session", str(number)],
                                   pass_fds=[number])
    sys.exit(code)


if __name__ == "__main__":
    role, *words = sys.argv[1:]
    if role == "target":
        target((words[1], int(words[0])))
    elif role == "session":
        session(socket.socket(fileno=int(words[0])))
    else:
        initiator((words[1], int(words[0])), words[2])
