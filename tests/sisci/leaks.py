"""Sessions between hosts, of which some end by force, leave nothing in daemons and brokers."""

import json
import os
import re
import tempfile
import time

from lib.netns import SetupError
from sisci.actors import BOUND, Failed, Stage

# Before the first look, in which caches and pools grow; then between two looks.
WARM, ROUNDS = 40, 100
# The data interrupt by which a daemon takes processes without a network, which it always has.
RELAY_NUMBER = 0xffffffff
# What the allocator may keep beyond what it kept before: not a page for each round.
RSS_SLACK_KIB = ROUNDS * 4 - 1


def held(pid):
    """What a process holds: descriptors, those that are memory, threads."""
    kinds = {}
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):
        try:
            kind = re.sub(r"\[\d+\]|\d+$", "", os.readlink(os.path.join(folder, name)))
        except OSError:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
    return {**kinds, "threads": len(os.listdir(f"/proc/{pid}/task"))}


def resident(pid):
    """Its memory, in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read())[1])


def processes(stage):
    """Daemons and brokers of both hosts."""
    return {f"{what} {host}": process.pid for host, side in (("here", stage.here),
                                                             ("there", stage.there))
            for what, process in (("daemon", side.node), ("broker", side.broker))}


def sessions(side):
    """What the host's broker knows of SISCI but its daemon's own session."""
    def others(session):
        return [item for item in session["items"] if item["id"] != RELAY_NUMBER]
    status, output = side.causeway("status", "--json")
    if status:
        raise Failed(output)
    return [session for session in json.loads(output)["sisci"] if others(session)]


def look(stage):
    """What all hold, once nobody is connected."""
    until = time.monotonic() + BOUND
    pids = processes(stage)
    before = None
    while True:
        now = {name: held(pid) for name, pid in pids.items()}
        idle = not sessions(stage.here) and not sessions(stage.there)
        if idle and now == before:
            return now, {name: resident(pid) for name, pid in pids.items()}
        if time.monotonic() > until:
            raise Failed(f"it does not come to rest: {now}")
        before = now
        # Longer than daemon and broker wait for a process to come back.
        time.sleep(1.5)


def turn(stage, number):
    """One session: it ends well, or client or owner is killed in it."""
    owner, client = stage.owner(), stage.client()
    for step in ("connect", "map", "store", "copy", "post"):
        client.well(step)
    if number % 4 == 1:
        client.kill()
    elif number % 4 == 2:
        owner.kill()
    elif number % 4 == 3:
        client.kill()
        owner.kill()
    else:
        for step in ("dma", "trigger", "unmap", "disconnect"):
            client.well(step)
        owner.well("remove")
    stage.clear()


def leaks(scratch, only):
    """Names of the tests, what is wrong, and how long they took."""
    name = f"nothing is left of {ROUNDS} sessions"
    if only and only not in name:
        return []
    begun = time.monotonic()
    stage = Stage(tempfile.mkdtemp(dir=scratch), "10.79.0")
    try:
        for number in range(WARM):
            turn(stage, number)
        before, memory = look(stage)
        for number in range(ROUNDS):
            turn(stage, number)
        after, grown = look(stage)
        problem = None
        if before != after:
            problem = f"held before: {before}\n     and after: {after}"
        more = {who: grown[who] - memory[who] for who in memory}
        if not problem and max(more.values()) > RSS_SLACK_KIB:
            problem = f"memory has grown by {more} KiB"
        name = f"{name}: KiB more: {more}"
    except (Failed, SetupError, OSError) as error:
        problem = f"{type(error).__name__}: {error}"
    finally:
        stage.end()
    return [(name, problem, time.monotonic() - begun)]
