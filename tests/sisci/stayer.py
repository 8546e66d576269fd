#!/usr/bin/env python3
"""stayer.py LIBRARY NODE: probes a node by SISCI, says so, and stays until standard input ends."""

import ctypes
import sys

ADAPTER = NO_FLAGS = 0


def main():
    """Probes and stays; the exit status is 1 if a call fails."""
    sisci = ctypes.CDLL(sys.argv[1])
    descriptor, error = ctypes.c_void_p(), ctypes.c_uint(0)
    sisci.SCIInitialize(NO_FLAGS, ctypes.byref(error))
    sisci.SCIOpen(ctypes.byref(descriptor), NO_FLAGS, ctypes.byref(error))
    there = not error.value and sisci.SCIProbeNode(descriptor, ADAPTER, int(sys.argv[2]), NO_FLAGS,
                                                   ctypes.byref(error))
    print("there" if there else f"error {error.value:#x}", flush=True)
    if there:
        sys.stdin.read()
    return 0 if there else 1


if __name__ == "__main__":
    sys.exit(main())
