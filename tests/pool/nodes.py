"""DMA through the C interface: many transfers, parts, aborts, and nodes that die on the way."""

import errno
import signal

from pool.cast import FRIEND, OWNER, PRIVATE, Failed, expect, refused, wait_until

SMALL, LARGE = 1 << 16, 8 << 20
# More than can be copied while a signal is sent: hundreds of gigabytes.
MANY = 60_000
TRANSFERS_MAX = 65_536
# Seconds.
PATIENCE = 60.0


def cluster(stage, size, flags=0, uids=(OWNER, FRIEND)):
    """Two nodes with a buffer each: both, the first's slots of both buffers, and the second's
    number."""
    nodes = [stage.enter(uid, pool=None) for uid in uids]
    for node in nodes:
        node.number("join", "cluster", flags)
    own, _ = nodes[0].block("buffer", size)
    _, number = nodes[1].block("buffer", size)
    remote, _ = nodes[0].block("remote", number)
    return *nodes, own, remote, number


def outstanding(stage):
    """As many transfers as there may be, and no more; each end is told once."""
    here, _, own, remote, _ = cluster(stage, SMALL)
    here.tell("fill", remote, own)
    said = [int(word) for word in here.answer(PATIENCE)]
    expect("transfers", said, [TRANSFERS_MAX, -errno.EAGAIN, TRANSFERS_MAX + 1, -errno.ENOENT, 0])


def parts(stage):
    """A transfer of several parts is carried out in their order."""
    here, _, own, remote, _ = cluster(stage, SMALL)
    expect("state and word", here.do("parts", remote, own), ["1", "77"])


def overlap(stage):
    """Within one buffer, bytes move up and down as by memmove(3), from its first transfer on."""
    here, _, own, *_ = cluster(stage, LARGE)
    expect("wrong bytes", here.number("overlap", own), 0)


def objects(stage):
    """Buffers and nodes are found by their numbers, by each node."""
    here, there, *_ = cluster(stage, SMALL)
    for node in (here, there):
        expect("buffers", node.number("objects"), 2)
    there.number("freebuffer", 0)
    expect("buffers", here.number("objects"), 1)


def aborts(stage):
    """What is asked to stop does: those whose turn has not come copy nothing."""
    here, _, own, remote, _ = cluster(stage, LARGE)
    here.tell("burst", remote, own, LARGE, MANY, 1)
    expect("started", here.answer(PATIENCE), [str(MANY)])
    done, aborted, failed = map(int, here.answer(PATIENCE))
    expect("all", (done + aborted, failed), (MANY, 0))
    if aborted == 0:
        raise Failed(f"{done} done, none aborted")


def deaths(stage):
    """A node dies, or frees its buffer, while transfers from and to it are under way: they fail,
    and whoever started them goes on."""
    for end in ("KILL", "free"):
        here, there, own, remote, number = cluster(stage, LARGE)
        here.tell("burst", remote, own, LARGE, MANY, 0)
        expect("started", here.answer(PATIENCE), [str(MANY)])
        if end == "KILL":
            there.signal(signal.SIGKILL)
        else:
            there.number("freebuffer", 0)
        done, aborted, failed = map(int, here.answer(PATIENCE))
        expect("all", (done + failed, aborted), (MANY, 0))
        if failed == 0:
            raise Failed(f"{done} done, none failed")
        here.tell("burst", remote, own, 64, 1, 0)
        expect("another", here.answer()[0], str(-errno.ENOENT))
        refused(errno.ENOENT, here, "remote", number)
        second, _ = here.block("buffer", SMALL)
        here.number("write", own, 0, 9)
        expect("its own", here.do("copy", second, own, 64, 4, 0), ["4", "0", "0"])
        stage.balance()


def huge(stage):
    """A private cluster gets huge pages if there are any in reserve; else ordinary ones serve."""
    here, _, own, remote, _ = cluster(stage, 4 << 20, PRIVATE, (OWNER, OWNER))
    with open("/proc/sys/vm/nr_hugepages", encoding="ascii") as file:
        reserve = int(file.read())
    pages = here.number("pages", own)
    if reserve == 0 and pages == 1:
        raise Failed("huge pages from an empty reserve")
    here.number("write", own, 0, 9)
    expect("copied", here.do("copy", remote, own, 4 << 20, 2, 1), ["2", "0", "0"])
    wait_until("what has arrived", lambda: here.number("read", remote, 0) == 9)


TESTS = (outstanding, parts, overlap, objects, aborts, deaths, huge)
