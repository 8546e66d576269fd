"""Clusters, buffers and transfers."""

import errno
import threading
import unittest
import unittest.mock

import causeway_rdma as causeway
from causeway_rdma import State

SIZE = 1 << 20


class Transfers(unittest.TestCase):
    """Each test has a node with two buffers."""

    def setUp(self):
        self.session = causeway.open()
        self.addCleanup(self.session.close)
        self.cluster = self.session.join_cluster("python")
        self.source, self.target = (self.cluster.allocate(SIZE) for _ in range(2))

    def test_bytes_arrive(self):
        self.source.array("u4")[:] = range(SIZE // 4)
        transfer = self.cluster.transfer(self.target, self.source, SIZE)
        self.assertIs(transfer.wait(30), State.DONE)
        self.assertIs(transfer.poll(), State.DONE)
        self.assertEqual(bytes(self.target.view()), bytes(self.source.view()))
        self.assertEqual(self.cluster.outstanding, 0)

    def test_pieces_go_in_order(self):
        self.source.view()[:8] = b"abcdefgh"
        pieces = [(self.target, 0, self.source, 4, 4), (self.target, 2, self.source, 0, 2)]
        self.assertIs(self.cluster.transfer_all(pieces).wait(30), State.DONE)
        self.assertEqual(bytes(self.target.view()[:5]), b"efab\0")

    def test_a_function_is_told(self):
        told, done = [], threading.Event()

        def ended(number, state):
            told.append((number, state))
            done.set()

        transfer = self.cluster.transfer(self.target, self.source, 64, callback=ended)
        self.assertTrue(done.wait(30))
        self.assertEqual(told, [(transfer.number, State.DONE)])
        with self.assertRaises(ValueError):
            transfer.wait()

    def test_functions_are_told_whatever_the_hook_raises(self):
        told, done = [], threading.Event()

        def ended(*_):
            told.append(None)
            if len(told) == 3:
                done.set()
            raise ValueError

        with unittest.mock.patch("sys.excepthook", side_effect=SystemExit) as hook:
            for _ in range(3):
                self.cluster.transfer(self.target, self.source, 64, callback=ended)
            self.assertTrue(done.wait(30))
            # The thread has called the hook for the last one, too, when it ends.
            self.session.close()
            for thread in threading.enumerate():
                if thread.name == "causeway":
                    thread.join(30)
            self.assertEqual(hook.call_count, 3)

    def test_what_is_wrong_is_told(self):
        with self.assertRaises(OSError) as caught:
            self.cluster.transfer(self.target, self.source, SIZE, to=1)
        self.assertEqual(caught.exception.errno, errno.EINVAL)
        with self.assertRaises(FileNotFoundError):
            self.cluster.find(99999)

    def test_other_nodes_have_buffers(self):
        with causeway.open() as other:
            cluster = other.join_cluster("python")
            self.assertEqual(len(cluster.nodes()), 2)
            theirs = cluster.find(self.source.id)
            self.assertEqual((theirs.node, len(theirs)), (self.cluster.node, SIZE))
            view = self.source.view()
            view[:3] = b"xyz"
            mine = cluster.allocate(4096)
            self.assertIs(cluster.transfer(mine, theirs, 4096).wait(), State.DONE)
            self.assertEqual(bytes(mine.view()[:3]), b"xyz")
            self.assertIn(mine.id, [one.handle for one in self.cluster.buffers()])
            with self.assertRaises(OSError) as caught:
                cluster.transfer(theirs, theirs, 64)
            self.assertEqual(caught.exception.errno, errno.EXDEV)

    def test_buffers_with_views_stay(self):
        array = self.target.array("u1")
        with self.assertRaises(BufferError):
            self.target.free()
        del array
        self.target.free()


if __name__ == "__main__":
    unittest.main()
