"""Pools, and the blocks in them."""

import contextlib
import ctypes
import errno
import time
from typing import NamedTuple

from causeway_rdma import _native
from causeway_rdma._constants import BLOCK_HUGE, BLOCK_PERSISTENT, MOVE, Access, Pages
from causeway_rdma._handle import Opened
from causeway_rdma._memory import Mapped, array


class Member(NamedTuple):
    """A session that has a pool open, or is a node of a cluster."""

    id: int
    pid: int
    uid: int
    command: str


class PoolInfo(NamedTuple):
    """What is known of a pool."""

    block_size: int
    capacity: int
    is_private: bool


class BlockInfo(NamedTuple):
    """What is known of a block (`struct cw_block_info`)."""

    handle: int
    size: int
    owner: int
    number: int
    uid: int
    access: Access
    pages: Pages
    is_persistent: bool
    name: str


def member(row):
    """A row of C as Python has it."""
    return Member(row.id, row.pid, row.uid, row.command.decode(errors="replace"))


def block_info(row):
    """A row of C as Python has it."""
    return BlockInfo(row.handle, row.size, row.owner, row.number, row.uid, Access(row.access),
                     Pages(row.pages), bool(row.persistent), row.name.decode(errors="replace"))


class Pool(Opened):
    """A pool of blocks. `Session.create_pool` and `Session.open_pool` open one."""

    def __init__(self, session, handle, name):
        super().__init__(handle, "pool")
        self.session = session
        self.name = name
        self._blocks = []

    def __repr__(self):
        return f"<causeway pool {self.name!r}{'' if self._handle.is_open else ' closed'}>"

    @property
    def handle(self):
        """What the C interface knows it by."""
        return self._handle.value

    def close(self):
        """Closes the pool and its blocks; this session's own are freed, unless persistent."""
        if self._handle.close("cw_pool_close", self._close_blocks):
            self.session.forget(self)

    def _close_blocks(self):
        for block in list(self._blocks):
            block.close()

    def info(self):
        """What is known of the pool (`cw_pool_info`)."""
        info = _native.PoolInfo()
        self._call("cw_pool_info", ctypes.byref(info))
        return PoolInfo(info.block_size, info.capacity, bool(info.is_private))

    def members(self):
        """The sessions that have the pool open (`cw_pool_members`)."""
        rows = self._listed("cw_pool_members", _native.Member)
        return [member(row) for row in rows]

    def blocks(self):
        """The blocks in the pool (`cw_pool_blocks`)."""
        rows = self._listed("cw_pool_blocks", _native.BlockInfo)
        return [block_info(row) for row in rows]

    def allocate(self, size=0, *, huge=False):
        """Makes a block of this session's: fresh memory, all zeroes (`cw_block_alloc`).

        `size` in bytes, for a pool whose blocks have sizes of their own. `huge`: of huge pages,
        if they are to be had.
        """
        made = self._made("cw_block_alloc", size, huge * BLOCK_HUGE)
        return self._kept(made, Access.WRITE)

    def open(self, handle, access=Access.READ):
        """Takes hold of a block by its handle, to read or to write (`cw_block_open`)."""
        made = self._made("cw_block_open", handle, access)
        return self._kept(made, access)

    def find(self, name, access=Access.READ, *, timeout=0.0):
        """Takes hold of a block by its name (`cw_block_find`).

        Waits for `timeout` seconds at most, or for ever (None), until there is one that may be
        accessed so. FileNotFoundError or PermissionError when the time is over.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - time.monotonic())
            wait = _native.SLICE_NS if left is None else min(_native.SLICE_NS,
                                                             _native.nanoseconds(left))
            try:
                made = self._made("cw_block_find", _native.text(name), access, wait)
            except OSError as error:
                later = error.errno in (errno.ENOENT, errno.EACCES) and left != 0.0
                if not later:
                    raise
                # The pool itself may have gone, which no time changes.
                self._call("cw_pool_members", None, 0)
                continue
            return self._kept(made, access)

    def adopt(self, handle):
        """Becomes the owner of a persistent block whose owner has ended (`cw_block_adopt`)."""
        return self._kept(self._made("cw_block_adopt", handle), Access.WRITE)

    def _kept(self, handle, access):
        block = Block(self, handle, access)
        self._blocks.append(block)
        return block

    def forget(self, block):
        """A block has been closed."""
        # A single step: another thread may add one meanwhile.
        with contextlib.suppress(ValueError):
            self._blocks.remove(block)


class Block(Opened):
    """A block of shared memory.

    Accesses beyond the right that the process has fault (SIGSEGV), as when its owner takes a
    right back: do not read what you may not.
    """

    def __init__(self, pool, handle, access):
        super().__init__(handle, "block")
        self.pool = pool
        self._access = access
        self._mapped = Mapped(self)

    def __len__(self):
        return self.size

    def __repr__(self):
        state = f"{self.size} bytes" if self._handle.is_open else "closed"
        return f"<causeway block, {state}>"

    @property
    def c_handle(self):
        """What the C interface knows it by."""
        return self._handle.value

    @property
    def handle(self):
        """Names the block to others; can't be guessed, and is no right by itself."""
        return self._told("cw_block_handle")

    @property
    def size(self):
        """In bytes."""
        return self._told("cw_block_size")

    @property
    def is_known(self):
        """Whether the broker still knows it: False once freed, or its owner has ended."""
        return bool(self._call("cw_block_known"))

    def info(self):
        """What is known of the block (`cw_block_info`)."""
        info = _native.BlockInfo()
        self._call("cw_block_info", ctypes.byref(info))
        return block_info(info)

    def close(self):
        """Lets go of it; BufferError while there are views of it (`cw_block_close`)."""
        if self._handle.close("cw_block_close", self._check_unseen):
            self.pool.forget(self)

    def free(self):
        """Frees a block of this session's, and closes it (`cw_block_free`).

        BufferError while there are views of it, or another thread uses it.
        """
        if self._handle.free("cw_block_free", self._check_unseen):
            self.pool.forget(self)

    def _check_unseen(self):
        self._mapped.check_unseen("the block")

    def set_name(self, name, *, persistent=False):
        """Names it in its pool; an empty name takes the name away (`cw_block_name`)."""
        self._call("cw_block_name", _native.text(name), persistent * BLOCK_PERSISTENT)

    def grant(self, party, number, access):
        """Lets a party do this with the block from now on (`cw_block_grant`)."""
        self._call("cw_block_grant", party, number, access)

    def revoke(self, party, number, *, move=False):
        """Takes back what a party was granted; `move`s it as well (`cw_block_revoke`)."""
        self._call("cw_block_revoke", party, number, move * MOVE)

    def move(self):
        """Moves it to fresh memory, which only those get who have a right (`cw_block_move`)."""
        self._call("cw_block_move")

    def view(self, access=None):
        """A memoryview of the whole block, mapped to read or to write (`cw_block_map`).

        As it was opened, unless `access` says less.
        """
        access = self._access if access is None else access
        with self._handle as value:
            address = _native.made("cw_block_map", value, access)
            return self._mapped.view(address, self.size, access >= Access.WRITE, self._handle)

    def array(self, dtype, shape=None, *, offset=0, access=None):
        """A NumPy array in the block: all that fits behind `offset`, unless there is a shape."""
        return array(self.view(access), dtype, shape, offset)
