"""Who waits for what another process does sleeps until the broker tells, and leaves nothing."""

import errno
import os
import signal
import time

from pool.cast import (EVERYBODY, EXCLUSIVE, FRIEND, NONE, OWNER, READ, SESSION, WRITE,
                       Failed, expect, refused, wait_until)

FOREVER = -1
# For who is certain to be told long before.
LONG = 60_000
# Two looks at a process that polls can't find the same so far apart.
WINDOW = 0.25
PATIENCE = 30.0


def waiting(stage):
    """How many threads wait for names, as the broker shows it."""
    return sum(pool["waiting"] for pool in stage.pools())


def switches(pid):
    """How often the threads of a process have given the processor up."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/status", encoding="ascii") as file:
            lines = [line for line in file if "ctxt_switches" in line]
        count += sum(int(line.split()[1]) for line in lines)
    return count


def sleeps(player):
    """Whether none of a process's threads does anything for a while."""
    before = switches(player.pid)
    time.sleep(WINDOW)
    return switches(player.pid) == before


def names_are_told(stage):
    """A search sleeps until there is such a block that may be accessed so."""
    owner, friend, stranger = stage.three()
    friend.tell("find", "late", READ, FOREVER)
    stranger.tell("find", "late", WRITE, LONG)
    wait_until("two that wait", lambda: waiting(stage) == 2)
    if "2 waiting for names" not in stage.status():
        raise Failed(stage.status())
    for player in (friend, stranger):
        wait_until(f"{player.name} asleep", lambda p=player: sleeps(p), PATIENCE)
    slot, handle = owner.make("late")
    expect("the name alone", waiting(stage), 2)
    owner.number("grant", slot, EVERYBODY, 0, READ)
    expect("the reader's", friend.answer()[1], str(handle))
    expect("one that wants more", waiting(stage), 1)
    owner.number("grant", slot, SESSION, stranger.number_of_session(stage), WRITE)
    expect("the writer's", stranger.answer()[1], str(handle))
    expect("waits", waiting(stage), 0)
    # What is there is found at once.
    expect("found", friend.block("find", "late", READ, FOREVER)[1], handle)


def waits_end(stage):
    """By time, with the pool, by death; a stopped process is told when it goes on."""
    owner, friend, stranger = stage.three()
    refused(errno.ENOENT, friend, "find", "never", READ, 20)
    expect("waits", waiting(stage), 0)
    friend.tell("find", "late", READ, FOREVER)
    stranger.tell("find", "late", READ, FOREVER)
    wait_until("two that wait", lambda: waiting(stage) == 2)
    friend.signal(signal.SIGKILL)
    wait_until("the end of one", lambda: waiting(stage) == 1)
    stranger.signal(signal.SIGSTOP)
    slot, handle = owner.make("late")
    owner.number("grant", slot, EVERYBODY, 0, READ)
    expect("waits", waiting(stage), 0)
    stranger.signal(signal.SIGCONT)
    expect("found", stranger.answer()[1], str(handle))
    stranger.tell("find", "never", READ, FOREVER)
    wait_until("one that waits", lambda: waiting(stage) == 1)
    owner.number("free", slot)
    owner.number("destroy", "p")
    expect("without the pool", int(stranger.answer()[0]), -errno.ENOENT)


def waits_outlast_the_broker(stage):
    """Who waits goes on with the next broker."""
    owner, friend, _ = stage.three()
    slot, handle = owner.make()
    owner.number("grant", slot, EVERYBODY, 0, READ)
    friend.tell("find", "late", READ, FOREVER)
    wait_until("one that waits", lambda: waiting(stage) == 1)
    stage.kill_broker()
    stage.start_broker()
    wait_until("its return", lambda: waiting(stage) == 1, PATIENCE)
    owner.number("name", slot, "late", 0)
    expect("found", friend.answer()[1], str(handle))


def waiters_struck(stage):
    """One is killed, or stopped, when it has just asked."""
    for kind in ("KILL", "STOP"):
        owner = stage.enter(OWNER)
        victim = stage.enter(FRIEND, fault=f"block.waiting:1:{kind}")
        victim.tell("find", "late", READ, FOREVER)
        if kind == "KILL":
            expect("its end", victim.process.wait(PATIENCE), -signal.SIGKILL)
            wait_until("no wait", lambda: waiting(stage) == 0)
        else:
            wait_until("one that waits", lambda: waiting(stage) == 1)
        slot, handle = owner.make("late")
        owner.number("grant", slot, EVERYBODY, 0, READ)
        expect("waits", waiting(stage), 0)
        if kind == "STOP":
            victim.signal(signal.SIGCONT)
            expect("found", victim.answer()[1], str(handle))
        stage.balance()


def letting_go(stage):
    """Exclusive access waits for those who have to let go, the granting process among them."""
    owner, friend, _ = stage.three()
    other = stage.enter(OWNER)
    slot, _ = owner.make("frame")
    owner.number("grant", slot, SESSION, other.number("id"), WRITE)
    at = other.find("frame")
    other.signal(signal.SIGSTOP)
    owner.number("grant", slot, SESSION, other.number_of_session(stage), NONE)
    owner.number("grant", slot, SESSION, owner.number("id"), READ)
    exclusive = ("grant", slot, SESSION, friend.number("id"), EXCLUSIVE)
    refused(errno.EAGAIN, owner, *exclusive)
    other.signal(signal.SIGCONT)
    wait_until("exclusive access", lambda: owner.errno(*exclusive) == 0, PATIENCE)
    expect("a store of the other's", other.number("write", at, 0, 1), "fault")
    mine = friend.find("frame")
    friend.number("write", mine, 0, 9)
    expect("what the owner reads", owner.number("read", slot, 0), 9)


TESTS = (names_are_told, waits_end, waits_outlast_the_broker, waiters_struck, letting_go)

