"""Locks and their like, also of processes that die."""

import errno
import os
import signal
import threading
import time
import unittest

import causeway_rdma as causeway
from causeway_rdma import Acquired

from tests.player import Player

HOLDER = """
import json, sys
import causeway_rdma as causeway
session = causeway.open()
block = session.open_pool("locks").find("block", causeway.WRITE, timeout=30)
lock = causeway.%s
lock.%s()
print(json.dumps("held"), flush=True)
sys.stdin.readline()
"""
ADDER = """
import json, sys
import causeway_rdma as causeway
session = causeway.open()
block = session.open_pool("locks").find("block", causeway.WRITE, timeout=30)
mutex = causeway.Mutex(block, 0)
count = block.array("u8", (1,), offset=8192)
for _ in range(2000):
    with mutex:
        count[0] = count[0] + 1
print(json.dumps("done"), flush=True)
"""


class Locks(unittest.TestCase):
    """Each test has a session with a block that others find."""

    def setUp(self):
        self.session = causeway.open()
        self.addCleanup(self.session.close)
        self.pool = self.session.create_pool("locks", block_size=16384, capacity=1)
        self.block = self.pool.allocate()
        self.block.grant(causeway.USER, os.getuid(), causeway.WRITE)
        self.block.set_name("block")

    def holder(self, lock, function="acquire"):
        player = Player(HOLDER % (lock, function))
        self.addCleanup(player.kill)
        self.assertEqual(player.hear(), "held")
        return player

    def test_a_mutex_excludes_processes(self):
        causeway.Mutex.create(self.block, 0)
        players = [Player(ADDER) for _ in range(2)]
        for player in players:
            self.addCleanup(player.kill)
        for player in players:
            self.assertEqual(player.hear(), "done")
        self.assertEqual(int(self.block.array("u8", (1,), offset=8192)[0]), 4000)

    def test_a_mutex_outlives_its_owner(self):
        mutex = causeway.Mutex.create(self.block, 0)
        player = self.holder("Mutex(block, 0)")
        self.assertIsNone(mutex.acquire(0))
        self.assertIsNone(mutex.acquire(0.3))
        player.kill()
        with mutex as how:
            self.assertIs(how, Acquired.OWNER_DIED)
            mutex.make_consistent()
        with mutex as how:
            self.assertIs(how, Acquired.CLEAN)
        with self.assertRaises(PermissionError):
            mutex.release()
        # Left without a repair it is no lock any more.
        self.holder("Mutex(block, 0)").kill()
        with mutex:
            pass
        with self.assertRaises(OSError) as caught:
            mutex.acquire()
        self.assertEqual(caught.exception.errno, errno.ENOTRECOVERABLE)

    def test_misuse_is_told(self):
        with self.assertRaises(OSError) as caught:
            causeway.Mutex(self.block, 4096).acquire()
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(OSError):
            causeway.Mutex.create(self.block, 65)
        mutex = causeway.Mutex.create(self.block, 128)
        with mutex, self.assertRaises(OSError) as caught:
            mutex.acquire()
        self.assertEqual(caught.exception.errno, errno.EDEADLK)

    def test_readers_share(self):
        lock = causeway.RWLock.create(self.block, 1024)
        player = self.holder("RWLock(block, 1024)", "acquire_read")
        with lock.reading():
            pass
        self.assertIsNone(lock.acquire_write(0.2))
        player.kill()
        with lock.writing() as how:
            self.assertIs(how, Acquired.CLEAN)
        self.holder("RWLock(block, 1024)", "acquire_write").kill()
        self.assertIs(lock.acquire_read(), Acquired.OWNER_DIED)
        lock.make_consistent()
        lock.release()

    def test_conditions_wake(self):
        mutex = causeway.Mutex.create(self.block, 0)
        ready = causeway.Condition.create(self.block, 64, mutex)
        flag = []

        def sets():
            with mutex:
                flag.append(1)
                ready.notify_all()

        thread = threading.Thread(target=sets)
        with mutex:
            self.assertIsNone(ready.wait(0.05))
            thread.start()
            self.assertTrue(ready.wait_for(lambda: flag, timeout=30))
            self.assertFalse(ready.wait_for(lambda: False, timeout=0.3))
        thread.join()

    def test_semaphores_count(self):
        semaphore = causeway.Semaphore.create(self.block, 192, 1)
        self.assertTrue(semaphore.acquire())
        self.assertEqual(semaphore.value, 0)
        self.assertFalse(semaphore.acquire(0))
        self.assertFalse(semaphore.acquire(0.2))
        semaphore.release()
        with semaphore:
            self.assertEqual(semaphore.value, 0)
        self.assertEqual(semaphore.value, 1)

    def test_barriers_gather(self):
        barrier = causeway.Barrier.create(self.block, 2048, 3)
        last = []
        threads = [threading.Thread(target=lambda: last.append(barrier.wait(30)))
                   for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(last), [False, False, True])
        with self.assertRaises(TimeoutError):
            barrier.wait(0.1)

    def test_a_wait_can_be_interrupted(self):
        causeway.Mutex.create(self.block, 0)
        self.holder("Mutex(block, 0)")
        # Who runs this in the background may have it ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        main = threading.main_thread().ident
        threading.Timer(0.3, signal.pthread_kill, (main, signal.SIGINT)).start()
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            causeway.Mutex(self.block, 0).acquire()
        self.assertGreaterEqual(time.monotonic() - begun, 0.2)


if __name__ == "__main__":
    unittest.main()
