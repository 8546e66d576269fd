"""What a broker finds again that starts after another has been killed: blocks, places, rights."""

import errno
import signal

from pool.cast import (EVERYBODY, OWNER, PERSISTENT, READ, SESSION, WRITE, Failed, expect,
                       refused, wait_until)

# Seconds: past the grace of a broker that has just started (10).
GRACE = 40.0
WAIT = 60_000


def restart(stage, *players):
    """Another broker; all who live are back."""
    stage.kill_broker()
    stage.start_broker()
    wait_until("all to be back", lambda: all(p.number_of_session(stage) for p in players), GRACE)


def come_back(stage, wanted):
    """Who is back presents what it holds, one after the other."""
    wait_until(f"the places {wanted}", lambda: places(stage) == wanted, GRACE)


def places(stage):
    """Which places of the pool are taken, by which names."""
    return {b["number"]: b["name"] for p in stage.pools() for b in p["blocks"]}


def orphans_return(stage):
    """A persistent block that nobody owns is brought back by those who hold it, even for reading,
    with its place, its name and all rights."""
    owner, friend, stranger = stage.three()
    owner.make()
    slot, handle = owner.make("kept", PERSISTENT)
    owner.number("write", slot, 0, 5)
    owner.number("grant", slot, SESSION, friend.number("id"), WRITE)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    reader = stranger.find("kept", READ)
    owner.signal(signal.SIGKILL)
    wait_until("its end", lambda: places(stage) == {1: "kept"})
    for _ in range(2):
        restart(stage, friend, stranger)
        come_back(stage, {1: "kept"})
    # One that had not held it, but had the right.
    at, found = friend.block("find", "kept", WRITE, WAIT)
    expect("the handle", found, handle)
    friend.number("map", at, WRITE)
    friend.number("write", at, 0, 6)
    expect("what the reader sees", stranger.number("read", reader, 0), 6)
    expect("the reader's store", stranger.number("write", reader, 0, 7), "fault")
    refused(errno.EACCES, stranger, "handle", handle, WRITE)
    for player in (friend, stranger):
        refused(errno.EPERM, player, "adopt", handle)
    # The free list: one place after the other, none twice.
    taken = [friend.make()[0] for _ in range(3)]
    numbers = {friend.number("number", one) for one in taken}
    if len(numbers) != 3 or 1 in numbers:
        raise Failed(f"places {numbers}")
    heir = stage.enter(OWNER)
    mine, _ = heir.block("adopt", handle)
    heir.number("map", mine, WRITE)
    expect("left to the heir", heir.number("read", mine, 0), 6)
    restart(stage, friend, stranger, heir)
    expect("owned again", heir.number("owner", mine), heir.number("id"))
    heir.number("free", mine)
    expect("its place", 1 in places(stage), False)
    wait_until("a fault", lambda: stranger.number("read", reader, 0) == "fault")
    restart(stage, friend, stranger, heir)
    refused(errno.ENOENT, friend, "handle", handle, READ)


def owners_that_died(stage):
    """An owner dies while there is no broker: what is persistent is there again, as nobody's, once
    it was waited for; the rest is known no more, and shared still."""
    owner, friend, stranger = stage.three()
    kept, handle = owner.make("kept", PERSISTENT)
    lost, _ = owner.make("lost")
    for slot in (kept, lost):
        owner.number("grant", slot, EVERYBODY, 0, WRITE)
        owner.number("write", slot, 0, 5)
    mine = [friend.find(name) for name in ("kept", "lost")]
    theirs = stranger.find("lost")
    stage.kill_broker()
    owner.signal(signal.SIGKILL)
    owner.process.wait()
    stage.start_broker()
    wait_until("their return", lambda: friend.errno("members") == 0, GRACE)
    # A newcomer takes no place that somebody may come back for.
    new, _ = friend.make()
    expect("a place for the new one", friend.number("number", new) > 1, True)
    at, found = stranger.block("find", "kept", WRITE, WAIT)
    expect("the handle", found, handle)
    stranger.number("map", at, WRITE)
    expect("its contents", stranger.number("read", at, 0), 5)
    expect("owner", stranger.number("owner", at), 0)
    wait_until("the news", lambda: friend.number("known", mine[1]) == 0, GRACE)
    expect("known", friend.number("known", mine[0]), 1)
    friend.number("write", mine[1], 0, 6)
    expect("shared still", stranger.number("read", theirs, 0), 6)
    refused(errno.ENOENT, stranger, "find", "lost", READ, 0)
    expect("orphans", stage.enter(OWNER).number("orphans"), 1)


def late_owner(stage):
    """An owner that stands still while others come back finds its block in its place."""
    owner, friend, _ = stage.three()
    slot, handle = owner.make("frame")
    owner.number("write", slot, 0, 5)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    owner.signal(signal.SIGSTOP)
    stage.kill_broker()
    stage.start_broker()
    new, _ = friend.make("new")
    owner.signal(signal.SIGCONT)
    at, found = friend.block("find", "frame", READ, WAIT)
    expect("the handle", found, handle)
    friend.number("map", at, READ)
    expect("its contents", friend.number("read", at, 0), 5)
    expect("its place", owner.number("number", slot), 0)
    if friend.number("number", new) == 0:
        raise Failed("the same place twice")
    owner.number("free", slot)
    expect("places", list(places(stage).values()), ["new"])


def false_claims(stage):
    """What a hostile process does to a block's record, or brings, changes nothing."""
    owner, friend, stranger = stage.three()
    slot, handle = owner.make("kept", PERSISTENT)
    owner.number("write", slot, 0, 5)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    writer, other = owner.make("old", PERSISTENT)
    owner.number("grant", writer, EVERYBODY, 0, WRITE)
    stranger.find("kept", READ)
    kept = stranger.find("old")
    # It keeps old memory, of a block that has moved on and says something else.
    stranger.number("keep", kept)
    owner.number("revoke", writer, EVERYBODY, 0, 16)
    owner.number("write", writer, 0, 8)
    expect("ways to write a record", stranger.number("forge"), 0)
    friend.find("kept", READ)
    owner.signal(signal.SIGKILL)
    wait_until("its end", lambda: not any(b["pid"] for p in stage.pools() for b in p["blocks"]))
    restart(stage, friend, stranger)
    come_back(stage, {0: "kept"})
    refused(errno.EACCES, stranger, "handle", handle, WRITE)
    refused(errno.ENOENT, stranger, "handle", other, READ)
    expect("orphans", stage.enter(OWNER).number("orphans"), 1)


TESTS = (orphans_return, owners_that_died, late_owner, false_claims)
