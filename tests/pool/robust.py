"""Locks whose users are killed, stopped, or cut off from the broker, among processes of several
users, through the C interface and with the broker's word on who is alive."""

import errno
import os
import signal

from pool.cast import EVERYBODY, Failed, expect, refused, wait_until

MUTEX, COND, SEM, RWLOCK, BARRIER = 0, 64, 128, 1024, 2048
# Another mutex and another reader-writer lock.
SECOND_MUTEX, SECOND_RWLOCK = 192, 3072
OWNER_DEAD, SERIAL = 1, 2
# Milliseconds: for what is certain to come; past the lease of crates/shm/src/lock (500).
LONG, PAST_LEASE = 60_000, 1_200
# Seconds: past the grace of a broker that has just started (10).
GRACE = 40.0
KILL, CUT = "killed", "cut off"


class At:
    """A player's view of the block: names an object and what to do with it."""

    def __init__(self, player, slot):
        self.player, self.slot = player, slot

    def does(self, kind, offset, *what):
        """The result, which is no error."""
        return self.player.number(kind, self.slot, offset, *what)

    def begins(self, kind, offset, *what):
        """Does it without waiting for the result."""
        self.player.tell(kind, self.slot, offset, *what)

    def result(self):
        """The result of what was begun: negative if it is an error."""
        return int(self.player.answer(GRACE)[0])

    def fails(self, number, kind, offset, *what):
        """The result is this error."""
        refused(number, self.player, kind, self.slot, offset, *what)


def scene(stage):
    """One of each user, and a block with one object of each kind."""
    players = stage.three()
    slot, _ = players[0].make("frame")
    first = At(players[0], slot)
    for kind, offset, *value in (("mutex", MUTEX), ("mutex", SECOND_MUTEX), ("cond", COND),
                                 ("sem", SEM, 0), ("rwlock", RWLOCK), ("rwlock", SECOND_RWLOCK),
                                 ("barrier", BARRIER, 2)):
        first.does(kind, offset, "init", *value)
    players[0].number("grant", slot, EVERYBODY, 0, 2)
    return [first] + [At(player, player.find("frame")) for player in players[1:]]


def strike(stage, victim, how):
    """Ends a player, or what connects it to the broker: it comes back as somebody else."""
    if how == KILL:
        victim.player.signal(signal.SIGKILL)
        return
    before = victim.player.number_of_session(stage)
    victim.player.signal(signal.SIGUSR1)
    wait_until("its next life",
               lambda: victim.player.number_of_session(stage) not in (None, before))


def mutexes(stage):
    """The next owner is told; one that was taken for dead has lost the lock, and is told too."""
    for how in (KILL, CUT):
        _, victim, heir = scene(stage)
        victim.does("mutex", MUTEX, "lock")
        heir.begins("mutex", MUTEX, "lock", LONG)
        strike(stage, victim, how)
        expect(f"{how}: the heir", heir.result(), OWNER_DEAD)
        if how == CUT:
            victim.fails(errno.EPERM, "mutex", MUTEX, "unlock")
            victim.fails(errno.EBUSY, "mutex", MUTEX, "try")
        heir.does("mutex", MUTEX, "consistent")
        heir.does("mutex", MUTEX, "unlock")
        if how == CUT:
            expect("once more", victim.does("mutex", MUTEX, "lock"), 0)
            victim.does("mutex", MUTEX, "unlock")
        expect("in order", heir.does("mutex", MUTEX, "try"), 0)
        stage.balance()
    _, victim, heir = scene(stage)
    victim.does("mutex", MUTEX, "lock")
    strike(stage, victim, KILL)
    expect("the heir", heir.does("mutex", MUTEX, "lock", LONG), OWNER_DEAD)
    heir.does("mutex", MUTEX, "unlock")
    heir.fails(errno.ENOTRECOVERABLE, "mutex", MUTEX, "lock")


def waiter_cut_off(stage):
    """Who is taken for dead while it waits for a lock has it by its next life, and nobody can take
    it away."""
    owner, victim, other = scene(stage)
    for begin, end in ((("mutex", MUTEX, "lock"), ("mutex", MUTEX, "try")),
                       (("rwlock", RWLOCK, "write"), ("rwlock", RWLOCK, "tryread")),
                       (("rwlock", RWLOCK, "read"), ("rwlock", RWLOCK, "trywrite"))):
        kind, offset, _ = begin
        owner.does(kind, offset, "lock" if kind == "mutex" else "write")
        victim.begins(*begin, LONG)
        wait_until("its sleep", lambda v=victim: is_asleep(v.player.pid))
        strike(stage, victim, CUT)
        owner.does(kind, offset, "unlock")
        expect(f"{begin}", victim.result(), 0)
        other.fails(errno.EBUSY, *end)
        victim.does(kind, offset, "unlock")
        expect("free", other.does(*end), 0)
        other.does(kind, offset, "unlock")


def is_asleep(pid):
    """Whether the main thread of a process waits for a lock."""
    with open(f"/proc/{pid}/task/{pid}/wchan", encoding="ascii") as file:
        return "futex" in file.read()


def rwlocks(stage):
    """A dead writer's lock is had for writing, to repair; a dead reader's share is taken back."""
    for how in (KILL, CUT):
        _, victim, heir = scene(stage)
        victim.does("rwlock", RWLOCK, "write")
        heir.begins("rwlock", RWLOCK, "read", LONG)
        strike(stage, victim, how)
        expect(f"{how}: who asked to read", heir.result(), OWNER_DEAD)
        if how == CUT:
            victim.fails(errno.EPERM, "rwlock", RWLOCK, "unlock")
            victim.fails(errno.EBUSY, "rwlock", RWLOCK, "tryread")
        heir.does("rwlock", RWLOCK, "consistent")
        heir.does("rwlock", RWLOCK, "unlock")
        stage.balance()
        owner, victim, heir = scene(stage)
        for reader in (owner, victim):
            reader.does("rwlock", RWLOCK, "read")
        heir.begins("rwlock", RWLOCK, "write", LONG)
        strike(stage, victim, how)
        heir.player.still_busy()
        owner.does("rwlock", RWLOCK, "unlock")
        expect(f"{how}: the writer", heir.result(), 0)
        if how == CUT:
            victim.fails(errno.EPERM, "rwlock", RWLOCK, "unlock")
        heir.does("rwlock", RWLOCK, "unlock")
        stage.balance()


def wait_for_signal(at, witness):
    """A player waits with the condition variable, as a witness can tell."""
    at.does("mutex", MUTEX, "lock")
    at.begins("cond", COND, "wait")
    # It has it until it waits.
    witness.does("mutex", MUTEX, "lock")
    witness.does("mutex", MUTEX, "unlock")


def conds(stage):
    """Signals reach the living; a mutex lost to a death is told by the wait."""
    owner, victim, other = scene(stage)
    for at in (victim, other):
        wait_for_signal(at, owner)
    strike(stage, victim, KILL)
    owner.does("cond", COND, "broadcast")
    expect("a living waiter", other.result(), 0)
    other.does("mutex", MUTEX, "unlock")
    wait_for_signal(other, owner)
    owner.does("mutex", MUTEX, "lock")
    owner.does("cond", COND, "signal")
    strike(stage, owner, KILL)
    expect("the mutex's owner died", other.result(), OWNER_DEAD)
    other.does("mutex", MUTEX, "consistent")
    other.does("mutex", MUTEX, "unlock")
    stage.balance()
    # Who is taken for dead while it waits has the mutex by its next life.
    owner, victim, _ = scene(stage)
    wait_for_signal(victim, owner)
    strike(stage, victim, CUT)
    owner.does("cond", COND, "broadcast")
    expect("the one cut off", victim.result(), 0)
    owner.fails(errno.EBUSY, "mutex", MUTEX, "try")
    victim.does("mutex", MUTEX, "unlock")
    expect("free", owner.does("mutex", MUTEX, "try"), 0)


def semaphores(stage):
    """What was posted for a waiter that dies or stands still goes to another."""
    owner, victim, other = scene(stage)
    for at in (victim, other):
        at.begins("sem", SEM, "wait", LONG)
        wait_until("its sleep", lambda a=at: is_asleep(a.player.pid))
    victim.player.signal(signal.SIGSTOP)
    owner.does("sem", SEM, "post")
    expect("past one that stands still", other.result(), 0)
    other.begins("sem", SEM, "wait", LONG)
    strike(stage, victim, KILL)
    owner.does("sem", SEM, "post")
    expect("past one that died", other.result(), 0)
    other.fails(errno.EBUSY, "sem", SEM, "try")
    other.fails(errno.ETIMEDOUT, "sem", SEM, "wait", 20)
    owner.does("sem", SEM, "post")
    expect("value", other.does("sem", SEM, "value"), 1)


def barriers(stage):
    """A participant's death is told to the others, until it is mended."""
    for how in (KILL, CUT):
        owner, victim, other = scene(stage)
        victim.does("barrier", BARRIER, "join")
        other.begins("barrier", BARRIER, "wait", LONG)
        strike(stage, victim, how)
        expect(f"{how}: who waits", other.result(), -errno.EOWNERDEAD)
        owner.fails(errno.EOWNERDEAD, "barrier", BARRIER, "wait", LONG)
        owner.does("barrier", BARRIER, "mend")
        if how == CUT:
            victim.fails(errno.EPERM, "barrier", BARRIER, "leave")
        other.begins("barrier", BARRIER, "wait", LONG)
        mine = owner.does("barrier", BARRIER, "wait", LONG)
        expect("the last", sorted((mine, other.result())), [0, SERIAL])
        # While it waits itself.
        if how == CUT:
            victim.begins("barrier", BARRIER, "wait", LONG)
            wait_until("its sleep", lambda v=victim: is_asleep(v.player.pid))
            strike(stage, victim, CUT)
            other.fails(errno.EOWNERDEAD, "barrier", BARRIER, "wait", LONG)
            expect("the one cut off", victim.result(), -errno.EOWNERDEAD)
        stage.balance()


def stopped(stage):
    """A process that stands still is alive: it keeps its locks, however long a lease is."""
    owner, victim, other = scene(stage)
    third = stage.enter(os.getuid())
    third = At(third, third.find("frame"))
    victim.does("mutex", MUTEX, "lock")
    victim.does("rwlock", RWLOCK, "write")
    victim.does("rwlock", SECOND_RWLOCK, "read")
    victim.player.signal(signal.SIGSTOP)
    waits = ((owner, "mutex", MUTEX, "lock"), (other, "rwlock", RWLOCK, "read"),
             (third, "rwlock", SECOND_RWLOCK, "write"))
    for at, *what in waits:
        at.begins(*what, PAST_LEASE)
    for at, *what in waits:
        expect(f"{what}", at.result(), -errno.ETIMEDOUT)
    victim.player.signal(signal.SIGCONT)
    for at, kind, offset, verb in waits:
        at.begins(kind, offset, verb, LONG)
        victim.does(kind, offset, "unlock")
        expect("in good order", at.result(), 0)


def locks_shown(stage):
    """`causeway status` shows who has what, and who waits."""
    owner, reader, other = scene(stage)
    other.does("mutex", MUTEX, "lock")
    reader.does("rwlock", RWLOCK, "read")
    owner.does("sem", SEM, "post")
    reader.does("barrier", BARRIER, "join")
    reader.begins("mutex", MUTEX, "lock", LONG)
    owner.begins("barrier", BARRIER, "wait", LONG)

    def shown(offset):
        locks = [lock for p in stage.pools() for b in p["blocks"] for lock in b["locks"]]
        return [lock for lock in locks if lock["offset"] == offset][0]

    wait_until("a waiter", lambda: shown(MUTEX)["awaited"])
    wait_until("an arrival", lambda: shown(BARRIER)["count"] == 1)
    expect("the holder", shown(MUTEX)["pid"], other.player.pid)
    expect("its thread", shown(MUTEX)["thread"], other.player.pid)
    expect("the reader", shown(RWLOCK)["entries"], [{"pid": reader.player.pid, "threads": 1}])
    expect("the value", shown(SEM)["count"], 1)
    expect("the parties", shown(BARRIER)["parties"], 2)
    said = stage.status()
    for line in (f"mutex at 0, held by {other.player.pid} (thread {other.player.pid}), awaited",
                 f"rwlock at 1024, read by {reader.player.pid}",
                 "semaphore at 128, value 1", "barrier at 2048, 1 of 2 arrived, joined by "):
        if line not in said:
            raise Failed(f"not shown: {line}: {said}")
    strike(stage, other, KILL)
    expect("the heir", reader.result(), OWNER_DEAD)
    expect("health", shown(MUTEX)["health"], "inconsistent")


def absent(stage):
    """One dies, another stands still, while there is no broker: what they had is theirs for as long
    as the next broker waits for them. Who comes back later has lost it, and is told."""
    owner, still, dead = scene(stage)
    still.does("mutex", MUTEX, "lock")
    still.does("rwlock", RWLOCK, "write")
    still.does("barrier", BARRIER, "join")
    dead.does("mutex", SECOND_MUTEX, "lock")
    still.player.signal(signal.SIGSTOP)
    stage.kill_broker()
    dead.player.signal(signal.SIGKILL)
    owner.fails(errno.ETIMEDOUT, "mutex", SECOND_MUTEX, "lock", PAST_LEASE)
    stage.start_broker()
    for offset in (SECOND_MUTEX, MUTEX):
        owner.begins("mutex", offset, "lock", LONG)
        expect("the heir", owner.result(), OWNER_DEAD)
        owner.does("mutex", offset, "consistent")
    expect("the writer", owner.does("rwlock", RWLOCK, "write", LONG), OWNER_DEAD)
    owner.does("rwlock", RWLOCK, "consistent")
    owner.fails(errno.EOWNERDEAD, "barrier", BARRIER, "wait", LONG)
    still.player.signal(signal.SIGCONT)
    still.fails(errno.EPERM, "mutex", MUTEX, "unlock")
    still.fails(errno.EPERM, "rwlock", RWLOCK, "unlock")
    still.begins("mutex", MUTEX, "lock", LONG)
    owner.does("mutex", MUTEX, "unlock")
    expect("by its next life", still.result(), 0)
    owner.fails(errno.EBUSY, "mutex", MUTEX, "try")


TESTS = (mutexes, waiter_cut_off, rwlocks, conds, semaphores, barriers, stopped, locks_shown,
         absent)
