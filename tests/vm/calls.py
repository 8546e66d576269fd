"""Random calls on a guest's driver (tests/vm/ioctls.c), also while it is taken from its device."""

import os
import secrets
import time

from lib.netns import BUILD
from vm import restart
from vm.lab import GuestError

# Until random calls have ended, beyond the time that they are given.
ENDS_SECONDS = 60
# How often the driver is taken away, and how long random calls go on before that.
TURNS = 3
TURN_SECONDS = 5
# The driver waits so long for who has pages pinned, and longer for an answer now and then.
PINS_SECONDS = 120
# How long each of the two takes in `make test`.
SHORT_SECONDS = 15


def programs():
    """The files that guests need."""
    return [os.path.join(BUILD, "test", "vm", "ioctls")]


def new_seed():
    """What random calls are made from; the seed is printed."""
    return secrets.randbits(32)


def random(guest, seconds, seed):
    """Random calls: their exit status, which says whether all was tried, and their output."""
    guest.send(f"ioctls {seconds} {seed}")
    return guest.finish(seconds + ENDS_SECONDS)


def tried(guest, seconds, seed):
    """Random calls; each succeeds at times."""
    status, text = random(guest, seconds, seed)
    if status != 0:
        raise GuestError(f"seed {seed}: {text[-3000:]}")
    return f"seed {seed}, {text.strip().splitlines()[-1]}"


def taken_away(guest, seed):
    """The same while the driver is taken from the device and given back."""
    guest.run(f"ioctls {TURNS * TURN_SECONDS} {seed} > /tmp/ioctls.out & true")
    for _ in range(TURNS):
        time.sleep(TURN_SECONDS)
        guest.run(f"{restart.UNBIND} && {restart.BIND}", PINS_SECONDS)
    guest.run("killall -9 -q ioctls; wait; true", PINS_SECONDS)
    return f"seed {seed}, {TURNS} times"


def tests():
    """Name and function of every test, in order."""
    yield "random calls", lambda lab: tried(lab.guests[0], SHORT_SECONDS, new_seed())
    yield ("random calls while the driver is taken away",
           lambda lab: taken_away(lab.guests[0], new_seed()))
