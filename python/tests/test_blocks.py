"""Pools and blocks."""

import errno
import os
import threading
import unittest

import causeway_rdma as causeway
import numpy

from tests.player import Player

READER = """
import json, sys
import causeway_rdma as causeway
with causeway.open() as session:
    pool = session.open_pool("shared")
    block = pool.find("frame", causeway.READ, timeout=30)
    view = block.view()
    print(json.dumps([session.id, view.readonly, bytes(view[:4]).decode()]), flush=True)
    sys.stdin.readline()
    print(json.dumps(int(block.array("u4", offset=64)[3])), flush=True)
    sys.stdin.readline()
    del view
"""


class Blocks(unittest.TestCase):
    """Each test has a session."""

    def setUp(self):
        self.session = causeway.open()
        self.addCleanup(self.session.close)

    def pool(self, name, **settings):
        settings = {"block_size": 65536, "capacity": 4} | settings
        return self.session.create_pool(name, **settings)

    def test_a_pool_is_as_it_was_made(self):
        pool = self.pool("plain")
        self.assertEqual(pool.info(), (65536, 4, False))
        self.assertEqual([one.pid for one in pool.members()], [os.getpid()])
        with self.assertRaises(FileExistsError):
            self.pool("plain")
        again = self.pool("plain", existing=True, capacity=9)
        self.assertEqual(again.info().capacity, 4)
        again.close()
        with self.assertRaises(FileNotFoundError):
            self.session.open_pool("nothing")
        with self.assertRaises(ValueError):
            self.session.open_pool("zero\0byte")

    def test_nobody_waits_for_a_name_in_a_destroyed_pool(self):
        pool, ends = self.pool("gone"), []

        def find():
            try:
                pool.find("nothing", timeout=None)
            except OSError as error:
                ends.append(error.errno)

        thread = threading.Thread(target=find, daemon=True)
        thread.start()
        self.session.destroy_pool("gone")
        thread.join(30)
        self.assertEqual(ends, [errno.ENOENT])

    def test_blocks_are_memory(self):
        pool = self.pool("memory")
        block = pool.allocate()
        self.assertEqual((len(block), block.is_known), (65536, True))
        view = block.view()
        self.assertEqual(bytes(view), bytes(65536))
        view[10:14] = b"abcd"
        numbers = block.array("u4", (4, 8), offset=64)
        numbers[:] = numpy.arange(32).reshape(4, 8)
        self.assertEqual(bytes(block.view()[10:14]), b"abcd")
        self.assertEqual(bytes(view[64 + 4 * 31:64 + 4 * 32]), (31).to_bytes(4, "little"))
        self.assertEqual(block.array("f8").shape, (8192,))
        with self.assertRaises(TypeError):
            block.array("u1", (65536,), offset=1)
        info = block.info()
        self.assertEqual((info.handle, info.size, info.owner, info.access),
                         (block.handle, 65536, self.session.id, causeway.WRITE))
        self.assertEqual(pool.blocks(), [info])

    def test_memory_with_views_stays(self):
        pool = self.pool("views")
        block = pool.allocate()
        array = block.array("u1")
        array[5] = 7
        for end in (block.close, block.free, pool.close, self.session.close):
            with self.assertRaises(BufferError):
                end()
        part = array[5:6]
        del array
        with self.assertRaises(BufferError):
            block.close()
        self.assertEqual(part[0], 7)
        del part
        block.free()
        with self.assertRaises(ValueError):
            block.view()
        self.assertEqual(pool.blocks(), [])

    def test_sizes_and_limits(self):
        pool = self.pool("sizes", block_size=0, capacity=2)
        small, large = pool.allocate(1), pool.allocate(1 << 20)
        self.assertEqual((small.size, large.size), (4096, 1 << 20))
        with self.assertRaises(OSError) as caught:
            pool.allocate(4096)
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertIn("cw_block_alloc", str(caught.exception))
        large.free()
        with self.assertRaises(FileNotFoundError):
            pool.open(0x1234)

    def test_other_processes_see_them(self):
        pool = self.pool("shared")
        player = Player(READER)
        self.addCleanup(player.kill)
        block = pool.allocate()
        block.view()[:4] = b"left"
        block.array("u4", offset=64)[3] = 1
        block.grant(causeway.EVERYBODY, 0, causeway.READ)
        block.set_name("frame")
        number, readonly, found = player.hear()
        self.assertEqual((readonly, found), (True, "left"))
        self.assertIn(number, [one.id for one in pool.members()])
        block.array("u4", offset=64)[3] = 77
        player.tell()
        self.assertEqual(player.hear(), 77)
        with self.assertRaises(OSError) as caught:
            block.grant(causeway.SESSION, 12345678, causeway.READ)
        self.assertEqual(caught.exception.errno, errno.ESRCH)
        player.tell()
        self.assertEqual(player.end(), 0)

    def test_waiting_ends_in_time(self):
        pool = self.pool("waiting")
        with self.assertRaises(FileNotFoundError):
            pool.find("nobody", timeout=0.3)
        block = pool.allocate()
        block.set_name("mine")
        # The owner may, and nobody else.
        self.assertEqual(pool.find("mine", causeway.WRITE).handle, block.handle)

    def test_rights_are_taken_back(self):
        pool = self.pool("rights")
        block = pool.allocate()
        block.grant(causeway.USER, os.getuid(), causeway.READ)
        block.revoke(causeway.USER, os.getuid(), move=True)
        block.view()[0] = 1
        block.move()
        self.assertEqual(block.view()[0], 1)

    def test_persistent_blocks_are_adopted(self):
        # The pool stays open here, so its blocks stay known.
        watcher = self.pool("kept")
        with causeway.open() as other:
            block = other.open_pool("kept").allocate()
            block.view()[0] = 9
            block.set_name("kept", persistent=True)
            handle = block.handle
        adopted = watcher.adopt(handle)
        self.assertEqual(adopted.view()[0], 9)
        self.assertTrue(adopted.info().is_persistent)
        adopted.free()


if __name__ == "__main__":
    unittest.main()
