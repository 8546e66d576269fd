#!/usr/bin/env python3
"""A persistent block of a pool, by one release's libcauseway: who keeps it, and who looks for it.

blocks.py keep LIBRARY makes the block and keeps it; for each line of standard input it tells
whether the broker lists the block ("known", or an error) and whether all is in it that was put
there. blocks.py find LIBRARY looks for it, as any other program does.
"""

import ctypes
import os
import sys

POOL, NAME = b"versions", b"kept"
BYTES = 1 << 20
READ, WRITE, EVERYBODY = 1, 2, 2
EXISTING, PERSISTENT = 2, 8
CONTENTS = bytes(range(256)) * (BYTES // 256)


def call(function, *args):
    """Calls a function of the library that must succeed."""
    error = function(*args)
    if error < 0:
        raise SystemExit(f"{function.__name__}: {os.strerror(-error)}")


def opened(library):
    """A session, and the pool."""
    session, pool = ctypes.c_void_p(), ctypes.c_void_p()
    call(library.cw_open, ctypes.byref(session))
    call(library.cw_pool_create, session, POOL, ctypes.c_uint64(BYTES), ctypes.c_uint32(4),
         ctypes.c_uint(EXISTING), ctypes.byref(pool))
    return pool


def mapped(library, block, access):
    """The address of a block."""
    address = ctypes.c_void_p()
    call(library.cw_block_map, block, access, ctypes.byref(address))
    return address.value


def judged(address):
    """What of the contents is there."""
    return "intact" if ctypes.string_at(address, BYTES) == CONTENTS else "corrupted"


def keep(library):
    """Makes it."""
    pool, block = opened(library), ctypes.c_void_p()
    call(library.cw_block_alloc, pool, ctypes.c_uint64(0), ctypes.c_uint(0), ctypes.byref(block))
    address = mapped(library, block, WRITE)
    ctypes.memmove(address, CONTENTS, BYTES)
    call(library.cw_block_grant, block, EVERYBODY, ctypes.c_uint64(0), READ)
    call(library.cw_block_name, block, NAME, ctypes.c_uint(PERSISTENT))
    print("kept", flush=True)
    for _ in sys.stdin:
        count = library.cw_pool_blocks(pool, None, ctypes.c_size_t(0))
        known = f"{count} known" if count >= 0 else os.strerror(-count)
        print(f"{known}, {judged(address)}", flush=True)


def find(library):
    """Looks for it."""
    pool, block = opened(library), ctypes.c_void_p()
    error = library.cw_block_find(pool, NAME, READ, ctypes.c_int64(0), ctypes.byref(block))
    if error:
        print(f"not found: {os.strerror(-error)}")
    else:
        print(f"found, {judged(mapped(library, block, READ))}")


if __name__ == "__main__":
    {"keep": keep, "find": find}[sys.argv[1]](ctypes.CDLL(sys.argv[2]))
