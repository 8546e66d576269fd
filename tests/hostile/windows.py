"""Memory windows: their keys are for one queue pair, one range and one time."""

from hostile.cast import LOCAL_WRITE, READ_WRITE, Failed
from hostile.scene import (REMOTE_ACCESS_ERROR, SCRIBBLE, SHARED_PD, SPARE, SUCCESS, WRITABLE,
                           armed, timed)
from hostile.takeback import LEASE_SECONDS, SLOW_SECONDS

# `IBV_ACCESS_MW_BIND`
MW_BIND = 16
# For how many milliseconds READs that have nothing to do with an attack are looked at, all of them
# before its end; and in how many of them one must complete, on a machine that has other work.
LOOK_MS = 450
BUSY_MS = 25


def bind(scene, area, qp):
    """Has a window bound; its key, address and length."""
    rkey, addr, length = scene.victim.do("bind", area, qp, SHARED_PD, READ_WRITE)
    return int(rkey), int(addr, 16), int(length)


def attempt(scene, qp, window, offset=0, length=64, op="write"):
    """The status of an operation by the attacker in a window."""
    rkey, addr, _ = window
    status, _ = scene.attacker.do(op, qp, rkey, addr + offset, length, SCRIBBLE)
    return int(status)


def refuse(scene, what, qp, window, offset=0, length=64, op="write"):
    """The operation fails."""
    status = attempt(scene, qp, window, offset, length, op)
    if status != REMOTE_ACCESS_ERROR:
        raise Failed(f"{what} completes with status {status}")


def hidden(stage):
    """Memory that peers reach by a window only is in nothing that they can map: beyond what the key
    allows there is nothing to be had, and when it is invalid nothing at all."""
    scene = armed(stage)
    scene.area(SPARE)
    scene.reg(SPARE, SHARED_PD, LOCAL_WRITE | MW_BIND)
    window = bind(scene, SPARE, scene.qp)
    before = scene.stage.direct(scene.attacker)
    for op in ("write", "read", "add"):
        for _ in range(10):
            status = attempt(scene, scene.qp, window, length=8, op=op)
            if status != SUCCESS:
                raise Failed(f"{op} by the window's key fails with status {status}")
    if scene.stage.direct(scene.attacker) != before:
        raise Failed("the attacker reaches it itself")
    scene.victim.do("fill", SPARE, "secret")
    scene.keep()
    scene.expect_nothing_secret()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.attacker.do("punch")
    scene.expect_intact(WRITABLE)
    length = window[2]
    for what, offset in (("a WRITE below", -8), ("a WRITE above", length - 8)):
        refuse(scene, what, scene.qp, window, offset, 16)
        scene.qp = again(scene)
        window = bind(scene, SPARE, scene.qp)
    other = scene.connect(scene.attacker, SHARED_PD)
    refuse(scene, "a WRITE by another queue pair", other, window)
    if attempt(scene, scene.qp, window) != SUCCESS:
        raise Failed("the window has gone with another's mistake")
    scene.victim.do("fill", SPARE, "secret")
    scene.victim.do("unbind", SPARE, scene.qp)
    refuse(scene, "a WRITE after invalidation", scene.qp, window)
    scene.expect_intact(WRITABLE)
    scene.friend_goes_on()


def again(scene):
    """Another queue pair for the attacker; the window of the old one is free."""
    scene.victim.do("destroy", scene.qp)
    scene.attacker.do("destroy", scene.qp)
    return scene.connect(scene.attacker, SHARED_PD)


def bound(stage):
    """A scene in which the attacker reaches memory itself by a window's key; and that window."""
    scene = armed(stage)
    scene.area(SPARE)
    scene.reg(SPARE, SHARED_PD, READ_WRITE | MW_BIND)
    window = bind(scene, SPARE, scene.qp)
    before = scene.stage.direct(scene.attacker)
    while scene.stage.direct(scene.attacker) == before:
        if attempt(scene, scene.qp, window) != SUCCESS:
            raise Failed("a WRITE by the window's key fails")
    return scene, window


def pretended(stage):
    """An attacker that is for ever in the middle of an access by a window's key is waited for once:
    the invalidation is complete after the lease."""
    scene, window = bound(stage)
    scene.attacker.do("pretend", window[0])
    seconds = timed(scene.victim.do, "unbind", SPARE, scene.qp)
    if not LEASE_SECONDS <= seconds <= LEASE_SECONDS + SLOW_SECONDS:
        raise Failed(f"it takes {seconds:.2f} s")
    scene.friend_goes_on()
    refuse_after(scene, window)
    scene.attacker.do("rest")
    scene.expect_intact(SPARE, WRITABLE)
    return f"{seconds:.2f} s"


def offer(scene):
    """Memory of the friend's that the victim may read: queue pair, key and address."""
    scene.friend.do("access", scene.friend_qp, READ_WRITE)
    return (scene.friend_qp, *scene.friend.do("offer", SHARED_PD, 4096))


def others_go_on(stage):
    """While an attacker is for ever in the middle of an access by a key that is being withdrawn, by
    whichever side, the victim's other queue pairs go on."""
    scene, window = bound(stage)
    offered = offer(scene)
    scene.attacker.do("pretend", window[0])
    local = scene.victim.do("reads", *offered, LOOK_MS, SPARE, scene.qp)
    scene.attacker.do("rest")
    busy, status, took = (int(word) for word in local)
    if busy < BUSY_MS or status != SUCCESS or took < LEASE_SECONDS * 1000 - 1:
        raise Failed(f"LOCAL_INV has status {status} after {took} ms; another queue pair completed "
                     f"something in {busy} of {LOOK_MS} ms")
    scene.qp = again(scene)
    window = bind(scene, SPARE, scene.qp)
    # The new ring among other things.
    scene.keep()
    scene.victim.do("receive", scene.qp)
    scene.attacker.do("pretend", window[0])
    scene.attacker.do("giveup", scene.qp, window[0])
    remote = scene.victim.do("reads", *offered, LOOK_MS)
    scene.attacker.do("rest")
    if int(remote[0]) < BUSY_MS:
        raise Failed(f"after SEND_WITH_INV another queue pair completed something in {remote[0]} "
                     f"of {LOOK_MS} ms")
    refuse_after(scene, window)
    scene.expect_intact(SPARE, WRITABLE)
    scene.friend_goes_on()
    return f"something completed in {busy} and {remote[0]} of {LOOK_MS} ms"


def refuse_after(scene, window):
    """The attacker's queue pair does not go on."""
    if attempt(scene, scene.qp, window) == SUCCESS:
        raise Failed("the attacker's queue pair goes on")
