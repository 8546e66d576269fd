"""Sessions with the broker."""

import contextlib

from causeway_rdma import _native
from causeway_rdma._blocks import Pool
from causeway_rdma._constants import POOL_EXISTING, POOL_PRIVATE
from causeway_rdma._dma import Cluster
from causeway_rdma._handle import Opened


def open():  # noqa: A001, as the modules of the standard library have it
    """Opens a session with this host's broker, and starts one if there is none (`cw_open`)."""
    return Session()


class Session(Opened):
    """A session with the broker. Closing it closes all that was opened with it."""

    def __init__(self):
        super().__init__(_native.made("cw_open"), "session")
        self._parts = []

    def __repr__(self):
        return f"<causeway session {self.id if self._handle.is_open else 'closed'}>"

    @property
    def handle(self):
        """What the C interface knows it by."""
        return self._handle.value

    @property
    def id(self):
        """The number by which others grant this session rights (`cw_id`)."""
        return self._told("cw_id")

    def close(self):
        """Ends the session, its pools and clusters first; BufferError while memory has views."""
        self._handle.close("cw_close", self._close_parts)

    def _close_parts(self):
        for part in list(self._parts):
            part.close()

    def create_pool(self, name, *, capacity, block_size=0, private=False, existing=False):
        """Makes a pool of `capacity` blocks, and opens it (`cw_pool_create`).

        With a `block_size` of 0 each block has its own. `private`: for processes of this user
        alone. `existing`: one that is there is opened as it is; else that is FileExistsError.
        """
        flags = private * POOL_PRIVATE | existing * POOL_EXISTING
        made = self._made("cw_pool_create", _native.text(name), block_size, capacity, flags)
        return self._kept(Pool(self, made, name))

    def open_pool(self, name):
        """Opens a pool (`cw_pool_open`)."""
        made = self._made("cw_pool_open", _native.text(name))
        return self._kept(Pool(self, made, name))

    def destroy_pool(self, name):
        """Ends a pool of this user's (`cw_pool_destroy`)."""
        self._call("cw_pool_destroy", _native.text(name))

    def join_cluster(self, name, *, private=False):
        """Joins a cluster of DMA nodes, and makes it if it is not there (`cw_dma_open`)."""
        made = self._made("cw_dma_open", _native.text(name), private * POOL_PRIVATE)
        return self._kept(Cluster(self, made, name))

    def _kept(self, part):
        self._parts.append(part)
        return part

    def forget(self, part):
        """A part has been closed."""
        # A single step: another thread may add one meanwhile.
        with contextlib.suppress(ValueError):
            self._parts.remove(part)
