#!/usr/bin/env python3
"""Sends a connection request of a later version, and prints what the reject says.

Usage: later_cm.py ADDRESS PORT, in the network namespace of a test.
"""

import os
import random
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cm import strangers  # noqa: E402

LATER = strangers.VERSION + 1
REJECT, REASON_VERSION = 3, 31
CRC_AT = strangers.CRC_AT
SECONDS = 1.0


def later_request():
    """A request whose version is one that nobody speaks yet."""
    data = bytearray(strangers.request(random.getrandbits(63) | 1))
    data[0] = LATER << 4 | strangers.REQUEST
    data[CRC_AT:CRC_AT + 4] = bytes(4)
    data[CRC_AT:CRC_AT + 4] = strangers.crc32c(data).to_bytes(4, "big")
    return bytes(data)


def main():
    """One request, one answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(SECONDS)
        sock.connect((sys.argv[1], int(sys.argv[2])))
        sent = later_request()
        sock.send(sent)
        try:
            answer = sock.recv(2048)
        except OSError as error:
            return f"no answer: {error}"
    reason = int.from_bytes(answer[4:6], "big")
    if answer[0] != LATER << 4 | REJECT or reason != REASON_VERSION or len(answer) > len(sent):
        return f"answered by {answer.hex()}"
    print(answer[strangers.HEADER.size:][:answer[3]].decode("ascii"))
    return None


if __name__ == "__main__":
    sys.exit(main())
