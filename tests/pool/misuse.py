"""What is refused: arguments that are none, what is another's, and more users than there is room
for."""

import errno
import os
import subprocess

from lib import netns
from pool.cast import (EVERYBODY, FRIEND, OWNER, READ, STRANGER, USER, WRITE, Failed, expect,
                       refused, wait_until)

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


def cancelled(stage):
    """Threads that are cancelled in calls leave nothing locked."""
    player = stage.enter(OWNER)
    expect("calls answered otherwise", player.number("cancelled"), 0)


def threads(stage):
    """What becomes of transfers where there can be no more threads, and of the program's signals
    where there are some."""
    player = stage.enter(OWNER)
    expect("calls answered otherwise", player.number("threads"), 0)


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
    wait_until("room after a death",
               lambda: crowd[0].errno("rwlock", slots[0], RWLOCK, "read") == 0)


def grants_run_out(stage):
    """A block has room for so many grants; what is taken back makes room."""
    owner = stage.enter(OWNER)
    slot, _ = owner.make()
    given = 0
    while (why := owner.errno("grant", slot, USER, 1000 + given, READ)) == 0:
        given += 1
    expect("the end", why, errno.ENOSPC)
    refused(errno.ENOSPC, owner, "grant", slot, EVERYBODY, 0, READ)
    owner.number("revoke", slot, USER, 1000, 0)
    expect("room", owner.errno("grant", slot, EVERYBODY, 0, READ), 0)
    # One that is there is changed in its place.
    expect("changed", owner.errno("grant", slot, USER, 1001, WRITE), 0)


def unserved(stage):
    """Where no broker is to be had, cw_open() fails, and standard error says why."""
    folder = os.path.join(stage.dir, "open")
    os.mkdir(folder)
    os.chown(folder, OWNER, OWNER)
    os.chmod(folder, 0o755)
    program = os.path.join(stage.dir, "test", "pool")
    cases = ((OWNER, {"CAUSEWAY_RUNTIME_DIR": folder}, errno.EACCES,
              "mode 0755 lets others in; chmod 0700"),
             (OWNER, {"CAUSEWAY_SOCKET": os.path.join(stage.dir, "nobody")}, errno.ENODEV,
              "no broker answers"),
             (FRIEND, {"CAUSEWAY_SOCKET": os.path.join(stage.dir, "other", "broker.sock")},
              errno.EACCES, "causeway: cannot open the library"))
    for user, settings, why, said in cases:
        env = {name: value for name, value in os.environ.items()
               if not name.startswith("CAUSEWAY_")}
        done = subprocess.run([program], env=env | settings, stdin=subprocess.DEVNULL, cwd="/",
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False, user=user, group=user, extra_groups=[])
        expect("the answer", done.stdout, f"ok {-why}\n")
        if done.stderr.count(said) != 1 or done.stderr.count("causeway doctor") != 1:
            raise Failed(f"not {said}: {done.stderr}")


def umasks(stage):
    """Who is first to come with a umask against himself has a broker, and so has the next one."""
    folder = os.path.join(stage.dir, "umasks")
    os.mkdir(folder)
    os.chown(folder, OWNER, OWNER)
    place = os.path.join(folder, "runtime")
    program = os.path.join(stage.dir, "test", "pool")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CAUSEWAY_")}
    try:
        for umask in (0o777, 0o022):
            done = subprocess.run([program], env=env | {"CAUSEWAY_RUNTIME_DIR": place},
                                  stdin=subprocess.DEVNULL, cwd="/", text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                                  user=OWNER, group=OWNER, extra_groups=[], umask=umask)
            expect(f"with umask {umask:o}", (done.stdout, done.stderr), ("ok 0\n", ""))
    finally:
        netns.stop_broker(place)


TESTS = (arguments, cancelled, threads, grants_run_out, unserved, umasks, read_only, others,
         too_many)
