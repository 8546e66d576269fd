"""What is refused: arguments that are none, what is another's, and more users than there is room
for."""

import errno

from pool.cast import EVERYBODY, FRIEND, OWNER, READ, STRANGER, WRITE, expect, refused

RWLOCK, BARRIER, MUTEX, SEM = 1024, 2048, 0, 64
# Processes that one object has room for: RECORDS of crates/shm/src/lock.
RECORDS = 64


def arguments(stage):
    """Every function, with everything that it is to refuse; alone in the pool, and with others."""
    for _ in range(2):
        player = stage.enter(OWNER)
        # Its own pools have names that only one can make.
        expect("calls answered otherwise", player.number("misuse"), 0)
        player.signal(9)
        player.process.wait()
        stage.enter(FRIEND)


def read_only(stage):
    """Locks can't be used by who may only read them."""
    owner, friend, _ = stage.three()
    slot, _ = owner.make("frame")
    for kind, offset, *value in (("mutex", MUTEX), ("sem", SEM, 1), ("rwlock", RWLOCK),
                                 ("barrier", BARRIER, 2)):
        owner.number(kind, slot, offset, "init", *value)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    at = friend.find("frame", READ)
    for what in (("mutex", MUTEX, "lock"), ("mutex", MUTEX, "try"), ("mutex", MUTEX, "init"),
                 ("sem", SEM, "post"), ("sem", SEM, "value"), ("rwlock", RWLOCK, "read", 0),
                 ("rwlock", RWLOCK, "unlock"), ("barrier", BARRIER, "wait", 0)):
        kind, offset, *rest = what
        refused(errno.EACCES, friend, kind, at, offset, *rest)
    expect("the owner's", owner.number("mutex", slot, MUTEX, "try"), 0)


def others(stage):
    """What one has locked, another can't unlock, nor repair."""
    owner, friend, stranger = stage.three()
    slot, _ = owner.make("frame")
    owner.number("mutex", slot, MUTEX, "init")
    owner.number("rwlock", slot, RWLOCK, "init")
    owner.number("barrier", slot, BARRIER, "init", 3)
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    a, b = friend.find("frame"), stranger.find("frame")
    friend.number("mutex", a, MUTEX, "lock")
    friend.number("rwlock", a, RWLOCK, "write")
    friend.number("barrier", a, BARRIER, "join")
    for kind, offset, verb, why in (
            ("mutex", MUTEX, "unlock", errno.EPERM), ("mutex", MUTEX, "consistent", errno.EINVAL),
            ("mutex", MUTEX, "try", errno.EBUSY), ("rwlock", RWLOCK, "unlock", errno.EPERM),
            ("rwlock", RWLOCK, "consistent", errno.EINVAL),
            ("rwlock", RWLOCK, "tryread", errno.EBUSY), ("barrier", BARRIER, "leave", errno.EPERM)):
        refused(why, stranger, kind, b, offset, verb)
    refused(errno.ETIMEDOUT, stranger, "mutex", b, MUTEX, "lock", 20)
    refused(errno.ETIMEDOUT, stranger, "rwlock", b, RWLOCK, "read", 20)
    refused(errno.ETIMEDOUT, stranger, "rwlock", b, RWLOCK, "write", 0)
    friend.number("mutex", a, MUTEX, "unlock")
    refused(errno.EPERM, friend, "mutex", a, MUTEX, "unlock")
    friend.number("rwlock", a, RWLOCK, "unlock")
    expect("free", stranger.number("mutex", b, MUTEX, "lock", 0), 0)
    expect("free", stranger.number("rwlock", b, RWLOCK, "write", 0), 0)


def too_many(stage):
    """An object has room for so many processes, and for another once one has left or died."""
    owner = stage.enter(OWNER)
    slot, _ = owner.make("frame")
    owner.number("rwlock", slot, RWLOCK, "init")
    owner.number("barrier", slot, BARRIER, "init", 2)
    owner.number("grant", slot, EVERYBODY, 0, WRITE)
    crowd = [stage.enter((OWNER, FRIEND, STRANGER)[i % 3]) for i in range(RECORDS + 1)]
    slots = [player.find("frame") for player in crowd]
    last, at = crowd[-1], slots[-1]
    for verb, kind, offset, leave in (("read", "rwlock", RWLOCK, "unlock"),
                                      ("join", "barrier", BARRIER, "leave")):
        for player, place in zip(crowd[:-1], slots):
            player.number(kind, place, offset, verb)
        refused(errno.EAGAIN, last, kind, at, offset, verb)
        crowd[0].number(kind, slots[0], offset, leave)
        expect("one that comes later", last.number(kind, at, offset, verb), 0)
        refused(errno.EAGAIN, crowd[0], kind, slots[0], offset, verb)
    # The dead make room too.
    crowd[1].signal(9)
    crowd[1].process.wait()
    expect("after a death", crowd[0].number("rwlock", slots[0], RWLOCK, "read"), 0)


TESTS = (arguments, read_only, others, too_many)
