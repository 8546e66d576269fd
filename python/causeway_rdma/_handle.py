"""What the library made, and the calls that use it.

Other threads run while one is in a call of the library. The C interface forbids to close what a
call names, so what is closed meanwhile stays until the call has returned.
"""

import os

from causeway_rdma import _native


class Handle:
    """An object of the library's: `with handle as value` is a call that uses it."""

    def __init__(self, value, what):
        self._value = value
        self._what = what
        self._pid = os.getpid()
        self.is_open = True
        # Lists, because each change of one is a single step, and because a child that is forked
        # meanwhile inherits no lock that somebody holds.
        self._calls = []
        self._left = []
        self._right_to_end = [None]

    def __enter__(self):
        self.keep()
        # After it has been counted: whoever ends it looks the other way round.
        if not self.is_open:
            self.let_go()
            raise self.closed()
        return self._value

    def __exit__(self, *_):
        self.let_go()

    def keep(self):
        """It is in use from now on. For one that is in use already."""
        self._calls.append(None)

    def let_go(self):
        """One use of it is over."""
        self._calls.pop()
        if not self.is_open:
            self._finish()

    @property
    def kept(self):
        """What the C interface knows it by, for one that keeps it."""
        return self._value

    @property
    def value(self):
        """What the C interface knows it by."""
        if not self.is_open:
            raise self.closed()
        return self._value

    def closed(self):
        """The exception for one that is closed."""
        return ValueError(f"the {self._what} is closed")

    @property
    def is_inherited(self):
        """Whether this process is a child of the one that made it."""
        return self._pid != os.getpid()

    def close(self, function, check):
        """Has `function` close it: now, or when the calls that use it have returned.

        `check` raises an exception if it is to stay open, and is called twice. Returns whether it
        was open.
        """
        end = getattr(_native.library(), function)
        if not self._ended(check):
            return False
        self._left.append(end)
        self._finish()
        return True

    def free(self, function, check):
        """Has `function` end it, which may fail. BufferError if another thread uses it."""
        def check_unused():
            check()
            if self._calls:
                raise BufferError(f"another thread uses the {self._what}")

        end = getattr(_native.library(), function)
        if not self._ended(check_unused):
            return False
        result = end(self._value)
        if result < 0:
            self._reopen()
        _native.check(result, function)
        return True

    def _ended(self, check):
        """Whether the caller, and nobody else, has to have it ended now.

        From then on it is not opened again unless the library says that it is there: an interrupt
        (Ctrl-C) is raised when a function of the library's has returned, and may have freed it.
        """
        try:
            self._right_to_end.pop()
        except IndexError:
            return False
        try:
            # Others may go on using it until it is almost certain.
            check()
            self.is_open = False
            # What they have done between the two.
            check()
        except BaseException:
            self._reopen()
            raise
        return True

    def _reopen(self):
        self.is_open = True
        self._right_to_end.append(None)

    def _finish(self):
        if self._calls:
            return
        try:
            end = self._left.pop()
        except IndexError:
            return
        end(self._value)


class Opened:
    """Something that has a handle, which means nothing in another process."""

    def __init__(self, value, what):
        self._handle = Handle(value, what)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce_ex__(self, protocol):
        raise TypeError(f"a {type(self).__name__} is this process's: it can't be copied or pickled")

    def in_use(self):
        """`with` this the C interface may be called with the value."""
        return self._handle

    def _call(self, name, *arguments):
        with self._handle as value:
            return _native.call(name, value, *arguments)

    def _made(self, name, *arguments):
        with self._handle as value:
            return _native.made(name, value, *arguments)

    def _listed(self, name, structure):
        with self._handle as value:
            return _native.listed(name, value, structure)

    def _told(self, name):
        """What a function that can't fail says of it."""
        with self._handle as value:
            return getattr(_native.library(), name)(value)
