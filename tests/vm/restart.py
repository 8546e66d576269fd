"""A guest's driver that is taken from its device, and a guest that starts again, while something is
shown in the window: QEMU goes on, and what comes next works."""

from vm import owner, pause, traffic
from vm.lab import GuestError
from vm.qmp import Qmp, shown
from vm.verbs import pingpong

DRIVER = "/sys/bus/virtio/drivers/causeway"
# Where the device's name is meanwhile.
NAME = "/tmp/device"
UNBIND = f"basename {DRIVER}/virtio* > {NAME} && cat {NAME} > {DRIVER}/unbind"
BIND = f"cat {NAME} > {DRIVER}/bind"


def begin(lab, guest):
    """A program of the guest has a ring and memory in the window, which a peer of the host uses."""
    owner.begin(guest, lab.host)
    with Qmp(guest.qmp) as qmp:
        if not shown(qmp):
            raise GuestError("nothing is shown in the window of a guest whose memory is reached")


def expect_told(lab):
    """The peer hears that the program has gone."""
    status, text = traffic.wait(lab.host, "owner")
    if status == 0 or "failed" not in text:
        raise GuestError(f"the peer noticed nothing: {text[-400:]}")


def rebound(lab):
    """The driver is taken from the device and given back by sysfs: programs keep their memory."""
    a = lab.guests[0]
    begin(lab, a)
    a.run(UNBIND)
    pause.expect_nothing_shown(a)
    a.run(f"! [ -e /dev/causeway ]; {BIND}")
    expect_told(lab)
    owner.end(a)
    return pingpong(a, lab.host)


def rebound_after_kill(lab):
    """The same when its programs have just been killed."""
    a = lab.guests[0]
    begin(lab, a)
    a.run(f"killall -9 owner; {UNBIND} && {BIND}")
    expect_told(lab)
    return pingpong(a, lab.host)


def rebooted(lab):
    """The guest starts again while its programs run."""
    a = lab.guests[0]
    begin(lab, a)
    with Qmp(a.qmp) as qmp:
        # Else QEMU ends, as the guests' arguments say, so that no panic goes unnoticed.
        qmp.execute("set-action", reboot="reset")
        a.send("reboot -f")
        a.wait_ready()
        qmp.execute("set-action", reboot="shutdown")
    expect_told(lab)
    return pingpong(a, lab.host)


def tests():
    """Name and function of every test, in order."""
    yield "the driver taken away and given back", rebound
    yield "the driver taken away after its programs", rebound_after_kill
    yield "a guest that starts again", rebooted
