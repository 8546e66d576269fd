#!/usr/bin/env python3
"""Floods queue pairs with handshakes until standard input ends, then prints as JSON what it sent
and got; a line before that for each few thousand, as soon as cookies have come.

Its argument is JSON: the cluster's `key`, the `target`'s address, its own address (`own`) and
another host's (`other`), in whose name it speaks too, and pairs of queue pairs: the target's whose
peer it is (`own_pairs`), and the target's and the other host's (`other_pairs`). Needs root."""

import collections
import json
import os
import select
import socket
import struct
import sys

from noise import first_message

# docs/WIRE.md, *A secured wire*.
HANDSHAKE, HEADER, COOKIE = 0x1E, 32, 32
BEGIN, ANSWER, ASK, PROVED = 1, 2, 4, 5
PORT_BASE, INDEX_BITS = 20480, 12
UDP = 17
# Different messages for each pair: more than the target keeps answers of.
MESSAGES, RUBBISH = 64, 256
MESSAGE = 170
BURST = 32
# Datagrams that it tells of.
MANY = 5000


def port_of(qpn):
    """The UDP port of a queue pair."""
    return PORT_BASE + (qpn >> INDEX_BITS)


def datagram(step, pair, cookie, message):
    """A handshake datagram."""
    to, by = pair
    return (bytes([HANDSHAKE, step, 0, 0]) + struct.pack(">IQQIHH", to, 0, cookie, by,
                                                         len(message), 0) + message)


def in_the_name_of(address, target, pair, payload):
    """An IPv4 packet of another host's. The kernel fills in the sums that it has to."""
    length = 8 + len(payload)
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0, 64, UDP, 0,
                         socket.inet_aton(address), socket.inet_aton(target))
    return header + struct.pack(">HHHH", port_of(pair[1]), port_of(pair[0]), length, 0) + payload


class Flood:
    """Sends what it has prepared, round and round."""

    def __init__(self, plan):
        self.plan = plan
        self.counts = collections.Counter()
        # By the name of a handshake: the cookie that it has been given.
        self.cookies = {}
        self.own = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.own.bind((plan["own"], port_of(plan["own_pairs"][0][1])))
        self.own.setblocking(False)
        self.raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.valid = [(pair, cookie, message) for pair in plan["own_pairs"]
                      for cookie, message in self.messages(plan["own"], pair)]
        self.forged = [self.forge(pair, cookie, message) for pair in plan["other_pairs"]
                       for cookie, message in self.messages(plan["other"], pair)]
        self.rubbish = [(pair, datagram(BEGIN, pair, self.name(), os.urandom(MESSAGE)))
                        for pair in plan["other_pairs"] * RUBBISH]

    @staticmethod
    def name():
        """A name of a handshake."""
        return int.from_bytes(os.urandom(8), "big") | 1

    def messages(self, address, pair):
        """Handshakes that the key has made."""
        for _ in range(MESSAGES):
            cookie = self.name()
            yield cookie, first_message(self.plan["key"], (address, pair[1]), cookie,
                                        (self.plan["target"], pair[0]))

    def forge(self, pair, cookie, message):
        """A handshake in the name of the other host."""
        payload = datagram(BEGIN, pair, cookie, message)
        return pair, in_the_name_of(self.plan["other"], self.plan["target"], pair, payload)

    def send(self, kind, pair, data, sock):
        """Sends one."""
        try:
            sock.sendto(data, (self.plan["target"], port_of(pair[0])))
            self.counts[kind] += 1
        except BlockingIOError:
            pass

    def burst(self, turn):
        """Sends some of each kind."""
        for at in range(turn * BURST, (turn + 1) * BURST):
            pair, cookie, message = self.valid[at % len(self.valid)]
            given = self.cookies.get(cookie)
            data = (datagram(PROVED, pair, cookie, given + message) if given
                    else datagram(BEGIN, pair, cookie, message))
            self.send("with a cookie" if given else "valid", pair, data, self.own)
            self.send("forged", *self.forged[at % len(self.forged)], self.raw)
            pair, data = self.rubbish[at % len(self.rubbish)]
            self.send("rubbish", pair, data, self.own)

    def hear(self):
        """Takes the answers that have come."""
        while True:
            try:
                data = self.own.recv(2048)
            except BlockingIOError:
                return
            if len(data) < HEADER or data[0] != HANDSHAKE:
                continue
            self.counts["answers"] += data[1] == ANSWER
            if data[1] == ASK:
                self.counts["cookies"] += 1
                self.cookies[int.from_bytes(data[8:16], "big")] = data[HEADER:HEADER + COOKIE]

    def sent(self):
        """How many it has sent."""
        return sum(self.counts[kind] for kind in ("valid", "with a cookie", "forged", "rubbish"))


def main():
    """Floods."""
    flood = Flood(json.loads(sys.argv[1]))
    turn, told = 0, 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        flood.burst(turn)
        flood.hear()
        turn += 1
        if flood.sent() >= told + MANY and flood.counts["with a cookie"]:
            told = flood.sent()
            print(told, flush=True)
    print(json.dumps(flood.counts), flush=True)


if __name__ == "__main__":
    main()
