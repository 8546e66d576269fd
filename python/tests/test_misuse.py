"""What programs should not do: it raises exceptions, and never ends the process."""

import copy
import ctypes
import os
import pickle
import subprocess
import sys
import threading
import unittest
import unittest.mock

import causeway_rdma as causeway

# Ends while functions are being told of transfers.
LEAVER = """
import causeway_rdma as causeway
session = causeway.open()
cluster = session.join_cluster("leaver", private=True)
buffer = cluster.allocate(65536)
told = []
for _ in range(300):
    cluster.transfer(buffer, buffer, 1, callback=lambda number, state: told.append(state))
"""


class Misuse(unittest.TestCase):
    """Each test has a session with a block and a buffer."""

    def setUp(self):
        self.session = causeway.open()
        self.addCleanup(self.session.close)
        self.pool = self.session.create_pool("misuse", block_size=16384, capacity=4)
        self.block = self.pool.allocate()
        self.cluster = self.session.join_cluster("misuse of buffers")
        self.buffer = self.cluster.allocate(4096)

    def in_thread(self, call):
        """Has another thread make a call; returns the thread, and where its exception will be."""
        raised = []

        def run():
            try:
                call()
            except Exception as error:  # noqa: BLE001, whatever it is
                raised.append(type(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread, raised

    def test_nothing_is_copied(self):
        mutex = causeway.Mutex.create(self.block)
        for one in (self.session, self.pool, self.block, self.cluster, self.buffer, mutex):
            with self.subTest(type(one).__name__):
                for attempt in (pickle.dumps, copy.deepcopy):
                    with self.assertRaises(TypeError):
                        attempt(one)
        with self.assertRaises(TypeError):
            copy.copy(self.block)

    def test_a_wait_ends_when_its_block_is_closed(self):
        mutex = causeway.Mutex.create(self.block)
        mutex.acquire()
        waiter, raised = self.in_thread(mutex.acquire)
        self.until_used(self.block)
        with self.assertRaises(BufferError):
            self.block.free()
        self.block.close()
        waiter.join()
        self.assertEqual(raised, [ValueError])

    def test_a_search_ends_when_its_pool_is_closed(self):
        waiter, raised = self.in_thread(lambda: self.pool.find("nobody", timeout=None))
        self.until_used(self.pool)
        self.pool.close()
        waiter.join()
        self.assertEqual(raised, [ValueError])

    def until_used(self, opened):
        """Until a call of another thread's uses it."""
        while not opened.in_use()._calls:
            pass

    def test_threads_close_what_others_use(self):
        for _ in range(10):
            block = self.pool.allocate()
            again = self.pool.open(block.handle, causeway.WRITE)
            start = threading.Barrier(4)

            def end(block=block, start=start):
                start.wait()
                block.free()

            def use(block=block, start=start):
                start.wait()
                for _ in range(3):
                    block.info()
                    block.view().release()

            threads = [self.in_thread(end), self.in_thread(end), self.in_thread(use)]
            start.wait()
            for thread, raised in threads:
                thread.join()
                self.assertLessEqual(set(raised), {BufferError, ValueError, FileNotFoundError})
            again.close()
            block.free()

    def test_numbers_are_not_cut_off(self):
        sized = self.session.create_pool("sized", block_size=0, capacity=2)
        for call in (
                lambda: sized.allocate((1 << 64) + 4096),
                lambda: self.session.create_pool("cut", block_size=4096, capacity=(1 << 32) + 1),
                lambda: causeway.Mutex.create(self.block, 1 << 64),
                lambda: causeway.Semaphore.create(self.block, 0, 1 << 32),
                lambda: self.block.grant(causeway.USER, 1 << 64, causeway.READ),
                lambda: self.pool.open(self.block.handle, (1 << 32) + causeway.READ),
                lambda: self.cluster.transfer(self.buffer, self.buffer, (1 << 64) + 1)):
            with self.assertRaises((OverflowError, ctypes.ArgumentError)):
                call()

    def test_names_are_strings(self):
        for name in (b"bytes", None, 7):
            with self.assertRaises(TypeError):
                self.block.set_name(name)

    def test_a_callback_can_be_called(self):
        with self.assertRaises(TypeError):
            self.cluster.transfer(self.buffer, self.buffer, 1, callback=5)

    def test_functions_are_told_after_the_end(self):
        told, started, done = [], threading.Event(), threading.Event()

        def ended(_, state):
            started.wait()
            told.append(state)
            # The second time there is nothing left to close.
            self.session.close()
            if len(told) == 9:
                done.set()
            raise SystemExit

        with unittest.mock.patch("sys.excepthook"):
            for _ in range(9):
                self.cluster.transfer(self.buffer, self.buffer, 1, callback=ended)
            started.set()
            self.assertTrue(done.wait(300))

    def test_a_program_ends_while_functions_are_told(self):
        ended = subprocess.run([sys.executable, "-c", LEAVER], capture_output=True, text=True,
                               check=False)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))

    def test_a_child_has_no_memory(self):
        child = os.fork()
        if child == 0:
            refused = 0
            for opened in (self.block, self.buffer):
                try:
                    opened.view()[0]
                except PermissionError:
                    refused += 1
            os._exit(refused)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 2)


if __name__ == "__main__":
    unittest.main()
