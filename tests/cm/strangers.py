"""What somebody sends to the connection manager's ports who has no part in a connection.

As a program, in the network namespace of a test: strangers.py WHAT ARGS..., one function below.
"""

import os
import random
import select
import socket
import struct
import sys
import time

# docs/WIRE.md, "Connection management".
HEADER = struct.Struct(">BBBBHHQQIIII4sB3s16s")
FLAG_CRC = 4
VERSION = 2
LONGEST = 260
REQUEST, ACK, RETRY = 1, 8, 13
OPCODE, ACKED = 0, 13
CRC_AT = 32
# RFC 792: destination unreachable, and its codes.
UNREACHABLE, CODES = 3, (0, 1, 3)
UDP = 17
IP_AND_UDP = 28
# How long answers are waited for, which a request draws for 10 s.
LISTEN_SECONDS = 1.5
# By then a connection must be ended on which nothing was said for 2 s.
ENDED_SECONDS = 10
# <asm-generic/socket.h>
SO_RCVBUFFORCE, ROOM = 33, 4 << 20
FILLERS = 8


def crc32c(data):
    """CRC32C, a bit at a time: the datagrams are short."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def request(name, token=0):
    """A connection request."""
    def packed(crc):
        head = HEADER.pack(VERSION << 4 | REQUEST, FLAG_CRC, 0, 0, 0, 4000, token, name, 0x1000, 1,
                           crc, 0, bytes([1, 1, 7, 7]), 0, bytes(3), bytes(16))
        return head + bytes(LONGEST - len(head))
    return packed(crc32c(packed(0)))


def flood(address, port, count):
    """Half-open requests, each of another name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for name in range(1, int(count) + 1):
            sender.sendto(request(name), (address, int(port)))


def answers(sock, seconds):
    """The datagrams that come within a time."""
    end = time.monotonic() + seconds
    while select.select([sock], [], [], max(0.0, end - time.monotonic()))[0]:
        yield sock.recv(2048)


def reflect(address, port):
    """One request that is never followed up: bytes sent and received, headers included."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sent = request(random.getrandbits(63) | 1)
        sock.sendto(sent, (address, int(port)))
        got = [len(data) + IP_AND_UDP for data in answers(sock, LISTEN_SECONDS)]
    print(len(sent) + IP_AND_UDP, sum(got), len(got))


def half_open(address, port, count):
    """Requests that are not followed up; then the first that got a token comes back with it.
    Prints how many were taken up, how many got a token, and whether the token was good."""
    names = {random.getrandbits(63) | 1 for _ in range(int(count))}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        # Accepts are repeated while the requests are still being sent.
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, ROOM)
        for name in names:
            sock.sendto(request(name), (address, int(port)))
        taken, tokens = set(), {}
        for data in answers(sock, LISTEN_SECONDS):
            head = HEADER.unpack_from(data)
            if head[OPCODE] & 15 == RETRY:
                tokens[head[6]] = head[7]
            else:
                taken.add(head[6])
        good = []
        for name, token in list(tokens.items())[:1]:
            for wrong in (0, token ^ 1, token):
                # Places that have become free meanwhile.
                for filler in range(FILLERS):
                    sock.sendto(request(name + 1 + filler), (address, int(port)))
                sock.sendto(request(name, wrong), (address, int(port)))
                heard = [HEADER.unpack_from(data) for data in answers(sock, LISTEN_SECONDS / 3)]
                good.append(any(head[OPCODE] & 15 == ACK and head[6] == name for head in heard))
    print(len(taken), len(tokens), *map(int, good))


def idle(address, port, count, pid):
    """TCP connections on which nothing is said. Prints how many stood, how many descriptors the
    other process had more meanwhile, and whether all were ended soon."""
    folder = f"/proc/{pid}/fd"
    before = len(os.listdir(folder))
    socks = [socket.create_connection((address, int(port)), LISTEN_SECONDS)
             for _ in range(int(count))]
    most = len(os.listdir(folder)) - before
    end = time.monotonic() + ENDED_SECONDS
    waiting = list(socks)
    while waiting and time.monotonic() < end:
        for sock in select.select(waiting, [], [], 1.0)[0]:
            # The end, or a reset; nobody says anything.
            waiting.remove(sock)
    print(len(socks), most, int(not waiting))


def noise(address, ports, count):
    """Datagrams of random bytes, and of random fields with a right checksum."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for port in ports.split(","):
            for _ in range(int(count)):
                sock.sendto(os.urandom(random.randrange(LONGEST + 40)), (address, int(port)))
                body = bytearray(os.urandom(random.choice([64, 65, LONGEST])))
                opcode = random.randrange(16)
                body[:4] = [VERSION << 4 | opcode, FLAG_CRC, random.randrange(4), len(body) - 64]
                if random.random() < 0.5:
                    body[44:48] = bytes(4)
                body[CRC_AT:CRC_AT + 4] = bytes(4)
                body[CRC_AT:CRC_AT + 4] = crc32c(body).to_bytes(4, "big")
                sock.sendto(body, (address, int(port)))


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def unreachable(victim, peer, ports, code, body):
    """An ICMP message that says that what `victim` sent to `peer` did not arrive."""
    datagram = struct.pack(">HHHH", *ports, 8 + LONGEST, 0) + body
    quote = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + LONGEST, 0, 0, 64, UDP, 0,
                        socket.inet_aton(victim), socket.inet_aton(peer)) + datagram

    def packed(total):
        return struct.pack(">BBHI", UNREACHABLE, code, total, 0) + quote
    return packed(checksum(packed(0)))


def icmp(victim, victim_ports, peer, peer_ports, count):
    """Forged reports of every kind, quoting nothing, or names at random."""
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
        for _ in range(int(count)):
            for theirs in victim_ports.split(","):
                for ours in peer_ports.split(","):
                    for body in (b"", os.urandom(64)):
                        code = random.choice(CODES)
                        sock.sendto(unreachable(victim, peer, (int(theirs), int(ours)), code, body),
                                    (victim, 0))


if __name__ == "__main__":
    {"flood": flood, "reflect": reflect, "half_open": half_open,
     "icmp": icmp, "idle": idle, "noise": noise}[sys.argv[1]](*sys.argv[2:])
