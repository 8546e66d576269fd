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
        # What all views of it are made of. Two threads that ask at once may have one each.
        self._roots = []

    def view(self, address, size, writable, handle):
        """A memoryview of all of it, of bytes. The handle is the owner's, in use."""
        root = next(self._seen(), None)
        if root is None:
            kind = type("Memory", (ctypes.c_ubyte * size,), {})
            root = kind.from_address(address)
            # It keeps the memory mapped as long as anything sees it.
            root.owner = self._owner
            self._roots.append(weakref.ref(root, self._roots.remove))
        whole = memoryview(root).cast("B")
        view = whole if writable else whole.toreadonly()
        # Whoever closes it looks for views after saying so, and may have looked too early for this.
        if not handle.is_open:
            whole.release()
            view.release()
            raise handle.closed()
        return view

    def _seen(self):
        return (root for known in list(self._roots) if (root := known()) is not None)

    def is_seen(self):
        """Whether there is a view of it."""
        return next(self._seen(), None) is not None

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
