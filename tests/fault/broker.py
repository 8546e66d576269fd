"""The broker dies while two programs are at it."""

import os
import re
import signal
import time

from fault.world import POLL_SECONDS, START_SECONDS
from kill.harness import IDLE_SECONDS, Failed
from lib import pair

# Cycles for the broker to be killed in, and how often it is.
CYCLES = 60
KILLS = 5
# How long memory is accessed without a broker, and accesses that must be seen then.
ACCESS_MS = 2000
ACCESSES = 4096
# `CALL_TIMEOUT` of crates/fabric/src/limits.rs.
CALL_SECONDS = 5.0


def ended_well(program):
    """A program must end by itself, and say so."""
    status = program.wait_end(START_SECONDS)
    if status != 0 or "ended" not in program.text:
        raise Failed(f"{program.name()} ends with {pair.exit_text(status)}")


def undisturbed(programs, signs="trouble|busy"):
    """Programs must end without having noticed anything, or said any of these signs of it."""
    for program in programs:
        ended_well(program)
        if noticed := re.search(rf"^({signs}) .*$", program.text, re.MULTILINE):
            raise Failed(f"{program.name()} has noticed it: {noticed[0]}")


def wait_until(what, seen):
    """Waits for something that must come."""
    deadline = time.monotonic() + START_SECONDS
    while not seen():
        if time.monotonic() > deadline:
            raise Failed(f"no {what} in {START_SECONDS} s")
        time.sleep(POLL_SECONDS)


def cycles(program):
    """How many cycles a program has finished."""
    return len(re.findall(r"^cycle ", program.text, re.MULTILINE))


def restarted(world):
    """The broker is killed again and again; whoever needs one next starts it."""
    both = world.start(options=["-n", str(CYCLES)])
    folder = world.hosts[0].runtime_dir
    for _ in range(KILLS):
        wait_until("both endpoints", lambda: len(world.status()["endpoints"]) == 2)
        with open(os.path.join(folder, "broker.pid"), encoding="ascii") as f:
            os.kill(int(f.read()), signal.SIGKILL)
        before = cycles(both[0])
        both[0].wait_for("progress", lambda _, b=before: cycles(both[0]) > b + 1, START_SECONDS)
    undisturbed(both)
    undisturbed(world.start())
    time.sleep(IDLE_SECONDS)
    wait_until("end of the broker", lambda: not os.listdir(folder))
    return f"{KILLS} brokers killed"


def stopped(world):
    """The broker is stopped. Direct accesses go on; who needs the broker gets an error in time, and
    what it needs once the broker goes on."""
    both = world.start(("list", "list"), ["-n", str(1 << 30), "-a", str(ACCESS_MS)])

    def accesses():
        seen = re.compile(r"^fault point direct.copied (\d+)$", re.MULTILINE)
        return max((int(n) for p in both for n in seen.findall(p.text)), default=0)

    wait_until("direct access", lambda: accesses() >= ACCESSES)
    world.broker.send_signal(signal.SIGSTOP)
    try:
        before = accesses()
        wait_until("direct access beside a stopped broker", lambda: accesses() >= 4 * before)
        started = time.monotonic()
        newcomer = world.run(0, [world.worker, "-p", str(world.port + 1)])
        status = newcomer.wait_end(CALL_SECONDS + START_SECONDS)
        if status == 0 or time.monotonic() - started < CALL_SECONDS:
            raise Failed(f"a newcomer ends with {pair.exit_text(status)}: {newcomer.text[-300:]}")
    finally:
        world.broker.send_signal(signal.SIGCONT)
    for program in both:
        program.signal(signal.SIGUSR1)
    for program in both:
        ended_well(program)
        if "again" not in program.text:
            raise Failed(f"{program.name()} has not begun anew: {program.text[-500:]}")
    undisturbed(world.start())
    world.clear()
    world.balance()
    return f"{accesses()} accesses, {before} of them before"


def without(world):
    """Between the death of the broker and the next one's start, direct accesses go on. All that
    needs a broker works afterwards."""
    world.settings["CAUSEWAY_BROKER_BIN"] = "/nonexistent"
    both = world.start(("list", "list"), ["-a", str(ACCESS_MS)])
    seen = re.compile(r"^fault point direct.copied (\d+)$", re.MULTILINE)

    def accesses():
        return max((int(n) for p in both for n in seen.findall(p.text)), default=0)

    wait_until("direct access", lambda: accesses() >= ACCESSES)
    world.broker.kill()
    world.broker.wait()
    before = accesses()
    wait_until("direct access without a broker", lambda: accesses() >= 4 * before)
    world.start_broker()
    wait_until("both endpoints", lambda: len(world.status()["endpoints"]) == 2)
    segments = [e["segments"] for e in world.status()["endpoints"]]
    # On a busy machine the accesses may end before the next broker comes. Memory that a stranger
    # reaches is not let go of then, since nobody can be asked: the call says EBUSY.
    undisturbed(both, "trouble")
    if not any(segments):
        raise Failed("no segment was presented to the next broker")
    undisturbed(world.start())
    world.clear()
    world.balance()
    return f"{accesses()} accesses, {before} of them before"
