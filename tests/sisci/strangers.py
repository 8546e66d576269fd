"""Somebody of another node who speaks to a node daemon by himself: he is believed to be of that
node, and reaches nothing but what was given to him.

As a program, strangers.py ADDRESS is that somebody: it prints of each kind of attempt how many were
refused, and how many it has made.
"""

import os
import random
import socket
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests"))

from lib.netns import BUILD  # noqa: E402
from sisci import caller  # noqa: E402
from sisci.actors import Actor, Failed  # noqa: E402
from sisci.cluster import Cluster  # noqa: E402

OWN, OWNER, CLIENT = 44, 24, 4
SEGMENT, BELL, OTHER = 910, 41, 911
CONNECT, FETCH, DISCONNECT, CONNECT_BELL, RESTORE, WATCH, MAPPED = 13, 14, 15, 18, 22, 25, 26
PSN = 77
SUCCESS, ACCESS_REFUSED, FLUSHED = 0, 10, 5
GUESSES = 32
SECONDS = 300
PAGE = 4096
# Every kind of attempt, and how many there are of each.
KINDS = {"another client's key": 4, "keys that are guessed": 2 * GUESSES, "beyond the segment": 6,
         "a key that was given back": 2, "another client's connection": GUESSES,
         "names that are guessed": GUESSES, "another client's trigger": GUESSES,
         "another tenant's segment": 2}


class Stranger:
    """A connection to a daemon, with a queue pair."""

    def __init__(self, address):
        self.address = address
        self.program = subprocess.Popen(
            [os.path.join(BUILD, "bin", "causeway"), "run", "--",
             os.path.join(BUILD, "test", "sisci", "forger")], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE)
        self.caller = None
        self.begin()

    def begin(self):
        """A connection, in place of the one before."""
        if self.caller:
            self.caller.sock.close()
        self.caller, said = caller.hello(self.address, nodes=[OWN])
        assert said == "agreed", said
        qpn = int(self.say("new").split()[1])
        status, body = self.call(caller.OPEN, struct.pack("<III", OWN, qpn, PSN))
        assert status == 0, status
        gid = (bytes(10) + b"\xff\xff" + socket.inet_aton(self.address)).hex()
        self.say(f"join {' '.join(map(str, struct.unpack('<II', body)))} {gid}")

    def say(self, command):
        """Tells the program; its answer."""
        self.program.stdin.write(f"{command}\n")
        self.program.stdin.flush()
        return self.program.stdout.readline().strip()

    def call(self, method, body):
        """Status and body of an answer. What the daemon tells meanwhile is passed over."""
        self.caller.sock.sendall(self.caller.message(method, body))
        while True:
            whole = self.caller.exactly(
                struct.unpack("<I", self.caller.exactly(4) or bytes(4))[0])
            assert whole, "the connection has ended"
            theirs, request, status = struct.unpack_from("<HIi", whole, 6)
            if (theirs, request) == (method, self.caller.request):
                return status, whole[24:]

    def connect(self, segment):
        """Connects to a segment: handle, address, size and key."""
        status, body = self.call(CONNECT, struct.pack("<IIBB", OWNER, segment, 0, 0))
        assert status == 0, f"segment {segment}: {status}"
        handle, = struct.unpack_from("<I", body)
        status, body = self.call(FETCH, struct.pack("<I", handle))
        assert status == 0, f"fetch: {status}"
        return (handle, *struct.unpack_from("<QQI", body))

    def request(self, kind, address, rkey, length=64):
        """The status of a READ's or WRITE's completion."""
        return int(self.say(f"{kind} {address % 2**64} {rkey} {length}").split()[1])

    def is_refused(self, kind, address, rkey, length=64):
        """Whether a READ or WRITE is; there is another connection afterwards."""
        status = self.request(kind, address, rkey, length)
        self.begin()
        return status == ACCESS_REFUSED

    def end(self):
        """Ends both."""
        self.caller.sock.close()
        self.program.kill()
        self.program.wait()


def keys(one, other):
    """Keys of another client, guessed ones, and ranges that go beyond."""
    _, base, size, rkey = other.connect(SEGMENT)
    assert other.request("write", base, rkey) == SUCCESS, "what was given is refused"
    yield "another client's key", [one.is_refused(kind, base + at, rkey) for kind in
                                   ("write", "read") for at in (0, size - 64)]
    guessed = [rkey ^ 1 << bit for bit in range(32)][:GUESSES]
    guessed += [random.getrandbits(32) for _ in range(GUESSES)]
    yield "keys that are guessed", [
        one.is_refused(("write", "read")[turn % 2], base, key) for turn, key in enumerate(guessed)]
    beyond = []
    for kind in ("write", "read"):
        for at, length in ((size, 1), (size - 32, 64), (-1, 8)):
            _, base, size, rkey = one.connect(SEGMENT)
            beyond.append(one.is_refused(kind, base + at, rkey, length))
    yield "beyond the segment", beyond
    back = []
    for kind in ("write", "read"):
        handle, base, size, rkey = one.connect(SEGMENT)
        assert one.request(kind, base, rkey) == SUCCESS
        assert one.call(DISCONNECT, struct.pack("<I", handle))[0] == 0
        back.append(one.is_refused(kind, base, rkey))
    yield "a key that was given back", back


def handles(one, other):
    """Connections of another client, by their numbers and by names."""
    handle, base, _, rkey = other.connect(SEGMENT)
    status, body = other.call(CONNECT_BELL, struct.pack("<IIBB", OWNER, BELL, 0, 0))
    assert status == 0, status
    bell, = struct.unpack_from("<I", body)
    numbers = sorted({handle, bell, *range(GUESSES * 2)})[:GUESSES]
    tried = []
    for number in numbers:
        one_number = struct.pack("<I", number)
        tried.append(one.call(FETCH, one_number)[0] != 0)
        # What the caller has not is passed over: it may have ended already.
        for method, more in ((WATCH, b""), (MAPPED, b"\0"), (MAPPED, b"\1"), (DISCONNECT, b"")):
            one.call(method, one_number + more)
    yield "another client's connection", tried
    tried = []
    for number in numbers:
        asked = struct.pack("<IIBB", OWNER, SEGMENT, 0, 1)
        names = struct.pack("<IQQHI", number, random.getrandbits(64), random.getrandbits(64), 1, 1)
        tried.append(one.call(RESTORE, asked + names)[0] != 0)
    yield "names that are guessed", tried
    # They arrive, and lead nowhere: the owner counts what has come.
    yield "another client's trigger", [
        one.say(f"send {number}") in (f"done {SUCCESS}", f"done {FLUSHED}") for number in numbers]
    assert other.call(FETCH, struct.pack("<I", handle))[0] == 0, "a connection has ended"
    assert other.request("write", base, rkey) == SUCCESS, "what was given is refused now"


def main(address):
    """Makes all attempts."""
    one, other = Stranger(address), Stranger(address)
    try:
        for attempts in (keys, handles):
            for kind, refused in attempts(one, other):
                print(f"{kind}: {sum(refused)} of {len(refused)}", flush=True)
        denied = [one.call(CONNECT, struct.pack("<IIBB", OWNER, OTHER, group, 0))[0] != 0
                  for group in (0, 1)]
        print(f"another tenant's segment: {sum(denied)} of {len(denied)}", flush=True)
    finally:
        one.end()
        other.end()


def configuration(path, cluster, scratch):
    """Three nodes; and on the owner's host another tenant."""
    with open(path, "w", encoding="ascii") as f:
        f.write(f'[[tenant]]\nname = "other"\nsocket = "{scratch}/other/broker.sock"\n'
                "users = [0]\n[sisci]\nnode_daemon = false\n")
        for node, host in zip((CLIENT, OWNER, OWN), cluster.hosts):
            f.write(f'[[sisci.node]]\nid = {node}\naddresses = ["{host.address}"]\n'
                    'trust = "address"\n')
    return path


def refused():
    """Owner and honest client at work, and the stranger at a third host: what is wrong."""
    with tempfile.TemporaryDirectory(prefix="wn-strangers-") as scratch, \
            Cluster(3, "10.78.0") as cluster:
        path = os.path.join(scratch, "nodes.toml")
        # Brokers of three hosts, which have one directory of sockets between them here.
        here, there, _ = [
            cluster.side(number, configuration(path + str(number), cluster,
                                               os.path.join(scratch, str(number))),
                         daemon=number == 1) for number in range(3)]
        owner, client = Actor(there, "owner"), Actor(here, "client", str(OWNER))
        owner.well("create")
        for step in ("connect", "map", "copy"):
            client.well(step)
        there.settings["CAUSEWAY_SOCKET"] = os.path.join(scratch, "1", "other", "broker.sock")
        another = Actor(there, "owner", "0", str(OTHER))
        another.well("create")
        argv = [sys.executable, os.path.abspath(__file__), there.host.address]
        third = cluster.hosts[2]
        done = subprocess.run(third.command(argv), env=third.environment(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=SECONDS)
        wanted = [f"{kind}: {count} of {count}" for kind, count in KINDS.items()]
        if done.stdout.splitlines() != wanted:
            raise Failed(f"not {wanted}, but {done.stdout}")
        # The stranger's own WRITEs have reached the first bytes alone, and no trigger has come.
        if owner.well("look") != str(0x5a) or owner.well("count") != "0":
            raise Failed(f"the owner: {owner.history}")
        for step in ("store", "copy", "trigger"):
            client.well(step)
        owner.well("wait")
        for step in ("unmap", "disconnect"):
            client.well(step)
        for actor in (owner, client, another):
            actor.kill()
        return f"{sum(KINDS.values())} attempts refused"


if __name__ == "__main__":
    main(sys.argv[1])
