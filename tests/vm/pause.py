"""A virtual machine that is paused for longer than its peers may wait for one another.

The lease, after which a peer that does not go on is given up, is 500 ms.
"""

import select
import signal
import time

from vm import owner, sessions, traffic
from vm.lab import GuestError
from vm.long import begin_long, expect_failure, wait_beyond, writes_complete
from vm.qmp import Qmp, shown, stop

# Several leases.
PAUSE_SECONDS = 3


def paused(lab):
    """A VM is stopped while its guest's memory is written to; then the transfer goes on."""
    a, b = lab.guests[:2]
    begin_long(a, b)
    with Qmp(a.qmp) as qmp:
        stop(qmp)
        time.sleep(PAUSE_SECONDS)
        before = writes_complete(lab)
        qmp.execute("cont")
    wait_beyond(lab, before)
    for guest in (a, b):
        traffic.stop(guest, "ib_write_bw")
    return f"goes on after {PAUSE_SECONDS} s"


def lock_owner(lab):
    """The owner of a lock is stopped with its machine: it keeps it, however long others wait, since
    what it stores when it goes on could not be held back."""
    a = lab.guests[0]
    sessions.begin(lab.host, "locks", "first", 2, "pause")
    sessions.begin(a, "locks", "second", 2, "pause")
    traffic.wait_said(a, "locks", "held")
    with Qmp(a.qmp) as qmp:
        stop(qmp)
        traffic.wait_said(lab.host, "locks", "in vain")
        qmp.execute("cont")
    sessions.end(a, "locks")
    sessions.end(lab.host, "locks")
    return "waited for in vain, given up when it goes on"


def detached_while_paused(lab):
    """A paused VM is given up: its peer is told, and when it goes on it is shown nothing of what it
    shared, and its own process is told. A lock that another process of it has, which stores all the
    while, is given to the next one when it can't store any more, and no sooner. What is a process's
    own it keeps."""
    a, b = lab.guests[:2]
    sessions.begin(lab.host, "locks", "first", 2, "fence")
    sessions.begin(a, "locks", "second", 2, "fence")
    traffic.wait_said(a, "locks", "held")
    begin_long(a, b)
    owner.begin(a, lab.host)
    with Qmp(a.qmp) as qmp:
        if not shown(qmp):
            raise GuestError("nothing is shown in the window of a guest that is written to")
        stop(qmp)
        lab.causeway("vm", "detach", a.name)
        outcome = expect_failure(b)
        next_owner = traffic.running["locks"]
        if select.select([next_owner.stdout], [], [], PAUSE_SECONDS)[0]:
            raise GuestError("a lock was taken over from who may store yet")
        qmp.execute("cont")
        expect_nothing_shown(a, qmp)
    traffic.wait_said(lab.host, "locks", "taken over")
    status, _ = traffic.wait(a, "ib_write_bw")
    if status == 0:
        raise GuestError("the process of the VM that was given up noticed nothing")
    owner.end(a)
    traffic.wait(lab.host, "owner")
    next_owner.send_signal(signal.SIGUSR1)
    sessions.end(lab.host, "locks")
    traffic.stop(a, "locks")
    return f"{outcome}, a lock taken over when it is safe"


def expect_nothing_shown(guest, qmp=None):
    """Nothing is shown in the guest's window any more."""
    if qmp is None:
        with Qmp(guest.qmp) as connection:
            return expect_nothing_shown(guest, connection)
    deadline = traffic.deadline_after()
    while ranges := shown(qmp):
        if time.monotonic() > deadline:
            raise GuestError(f"{guest.name} is shown {ranges}")
        time.sleep(traffic.PAUSE)
