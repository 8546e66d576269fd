"""Memory that processes of one host share, with permissions; crash-proof locks in it; DMA.

The interface of libcauseway as Python has it. The library's own guide (docs/LIBCAUSEWAY.md) says
what blocks, locks and transfers are; each class here names the functions of the C interface that
it stands on.

    import causeway_rdma as causeway

    with causeway.open() as session:
        pool = session.create_pool("frames", block_size=65536, capacity=16, existing=True)
        block = pool.allocate()
        block.grant(causeway.EVERYBODY, 0, causeway.READ)
        frame = block.array("f4", (128, 100), offset=64)        # a NumPy array in shared memory

Errors of the library are `OSError`s with its errno: `FileNotFoundError`, `PermissionError`,
`TimeoutError` and so on. Everything may be used by any thread. A child of fork(2) opens a session
of its own.
"""

from causeway_rdma._blocks import Block, BlockInfo, Member, Pool, PoolInfo
from causeway_rdma._constants import (
    EVERYBODY,
    EXCLUSIVE,
    NONE,
    READ,
    SESSION,
    USER,
    WRITE,
    Access,
    Pages,
    Party,
    State,
)
from causeway_rdma._dma import Buffer, Cluster, Transfer
from causeway_rdma._native import LIBRARY_VARIABLE
from causeway_rdma._session import Session, open  # noqa: A004
from causeway_rdma._sync import (
    BARRIER_SIZE,
    CONDITION_SIZE,
    MUTEX_SIZE,
    RWLOCK_SIZE,
    SEMAPHORE_SIZE,
    SYNC_ALIGN,
    Acquired,
    Barrier,
    Condition,
    Mutex,
    RWLock,
    Semaphore,
)

__all__ = [
    "Access", "Acquired", "BARRIER_SIZE", "Barrier", "Block", "BlockInfo", "Buffer",
    "CONDITION_SIZE", "Cluster", "Condition", "EVERYBODY", "EXCLUSIVE", "LIBRARY_VARIABLE",
    "MUTEX_SIZE", "Member", "Mutex", "NONE", "Pages", "Party", "Pool", "PoolInfo", "READ",
    "RWLOCK_SIZE", "RWLock", "SEMAPHORE_SIZE", "SESSION", "SYNC_ALIGN", "Semaphore", "Session",
    "State", "Transfer", "USER", "WRITE", "open",
]
