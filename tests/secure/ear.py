#!/usr/bin/env python3
"""Listens to Causeway's datagrams that pass in its network namespace, and judges them, until
standard input ends; prints what it saw as JSON. With an argument it meddles as well: it sends again
what passes here on its way out, as it was, late, cut off or changed. Runs as root."""

import collections
import json
import random
import select
import socket
import struct
import sys

LINK = "cw0"
FIRST_PORT, LAST_PORT = 20481, 24576
ETH_P_ALL, ETH_P_IP, ETH_P_IPV6, ETHERNET_HEADER = 0x0003, 0x0800, 0x86DD, 14
OUTGOING = 4
UDP, UDP_HEADER = 17, 8
IPV6_HEADER, IPV6_FRAGMENT, IPV6_FRAGMENT_HEADER = 40, 44, 8
# docs/WIRE.md: first bytes of a sealed datagram, of a handshake's, of one to a group, of a sealed
# message.
SEALED, HANDSHAKE, GROUP, MESSAGE = 0x1D, 0x1E, 0x1F, 0x2E
SEALED_HEADER, GROUP_HEADER, TAG = 24, 48, 16
# What the programs under test send again and again, in the clear: the bytes of ibv_rc_pingpong,
# ibv_ud_pingpong and group.py.
MARKER = b"\x7b" * 24
# Datagrams kept to be sent again late, and how many of a hundred are meddled with.
KEPT, OF_A_HUNDRED = 4096, 25
MTU = 1500


def udp_header(packet):
    """Where the UDP header of a packet is; None if it has none, as all fragments but the first."""
    if len(packet) >= IPV6_HEADER + IPV6_FRAGMENT_HEADER and packet[0] >> 4 == 6:
        if packet[6] != IPV6_FRAGMENT:
            return IPV6_HEADER if packet[6] == UDP else None
        later = int.from_bytes(packet[IPV6_HEADER + 2:IPV6_HEADER + 4], "big") >> 3
        is_first = packet[IPV6_HEADER] == UDP and later == 0
        return IPV6_HEADER + IPV6_FRAGMENT_HEADER if is_first else None
    if len(packet) < 20 or packet[9] != UDP or packet[0] >> 4 != 4:
        return None
    later = int.from_bytes(packet[6:8], "big") & 0x1FFF
    return 4 * (packet[0] & 15) if later == 0 else None


def datagram(packet):
    """Where the UDP header of a packet is, if it is a datagram to one of our ports, or may be one
    of the connection manager's."""
    at = udp_header(packet)
    if at is None:
        return None
    port = int.from_bytes(packet[at + 2:at + 4], "big")
    first = packet[at + UDP_HEADER] if len(packet) > at + UDP_HEADER else 0
    return at if FIRST_PORT <= port <= LAST_PORT or first >> 4 == 2 else None


def checksum(header):
    """The checksum of an IPv4 header whose field for it is zero."""
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def framed(frame, payload):
    """The frame with another payload, its lengths and sums right."""
    ip = bytearray(frame[ETHERNET_HEADER:])
    at = 4 * (ip[0] & 15)
    header = ip[:at]
    header[2:4] = (at + UDP_HEADER + len(payload)).to_bytes(2, "big")
    header[10:12] = b"\0\0"
    header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
    # No sum of UDP's: 0 says so.
    udp = ip[at:at + 4] + (UDP_HEADER + len(payload)).to_bytes(2, "big") + b"\0\0"
    return frame[:ETHERNET_HEADER] + bytes(header) + bytes(udp) + payload


class Seen:
    """What was seen so far."""

    def __init__(self):
        self.counts = collections.Counter()
        self.numbers = set()

    def look(self, packet):
        """Looks for what programs send in the clear, in any packet: fragments name no port."""
        self.counts["marked"] += MARKER in packet

    def judge(self, payload):
        """Counts a datagram."""
        kind = payload[0] if payload else 0
        names = {SEALED: "sealed", HANDSHAKE: "handshake", GROUP: "to groups",
                 MESSAGE: "messages"}
        self.counts[names.get(kind, "plain")] += 1
        if kind == SEALED and len(payload) >= SEALED_HEADER + TAG:
            # The same number under the same key, whatever phase it is said to be of.
            self.number(payload[8:16], payload[16:24])
            self.counts["highest phase"] = max(self.counts["highest phase"], payload[1])
        if kind == GROUP and len(payload) >= GROUP_HEADER + TAG:
            self.number(payload[32:48], payload[16:24])

    def number(self, key, number):
        """A number that something was sealed by, under a key."""
        self.counts["repeated numbers"] += (key, number) in self.numbers
        self.numbers.add((key, number))


class Meddler:
    """Sends again what it hears."""

    def __init__(self, ear):
        self.ear = ear
        self.random = random.Random(1)
        self.kept = collections.deque(maxlen=KEPT)
        self.counts = collections.Counter()

    def send(self, kind, frame):
        """Puts a frame on the link."""
        try:
            self.ear.send(frame)
            self.counts[kind] += 1
        except OSError:
            pass

    def hear(self, frame, payload):
        """A datagram on its way out."""
        if len(frame) > MTU + ETHERNET_HEADER:
            return
        again = framed(frame, payload)
        self.kept.append(again)
        if self.random.randrange(100) >= OF_A_HUNDRED:
            return
        kind = self.random.choice(["copied", "late", "cut", "changed", "header changed"])
        if kind == "copied":
            self.send(kind, again)
        elif kind == "late":
            self.send(kind, self.random.choice(self.kept))
        elif kind == "cut":
            self.send(kind, framed(frame, payload[:self.random.randrange(len(payload))]))
        else:
            changed = bytearray(payload)
            end = SEALED_HEADER if kind == "header changed" else len(changed)
            at = self.random.randrange(min(end, len(changed)))
            changed[at] ^= 1 << self.random.randrange(8)
            self.send(kind, framed(frame, bytes(changed)))


def main():
    """Listens."""
    ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    ear.bind((LINK, ETH_P_ALL))
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUFFORCE if hasattr(
        socket, "SO_RCVBUFFORCE") else 33, 64 << 20)
    seen, meddler = Seen(), Meddler(ear) if len(sys.argv) > 1 else None
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([ear, sys.stdin], [], [])
        if ear in ready:
            frame, (_, protocol, direction, *_) = ear.recvfrom(70000)
            packet = frame[ETHERNET_HEADER:]
            if protocol not in (ETH_P_IP, ETH_P_IPV6):
                continue
            seen.look(packet)
            at = datagram(packet)
            # What is meddled with is IPv4's, whole.
            if at is None or meddler and protocol != ETH_P_IP:
                continue
            payload = packet[at + UDP_HEADER:]
            if meddler is None:
                seen.judge(payload)
            elif direction == OUTGOING and payload:
                meddler.hear(frame, payload)
        elif sys.stdin in ready:
            break
    said = meddler.counts if meddler else seen.counts
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
