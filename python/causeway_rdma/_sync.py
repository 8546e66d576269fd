"""Locks and their like in blocks, which survive the death of any process.

An object lies in a block, at an offset that is a multiple of SYNC_ALIGN. One process makes it with
`create`, while nobody uses it, and all that may write to the block use it with the class itself:

    mutex = Mutex.create(block, 0)      # in one process
    mutex = Mutex(block, 0)             # in others

    with mutex as how:
        if how is Acquired.OWNER_DIED:
            repair()                    # what the mutex protects may be half changed
            mutex.make_consistent()

Times are in seconds; None is for ever.
"""

import enum
import errno
import time

from causeway_rdma import _native

SYNC_ALIGN = 64
MUTEX_SIZE = 64
CONDITION_SIZE = 64
SEMAPHORE_SIZE = 64
RWLOCK_SIZE = 576
BARRIER_SIZE = 576

_OWNER_DEAD = 1
_SERIAL = 2


class Acquired(enum.IntEnum):
    """How a lock was had. All values are true."""

    CLEAN = 1
    # The owner before died. Repair what the lock protects, then call make_consistent(): a lock that
    # is released without can't be had any more.
    OWNER_DIED = 2


def _acquired(result):
    return Acquired.OWNER_DIED if result == _OWNER_DEAD else Acquired.CLEAN


def _sliced(attempt, timeout):
    """What `attempt` returns, called with a part of the time until it is over: signals are handled
    between. None when it is over.
    """
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if end is None else _native.nanoseconds(end - time.monotonic())
        wait = _native.SLICE_NS if left is None else min(left, _native.SLICE_NS)
        result = attempt(wait)
        if result != -errno.ETIMEDOUT:
            return result
        if left is not None and left <= wait:
            return None


class _Object:
    """An object in a block."""

    def __init__(self, block, offset=0):
        self.block = block
        self.offset = offset

    def __repr__(self):
        return f"<{type(self).__name__} at {self.offset} of {self.block!r}>"

    def _result(self, name, *arguments):
        """What a function returns, also if it is an error."""
        with self.block.in_use() as handle:
            return getattr(_native.library(), name)(handle, self.offset, *arguments)

    def _call(self, name, *arguments):
        return _native.check(self._result(name, *arguments), name)

    def _wait(self, name, timeout):
        # The block may be closed between two parts of the time.
        result = _sliced(lambda wait: self._result(name, wait), timeout)
        return None if result is None else _native.check(result, name)

    def _try(self, name):
        """What it returns, or None if that can't be had now."""
        result = self._result(name)
        return None if result == -errno.EBUSY else _native.check(result, name)


class Mutex(_Object):
    """A mutex. The thread that acquires it releases it."""

    @classmethod
    def create(cls, block, offset=0):
        """Makes one (`cw_mutex_init`)."""
        made = cls(block, offset)
        made._call("cw_mutex_init")
        return made

    def acquire(self, timeout=None):
        """Waits for it; an `Acquired`, or None when the time is over."""
        if timeout == 0:
            result = self._try("cw_mutex_trylock")
        else:
            result = self._wait("cw_mutex_timedlock", timeout)
        return None if result is None else _acquired(result)

    def release(self):
        """Unlocks it; PermissionError if this thread does not have it (any more)."""
        self._call("cw_mutex_unlock")

    def make_consistent(self):
        """What it protects is in order again."""
        self._call("cw_mutex_consistent")

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class _Share:
    """One way to have a reader-writer lock, for `with`."""

    def __init__(self, acquire, release):
        self._acquire, self._release = acquire, release

    def __enter__(self):
        return self._acquire()

    def __exit__(self, *_):
        self._release()


class RWLock(_Object):
    """A reader-writer lock, which prefers writers.

    After a dead writer, who asks to read has the lock for writing, and OWNER_DIED says so.
    """

    @classmethod
    def create(cls, block, offset=0):
        """Makes one (`cw_rwlock_init`)."""
        made = cls(block, offset)
        made._call("cw_rwlock_init")
        return made

    def acquire_read(self, timeout=None):
        """Waits for it to read; an `Acquired`, or None when the time is over."""
        return self._acquire("rd", timeout)

    def acquire_write(self, timeout=None):
        """Waits for it to write; an `Acquired`, or None when the time is over."""
        return self._acquire("wr", timeout)

    def _acquire(self, kind, timeout):
        if timeout == 0:
            result = self._try(f"cw_rwlock_try{kind}lock")
        else:
            result = self._wait(f"cw_rwlock_{kind}lock", timeout)
        return None if result is None else _acquired(result)

    def release(self):
        """Unlocks it, whichever way this thread has it."""
        self._call("cw_rwlock_unlock")

    def make_consistent(self):
        """What it protects is in order again."""
        self._call("cw_rwlock_consistent")

    def reading(self):
        """`with lock.reading():`"""
        return _Share(self.acquire_read, self.release)

    def writing(self):
        """`with lock.writing():`"""
        return _Share(self.acquire_write, self.release)


class Condition(_Object):
    """A condition variable, with a mutex of the same block."""

    def __init__(self, block, offset, mutex):
        super().__init__(block, offset)
        self.mutex = mutex

    @classmethod
    def create(cls, block, offset, mutex):
        """Makes one (`cw_cond_init`)."""
        made = cls(block, offset, mutex)
        made._call("cw_cond_init")
        return made

    def wait(self, timeout=None):
        """Waits for a signal with the mutex released; has it again afterwards.

        An `Acquired`, or None when the time is over. May return without a signal.
        """
        left = _native.nanoseconds(timeout)
        # Not for longer, so that signals of the interpreter are handled.
        wait = _native.SLICE_NS if left < 0 else min(left, _native.SLICE_NS)
        result = self._result("cw_cond_wait", self.mutex.offset, wait)
        if result == -errno.ETIMEDOUT:
            return None if wait == left else Acquired.CLEAN
        return _acquired(_native.check(result, "cw_cond_wait"))

    def wait_for(self, predicate, timeout=None):
        """Waits until `predicate()` is true; what it returned last.

        OSError EOWNERDEAD, with the mutex held, if its owner died: make it consistent before it is
        released.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not (result := predicate()):
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return result
            if self.wait(left) is Acquired.OWNER_DIED:
                raise _native.failure(errno.EOWNERDEAD, "wait_for")
        return result

    def notify(self):
        """Wakes one that waits."""
        self._call("cw_cond_signal")

    def notify_all(self):
        """Wakes all that wait."""
        self._call("cw_cond_broadcast")


class Semaphore(_Object):
    """A counting semaphore."""

    @classmethod
    def create(cls, block, offset, value):
        """Makes one (`cw_sem_init`)."""
        made = cls(block, offset)
        made._call("cw_sem_init", value)
        return made

    def acquire(self, timeout=None):
        """Waits until it is above 0, and takes one; False when the time is over."""
        if timeout == 0:
            return self._try("cw_sem_trywait") is not None
        return self._wait("cw_sem_wait", timeout) is not None

    def release(self):
        """Gives one back."""
        self._call("cw_sem_post")

    @property
    def value(self):
        """How many there are now."""
        return self._call("cw_sem_value")

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class Barrier(_Object):
    """A barrier for a number of participants."""

    @classmethod
    def create(cls, block, offset, parties):
        """Makes one (`cw_barrier_init`)."""
        made = cls(block, offset)
        made._call("cw_barrier_init", parties)
        return made

    def wait(self, timeout=None):
        """Waits for the others; True for the last that arrives. OSError EOWNERDEAD if one died.

        TimeoutError when the time is over. A wait without a timeout can't be interrupted.
        """
        wait = _native.nanoseconds(timeout)
        return self._call("cw_barrier_wait", wait) == _SERIAL

    def join(self):
        """This process takes part until it leaves: its death breaks the barrier."""
        self._call("cw_barrier_join")

    def leave(self):
        """It does no longer."""
        self._call("cw_barrier_leave")

    def mend(self):
        """Makes a broken barrier whole."""
        self._call("cw_barrier_mend")
