"""Clusters of nodes, their buffers, and transfers between those."""

import contextlib
import ctypes
import errno
import queue
import sys
import threading
import time

from causeway_rdma import _native
from causeway_rdma._blocks import block_info, member
from causeway_rdma._constants import Pages, State
from causeway_rdma._handle import Opened
from causeway_rdma._memory import Mapped, array


class _Teller:
    """The thread that tells functions of the ends of a cluster's transfers, in their order.

    It is the interpreter's own: a thread of the library's that enters an interpreter which is about
    to end would end the process.
    """

    def __init__(self, handle):
        self._handle = handle
        self._due = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread = None

    def begin(self):
        """There is a thread from now on."""
        with self._lock:
            self._start()

    def tell(self, number, function):
        """Tells the function when this transfer, whose cluster is in use, has ended."""
        # Until then the library has to know of the transfer.
        self._handle.keep()
        with self._lock:
            self._due.put((number, function))
            if self._thread is None:
                # It has ended since begin().
                self._start()
                self._due.put(None)

    def end(self):
        """The thread ends when it has told of all."""
        if self._handle.is_inherited:
            return
        with self._lock:
            self._due.put(None)

    def _start(self):
        if self._thread is None:
            # A daemon: transfers may last longer than the program.
            thread = threading.Thread(target=self._run, name="causeway", daemon=True)
            thread.start()
            self._thread = thread

    def _run(self):
        while not self._is_over(due := self._due.get()):
            if due is not None:
                self._tell(*due)
            # A function is not kept until the next one comes.
            del due

    def _is_over(self, due):
        with self._lock:
            if due is None and self._due.empty():
                self._thread = None
                return True
            if due is None:
                self._due.put(None)
            return False

    def _tell(self, number, function):
        try:
            state = _native.call("cw_dma_wait", self._handle.kept, number, -1)
            function(number, State(state))
        except BaseException:  # noqa: BLE001, there is nobody to raise it to
            # The thread goes on for the other functions, even if the hook calls sys.exit().
            with contextlib.suppress(BaseException):
                sys.excepthook(*sys.exc_info())
        finally:
            self._handle.let_go()


class Cluster(Opened):
    """A node's membership of a cluster. `Session.join_cluster` makes one."""

    def __init__(self, session, handle, name):
        super().__init__(handle, "cluster")
        self.session = session
        self.name = name
        self._buffers = []
        self._teller = _Teller(self._handle)

    @property
    def handle(self):
        """What the C interface knows it by."""
        return self._handle.value

    @property
    def node(self):
        """This node's number."""
        return self._told("cw_dma_node")

    @property
    def outstanding(self):
        """How many transfers of this node have not ended."""
        return self._call("cw_dma_outstanding")

    def close(self):
        """Leaves the cluster; this node's buffers are freed."""
        if self._handle.close("cw_dma_close", self._close_buffers):
            self._teller.end()
            self.session.forget(self)

    def _close_buffers(self):
        for buffer in list(self._buffers):
            buffer.close()

    def nodes(self):
        """The nodes of the cluster (`cw_dma_nodes`)."""
        return [member(row) for row in self._listed("cw_dma_nodes", _native.Member)]

    def buffers(self):
        """Its buffers; their numbers are the handles (`cw_dma_buffers`)."""
        rows = self._listed("cw_dma_buffers", _native.BlockInfo)
        return [block_info(row) for row in rows]

    def allocate(self, size):
        """A buffer on this node, of `size` bytes (`cw_dma_alloc`)."""
        return self._kept(self._made("cw_dma_alloc", size))

    def find(self, number):
        """A buffer of any node by its number (`cw_dma_find`)."""
        return self._kept(self._made("cw_dma_find", number))

    def transfer(self, target, source, size, *, to=0, origin=0, callback=None):
        """Starts to copy `size` bytes from `origin` in `source` to `to` in `target`.

        Returns a `Transfer` at once. `callback(number, state)` is called by a thread of the
        cluster's when it has ended (`cw_dma_transfer`).
        """
        return self.transfer_all([(target, to, source, origin, size)], callback=callback)

    def transfer_all(self, pieces, *, callback=None):
        """As `transfer`, of several (target, to, source, from, size), in their order."""
        if callback is not None:
            if not callable(callback):
                raise TypeError(f"a callback that can't be called: {callback!r}")
            self._teller.begin()
        number = ctypes.c_uint64()
        with self._handle as value, contextlib.ExitStack() as used:
            rows = (_native.Piece * len(pieces))(*(
                _native.piece(used.enter_context(target.in_use()), to,
                              used.enter_context(source.in_use()), origin, size)
                for target, to, source, origin, size in pieces))
            _native.call("cw_dma_transferv", value, rows, len(pieces), _native.CALLBACK(), None,
                         ctypes.byref(number))
            if callback is not None:
                self._teller.tell(number.value, callback)
        return Transfer(self, number.value, callback is not None)

    def _kept(self, handle):
        buffer = Buffer(self, handle)
        self._buffers.append(buffer)
        return buffer

    def forget(self, buffer):
        """A buffer has been closed."""
        # A single step: another thread may add one meanwhile.
        with contextlib.suppress(ValueError):
            self._buffers.remove(buffer)


class Buffer(Opened):
    """A buffer of a node. All nodes of the cluster may access it."""

    def __init__(self, cluster, handle):
        super().__init__(handle, "buffer")
        self.cluster = cluster
        self._mapped = Mapped(self)

    def __len__(self):
        return self.size

    @property
    def c_handle(self):
        """What the C interface knows it by."""
        return self._handle.value

    @property
    def id(self):
        """Its number in the cluster."""
        return self._told("cw_buffer_id")

    @property
    def node(self):
        """The node that it is on."""
        return self._told("cw_buffer_node")

    @property
    def size(self):
        """In bytes."""
        return self._told("cw_buffer_size")

    @property
    def pages(self):
        """The kind of its pages."""
        return Pages(self._call("cw_buffer_pages"))

    def view(self):
        """A memoryview of it."""
        if self._handle.is_inherited:
            # The address is the parent's, and nothing is mapped there.
            raise _native.failure(errno.EPERM, "view")
        with self._handle as value:
            address = _native.library().cw_buffer_address(value)
            return self._mapped.view(address, self.size, True, self._handle)

    def array(self, dtype, shape=None, *, offset=0):
        """A NumPy array in it: all that fits behind `offset`, unless there is a shape."""
        return array(self.view(), dtype, shape, offset)

    def close(self):
        """Lets go of it; BufferError while there are views of it (`cw_buffer_close`)."""
        if self._handle.close("cw_buffer_close", self._check_unseen):
            self.cluster.forget(self)

    def free(self):
        """Frees a buffer of this node's (`cw_dma_free`). Transfers from and to it fail.

        BufferError while there are views of it, or another thread uses it.
        """
        if self._handle.free("cw_dma_free", self._check_unseen):
            self.cluster.forget(self)

    def _check_unseen(self):
        self._mapped.check_unseen("the buffer")


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
        with self.cluster.in_use() as value:
            return self._note(_native.call(function, value, self.number, *arguments))

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
        with self.cluster.in_use() as value:
            _native.call("cw_dma_abort", value, self.number)
