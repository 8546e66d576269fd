#!/usr/bin/env python3
"""Floods a listener of the connection manager with requests that no key has sealed until standard
input ends, then prints as JSON what it sent; a line before that when it is in full swing.

Its argument is JSON: the listener's address (`target`) and `port`."""

import json
import os
import select
import socket
import sys

# docs/WIRE.md, *The connection manager*, *Secured*.
SEALED_MESSAGE, HEADER = 0x2E, 8
REQUEST = 332
REQUESTS, BURST = 512, 64
# Datagrams after which it is in full swing.
MANY = 20000


def main():
    """Floods."""
    plan = json.loads(sys.argv[1])
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.connect((plan["target"], plan["port"]))
    sock.setblocking(False)
    # The receiver of a request is 0: nobody.
    requests = [bytes([SEALED_MESSAGE]) + bytes(HEADER + 7) + os.urandom(REQUEST - HEADER - 8)
                for _ in range(REQUESTS)]
    sent = refused = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for _ in range(BURST):
            try:
                sock.send(requests[sent % REQUESTS])
                sent += 1
            except BlockingIOError:
                select.select([], [sock], [])
        try:
            while sock.recv(2048):
                refused += 1
        except BlockingIOError:
            pass
        if sent // MANY != (sent - BURST) // MANY:
            print(sent, flush=True)
    print(json.dumps({"sent": sent, "refused": refused}), flush=True)


if __name__ == "__main__":
    main()
