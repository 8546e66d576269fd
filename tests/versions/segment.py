#!/usr/bin/env python3
"""A SISCI segment, by one release's libsisci: who owns it, and who connects to it.

segment.py own LIBRARY makes the segment and keeps it; for each line of standard input it tells
what is in it. segment.py connect LIBRARY connects to it, tells what it finds there, and stores its
answer.
"""

import ctypes
import sys

ID, BYTES, ADAPTER, NONE = 77, 1 << 16, 0, 0
CONTENTS = bytes(range(256)) * (BYTES // 256)
ANSWER = b"stored by the other release"
CONNECT_MS = 5000
POINTERS = ("SCIMapLocalSegment", "SCIMapRemoteSegment")


class Library:
    """SISCI's functions: a call that fails ends the program, by its name."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        for name in POINTERS:
            getattr(self.library, name).restype = ctypes.c_void_p

    def __call__(self, name, *args):
        error = ctypes.c_uint(0)
        value = getattr(self.library, name)(*args, ctypes.byref(error))
        if error.value:
            raise SystemExit(f"{name}: error {error.value:#x}")
        return value

    def opened(self):
        """A descriptor."""
        descriptor = ctypes.c_void_p()
        self("SCIInitialize", NONE)
        self("SCIOpen", ctypes.byref(descriptor), NONE)
        return descriptor

    def mapped(self, name, segment):
        """The address of a segment's memory."""
        place = ctypes.c_void_p()
        return self(name, segment, ctypes.byref(place), ctypes.c_size_t(0), ctypes.c_size_t(BYTES),
                    None, NONE)


def found(address):
    """What is in it."""
    held = ctypes.string_at(address, BYTES)
    if held == CONTENTS:
        return "as it was"
    return "answered" if held == ANSWER + CONTENTS[len(ANSWER):] else "corrupted"


def own(sisci):
    """Makes it."""
    segment = ctypes.c_void_p()
    sisci("SCICreateSegment", sisci.opened(), ctypes.byref(segment), ID, BYTES, None, None, NONE)
    sisci("SCIPrepareSegment", segment, ADAPTER, NONE)
    address = sisci.mapped("SCIMapLocalSegment", segment)
    ctypes.memmove(address, CONTENTS, BYTES)
    sisci("SCISetSegmentAvailable", segment, ADAPTER, NONE)
    print("owned", flush=True)
    for _ in sys.stdin:
        print(found(address), flush=True)


def connect(sisci):
    """Uses it."""
    descriptor, segment, node = sisci.opened(), ctypes.c_void_p(), ctypes.c_uint(0)
    sisci("SCIGetLocalNodeId", ADAPTER, ctypes.byref(node), NONE)
    sisci("SCIConnectSegment", descriptor, ctypes.byref(segment), node, ID, ADAPTER, None, None,
          CONNECT_MS, NONE)
    address = sisci.mapped("SCIMapRemoteSegment", segment)
    print(found(address))
    ctypes.memmove(address, ANSWER, len(ANSWER))


if __name__ == "__main__":
    {"own": own, "connect": connect}[sys.argv[1]](Library(sys.argv[2]))
