"""Permissions among honest processes of several users, and what their library makes of them."""

import errno
import os
import signal

from pool.cast import (BLOCK, EVERYBODY, EXCLUSIVE, EXISTING, FRIEND, MOVE, NONE, OWNER,
                       PERSISTENT, PRIVATE, READ, SESSION, STRANGER, USER, WRITE, Failed, expect,
                       refused, wait_until)


def grants(stage):
    """A block is for its owner, until a session, a user or everybody is granted it."""
    owner, friend, stranger = stage.three()
    slot, handle = owner.make("frame")
    owner.number("write", slot, 64, 7)
    for other in (friend, stranger):
        refused(errno.EACCES, other, "find", "frame", READ, 0)
        refused(errno.EACCES, other, "handle", handle, READ)
    owner.number("grant", slot, SESSION, friend.number("id"), WRITE)
    at = friend.find("frame")
    expect("what the friend reads", friend.number("read", at, 64), 7)
    friend.number("write", at, 64, 8)
    expect("what the owner reads", owner.number("read", slot, 64), 8)
    refused(errno.EACCES, stranger, "handle", handle, READ)
    owner.number("grant", slot, USER, STRANGER, READ)
    reader = stranger.find("frame", READ)
    expect("what the stranger reads", stranger.number("read", reader, 64), 8)
    refused(errno.EACCES, stranger, "handle", handle, WRITE)
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    stranger.block("handle", handle, WRITE)
    expect("members", owner.number("members"), 3)
    expect("blocks", stranger.number("blocks"), 1)
    refused(errno.ESRCH, owner, "grant", slot, SESSION, 12345, READ)
    refused(errno.EINVAL, owner, "grant", slot, EVERYBODY, 0, EXCLUSIVE)
    refused(errno.EPERM, friend, "grant", at, EVERYBODY, 0, READ)


def faults(stage):
    """A store to what may only be read kills who stores, and nobody else."""
    owner, friend, _ = stage.three()
    slot, _ = owner.make("frame")
    owner.number("grant", slot, EVERYBODY, 0, READ)
    at = friend.find("frame", READ)
    expect("a store", friend.number("write", at, 0, 1), "fault")
    expect("a load", friend.number("read", at, 0), 0)
    friend.do("guard", 0)
    friend.tell("write", at, 0, 1)
    expect("the end of the offender", friend.process.wait(10), -signal.SIGSEGV)
    expect("what the owner reads", owner.number("read", slot, 0), 0)
    wait_until("the broker's notice", lambda: owner.number("members") == 2)


def fault_after_revoke(player, slot, verb, *value):
    """Waits until an access faults, as it must once the library has heard."""
    wait_until("a fault", lambda: player.number(verb, slot, 256, *value) == "fault")


def revocation(stage):
    """What is taken back faults in who had it; a lesser right stays."""
    owner, friend, stranger = stage.three()
    slot, handle = owner.make("frame")
    for other in (friend, stranger):
        owner.number("grant", slot, SESSION, other.number("id"), WRITE)
    a, b = friend.find("frame"), stranger.find("frame")
    owner.number("grant", slot, SESSION, friend.number("id"), READ)
    fault_after_revoke(friend, a, "write", 5)
    expect("a load", friend.number("read", a, 0), 0)
    owner.number("revoke", slot, SESSION, friend.number("id"), 0)
    fault_after_revoke(friend, a, "read")
    refused(errno.EACCES, friend, "handle", handle, READ)
    stranger.number("write", b, 256, 77)
    expect("the other's store", owner.number("read", slot, 256), 77)
    # Given again, it is at the same place.
    owner.number("grant", slot, SESSION, friend.number("id"), WRITE)
    again, _ = friend.block("handle", handle, WRITE)
    friend.number("map", again, WRITE)
    expect("a load at the old address", friend.number("read", a, 256), 77)
    owner.number("free", slot)
    for player, at in ((friend, a), (stranger, b)):
        fault_after_revoke(player, at, "read")
        expect("known", player.number("known", at), 0)
    refused(errno.ENOENT, friend, "handle", handle, READ)


def exclusive(stage):
    """Exclusive writing is given when nobody else may write, and keeps all others from it."""
    owner, friend, stranger = stage.three()
    slot, _ = owner.make("frame")
    own, other, third = (p.number("id") for p in (owner, friend, stranger))
    refused(errno.EBUSY, owner, "grant", slot, SESSION, other, EXCLUSIVE)
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    at = stranger.find("frame")
    owner.number("grant", slot, SESSION, own, READ)
    refused(errno.EBUSY, owner, "grant", slot, SESSION, other, EXCLUSIVE)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    # One of another user might go on, whatever its library has done.
    fault_after_revoke(stranger, at, "write", 1)
    refused(errno.ESTALE, owner, "grant", slot, SESSION, other, EXCLUSIVE)
    owner.number("move", slot)
    owner.number("grant", slot, SESSION, other, EXCLUSIVE)
    mine = friend.find("frame")
    friend.number("write", mine, 0, 9)
    wait_until("the moved contents", lambda: stranger.number("read", at, 0) == 9)
    expect("a store of the owner's", owner.number("write", slot, 0, 1), "fault")
    for party, number in ((SESSION, third), (SESSION, own), (EVERYBODY, 0), (USER, OWNER)):
        refused(errno.EBUSY, owner, "grant", slot, party, number, WRITE)
    refused(errno.EBUSY, owner, "grant", slot, SESSION, third, EXCLUSIVE)
    # It ends with its session.
    friend.signal(signal.SIGKILL)
    wait_until("the right's end",
               lambda: owner.errno("grant", slot, SESSION, own, WRITE) == 0)


def ends(stage):
    """An owner dies: its blocks are free, those who hold one keep it, persistent ones stay."""
    owner, friend, stranger = stage.three()
    slot, _ = owner.make("frame")
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    kept, handle = owner.make("kept", PERSISTENT)
    owner.number("write", kept, 0, 5)
    owner.number("grant", kept, EVERYBODY, 0, READ)
    a, b = friend.find("frame"), stranger.find("frame")
    owner.signal(signal.SIGKILL)
    wait_until("the news", lambda: friend.number("known", a) == 0)
    friend.number("write", a, 0, 3)
    expect("shared still", stranger.number("read", b, 0), 3)
    refused(errno.ENOENT, friend, "find", "frame", READ, 0)
    expect("blocks", friend.number("blocks"), 1)
    expect("left to others", friend.number("read", friend.find("kept", READ), 0), 5)
    refused(errno.EPERM, friend, "adopt", handle)
    heir = stage.enter(OWNER)
    at, _ = heir.block("adopt", handle)
    heir.number("map", at, WRITE)
    expect("owner", heir.number("owner", at), heir.number("id"))
    expect("left to the heir", heir.number("read", at, 0), 5)
    heir.number("free", at)
    expect("blocks", friend.number("blocks"), 0)


def names(stage):
    """Names are unique, pools private if asked for, and closed and destroyed by who may."""
    owner, friend, _ = stage.three()
    slot, _ = owner.make("a")
    other, _ = friend.make()
    refused(errno.EEXIST, friend, "name", other, "a", 0)
    refused(errno.EINVAL, friend, "name", other, "-", PERSISTENT)
    refused(errno.EINVAL, friend, "name", other, "x" * 64, 0)
    friend.number("name", other, "b", 0)
    refused(errno.ENOENT, owner, "find", "c", READ, 0)
    refused(errno.EEXIST, friend, "create", "p", BLOCK, 4, 0)
    refused(errno.EPERM, friend, "destroy", "p")
    refused(errno.EBUSY, owner, "destroy", "p")
    friend.number("free", other)
    owner.number("destroy", "p")
    refused(errno.ENOENT, friend, "alloc", 0, 0)
    expect("known", owner.number("known", slot), 1)
    mine = stage.enter(OWNER, pool=None)
    mine.number("create", "mine", BLOCK, 4, PRIVATE)
    refused(errno.EACCES, friend, "pool", "mine")
    stage.enter(OWNER, pool=None).number("pool", "mine")
    for size, capacity in ((1 << 41, 1), (BLOCK, 0), (BLOCK, 1 << 20)):
        refused(errno.EINVAL, friend, "create", "odd", size, capacity, EXISTING)


def locks(stage):
    """A lock survives its owner, between users."""
    owner, friend, stranger = stage.three()
    slot, _ = owner.make("frame")
    owner.number("mutex", slot, 0, "init")
    owner.number("cond", slot, 64, "init")
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    a, b = friend.find("frame"), stranger.find("frame")
    friend.number("mutex", a, 0, "lock")
    refused(errno.EBUSY, stranger, "mutex", b, 0, "try")
    refused(errno.EPERM, stranger, "mutex", b, 0, "unlock")
    refused(errno.EDEADLK, friend, "mutex", a, 0, "lock")
    status = [b for p in stage.pools() for b in p["blocks"]][0]
    lock = [s for s in status["locks"] if s["kind"] == "mutex"][0]
    expect("the holder in status", lock["pid"], friend.pid)
    if f"mutex at 0, held by {friend.pid}" not in stage.status():
        raise Failed(f"not in status: {stage.status()}")
    stranger.tell("mutex", b, 0, "lock")
    friend.signal(signal.SIGKILL)
    expect("owner dead", stranger.answer(), ["1"])
    stranger.number("mutex", b, 0, "consistent")
    # A waiter is woken by another user's signal, and gets the mutex again.
    stranger.tell("cond", b, 64, "wait")
    expect("locked while it waits", owner.number("mutex", slot, 0, "lock"), 0)
    owner.number("cond", slot, 64, "signal")
    owner.number("mutex", slot, 0, "unlock")
    expect("woken", stranger.answer(), ["0"])
    # The owner of the block dies with the lock: those who have it go on.
    stranger.number("mutex", b, 0, "unlock")
    owner.number("mutex", slot, 0, "lock")
    owner.signal(signal.SIGKILL)
    expect("owner dead", stranger.number("mutex", b, 0, "lock"), 1)
    refused(errno.EINVAL, stranger, "mutex", b, 192, "lock")
    wait_until("the news", lambda: stranger.number("known", b) == 0)


def moved_waiters(stage):
    """Who sleeps on a lock of a block that moves is woken by an unlock in the fresh memory."""
    owner, friend, _ = stage.three()
    slot, _ = owner.make("frame")
    owner.number("mutex", slot, 0, "init")
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    at = friend.find("frame")
    owner.number("mutex", slot, 0, "lock")
    friend.tell("mutex", at, 0, "lock")
    owner.number("move", slot)
    owner.number("mutex", slot, 0, "unlock")
    expect("the lock", friend.answer(), ["0"])
    refused(errno.EBUSY, owner, "mutex", slot, 0, "try")


def forked(stage):
    """A child has nothing of its parent's, which goes on."""
    owner, _, _ = stage.three()
    slot, _ = owner.make("frame")
    owner.number("mutex", slot, 0, "init")
    expect("wrong in the child", owner.number("fork", slot), 0)
    owner.number("write", slot, 64, 3)
    expect("in the parent", owner.number("read", slot, 64), 3)
    owner.number("free", slot)


def transfers(stage):
    """DMA between two nodes: polled and told; a node that goes makes transfers fail."""
    here = stage.enter(OWNER, pool=None)
    there = stage.enter(FRIEND, pool=None)
    for node in (here, there):
        node.number("join", "cluster", 0)
    own, _ = here.block("buffer", 1 << 20)
    theirs, number = there.block("buffer", 1 << 20)
    remote, _ = here.block("remote", number)
    expect("nodes", here.number("nodes"), 2)
    if here.number("pages", own) not in (0, 2):
        raise Failed("huge pages, which others could take away")
    here.number("write", own, 4096, 99)
    for callback in (0, 1):
        said = here.do("copy", remote, own, 1 << 20, 32, callback)
        expect("ends", said, ["32", "0", "0"])
    expect("what has arrived", there.number("read", theirs, 4096), 99)
    refused(errno.EINVAL, here, "copy", remote, own, (1 << 20) + 1, 1, 0)
    third = stage.enter(STRANGER, pool=None)
    third.number("join", "cluster", 0)
    a, b = (third.block("remote", n)[0] for n in (number, number))
    refused(errno.EXDEV, third, "copy", a, b, 64, 1, 0)
    there.signal(signal.SIGKILL)
    wait_until("a failure", lambda: here.errno("copy", remote, own, 64, 1, 0) == errno.ENOENT)
    refused(errno.ENOENT, here, "remote", number)


def examples(stage):
    """The paper's writer and reader, and the DMA example."""
    import subprocess
    from lib import netns
    runtime = os.path.join(stage.dir, "examples")
    env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=runtime, CAUSEWAY_IDLE_SECONDS="1")
    env.pop("CAUSEWAY_SOCKET", None)
    for first, second in ((["writer"], ["reader"]), (["reader"], ["writer"]),
                          (["dma", "0"], ["dma", "1"])):
        both = []
        for argv in (first, second):
            program = os.path.join(netns.BUILD, "examples", argv[0])
            both.append(subprocess.Popen([program, *argv[1:]], env=env, text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
        said = [process.communicate(timeout=60)[0] for process in both]
        if any(process.returncode for process in both):
            raise Failed(f"{first} and {second}: {said}")


TESTS = (grants, faults, revocation, exclusive, ends, names, locks, moved_waiters, forked,
         transfers, examples)
assert NONE == 0 and MOVE
