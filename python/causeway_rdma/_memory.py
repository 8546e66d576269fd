"""Mapped memory as Python sees it: a memoryview, or a NumPy array.

A view holds what is mapped. So nobody can let go of memory that a view of is still around:
closing then raises BufferError, as mmap's does.
"""

import ctypes
import weakref


class Mapped:
    """Memory that its owner has mapped, and the views of it."""

    def __init__(self, owner):
        self._owner = owner
        # By address: whoever makes another view takes the same.
        self._roots = {}

    def view(self, address, size, writable):
        """A memoryview of all of it, of bytes."""
        known = self._roots.get((address, size))
        root = known() if known else None
        if root is None:
            kind = type("Memory", (ctypes.c_ubyte * size,), {})
            root = kind.from_address(address)
            # It keeps the memory mapped as long as anything sees it.
            root.owner = self._owner
            self._roots[(address, size)] = weakref.ref(root)
        whole = memoryview(root).cast("B")
        return whole if writable else whole.toreadonly()

    def is_seen(self):
        """Whether there is a view of it."""
        return any(root() is not None for root in self._roots.values())

    def check_unseen(self, what):
        """Raises BufferError if there is one."""
        if self.is_seen():
            raise BufferError(f"{what} has views: release them (memoryview.release, del) first")


def array(view, dtype, shape, offset):
    """A NumPy array in a view, without a copy; all that fits, unless there is a shape."""
    import numpy  # noqa: PLC0415, an optional dependency

    dtype = numpy.dtype(dtype)
    if shape is None:
        shape = ((len(view) - offset) // dtype.itemsize,)
    return numpy.ndarray(shape, dtype, buffer=view, offset=offset)
