#!/usr/bin/env python3
"""Counts the data datagrams of Causeway that pass in its network namespace, those with a checksum
and those without, until standard input ends; prints both numbers. Runs as root."""

import select
import socket
import sys

FIRST_PORT, LAST_PORT = 20481, 24575
ETH_P_IP, ETHERNET_HEADER = 0x0800, 14
UDP, UDP_HEADER = 17, 8
# docs/WIRE.md: requests and responses, bundles of both; the flag.
VERSION, DATA, CRC = 1, (0, 9, 10, 11), 4


def judge(frame):
    """Whether a frame holds data with a checksum; None if it holds none of ours."""
    packet = frame[ETHERNET_HEADER:]
    if len(packet) < 20 or packet[9] != UDP:
        return None
    udp = packet[4 * (packet[0] & 15):]
    if not FIRST_PORT <= int.from_bytes(udp[2:4], "big") <= LAST_PORT:
        return None
    payload = udp[UDP_HEADER:UDP_HEADER + 2]
    if len(payload) < 2 or payload[0] >> 4 != VERSION or payload[0] & 15 not in DATA:
        return None
    return bool(payload[1] & CRC)


def main():
    """Counts."""
    ear = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_IP))
    print("ready", flush=True)
    counts = {True: 0, False: 0}
    while True:
        ready, _, _ = select.select([ear, sys.stdin], [], [])
        if ear in ready:
            found = judge(ear.recv(128))
            if found is not None:
                counts[found] += 1
        elif sys.stdin in ready:
            break
    print(counts[True], counts[False], flush=True)


if __name__ == "__main__":
    main()
