#!/usr/bin/env python3
"""Speaks the protocol of node daemons, rightly and wrongly: caller.py ADDRESS WHAT [ARGUMENT...]

What the daemon answered is printed, a word to a line.
"""

import os
import re
import socket
import struct
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PORT = 20480
MAGIC, SERVICE = 0x5743, 3
PROBE, OPEN, HELLO, PROVE = 3, 64, 70, 71
PROCESS, DAEMON, OBSERVER = range(3)
VERDICTS = ["agreed", "cluster", "configuration", "tenant", "same-node", "unknown-node", "address",
            "unproved", "other-node", "two-hosts"]
EACCES, ENOTCONN, EISCONN, EPROTO = 13, 107, 106, 71
PATIENCE = 60


def own_version():
    """The version of the remoting protocol of this tree."""
    with open(os.path.join(ROOT, "crates", "fabric", "src", "remoting", "mod.rs"),
              encoding="utf-8") as f:
        return int(re.search(r"VERSION: u16 = (\d+);", f.read())[1])


def text(value):
    """A string as messages have it."""
    return struct.pack("<H", len(value)) + value.encode()


class Hello:
    """What one end says of itself."""

    def __init__(self, **fields):
        self.role, self.nodes, self.host, self.keyed = PROCESS, [24], 99, False
        self.cluster = self.tenant = ""
        self.configuration, self.release, self.nonce = 0, "0", os.urandom(32)
        self.__dict__.update(fields)

    def encode(self):
        """Its bytes."""
        nodes = struct.pack(f"<H{len(self.nodes)}I", len(self.nodes), *self.nodes)
        return (bytes([self.role]) + nodes + struct.pack("<Q", self.host) + text(self.cluster)
                + struct.pack("<Q", self.configuration) + text(self.tenant)
                + bytes([self.keyed]) + text(self.release) + self.nonce)

    @staticmethod
    def decode(body):
        """Of the front of a body, and the rest."""
        at = 1
        count, = struct.unpack_from("<H", body, at)
        nodes = list(struct.unpack_from(f"<{count}I", body, at + 2))
        at += 2 + 4 * count
        host, = struct.unpack_from("<Q", body, at)
        cluster, at = take_text(body, at + 8)
        configuration, = struct.unpack_from("<Q", body, at)
        tenant, at = take_text(body, at + 8)
        keyed = bool(body[at])
        release, at = take_text(body, at + 1)
        nonce = body[at:at + 32]
        return Hello(role=body[0], nodes=nodes, host=host, cluster=cluster, tenant=tenant,
                     configuration=configuration, keyed=keyed, release=release,
                     nonce=nonce), body[at + 32:]


def take_text(body, at):
    """A string and where it ends."""
    count, = struct.unpack_from("<H", body, at)
    return body[at + 2:at + 2 + count].decode(), at + 2 + count


class Caller:
    """A connection."""

    def __init__(self, address, version=None):
        self.sock = socket.create_connection((address, PORT), timeout=PATIENCE)
        self.version = own_version() if version is None else version
        self.request = 0

    def message(self, method, body, kind=0):
        """A request's bytes, after its length."""
        self.request += 1
        header = struct.pack("<HHHHIiIBBH", MAGIC, self.version, SERVICE, method, self.request, 0,
                             len(body), kind, 0, 0)
        whole = header + body
        return struct.pack("<I", len(whole)) + whole

    def call(self, method, body):
        """Status and body of the reply; None if the connection has ended."""
        try:
            self.sock.sendall(self.message(method, body))
        except OSError:
            return None
        return self.reply()

    def reply(self):
        """Takes a reply."""
        head = self.exactly(4)
        whole = head and self.exactly(struct.unpack("<I", head)[0])
        if not whole:
            return None
        status, = struct.unpack_from("<i", whole, 12)
        return status, whole[24:]

    def exactly(self, count):
        """So many bytes, or None at the end."""
        data = b""
        while len(data) < count:
            try:
                more = self.sock.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not more:
                return None
            data += more
        return data

    def ended(self):
        """Whether the daemon ends the connection."""
        return self.exactly(1) is None


def hello(address, **fields):
    """A caller who agrees with the daemon but for these fields, and the verdict."""
    observer = Caller(address)
    status, body = observer.call(HELLO, Hello(role=OBSERVER).encode())
    assert status == 0, status
    daemon, _ = Hello.decode(body)
    agreed = {name: getattr(daemon, name) for name in ("cluster", "configuration", "tenant")}
    caller = Caller(address)
    status, body = caller.call(HELLO, Hello(**{**agreed, **fields}).encode())
    assert status == 0, status
    _, rest = Hello.decode(body)
    return caller, VERDICTS[rest[0]]


def opened(caller, node=24):
    """The status of an attempt to open."""
    outcome = caller.call(OPEN, struct.pack("<III", node, 1, 1))
    return None if outcome is None else outcome[0]


def verdict(address, *pairs):
    """What the daemon thinks of fields, and whether it opens for who goes on."""
    fields = dict(pair.split("=", 1) for pair in pairs)
    values = {name: eval(value) for name, value in fields.items()}  # pylint: disable=eval-used
    caller, said = hello(address, **values)
    print(said)
    print("open", opened(caller, (values.get("nodes") or [24])[0]))


def unsaid(address):
    """Asks for things before having said who it is."""
    caller = Caller(address)
    print("probe", caller.call(PROBE, struct.pack("<I", 4))[0])
    print("prove", caller.call(PROVE, bytes(32))[0])
    print("open", opened(caller))
    caller, _ = hello(address)
    print("hello", caller.call(HELLO, Hello().encode())[0])


def guess(address, rounds):
    """Guesses proofs: each is refused and ends its connection."""
    for number in range(int(rounds)):
        caller, said = hello(address, keyed=True)
        proof = [bytes(32), b"\xff" * 32][number] if number < 2 else os.urandom(32)
        outcome = caller.call(PROVE, proof)
        print(said, outcome[0], "ended" if caller.ended() else "goes on")
    # Nothing is proved by keeping silent.
    caller, said = hello(address, keyed=True)
    print(said, "open", opened(caller))


def long(address):
    """Says so much of itself that no message to the broker has room for it, and proves that."""
    caller, said = hello(address, keyed=True, nodes=[24] * 8140)
    print(said)
    outcome = caller.call(PROVE, bytes(32))
    print("prove", outcome[0] if outcome else "ended")


def listen(address):
    """Prints a process's hello and proof as they pass by to a daemon of this host."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
    sock.settimeout(PATIENCE)
    print("listening", flush=True)
    found = {}
    while len(found) < 2:
        packet = sock.recv(65535)
        for method in (HELLO, PROVE):
            start = struct.pack("<HHHH", MAGIC, own_version(), SERVICE, method)
            at = packet.find(start)
            if at >= 0 and socket.inet_aton(address) == packet[30:34] and packet[at + 20] == 0:
                length, = struct.unpack_from("<I", packet, at + 16)
                body = packet[at + 24:at + 24 + length]
                # The daemons' own are none that opens anything.
                if method == PROVE or body[0] == PROCESS:
                    found[method] = body
    print(found[HELLO].hex())
    print(found[PROVE].hex())


def replay(address, said, proof):
    """Says again what another has said."""
    caller = Caller(address)
    status, body = caller.call(HELLO, bytes.fromhex(said))
    _, rest = Hello.decode(body)
    print("hello", status, VERDICTS[rest[0]])
    outcome = caller.call(PROVE, bytes.fromhex(proof))
    print("prove", outcome[0], "ended" if caller.ended() else "goes on")


def idle(address, count):
    """Keeps so many connections that say nothing, and makes each that ends anew, until the end
    of standard input."""
    made = [socket.create_connection((address, PORT), timeout=PATIENCE) for _ in range(int(count))]
    print("made", len(made), flush=True)
    sys.stdin.read()


def halves(address):
    """Messages that come in pieces, or never whole."""
    caller = Caller(address)
    whole = caller.message(HELLO, Hello(role=OBSERVER).encode())
    for byte in whole:
        caller.sock.sendall(bytes([byte]))
    print("pieces", caller.reply()[0])
    for cut in (1, 4, 5, 28, len(whole) - 1):
        caller = Caller(address)
        caller.sock.sendall(whole[:cut])
        print("cut", cut, "ended" if caller.ended() else "answered")
    # One that never stops is not kept for that.
    caller, begun = Caller(address), time.monotonic()
    try:
        while time.monotonic() - begun < PATIENCE:
            caller.sock.sendall(caller.message(PROBE, struct.pack("<I", 4)))
            if caller.reply() is None:
                break
    except OSError:
        pass
    print("busy", "ended" if time.monotonic() - begun < PATIENCE / 2 else "goes on")


def version(address, number):
    """Says hello in another version: the answer is of the daemon's own, and names it."""
    caller = Caller(address, int(number))
    caller.sock.sendall(caller.message(HELLO, Hello().encode()))
    head = caller.exactly(4)
    whole = caller.exactly(struct.unpack("<I", head)[0])
    magic, theirs = struct.unpack_from("<HH", whole)
    status, = struct.unpack_from("<i", whole, 12)
    print("magic", magic == MAGIC, "version", theirs, "status", status,
          "ended" if caller.ended() else "goes on")


if __name__ == "__main__":
    KNOWN = {"verdict": verdict, "unsaid": unsaid, "guess": guess, "long": long, "listen": listen,
             "replay": replay, "idle": idle, "halves": halves, "version": version}
    KNOWN[sys.argv[2]](sys.argv[1], *sys.argv[3:])
