"""A hostile process, deaths at every step, and brokers that are killed."""

import errno
import os
import re
import signal
import time

from pool.cast import (EVERYBODY, FRIEND, MOVE, OWNER, PERSISTENT, READ, SESSION, STRANGER, WRITE,
                       Failed, expect, refused, wait_until)

GUESSES = 500
# Rounds of everyday work in which a process is killed, or stopped.
ROUNDS = 3
BROKERS = 5
LINE = re.compile(r"^fault point (\S+) (\d+)$", re.MULTILINE)
PATIENCE = 30.0


def guesses(stage):
    """Handles and names that are guessed lead to nothing, known ones without a right neither."""
    owner, _, stranger = stage.three()
    slot, handle = owner.make("secret")
    owner.number("write", slot, 0, 1234)
    expect("guessed", stranger.number("guess", handle, GUESSES), 0)
    expect("stolen", stranger.number("steal", handle), 0)
    refused(errno.EACCES, stranger, "find", "secret", READ, 0)
    far = stage.enter(STRANGER, tenant="other", pool=None)
    refused(errno.ENOENT, far, "pool", "p")
    far.number("create", "p", 8192, 4, 2)
    refused(errno.ENOENT, far, "handle", handle, READ)
    refused(errno.ESRCH, owner, "grant", slot, SESSION, far.number("id"), READ)
    expect("members", owner.number("members"), 3)


def widening(stage):
    """What may be read can't be written by any way, by another user."""
    owner, _, stranger = stage.three()
    slot, _ = owner.make("frame")
    owner.number("write", slot, 0, 1234)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    at = stranger.find("frame", READ)
    expect("ways that worked", stranger.number("widen"), 0)
    expect("taken over", stranger.number("usurp", at), 0)
    expect("a store", stranger.number("write", at, 0, 1), "fault")
    expect("the contents", owner.number("read", slot, 0), 1234)


def rubbish(stage):
    """One that may write fills a block with rubbish, again and again, while others use its locks:
    those fail or wait, other blocks and their locks are as they were."""
    owner, friend, stranger = stage.three()
    bad, _ = owner.make("bad")
    good, _ = owner.make("good")
    for slot in (bad, good):
        for kind, offset in (("mutex", 0), ("cond", 64), ("sem", 128), ("rwlock", 1024),
                             ("barrier", 2048)):
            owner.number(kind, slot, offset, "init", 2)
    owner.number("grant", bad, EVERYBODY, 0, WRITE)
    owner.number("grant", good, SESSION, friend.number("id"), WRITE)
    mine, theirs, at = stranger.find("bad"), friend.find("good"), friend.find("bad")
    for _ in range(20):
        expect("scribbled", stranger.number("scribble", mine), 0)
        for player, slot in ((owner, bad), (friend, at)):
            for kind, offset, *verbs in (("rwlock", 1024, "read", "unlock", "write", "unlock"),
                                         ("sem", 128, "wait", "post"),
                                         ("barrier", 2048, "wait", "mend", "join", "leave")):
                for verb in verbs:
                    player.errno(kind, slot, offset, verb, 1)
            player.errno("mutex", slot, 0, "lock", 1)
            player.errno("mutex", slot, 0, "unlock")
            player.errno("cond", slot, 64, "wait", 1)
            player.errno("cond", slot, 64, "signal")
        stage.pools()
    for player, slot in ((owner, good), (friend, theirs)):
        expect("lock", player.number("mutex", slot, 0, "lock", 1000), 0)
        expect("unlock", player.number("mutex", slot, 0, "unlock"), 0)


def absurd(stage):
    """One that may write gives the words of objects values that no honest program does: calls of
    others come back and say so, and what is shown of the objects is shown."""
    owner, friend, stranger = stage.three()
    bad, _ = owner.make("bad")
    owner.number("grant", bad, EVERYBODY, 0, WRITE)
    at, mine = friend.find("bad"), stranger.find("bad")
    name = friend.number("id")
    living = name >> 16 << 32 | name & 0xffff
    held, parties, records = 1 << 16, 24, 64

    def made(kind, offset, value, *words):
        """An object, of which the hostile process has written these words."""
        owner.number(kind, bad, offset, "init", value)
        for where, word in words:
            stranger.number("write", mine, offset + where, word)

    made("sem", 128, 1, (8, (1 << 64) - 1))
    for verb in ("wait", "try", "post"):
        refused(errno.EINVAL, friend, "sem", at, 128, verb, 50)
    made("sem", 128, 0, (8, 0x7fffffff))
    refused(errno.EOVERFLOW, friend, "sem", at, 128, "post")
    expect("value", friend.number("sem", at, 128, "value"), 0x7fffffff)
    refused(errno.EINVAL, owner, "sem", bad, 128, "init", 0x80000000)
    for count in (0, 1 << 16, 1 << 40):
        made("barrier", 2048, 2, (parties, count))
        refused(errno.EINVAL, friend, "barrier", at, 2048, "wait", 50)
    made("barrier", 2048, 2, (8, 0xffff << 32))
    refused(errno.EINVAL, friend, "barrier", at, 2048, "wait", 50)
    # All records are said to be a living reader's.
    made("rwlock", 1024, 0, *((records + 8 * i, living | 0xffff << 16) for i in range(64)))
    refused(errno.EBUSY, owner, "rwlock", bad, 1024, "trywrite")
    refused(errno.EAGAIN, owner, "rwlock", bad, 1024, "tryread")
    refused(errno.ETIMEDOUT, owner, "rwlock", bad, 1024, "write", 50)
    # A lock that one holds who never was is a dead one's; one that a living process is said to hold
    # is waited for.
    made("mutex", 0, 0, (8, (1 << 64) - (1 << 32) | held | 0xffff), (24, 7))
    expect("a dead one's", friend.number("mutex", at, 0, "lock", 1000), 1)
    made("mutex", 0, 0, (8, living | held))
    refused(errno.ETIMEDOUT, owner, "mutex", bad, 0, "lock", 50)
    made("cond", 64, 0, (8, (1 << 64) - 1))
    owner.number("mutex", bad, 0, "init")
    owner.number("mutex", bad, 0, "lock")
    refused(errno.ETIMEDOUT, owner, "cond", bad, 64, "wait", 20)
    owner.number("cond", bad, 64, "broadcast")
    stranger.number("write", mine, 0, 1)
    refused(errno.EINVAL, friend, "mutex", at, 0, "try")
    # Where there is no room for an object.
    for kind, offset in (("mutex", 8192), ("rwlock", 8192 - 64), ("mutex", 32),
                         ("barrier", (1 << 64) - 64)):
        refused(errno.EINVAL, owner, kind, bad, offset, "init", 2)
    locks = {k["offset"]: k for p in stage.pools() for b in p["blocks"] for k in b["locks"]}
    expect("what became of the mutex", locks[0]["health"], "overwritten")
    expect("readers shown", len(locks[1024]["entries"]), 16)
    stage.status()


def kept(stage):
    """One that keeps a mapping past revocation sees nothing of what is written after a move, and
    of other blocks, or of a new one in its place, nothing at all."""
    owner, friend, stranger = stage.three()
    slot, _ = owner.make("frame")
    owner.number("grant", slot, SESSION, stranger.number("id"), WRITE)
    owner.number("grant", slot, SESSION, friend.number("id"), READ)
    at, reader = stranger.find("frame"), friend.find("frame", READ)
    stranger.number("keep", at)
    owner.number("revoke", slot, SESSION, stranger.number("id"), MOVE)
    owner.number("write", slot, 0, 4321)
    wait_until("the friend's news", lambda: friend.number("read", reader, 0) == 4321)
    stranger.number("write", at, 0, 666)
    expect("what it sees", stranger.number("read", at, 0), 666)
    for player, where in ((owner, slot), (friend, reader)):
        expect("what is there", player.number("read", where, 0), 4321)
    owner.number("free", slot)
    again, _ = owner.make()
    expect("fresh memory", owner.number("read", again, 0), 0)
    stranger.number("write", at, 8, 666)
    expect("of the new block", owner.number("read", again, 8), 0)


def floods(stage):
    """One that takes all it gets meets its limit, and leaves enough for others."""
    owner, _, stranger = stage.three()
    count, result = map(int, stranger.do("flood", 100000))
    expect("blocks and error", (count, -result), (64, errno.EDQUOT))
    slot, _ = owner.make("still")
    owner.number("free", slot)
    stranger.signal(signal.SIGKILL)
    wait_until("their end", lambda: owner.number("blocks") == 0)
    # One that is told much and does not read is told of each block once.
    slot, _ = owner.make("frame")
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    deaf = stage.enter(STRANGER)
    deaf.find("frame")
    deaf.signal(signal.SIGSTOP)
    for _ in range(300):
        owner.number("revoke", slot, EVERYBODY, 0, 0)
        owner.number("grant", slot, EVERYBODY, 0, WRITE)
    deaf.signal(signal.SIGCONT)
    expect("it lives", deaf.number("members"), 3)


def churning(stage):
    """Several at their everyday work, killed at random; the tables are as before afterwards."""
    for _ in range(ROUNDS):
        workers = [stage.enter(uid) for uid in (OWNER, OWNER, FRIEND)]
        for worker in workers:
            worker.tell("churn", 1 << 40)
        for number, worker in enumerate(workers):
            time.sleep(0.05 * (number + 1))
            worker.signal(signal.SIGSTOP if number == 1 else signal.SIGKILL)
        after_deaths(stage, workers)


def after_deaths(stage, dead):
    """What an honest newcomer finds once these have died: all places but those of persistent
    blocks, which it can free."""
    for player in dead:
        player.end()
        stage.players.remove(player)
    for uid in (OWNER, FRIEND):
        player = stage.enter(uid)
        expect("everyday work", player.number("churn", 1), 0)
        mine = [b for p in stage.pools() for b in p["blocks"] if b["uid"] == uid]
        if any(block["pid"] or not block["persistent"] for block in mine):
            raise Failed(f"left: {mine}")
        expect("orphans", player.number("orphans"), len(mine))
        player.leave()
        stage.players.remove(player)
    stage.balance()


def points(stage):
    """Steps that everyday work reaches: for each a count that is not reached before it begins."""
    player = stage.enter(OWNER, fault="list")
    # Told at powers of two: the next has not been reached.
    before = {name: 2 * int(count) for name, count in LINE.findall(player.said_all())}
    expect("everyday work", player.number("churn", 4), 0)
    player.leave()
    stage.players.remove(player)
    return {name: before.get(name, 1) for name, _ in LINE.findall(player.said_all())}


def at_every_step(stage):
    """One is killed, or stopped and killed, at each step; others and the tables are right."""
    found = points(stage)
    if len(found) < 12:
        raise Failed(f"only {sorted(found)}")
    for name, count in sorted(found.items()):
        for kind in ("KILL", "STOP"):
            witness = stage.enter(FRIEND)
            slot, _ = witness.make("witness")
            victim = stage.enter(OWNER, fault=f"{name}:{count}:{kind}")
            victim.tell("churn", 8)
            if kind == "KILL":
                expect(f"the end at {name}", victim.process.wait(PATIENCE), -signal.SIGKILL)
            else:
                wait_until(f"a stop at {name}", lambda v=victim: is_stopped(v.pid))
            expect("a witness's work", witness.number("churn", 1), 0)
            witness.number("write", slot, 256, 5)
            expect("a witness's memory", witness.number("read", slot, 256), 5)
            witness.number("free", slot)
            if kind == "STOP":
                victim.signal(signal.SIGCONT)
                expect("it goes on", victim.answer(), ["0"])
            after_deaths(stage, [victim, witness])
    return f"{len(found)} points: {' '.join(sorted(found))}"


def is_stopped(pid):
    """Whether a process stands still."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        return file.read().rsplit(")", 1)[1].split()[0] == "T"


def revoked_at_every_step(stage):
    """One that is killed or stopped while it lets go of a block holds up nobody else."""
    for name in ("block.event", "block.bound", "block.refreshed"):
        for kind in ("KILL", "STOP"):
            owner, friend = stage.enter(OWNER), stage.enter(FRIEND)
            slot, _ = owner.make("frame")
            owner.number("grant", slot, EVERYBODY, 0, WRITE)
            victim = stage.enter(STRANGER, fault=f"{name}:1:{kind}")
            victim.find("frame")
            at = friend.find("frame")
            owner.number("revoke", slot, EVERYBODY, 0, MOVE)
            if kind == "STOP":
                wait_until(f"a stop at {name}", lambda v=victim: is_stopped(v.pid))
            else:
                expect(f"the end at {name}", victim.process.wait(PATIENCE), -signal.SIGKILL)
            wait_until("a fault", lambda f=friend, a=at: f.number("read", a, 0) == "fault")
            owner.number("grant", slot, SESSION, owner.number("id"), READ)
            owner.number("grant", slot, SESSION, friend.number("id"), 3)
            stage.balance()


def brokers(stage):
    """The broker is killed again and again: those who share go on, all is known again."""
    owner, friend, stranger = stage.three()
    slot, handle = owner.make("frame", PERSISTENT)
    owner.number("mutex", slot, 0, "init")
    owner.number("grant", slot, SESSION, friend.number("id"), WRITE)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    a, b = friend.find("frame"), stranger.find("frame", READ)
    for number in range(1, BROKERS + 1):
        stage.kill_broker()
        owner.number("write", slot, 256, number)
        expect("shared without a broker", friend.number("read", a, 256), number)
        expect("locked", friend.number("mutex", a, 0, "lock"), 0)
        expect("unlocked", friend.number("mutex", a, 0, "unlock"), 0)
        stage.start_broker()
        expect("members", owner.number("members") > 0, True)
        wait_until("all to be back", lambda: owner.number("members") == 3)
        expect("the handle", friend.block("find", "frame", WRITE, 5000)[1], handle)
        refused(errno.EACCES, stranger, "handle", handle, WRITE)
        expect("the place", owner.number("number", slot), 0)
        locks = [b["locks"] for p in stage.pools() for b in p["blocks"]][0]
        expect("locks shown", [lock["kind"] for lock in locks], ["mutex"])
        other, _ = owner.make()
        expect("another's place", owner.number("number", other) != 0, True)
        owner.number("free", other)
    # What is taken back is, though another broker gave it.
    owner.number("revoke", slot, EVERYBODY, 0, 0)
    wait_until("a fault", lambda: stranger.number("read", b, 256) == "fault")
    owner.number("revoke", slot, SESSION, friend.number("id"), MOVE)
    wait_until("a fault", lambda: friend.number("read", a, 256) == "fault")
    owner.number("free", slot)


def brokers_under_load(stage):
    """The same while all work."""
    workers = [stage.enter(uid) for uid in (OWNER, FRIEND)]
    for worker in workers:
        worker.tell("churn", 300)
    for _ in range(BROKERS):
        time.sleep(0.1)
        stage.kill_broker()
        stage.start_broker()
    for worker in workers:
        # An operation that a broker's death has cut in two may fail, and says so; nothing hangs.
        if int(worker.answer()[0]) not in (0, -errno.ENOENT, -errno.EINVAL, -errno.ECONNRESET,
                                           -errno.ENODEV):
            raise Failed("the work fails in another way")
        # Persistent blocks are brought back by their owners, and freed with them.
    after_deaths(stage, workers)


TESTS = (guesses, widening, rubbish, absurd, kept, floods, churning, at_every_step,
         revoked_at_every_step, brokers, brokers_under_load)
assert os.name == "posix"
