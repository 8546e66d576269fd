"""What a guest has and reaches of its window: nothing before it is granted, nothing of what another
has, and no memory for what is not used."""

import re

from lib.report import count_closing_lines
from vm import sessions, traffic, verbs
from vm.lab import GuestError
from vm.qmp import Qmp, shown

WINDOW_BYTES = 64 << 30
# What the driver itself takes: buffers for events, its code. A page's structure for each page of
# the window would be 1 GiB.
GUEST_KIB = 8 * 1024
# QEMU's memory beside the guest's: what it learns of the guest's code while the driver is loaded.
QEMU_KIB = 48 * 1024
# A user of a guest without rights, and how root's pool is refused: to him, and to another tenant.
USER = 1000
ENOENT, EACCES = 2, 13
# What pages of a segment begin with, how many there are, how many of the window are looked at.
SECRET = 0x5ec2e75ec2e75ec2
SECRET_PAGES = 8
SCANNED_PAGES = 16384


def untouched(lab):
    """Nothing is shown in any window before anything was granted."""
    for guest in lab.guests:
        with Qmp(guest.qmp) as qmp:
            if found := shown(qmp):
                raise GuestError(f"{guest.name} is shown {found}")


def resource(place):
    """Where the window is in the guest's memory, and its bytes."""
    first, last = place.run("for d in /sys/bus/pci/devices/*; do grep -q 0x1af4 $d/vendor && "
                            "grep -q 0x1064 $d/device && sed -n 5p $d/resource; done").split()[:2]
    return int(first, 0), int(last, 0) - int(first, 0) + 1


def free_kib(guest):
    """Memory that the guest has left."""
    guest.run("echo 3 > /proc/sys/vm/drop_caches")
    return int(re.search(r"MemAvailable: +(\d+)", guest.run("cat /proc/meminfo")).group(1))


def qemu_kib(guest):
    """What QEMU has of memory beside the guest's own."""
    with open(f"/proc/{guest.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read()).group(1))


def costs(lab):
    """The window takes memory of neither guest nor host when the driver comes."""
    guest = lab.guests[2]
    bytes_of_window = resource(guest)[1]
    guest.run("rmmod causeway")
    without, host_without = free_kib(guest), qemu_kib(guest)
    guest.run("insmod /lib/modules/causeway.ko")
    taken, host_taken = without - free_kib(guest), qemu_kib(guest) - host_without
    if bytes_of_window < WINDOW_BYTES or taken > GUEST_KIB or host_taken > QEMU_KIB:
        raise GuestError(f"a window of {bytes_of_window} bytes: the guest has {taken} KiB less, "
                         f"QEMU takes {host_taken} KiB more")
    return f"64 GiB: the guest has {taken} KiB less, QEMU takes {host_taken} KiB more"


def scan(place):
    """How many pages with the secret the guest's root finds in the window."""
    address = resource(place)[0]
    return int(place.run(f"segments scan {address} {SCANNED_PAGES} {SECRET}").split()[0])


def window(lab):
    """In the window is what a guest's own processes use now, and nothing else; others' root can
    write there what it likes."""
    a, b, c = lab.guests[:3]
    sessions.begin(b, "segments", "hold", SECRET)
    traffic.wait_said(b, "segments", "held")
    during = [scan(guest) for guest in lab.guests]
    for guest in (a, c):
        guest.run(f"segments scribble {resource(guest)[0]} {SCANNED_PAGES}")
    c.run("segments absent")
    a.run("segments release")
    sessions.end(b, "segments")
    after = [scan(guest) for guest in lab.guests]
    if during[0] or during[2] or during[1] != SECRET_PAGES or any(after):
        raise GuestError(f"pages found: {during}, afterwards {after}")
    return f"{SECRET_PAGES} pages in use are there, unchanged, and gone afterwards"


def rubbish(lab):
    """A guest's root writes to all that it is shown while a process of the guest reaches into one
    of the host's memory, which may complain, and no more; others see nothing of it."""
    a, b, host = lab.guests[0], lab.guests[1], lab.host
    verbs.begin_direct(lab, host, a, a)
    a.run(f"segments scribble {resource(a)[0]} {SCANNED_PAGES}")
    traffic.stop(a, "verify")
    status, text = traffic.wait(host, "verify")
    if status < 0:
        raise GuestError(f"the host's process was killed by signal {-status}: {text[-800:]}")
    return f"exit status {status}, {verbs.pingpong(host, b)}, {verbs.pingpong(host, a)}"


def intruders(lab):
    """A process without rights beside root's, the same guest's root elsewhere, another tenant."""
    a, b, c = lab.guests[:3]
    sessions.begin(b, "intruder", "keep")
    traffic.wait_said(b, "intruder", "kept")
    try:
        attempts = [b.run(f"intruder try {USER}"), a.run(f"intruder outside -{EACCES}"),
                    c.run(f"intruder outside -{ENOENT}")]
    finally:
        traffic.stop(b, "intruder")
    return f"{sum(count_closing_lines(text)[0] for text in attempts)} attempts refused"


def tests():
    """Name and function of every test, in order; a function is called with the lab."""
    yield "what a window costs", costs
    yield "what a guest sees of its window", window
    yield "rubbish in a window", rubbish
    yield "without rights", intruders
