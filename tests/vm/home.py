"""What a guest's driver does with memory: of the window, and of processes that is moved there."""

import os

from lib.netns import BUILD
from vm.lab import GuestError

DISK = "/dev/ram0"
DISK_KIB = 16384
SECONDS = 300
# Where the program that outlives the device says what it does, and what it waits for.
SAID = "/tmp/outlive"
GO = "/tmp/outlive.go"


def programs():
    """The files that guests need."""
    return [os.path.join(BUILD, "test", "vm", "home")]


def moved(lab):
    """Every case of tests/vm/home.c."""
    guest = lab.guests[0]
    guest.run(f"[ -e {DISK} ] || insmod /lib/modules/brd.ko rd_nr=1 rd_size={DISK_KIB}")
    text = guest.run(f"home {DISK}", SECONDS)
    return f"{text.count('PASS')} cases"


def begin_outliving(guest):
    """A process moves memory, and waits."""
    guest.run(f"rm -f {GO}; home --outlive {GO} > {SAID} 2>&1 & "
              f"while ! grep -q moved {SAID}; do sleep 0.1; done")


def expect_outlived(guest):
    """It still has its memory."""
    guest.run(f"touch {GO}; while pidof home > /dev/null; do sleep 0.1; done")
    text = guest.run(f"cat {SAID}")
    if "still there" not in text:
        raise GuestError(f"its memory is gone: {text}")


def tests():
    """Name and function of every test, in order."""
    yield "memory moved by the driver", moved
