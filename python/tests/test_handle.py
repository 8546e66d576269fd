"""What is closed: once, whatever interrupts that, and not before it is to be."""

import sys
import unittest
import unittest.mock

import causeway_rdma as causeway
from causeway_rdma import _native
from causeway_rdma._handle import Handle
from causeway_rdma._memory import Mapped

VALUE = 4096


class Library:
    """A C library whose functions note what they end."""

    def __init__(self, results=(), interrupt=None):
        self.ended = []
        self._results = list(results)
        self._interrupt = interrupt

    def cw_end(self, value):
        """Ends something, unless it has to fail."""
        result = self._results.pop(0) if self._results else 0
        if result == 0:
            self.ended.append(value)
        # The interpreter looks for signals when ctypes has called.
        if self._interrupt is not None:
            raise self._interrupt
        return result

    def cw_strerror(self, _):
        """An error's text."""
        return b"refused"


class Ends(unittest.TestCase):
    """A handle of a library that is not there."""

    def setUp(self):
        self.handle = Handle(VALUE, "thing")

    def library(self, **options):
        """Has the handle call such a library."""
        library = Library(**options)
        patch = unittest.mock.patch.object(_native, "library", lambda: library)
        patch.start()
        self.addCleanup(patch.stop)
        return library

    def test_what_was_interrupted_is_not_ended_again(self):
        for name in ("close", "free"):
            with self.subTest(name):
                self.setUp()
                library = self.library(interrupt=KeyboardInterrupt)
                end = getattr(self.handle, name)
                with self.assertRaises(KeyboardInterrupt):
                    end("cw_end", lambda: None)
                self.assertFalse(self.handle.is_open)
                self.assertFalse(end("cw_end", lambda: None))
                self.assertEqual(library.ended, [VALUE])

    def test_what_was_interrupted_before_can_be_ended(self):
        for name in ("close", "free"):
            with self.subTest(name):
                self.setUp()
                library = self.library()
                end = getattr(self.handle, name)
                with self.assertRaises(KeyboardInterrupt):
                    end("cw_end", unittest.mock.Mock(side_effect=KeyboardInterrupt))
                self.assertEqual((self.handle.is_open, library.ended), (True, []))
                self.assertTrue(end("cw_end", lambda: None))
                self.assertEqual(library.ended, [VALUE])

    def test_what_the_library_refuses_stays(self):
        library = self.library(results=[-1])
        with self.assertRaises(PermissionError):
            self.handle.free("cw_end", lambda: None)
        with self.handle as value:
            self.assertEqual(value, VALUE)
            with self.assertRaises(BufferError):
                self.handle.free("cw_end", lambda: None)
        self.assertTrue(self.handle.free("cw_end", lambda: None))
        self.assertEqual(library.ended, [VALUE])

    def test_what_is_used_ends_later(self):
        library = self.library()
        with self.handle:
            self.assertTrue(self.handle.close("cw_end", lambda: None))
            self.assertEqual(library.ended, [])
        self.assertEqual(library.ended, [VALUE])


class Parts(unittest.TestCase):
    """What is in use, or gets new parts, while somebody closes it or one of them."""

    def setUp(self):
        self.session = causeway.open()
        self.addCleanup(self.session.close)
        self.pool = self.session.create_pool("parts", block_size=16384, capacity=4)
        self.block = self.pool.allocate()

    def test_a_pool_that_stays_open_is_never_closed(self):
        view = self.block.view()
        asked = []
        check = Mapped.check_unseen

        def meanwhile(mapped, what):
            # As another thread may, while one tries to close the pool.
            asked.append(self.pool.info())
            self.block.view().release()
            check(mapped, what)

        with unittest.mock.patch.object(Mapped, "check_unseen", meanwhile):
            for end in (self.pool.close, self.block.close, self.block.free):
                with self.assertRaises(BufferError):
                    end()
        self.assertEqual(len(asked), 3)
        view.release()

    def test_a_view_that_is_made_meanwhile_keeps_it_open(self):
        views = []
        check = Mapped.check_unseen

        def meanwhile(mapped, what):
            check(mapped, what)
            if not views:
                views.append(self.block.view())

        for end in (self.block.close, self.block.free, self.pool.close):
            with unittest.mock.patch.object(Mapped, "check_unseen", meanwhile):
                with self.assertRaises(BufferError):
                    end()
            views.pop()[0] = 1
        self.block.info()

    def test_what_another_thread_opens_is_not_forgotten(self):
        with causeway.open() as session:
            self.opens_while_one_is_closed(session, lambda: session.open_pool("parts"))
        with causeway.open() as session, session.open_pool("parts") as pool:
            self.block.grant(causeway.EVERYBODY, 0, causeway.READ)
            handle = self.block.handle
            self.opens_while_one_is_closed(pool, lambda: pool.open(handle))
        with causeway.open() as session, session.join_cluster("nodes") as cluster:
            number = cluster.allocate(4096).id
            self.opens_while_one_is_closed(cluster, lambda: cluster.find(number))

    def opens_while_one_is_closed(self, whole, make):
        """As if another thread opened parts, at each instruction by which one is forgotten."""
        opened, one, seen = [], make(), set()

        def meanwhile(frame, *_):
            if frame.f_code.co_name not in ("forget", "<listcomp>"):
                return None
            frame.f_trace_opcodes = True
            # Once at each: a loop over all parts would have no end.
            if (frame.f_code, frame.f_lasti) not in seen:
                seen.add((frame.f_code, frame.f_lasti))
                opened.append(make())
            return meanwhile

        self.addCleanup(sys.settrace, sys.gettrace())
        sys.settrace(meanwhile)
        one.close()
        sys.settrace(None)
        whole.close()
        self.assertNotEqual(opened, [])
        self.assertEqual([part for part in opened if part.in_use().is_open], [])


if __name__ == "__main__":
    unittest.main()
