"""A virtual machine that is paused for longer than its peers may wait for one another.

The lease, after which a peer that does not go on is given up, is 500 ms.
"""

import re
import time

from vm import traffic
from vm.lab import GuestError
from vm.long import begin_long, expect_failure, wait_beyond, writes_complete
from vm.qmp import Qmp

# Several leases.
PAUSE_SECONDS = 3
# What QEMU calls a range of a window that shows something.
SHOWN = re.compile(r"virtio-shmem-\d+-[0-9a-f]+")


def paused(lab):
    """A VM is stopped while its guest's memory is written to; then the transfer goes on."""
    a, b = lab.guests[:2]
    begin_long(a, b)
    with Qmp(a.qmp) as qmp:
        qmp.execute("stop")
        time.sleep(PAUSE_SECONDS)
        before = writes_complete(lab)
        qmp.execute("cont")
    wait_beyond(lab, before)
    for guest in (a, b):
        traffic.stop(guest, "ib_write_bw")
    return f"goes on after {PAUSE_SECONDS} s"


def detached_while_paused(lab):
    """A paused VM is given up: its peer is told, and when it goes on it is shown nothing of what it
    shared, and its own process is told."""
    a, b = lab.guests[:2]
    begin_long(a, b)
    with Qmp(a.qmp) as qmp:
        if not shown(qmp):
            raise GuestError("nothing is shown in the window of a guest that is written to")
        qmp.execute("stop")
        lab.causeway("vm", "detach", a.name)
        outcome = expect_failure(b)
        qmp.execute("cont")
        expect_nothing_shown(a, qmp)
    status, _ = traffic.wait(a, "ib_write_bw")
    if status == 0:
        raise GuestError("the process of the VM that was given up noticed nothing")
    return outcome


def shown(qmp):
    """What QEMU shows in the window of a machine."""
    tree = qmp.execute("human-monitor-command", **{"command-line": "info mtree"})
    return SHOWN.findall(tree)


def expect_nothing_shown(guest, qmp=None):
    """Nothing is shown in the guest's window any more."""
    if qmp is None:
        with Qmp(guest.qmp) as connection:
            return expect_nothing_shown(guest, connection)
    deadline = time.monotonic() + traffic.SECONDS
    while ranges := shown(qmp):
        if time.monotonic() > deadline:
            raise GuestError(f"{guest.name} is shown {ranges}")
        time.sleep(traffic.PAUSE)
