#!/usr/bin/env python3
"""Floods a listener of the connection manager with requests until standard input ends, then prints
as JSON what it sent; a line before that when it is in full swing.

Its argument is JSON: the listener's address (`target`) and `port`. The requests are such as no key
has sealed, or `plain` ones. If there is a network to `forge`, each has another sender of it, and
some have `other` one.
"""

import ipaddress
import json
import os
import select
import socket
import struct
import sys

# docs/WIRE.md, *The connection manager*, *Secured*.
SEALED_MESSAGE, HEADER = 0x2E, 8
REQUEST, PLAIN_REQUEST = 332, 260
REQUESTS, BURST = 4096, 64
# Datagrams after which it is in full swing.
MANY = 20000
# One in so many bears the other address.
OTHER_EACH = 8
UDP, TTL, SENDER_PORT = 17, 64, 4000
# <linux/in6.h>
IPV6_HDRINCL = 36
PLAIN_HEAD = struct.Struct(">BBBBHHQQIIII")
CRC_TABLE = [0] * 256


def crc32c(data):
    """CRC32C."""
    if not CRC_TABLE[1]:
        for byte in range(256):
            crc = byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
            CRC_TABLE[byte] = crc
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def plain_request():
    """A request that is sealed by nobody, with a random name."""
    name = int.from_bytes(os.urandom(8), "big") | 1

    def packed(crc):
        head = PLAIN_HEAD.pack(0x21, 4, 0, 0, 0, SENDER_PORT, 0, name, 0x1000, 1, crc, 0)
        return head + bytes(PLAIN_REQUEST - len(head))
    return packed(crc32c(packed(0)))


def sealed_request():
    """What may be a sealed request, whose receiver is 0: nobody."""
    return bytes([SEALED_MESSAGE]) + bytes(HEADER + 7) + os.urandom(REQUEST - HEADER - 8)


def checksum(data):
    """The Internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(sender, target, port, payload):
    """The IP packet that bears a datagram."""
    length = 8 + len(payload)
    udp = struct.pack("!HHHH", SENDER_PORT, port, length, 0)
    ends = sender.packed + target.packed
    if sender.version == 4:
        # The kernel fills in what is 0; a datagram needs no checksum.
        head = struct.pack("!BBHHHBBH", 0x45, 0, 20 + length, 0, 0, TTL, UDP, 0)
        return head + ends + udp + payload
    found = checksum(ends + struct.pack("!IHBB", length, 0, 0, UDP) + udp + payload)
    head = struct.pack("!IHBB", 6 << 28, length, UDP, TTL)
    return head + ends + udp[:6] + struct.pack("!H", found or 0xFFFF) + payload


def forged(plan, payloads):
    """A socket, where to send to, and packets from forged senders."""
    target = ipaddress.ip_address(plan["target"])
    network, other = ipaddress.ip_network(plan["forge"]), ipaddress.ip_address(plan["other"])
    if target.version == 4:
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    else:
        sock = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_HDRINCL, 1)
    packets = [packet(network[1 + at] if at % OTHER_EACH else other, target, plan["port"], payload)
               for at, payload in enumerate(payloads)]
    return sock, (plan["target"], 0), packets


def received():
    """Packets that came to this network namespace."""
    with open("/proc/net/dev", encoding="ascii") as lines:
        rows = [line.split(":") for line in lines if ":" in line]
    return sum(int(row[1].split()[1]) for row in rows if row[0].strip() != "lo")


def main():
    """Floods."""
    plan = json.loads(sys.argv[1])
    make = plain_request if plan.get("plain") else sealed_request
    packets = [make() for _ in range(REQUESTS)]
    to = (plan["target"], plan["port"])
    if plan.get("forge"):
        sock, to, packets = forged(plan, packets)
    else:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setblocking(False)
    before = received()
    sent = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(BURST):
            try:
                sock.sendto(packets[sent % REQUESTS], to)
                sent += 1
            except BlockingIOError:
                select.select([], [sock], [])
        if sent // MANY != (sent - BURST) // MANY:
            print(sent, flush=True)
    print(json.dumps({"sent": sent, "drawn": received() - before}), flush=True)


if __name__ == "__main__":
    main()
