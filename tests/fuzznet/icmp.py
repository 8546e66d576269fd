#!/usr/bin/env python3
"""Forges ICMP reports to a host about datagrams that it sent, and prints how many.

Usage: icmp.py SECONDS HOST PEER PORT[,PORT...] PORT[,PORT...]: the host's address, its peer's, and
the UDP ports of both. Runs as root in the host's network namespace of a test. What it forges is
what a stranger can who knows addresses and ports: it has not seen a datagram, so it quotes eight
bytes of the packet as old routers do, or makes up the rest.
"""

import random
import socket
import struct
import sys
import time

UNREACHABLE = 3
NET, HOST, PORT, TOO_BIG = 0, 1, 3, 4
# As many of a kind as ended a connection once, in some two seconds.
PAUSE_SECONDS = 0.001
MTU = 576
UDP, TTL = 17, 64
QUOTES = (0, 24, 500)


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def report(code, host, peer, ports, quote):
    """An ICMP message: the datagram that `host` sent to `peer` did not arrive."""
    length = 28 + len(quote)
    ip = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 1, 0x4000, TTL, UDP, 0,
                     socket.inet_aton(host), socket.inet_aton(peer))
    ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:]
    quoted = ip + struct.pack("!HHHH", *ports, length - 20, 0) + quote
    mtu = MTU if code == TOO_BIG else 0
    head = struct.pack("!BBHHH", UNREACHABLE, code, 0, 0, mtu)
    return head[:2] + struct.pack("!H", checksum(head + quoted)) + head[4:] + quoted


def main():
    """Forges until the time is over."""
    seconds, host, peer = float(sys.argv[1]), sys.argv[2], sys.argv[3]
    own, others = ([int(port) for port in text.split(",")] for text in sys.argv[4:6])
    rng = random.Random(1)
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    sent = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for code in (PORT, NET, HOST, TOO_BIG):
            quote = rng.randbytes(rng.choice(QUOTES))
            ports = (rng.choice(own), rng.choice(others))
            raw.sendto(report(code, host, peer, ports, quote), (host, 0))
            sent += 1
        time.sleep(PAUSE_SECONDS)
    print(f"forged={sent}")


if __name__ == "__main__":
    main()
