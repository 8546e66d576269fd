"""Clusters of nodes, their buffers, and transfers between those."""

import ctypes
import itertools
import sys
import threading
import time

from causeway_rdma import _native
from causeway_rdma._blocks import block_info, member
from causeway_rdma._constants import Pages, State
from causeway_rdma._memory import Mapped, array

# The functions to be told of ends, by number: a transfer may end when nobody here has it any more.
_WAITING = {}
_WAITING_LOCK = threading.Lock()
_NUMBERS = itertools.count(1)


@_native.CALLBACK
def _ended(transfer, state, argument):
    with _WAITING_LOCK:
        function = _WAITING.pop(argument, None)
    if function is None:
        return
    try:
        function(transfer, State(state))
    except Exception:  # noqa: BLE001, there is nobody to raise it to
        sys.excepthook(*sys.exc_info())


_NOBODY = _native.CALLBACK()


class Cluster:
    """A node's membership of a cluster. `Session.join_cluster` makes one."""

    def __init__(self, session, handle, name):
        self.session = session
        self.name = name
        self._handle = handle
        self._buffers = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def handle(self):
        """What the C interface knows it by."""
        if self._handle is None:
            raise ValueError("the cluster is closed")
        return self._handle

    @property
    def node(self):
        """This node's number."""
        return _native.library().cw_dma_node(self.handle)

    @property
    def outstanding(self):
        """How many transfers of this node have not ended."""
        return _native.call("cw_dma_outstanding", self.handle)

    def close(self):
        """Leaves the cluster; this node's buffers are freed."""
        if self._handle is None:
            return
        for buffer in list(self._buffers):
            buffer.close()
        _native.call("cw_dma_close", self._handle)
        self._handle = None
        self.session.forget(self)

    def nodes(self):
        """The nodes of the cluster (`cw_dma_nodes`)."""
        return [member(row) for row in _native.listed("cw_dma_nodes", self.handle, _native.Member)]

    def buffers(self):
        """Its buffers; their numbers are the handles (`cw_dma_buffers`)."""
        rows = _native.listed("cw_dma_buffers", self.handle, _native.BlockInfo)
        return [block_info(row) for row in rows]

    def allocate(self, size):
        """A buffer on this node, of `size` bytes (`cw_dma_alloc`)."""
        return self._kept(_native.made("cw_dma_alloc", self.handle, size))

    def find(self, number):
        """A buffer of any node by its number (`cw_dma_find`)."""
        return self._kept(_native.made("cw_dma_find", self.handle, number))

    def transfer(self, target, source, size, *, to=0, origin=0, callback=None):
        """Starts to copy `size` bytes from `origin` in `source` to `to` in `target`.

        Returns a `Transfer` at once. `callback(number, state)` is called by a thread of the
        library's when it has ended (`cw_dma_transfer`).
        """
        return self.transfer_all([(target, to, source, origin, size)], callback=callback)

    def transfer_all(self, pieces, *, callback=None):
        """As `transfer`, of several (target, to, source, from, size), in their order."""
        rows = (_native.Piece * len(pieces))(*(
            _native.Piece(target.c_handle, to, source.c_handle, origin, size)
            for target, to, source, origin, size in pieces))
        argument, number = None, ctypes.c_uint64()
        if callback is not None:
            argument = next(_NUMBERS)
            with _WAITING_LOCK:
                _WAITING[argument] = callback
        try:
            _native.call("cw_dma_transferv", self.handle, rows, len(pieces),
                         _NOBODY if callback is None else _ended, argument, ctypes.byref(number))
        except OSError:
            with _WAITING_LOCK:
                _WAITING.pop(argument, None)
            raise
        return Transfer(self, number.value, callback is not None)

    def _kept(self, handle):
        buffer = Buffer(self, handle)
        self._buffers.append(buffer)
        return buffer

    def forget(self, buffer):
        """A buffer has been closed."""
        self._buffers = [one for one in self._buffers if one is not buffer]


class Buffer:
    """A buffer of a node. All nodes of the cluster may access it."""

    def __init__(self, cluster, handle):
        self.cluster = cluster
        self._handle = handle
        self._mapped = Mapped(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __len__(self):
        return self.size

    @property
    def c_handle(self):
        """What the C interface knows it by."""
        if self._handle is None:
            raise ValueError("the buffer is closed")
        return self._handle

    @property
    def id(self):
        """Its number in the cluster."""
        return _native.library().cw_buffer_id(self.c_handle)

    @property
    def node(self):
        """The node that it is on."""
        return _native.library().cw_buffer_node(self.c_handle)

    @property
    def size(self):
        """In bytes."""
        return _native.library().cw_buffer_size(self.c_handle)

    @property
    def pages(self):
        """The kind of its pages."""
        return Pages(_native.call("cw_buffer_pages", self.c_handle))

    def view(self):
        """A memoryview of it."""
        address = _native.library().cw_buffer_address(self.c_handle)
        return self._mapped.view(address, self.size, True)

    def array(self, dtype, shape=None, *, offset=0):
        """A NumPy array in it: all that fits behind `offset`, unless there is a shape."""
        return array(self.view(), dtype, shape, offset)

    def close(self):
        """Lets go of it; BufferError while there are views of it (`cw_buffer_close`)."""
        self._end("cw_buffer_close")

    def free(self):
        """Frees a buffer of this node's (`cw_dma_free`). Transfers from and to it fail."""
        self._end("cw_dma_free")

    def _end(self, function):
        if self._handle is None:
            return
        self._mapped.check_unseen("the buffer")
        _native.call(function, self._handle)
        self._handle = None
        self.cluster.forget(self)


class Transfer:
    """A transfer that was started."""

    def __init__(self, cluster, number, tells):
        self.cluster = cluster
        self.number = number
        self._tells = tells
        self._final = None

    def _note(self, result):
        state = State(result)
        if state is not State.POSTED:
            self._final = state
        return state

    def _ask(self, function, *arguments):
        if self._final is not None:
            return self._final
        if self._tells:
            raise ValueError("the transfer's callback is told of its end")
        return self._note(_native.call(function, self.cluster.handle, self.number, *arguments))

    def poll(self):
        """Its state now (`cw_dma_poll`)."""
        return self._ask("cw_dma_poll")

    def wait(self, timeout=None):
        """Its state when it has ended, or the time is over: POSTED then (`cw_dma_wait`)."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if end is None else _native.nanoseconds(end - time.monotonic())
            wait = _native.SLICE_NS if left is None else min(left, _native.SLICE_NS)
            state = self._ask("cw_dma_wait", wait)
            if state is not State.POSTED or left is not None and left <= wait:
                return state

    def abort(self):
        """Asks it to stop. It has when its state is final."""
        _native.call("cw_dma_abort", self.cluster.handle, self.number)
