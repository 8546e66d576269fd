#!/usr/bin/env python3
"""Sends random, forged, mutated and replayed datagrams to Causeway's ports, and prints how many.

Usage: sender.py SEED SECONDS SOURCE ADDRESS PORT[,PORT...]. Runs in a network namespace of a test,
as root: it listens to what passes and forges source addresses. What it must never send is a
datagram that bears a right cookie and other contents than the original: whoever can read the path
can also change it (docs/WIRE.md), and that is not what is tested.
"""

import random
import socket
import struct
import sys
import time

# docs/WIRE.md: offsets of the header.
COOKIE_AT, COOKIE_END = 8, 16
CRC_AT, CRC_FLAG = 32, 4
HEADER = 40
HANDSHAKE = 80
REQUEST, ACCEPT, SHUTDOWN = 1, 2, 4
VERSION = 0x10
OPCODES = 16
FIRST_PORT, LAST_PORT = 20481, 24575
LONGEST = 1472
KEPT = 256
BURST = 32
# Between bursts, so that the transfers under test get the processor too.
PAUSE_SECONDS = 0.002
ETH_P_IP = 0x0800
ETHERNET_HEADER = 14
# <linux/if_packet.h>, <linux/virtio_net.h>
SOL_PACKET, PACKET_VNET_HDR = 263, 15
VNET_HEADER, VNET_GSO_AT = 10, 1
# Time to live of what is sent here, so that it is not taken for traffic.
MARK = 77
UDP = 17


def crc_table():
    """The table of CRC32C (Castagnoli), reflected."""
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc_table()


def with_crc(data):
    """The datagram with a right checksum and the flag that says so."""
    data = bytearray(data)
    data[1] |= CRC_FLAG
    data[CRC_AT:CRC_AT + 4] = bytes(4)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    data[CRC_AT:CRC_AT + 4] = struct.pack(">I", crc ^ 0xFFFFFFFF)
    return bytes(data)


class Sender:
    """Makes datagrams and sends them, from true and false sources."""

    def __init__(self, seed, source, address, ports):
        self.rng = random.Random(seed)
        self.source, self.address, self.ports = source, address, ports
        self.heard = []
        self.handshakes = []
        self.sent = {}
        self.ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
        self.ear.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        self.ear.setblocking(False)
        self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.raw.setblocking(False)

    def listen(self):
        """Keeps some of the datagrams that pass between endpoints."""
        for _ in range(BURST):
            try:
                frame = self.ear.recv(65535)
            except BlockingIOError:
                return
            if frame[VNET_GSO_AT] != 0:
                # Several datagrams in one piece, to be cut up later: replayed, they would be one.
                continue
            packet = frame[VNET_HEADER + ETHERNET_HEADER:]
            header = (packet[0] & 15) * 4
            if len(packet) < header + 8 or packet[9] != UDP or packet[8] == MARK:
                continue
            from_port, to_port, length = struct.unpack_from(">HHH", packet, header)
            body = packet[header + 8:header + length]
            if not (FIRST_PORT <= to_port <= LAST_PORT and len(body) >= HEADER):
                continue
            if from_port == 0 or len(body) > LONGEST:
                continue
            heard = (socket.inet_ntoa(packet[12:16]), from_port,
                     socket.inet_ntoa(packet[16:20]), to_port, body)
            # Handshakes are few: kept apart, they are not lost among the data.
            shaken = body[0] & 15 in (REQUEST, ACCEPT)
            kept = self.handshakes if shaken else self.heard
            if len(kept) < KEPT:
                kept.append(heard)
            elif self.rng.random() < 0.05:
                kept[self.rng.randrange(KEPT)] = heard

    def send(self, kind, source, from_port, to, to_port, body):
        """Sends a datagram with any source. UDP checksum 0: none (RFC 768)."""
        udp = struct.pack(">HHHH", from_port, to_port, 8 + len(body), 0)
        ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 0, 0, 0, MARK, UDP, 0,
                         socket.inet_aton(source), socket.inet_aton(to))
        try:
            self.raw.sendto(ip + udp + body, (to, 0))
            self.sent[kind] = self.sent.get(kind, 0) + 1
        except OSError:
            # A full queue, or a length that the link does not take.
            pass

    def target(self):
        """A source port and a target; the source is often that of a true endpoint."""
        from_port = self.rng.choice([*self.ports, self.rng.randrange(1, 65536)])
        return self.source, from_port, self.address, self.rng.choice(self.ports)

    def noise(self):
        """Random bytes of any length."""
        length = self.rng.choice([0, 1, HEADER - 1, HEADER, HANDSHAKE, self.rng.randrange(LONGEST)])
        self.send("noise", *self.target(), self.rng.randbytes(length))

    def forged(self):
        """A right version and queue pair, everything else at random; the checksum often right."""
        source, from_port, to, to_port = self.target()
        opcode = self.rng.randrange(OPCODES)
        handshake = opcode in (REQUEST, ACCEPT)
        data = self.rng.choice([HEADER, self.rng.randrange(HEADER, 900)])
        length = HANDSHAKE if handshake else data
        body = bytearray(self.rng.randbytes(length))
        body[0] = VERSION | opcode
        body[1] = self.rng.choice([0, 1, CRC_FLAG, CRC_FLAG | 1, self.rng.randrange(256)])
        qpn = (to_port - 20480) << 12 | self.rng.randrange(8)
        body[5:8] = qpn.to_bytes(3, "big")
        if handshake:
            body[2:4] = bytes(2)
            body[4:8] = qpn.to_bytes(4, "big")
        crc = handshake or self.rng.random() < 0.5
        self.send("forged", source, from_port, to, to_port, with_crc(body) if crc else bytes(body))

    def mutated(self):
        """What was heard, with a wrong cookie and other changes, from its true source."""
        if not self.heard:
            return
        *way, body = self.rng.choice(self.heard)
        body = bytearray(body)
        if body[0] & 15 == SHUTDOWN or self.rng.random() < 0.5:
            # Of a reset that answered us the cookie is wrong already: a bit could put it right.
            body[COOKIE_AT:COOKIE_END] = self.rng.randbytes(COOKIE_END - COOKIE_AT)
        else:
            body[self.rng.randrange(COOKIE_AT, COOKIE_END)] ^= 1 << self.rng.randrange(8)
        for _ in range(self.rng.randrange(4)):
            at = self.rng.randrange(len(body))
            if not COOKIE_AT <= at < COOKIE_END:
                body[at] = self.rng.randrange(256)
        change = self.rng.random()
        if change < 0.2:
            del body[self.rng.randrange(COOKIE_END, len(body) + 1):]
        elif change < 0.3:
            body += self.rng.randbytes(self.rng.randrange(LONGEST - len(body) + 1))
        crc = body[1] & CRC_FLAG and len(body) >= HEADER and self.rng.random() < 0.7
        self.send("mutated", *way, with_crc(body) if crc else bytes(body))

    def incarnation(self):
        """A handshake heard before, as of another incarnation: another cookie, another echo."""
        if not self.handshakes:
            return
        *way, body = self.rng.choice(self.handshakes)
        body = bytearray(body)
        body[8:24] = self.rng.randbytes(16)
        self.send("incarnations", *way, with_crc(body))

    def replayed(self):
        """What was heard, word for word, late; from its true source or from a stranger."""
        if not self.heard:
            return
        source, from_port, *rest = self.rng.choice(self.heard + self.handshakes)
        if self.rng.random() < 0.3:
            from_port = self.rng.randrange(1, 65536)
        self.send("replayed", source, from_port, *rest)

    def run(self, seconds):
        """Sends for a time."""
        kinds = [self.noise, self.forged, self.mutated, self.incarnation, self.replayed]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.listen()
            for _ in range(BURST):
                self.rng.choice(kinds)()
            time.sleep(PAUSE_SECONDS)


def main():
    """Sends, and prints the counts as `kind=number`."""
    seed, seconds, source, address, ports = sys.argv[1:]
    sender = Sender(int(seed), source, address, [int(port) for port in ports.split(",")])
    sender.run(float(seconds))
    print(" ".join(f"{kind}={number}" for kind, number in sorted(sender.sent.items())))


if __name__ == "__main__":
    main()
