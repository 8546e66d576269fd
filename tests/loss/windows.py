"""Prints the windows that this host is told by TRP, each once, until it is ended."""

import socket
import sys

PORTS = range(20481, 24577)
# Ethernet and IPv4 without options; UDP; TRP's header (docs/WIRE.md).
PROTOCOL, UDP_AT, TRP_AT, HEADER = 23, 34, 42, 40
UDP = 17
# Of TRP's opcodes those that have this header: all but handshakes and datagrams.
SEGMENTS = {0, 5, 6, 7, 8, 9, 10, 11}
ETH_P_ALL = 3


def window(packet):
    """The window in a packet, or None."""
    if len(packet) < TRP_AT + HEADER or packet[PROTOCOL] != UDP:
        return None
    port = int.from_bytes(packet[UDP_AT:UDP_AT + 2], "big")
    if port not in PORTS or packet[TRP_AT] & 15 not in SEGMENTS:
        return None
    return int.from_bytes(packet[TRP_AT + 2:TRP_AT + 4], "big")


def main(link):
    """Listens to what arrives at an interface."""
    known = {None}
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as packets:
        packets.bind((link, 0))
        print("ready", flush=True)
        while True:
            packet, address = packets.recvfrom(TRP_AT + HEADER)
            told = window(packet) if address[2] == socket.PACKET_HOST else None
            if told not in known:
                known.add(told)
                print(told, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
