"""libcauseway's C interface, by ctypes: types, prototypes, and errors as exceptions."""

import ctypes
import operator
import os
import pathlib
import threading

from ctypes import POINTER, c_char, c_int, c_int32, c_int64, c_size_t, c_uint, c_uint32
from ctypes import c_uint64, c_void_p

# Names the library's file, if it is neither in this package nor where the loader looks.
LIBRARY_VARIABLE = "CAUSEWAY_LIBRARY"
_SONAME = "libcauseway.so.0"
_NAME_BYTES = 64

# How long a call waits before the interpreter looks for signals: Ctrl-C ends a wait within that.
SLICE_NS = 200_000_000
# The longest time to wait that the library takes.
_LONGEST_NS = (1 << 63) - 1


class Member(ctypes.Structure):
    """`struct cw_member`."""

    _fields_ = [("id", c_uint64), ("pid", c_int32), ("uid", c_uint32),
                ("command", c_char * _NAME_BYTES)]


class BlockInfo(ctypes.Structure):
    """`struct cw_block_info`."""

    _fields_ = [("handle", c_uint64), ("size", c_uint64), ("owner", c_uint64),
                ("number", c_uint32), ("uid", c_uint32), ("access", c_uint32),
                ("pages", c_uint32), ("persistent", c_uint32), ("name", c_char * _NAME_BYTES)]


class PoolInfo(ctypes.Structure):
    """`struct cw_pool_info`."""

    _fields_ = [("block_size", c_uint64), ("capacity", c_uint32), ("is_private", c_uint32)]


class Piece(ctypes.Structure):
    """`struct cw_piece`."""

    _fields_ = [("target", c_void_p), ("to", c_uint64), ("source", c_void_p),
                ("from_", c_uint64), ("size", c_uint64)]


CALLBACK = ctypes.CFUNCTYPE(None, c_uint64, c_int, c_void_p)


class Number:
    """An argument that is a number of a C type. By itself ctypes cuts off what is too long."""

    def __init__(self, kind):
        self._kind = kind

    def from_param(self, value):
        """What ctypes calls for an argument."""
        number = operator.index(value)
        converted = self._kind(number)
        if converted.value != number:
            bits = 8 * ctypes.sizeof(self._kind)
            raise OverflowError(f"{number} is negative or needs more than {bits} bits")
        return converted


_INT, _UINT, _UINT32, _UINT64 = Number(c_int), Number(c_uint), Number(c_uint32), Number(c_uint64)
_INT64, _SIZE = Number(c_int64), Number(c_size_t)
_HANDLE = c_void_p
_OUT = POINTER(c_void_p)
_TEXT = ctypes.c_char_p
_SYNC = [_HANDLE, _UINT64]

# Name: what it returns, and its arguments.
_PROTOTYPES = {
    "cw_open": (c_int, [_OUT]),
    "cw_close": (c_int, [_HANDLE]),
    "cw_id": (c_uint64, [_HANDLE]),
    "cw_strerror": (_TEXT, [_INT]),
    "cw_pool_create": (c_int, [_HANDLE, _TEXT, _UINT64, _UINT32, _UINT, _OUT]),
    "cw_pool_open": (c_int, [_HANDLE, _TEXT, _OUT]),
    "cw_pool_close": (c_int, [_HANDLE]),
    "cw_pool_destroy": (c_int, [_HANDLE, _TEXT]),
    "cw_pool_info": (c_int, [_HANDLE, POINTER(PoolInfo)]),
    "cw_pool_members": (c_int, [_HANDLE, POINTER(Member), _SIZE]),
    "cw_pool_blocks": (c_int, [_HANDLE, POINTER(BlockInfo), _SIZE]),
    "cw_block_alloc": (c_int, [_HANDLE, _UINT64, _UINT, _OUT]),
    "cw_block_free": (c_int, [_HANDLE]),
    "cw_block_open": (c_int, [_HANDLE, _UINT64, _INT, _OUT]),
    "cw_block_find": (c_int, [_HANDLE, _TEXT, _INT, _INT64, _OUT]),
    "cw_block_adopt": (c_int, [_HANDLE, _UINT64, _OUT]),
    "cw_block_close": (c_int, [_HANDLE]),
    "cw_block_handle": (c_uint64, [_HANDLE]),
    "cw_block_size": (c_uint64, [_HANDLE]),
    "cw_block_info": (c_int, [_HANDLE, POINTER(BlockInfo)]),
    "cw_block_known": (c_int, [_HANDLE]),
    "cw_block_name": (c_int, [_HANDLE, _TEXT, _UINT]),
    "cw_block_grant": (c_int, [_HANDLE, _INT, _UINT64, _INT]),
    "cw_block_revoke": (c_int, [_HANDLE, _INT, _UINT64, _UINT]),
    "cw_block_move": (c_int, [_HANDLE]),
    "cw_block_map": (c_int, [_HANDLE, _INT, _OUT]),
    "cw_mutex_init": (c_int, _SYNC),
    "cw_mutex_trylock": (c_int, _SYNC),
    "cw_mutex_timedlock": (c_int, [*_SYNC, _INT64]),
    "cw_mutex_unlock": (c_int, _SYNC),
    "cw_mutex_consistent": (c_int, _SYNC),
    "cw_rwlock_init": (c_int, _SYNC),
    "cw_rwlock_rdlock": (c_int, [*_SYNC, _INT64]),
    "cw_rwlock_tryrdlock": (c_int, _SYNC),
    "cw_rwlock_wrlock": (c_int, [*_SYNC, _INT64]),
    "cw_rwlock_trywrlock": (c_int, _SYNC),
    "cw_rwlock_unlock": (c_int, _SYNC),
    "cw_rwlock_consistent": (c_int, _SYNC),
    "cw_cond_init": (c_int, _SYNC),
    "cw_cond_wait": (c_int, [*_SYNC, _UINT64, _INT64]),
    "cw_cond_signal": (c_int, _SYNC),
    "cw_cond_broadcast": (c_int, _SYNC),
    "cw_sem_init": (c_int, [*_SYNC, _UINT32]),
    "cw_sem_wait": (c_int, [*_SYNC, _INT64]),
    "cw_sem_trywait": (c_int, _SYNC),
    "cw_sem_post": (c_int, _SYNC),
    "cw_sem_value": (c_int, _SYNC),
    "cw_barrier_init": (c_int, [*_SYNC, _UINT32]),
    "cw_barrier_wait": (c_int, [*_SYNC, _INT64]),
    "cw_barrier_join": (c_int, _SYNC),
    "cw_barrier_leave": (c_int, _SYNC),
    "cw_barrier_mend": (c_int, _SYNC),
    "cw_dma_open": (c_int, [_HANDLE, _TEXT, _UINT, _OUT]),
    "cw_dma_close": (c_int, [_HANDLE]),
    "cw_dma_node": (c_uint64, [_HANDLE]),
    "cw_dma_nodes": (c_int, [_HANDLE, POINTER(Member), _SIZE]),
    "cw_dma_buffers": (c_int, [_HANDLE, POINTER(BlockInfo), _SIZE]),
    "cw_dma_alloc": (c_int, [_HANDLE, _UINT64, _OUT]),
    "cw_dma_free": (c_int, [_HANDLE]),
    "cw_dma_find": (c_int, [_HANDLE, _UINT64, _OUT]),
    "cw_buffer_close": (c_int, [_HANDLE]),
    "cw_buffer_id": (c_uint64, [_HANDLE]),
    "cw_buffer_node": (c_uint64, [_HANDLE]),
    "cw_buffer_size": (c_uint64, [_HANDLE]),
    "cw_buffer_address": (c_void_p, [_HANDLE]),
    "cw_buffer_pages": (c_int, [_HANDLE]),
    "cw_dma_transferv": (c_int, [_HANDLE, POINTER(Piece), _SIZE, CALLBACK, c_void_p,
                                 POINTER(c_uint64)]),
    "cw_dma_outstanding": (c_int, [_HANDLE]),
    "cw_dma_poll": (c_int, [_HANDLE, _UINT64]),
    "cw_dma_wait": (c_int, [_HANDLE, _UINT64, _INT64]),
    "cw_dma_abort": (c_int, [_HANDLE, _UINT64]),
}

_LOADING = threading.Lock()
_LOADED = []


def _load():
    """Loads the library: what the variable names, that of this package, or the system's."""
    beside = pathlib.Path(__file__).parent / "native" / "lib" / _SONAME
    name = os.environ.get(LIBRARY_VARIABLE) or (str(beside) if beside.is_file() else _SONAME)
    try:
        library = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(f"no libcauseway: {error}; install Causeway, or set "
                          f"{LIBRARY_VARIABLE} to its {_SONAME}") from error
    for function, (returned, arguments) in _PROTOTYPES.items():
        prototype = getattr(library, function)
        prototype.restype, prototype.argtypes = returned, arguments
    return library


def library():
    """The library, which is loaded when it is needed first."""
    # No lock once it is loaded: a child that is forked inherits those that other threads hold.
    if not _LOADED:
        with _LOADING:
            if not _LOADED:
                _LOADED.append(_load())
    return _LOADED[0]


def piece(target, to, source, origin, size):
    """A part of a transfer, between buffers by their handles."""
    to, origin, size = (_UINT64.from_param(number) for number in (to, origin, size))
    return Piece(target, to, source, origin, size)


def failure(errno, what):
    """The exception for a negative result."""
    text = library().cw_strerror(-errno)
    return OSError(errno, f"{what}: {text.decode()}" if text else what)


def check(result, what):
    """The result, if it is none of an error."""
    if result < 0:
        raise failure(-result, what)
    return result


def call(name, *arguments):
    """Calls a function; a negative result becomes an OSError that names it."""
    return check(getattr(library(), name)(*arguments), name)


def made(name, *arguments):
    """Calls a function whose last argument is for what it makes, and returns that."""
    out = c_void_p()
    call(name, *arguments, ctypes.byref(out))
    return out.value


def listed(name, handle, structure):
    """All that a function lists, however many there are when it is asked again."""
    room = 16
    while True:
        rows = (structure * room)()
        there = call(name, handle, rows, room)
        if there <= room:
            return rows[:there]
        room = there + 16


def text(value):
    """A name for the library: UTF-8, without a zero byte."""
    if not isinstance(value, str):
        raise TypeError(f"a name is a str, not {type(value).__name__}")
    encoded = value.encode()
    if b"\0" in encoded:
        raise ValueError("a name holds no zero byte")
    return encoded


def nanoseconds(seconds):
    """A time to wait, 292 years at most; None is for ever."""
    return -1 if seconds is None else min(max(0, round(seconds * 1e9)), _LONGEST_NS)
