#!/usr/bin/env python3
"""A peer that speaks another version of the wire: docs/WIRE.md, "Other versions".

stranger.py asks ADDRESS PORT: is the client of an ibv_rc_pingpong, and its queue pair sends
requests of another version. stranger.py asked PORT: is the server of one, and answers its requests
by notices. Prints one line for each step that went as it must; the last one is "done".
"""

import os
import select
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cm.strangers import crc32c  # noqa: E402

OURS, THEIRS = 2, 1
REQUEST = 1
FIRST_PORT = 20480
QPN = 1 << 12 | 1
PSN = 0x123456
FLAG_CRC = 4
HELLO, NOTICE, CRC_AT = 80, 40, 32
# What ibv_rc_pingpong exchanges: LID, QPN, PSN, GID.
WORDS = "0000:{:06x}:{:06x}:{}"
WORDS_LENGTH = 52
SECONDS = 20
FORGED = 50


def sealed(data):
    """The datagram with its checksum."""
    data = bytearray(data)
    data[CRC_AT:CRC_AT + 4] = bytes(4)
    data[CRC_AT:CRC_AT + 4] = crc32c(data).to_bytes(4, "big")
    return bytes(data)


def request(qpn, cookie, version=OURS):
    """A connection request: what follows the fields that never change is random."""
    head = struct.pack(">BBHIQQIIII", version << 4 | REQUEST, FLAG_CRC, 0, qpn, 0, cookie, 0, 0, 0,
                       QPN)
    return sealed(head + os.urandom(HELLO - len(head) + 20))


def notice(qpn, cookie, speaks=OURS, answers=THEIRS):
    """A version notice."""
    return sealed(struct.pack(">BBBBIQQIIII", 0, speaks, answers, 0, qpn, cookie, 0, 0, 0, 0, QPN))


def gid(address):
    """The GID that stands for an IPv4 address, in hexadecimal."""
    return "0" * 20 + "ffff" + socket.inet_aton(address).hex()


def receive(sock, size):
    """So many bytes of a stream."""
    data = b""
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise SystemExit("the other side has gone")
        data += more
    return data


def bound(address):
    """The socket of our queue pair."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((address, FIRST_PORT + (QPN >> 12)))
    sock.settimeout(SECONDS)
    return sock


def exchange(stream, first):
    """Tells a pingpong who we are; its QPN."""
    ours = WORDS.format(QPN, PSN, gid(stream.getsockname()[0])).encode() + b"\0"
    if first:
        stream.sendall(ours.ljust(WORDS_LENGTH, b"\0"))
    theirs = receive(stream, WORDS_LENGTH)
    if not first:
        stream.sendall(ours.ljust(WORDS_LENGTH, b"\0"))
    return int(theirs.split(b":")[1], 16)


def asks(address, port):
    """Requests are answered by notices, no more than one for each, and nothing ends."""
    stream = socket.create_connection((address, int(port)), SECONDS)
    qpn = exchange(stream, True)
    stream.sendall(b"done\0")
    sock = bound(stream.getsockname()[0])
    to = (address, FIRST_PORT + (qpn >> 12))
    cookie = 0x1122334455667788
    end = time.monotonic() + SECONDS
    answer = None
    # Until its queue pair is connected nobody is there who could answer.
    while answer is None and time.monotonic() < end:
        sock.sendto(request(qpn, cookie), to)
        while select.select([sock], [], [], 0.2)[0]:
            data = sock.recv(2048)
            # It asks, too, in its own version.
            if data[0] >> 4 == 0:
                answer = data
                break
    if answer != sealed(struct.pack(">BBBBIQQIIII", 0, THEIRS, OURS, 0, QPN, cookie, 0, 0, 0, 0,
                                    qpn)):
        raise SystemExit(f"answered by {answer and answer.hex()}")
    print("answered")
    # Many, of every version there can be, with any cookie: at most one answer for each.
    sent = 0
    for i in range(FORGED):
        sock.sendto(request(qpn, i + 1, i % 14 + 2), to)
        sent += HELLO + 20
    got = 0
    while select.select([sock], [], [], 0.5)[0]:
        data = sock.recv(2048)
        if data[0] >> 4 == 0:
            got += len(data)
    if not 0 < got <= sent // 2:
        raise SystemExit(f"{got} bytes in answer to {sent}")
    for i in range(FORGED):
        sock.sendto(notice(qpn, i, i % 14 + 2), to)
    sock.sendto(request(qpn, cookie), to)
    while sock.recv(2048)[0] >> 4 != 0:
        pass
    print("not ended by forged notices")
    print("done", flush=True)


def asked(port):
    """A notice that does not know the cookie ends nothing, the right one does."""
    with socket.create_server(("", int(port))) as listener:
        listener.settimeout(SECONDS)
        stream, _ = listener.accept()
    sock = bound(stream.getsockname()[0])
    stream.settimeout(SECONDS)
    qpn = exchange(stream, False)
    receive(stream, 5)
    heard = 0
    while heard < 10:
        data, sender = sock.recvfrom(2048)
        if len(data) != HELLO or data[0] != THEIRS << 4 | REQUEST:
            raise SystemExit(f"not a request: {data.hex()}")
        cookie = int.from_bytes(data[16:24], "big")
        for wrong in (0, cookie ^ 1, int.from_bytes(os.urandom(8), "big")):
            sock.sendto(notice(qpn, wrong), sender)
        heard += 1
    print("not ended by forged notices")
    sock.sendto(notice(qpn, cookie), sender)
    # Requests may have been under way; they cease.
    end = time.monotonic() + SECONDS
    while select.select([sock], [], [], 1.0)[0] and time.monotonic() < end:
        sock.recv(2048)
    if time.monotonic() >= end:
        raise SystemExit("it asks on after the notice")
    print("ended by a notice that knows the cookie")
    print("done", flush=True)


if __name__ == "__main__":
    {"asks": asks, "asked": asked}[sys.argv[1]](*sys.argv[2:])
