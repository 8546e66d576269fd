"""What is taken back: whatever the attacker was granted is lost to it, in every way there is to end
a grant, and whatever it does meanwhile."""

import errno
import signal

from hostile.cast import (LOCAL_WRITE, READ_ONLY, READ_WRITE, REMOTE_READ, Failed, wait_until)
from hostile.scene import (OTHER_PD, READABLE, REMOTE_ACCESS_ERROR, SCRIBBLE, SHARED_PD, SPARE,
                           SUCCESS, WRITABLE, Scene, armed, timed)
from lib.patience import patient

# How long memory that somebody holds is waited for.
HELD_SECONDS = 2.0
# docs/LAYOUT.md: how long an access under way is waited for; and what a slow machine adds.
LEASE_SECONDS = 0.5
SLOW_SECONDS = patient(1.5)
# How often an attacker is stopped, until it was in the middle of a copy; bytes of that.
STOPS_MAX = 12
BIG_PAGES = 4096
# Regions registered while a queue pair ends, at least; how often.
FLOOD_LEAST = 200
FLOOD_ROUNDS = 10


def deregistered(stage, **cast):
    """Memory deregistered under fire is the victim's own again, and can be registered again."""
    scene = armed(stage, **cast)
    accomplice = stage.accomplice(scene.attacker)
    both = (scene.attacker, accomplice)
    for attacker in both:
        attacker.do("hammer", SCRIBBLE)
    for area in (WRITABLE, READABLE):
        scene.victim.do("dereg", area)
        scene.victim.do("fill", area, "secret")
    if scene.where(WRITABLE) or scene.where(READABLE):
        raise Failed("the memory is still in a segment")
    for attacker in both:
        attacker.do("rest")
    scene.revoked(*both)
    # The same addresses, and so the same offsets, in another protection domain than its own.
    scene.reg(WRITABLE, OTHER_PD, READ_WRITE)
    scene.go_direct(scene.friend, scene.other_qp, WRITABLE)
    scene.revoked(*both)
    scene.victim.do("dereg", WRITABLE)
    # And in its own, once the attacker is gone and its accomplice is not.
    scene.victim.do("destroy", scene.qp)
    scene.reg(WRITABLE, SHARED_PD, READ_WRITE)
    scene.go_direct(scene.friend, scene.friend_qp, WRITABLE)
    scene.revoked(*both)


def pinned(stage):
    """Memory that an io_uring has pinned, or a pipe holds, cannot be deregistered while a peer
    outside the boundary can have it: it stays registered, and the victim's own afterwards."""
    scene = armed(stage)
    for hold, let_go, area in (("pin", "unpin", READABLE), ("splice", "unsplice", WRITABLE)):
        scene.victim.do(hold, area)
        if scene.where(area) == 0:
            raise Failed("the memory is in no segment: the test shows nothing")
        took = timed(refused, scene, area)
        if not HELD_SECONDS <= took <= HELD_SECONDS + SLOW_SECONDS:
            raise Failed(f"it took {took:.2f} s")
        # Valid as ever: a friend reaches it by the same key.
        scene.go_direct(scene.friend, scene.friend_qp, WRITABLE)
        wait_until("nobody holds it", lambda end=let_go: scene.victim.do(end)[0] == "0")
    for area in (WRITABLE, READABLE):
        scene.victim.do("dereg", area)
        scene.victim.do("fill", area, "secret")
        if scene.where(area):
            raise Failed("the memory is still in a segment")
    scene.revoked(scene.attacker)
    scene.reg(WRITABLE, SHARED_PD, READ_WRITE, "public")
    scene.go_direct()


def refused(scene, area):
    """Deregistration fails with EBUSY."""
    said = scene.victim.do("dereg?", area)[0]
    if int(said) != errno.EBUSY:
        raise Failed(f"ibv_dereg_mr said {said}")


def renewed(stage):
    """Memory that a pipe holds follows its queue pair's other memory out of the attacker's hands as
    soon as the pipe has let go."""
    scene = armed(stage)
    before, readable = scene.where(WRITABLE), scene.where(READABLE)
    scene.victim.do("splice", WRITABLE)
    scene.victim.do("destroy", scene.qp)
    # Not at every moment: its moving is tried again.
    wait_until("the memory is where it was", lambda: scene.where(WRITABLE) == before)
    scene.victim.do("unsplice")
    scene.moved(WRITABLE, before)
    scene.moved(READABLE, readable)
    scene.revoked(scene.attacker)
    scene.friend_goes_on()


def ended(how):
    """After the end of the queue pair, in one way or another, everything granted is lost."""
    def test(stage, **cast):
        scene = armed(stage, **cast)
        accomplice = stage.accomplice(scene.attacker)
        before = [scene.where(area) for area in (WRITABLE, READABLE)]
        if not all(before):
            raise Failed("the memory is in no segment")
        accomplice.do("hammer", SCRIBBLE)
        left = how(scene)
        for area, inode in zip((WRITABLE, READABLE), before):
            scene.moved(area, inode)
        accomplice.do("rest")
        scene.revoked(accomplice, *left)
        if 0 in (scene.where(WRITABLE), scene.where(READABLE)):
            raise Failed("the memory is not shared any more")
        scene.friend_goes_on()
        scene.revoked(accomplice, *left)
    return test


def victim_destroys(scene):
    """The victim destroys its queue pair."""
    before = scene.where(WRITABLE)
    scene.victim.do("destroy", scene.qp)
    if scene.where(WRITABLE) == before:
        raise Failed("the memory has not moved when ibv_destroy_qp returns")
    return (scene.attacker,)


def victim_errs(scene):
    """The victim puts its queue pair in the error state."""
    before = scene.where(WRITABLE)
    scene.victim.do("error", scene.qp)
    if scene.where(WRITABLE) == before:
        raise Failed("the memory has not moved when ibv_modify_qp returns")
    return (scene.attacker,)


def attacker_destroys(scene):
    """The attacker destroys its queue pair."""
    scene.attacker.do("destroy", scene.qp)
    return (scene.attacker,)


def attacker_errs(scene):
    """The attacker makes the victim's queue pair fail."""
    status = scene.rdma("write", scene.attacker, scene.qp, READABLE)
    if status != REMOTE_ACCESS_ERROR:
        raise Failed(f"status {status}")
    return (scene.attacker,)


def attacker_leaves(scene):
    """The attacker's process ends in good order."""
    scene.attacker.leave()
    return ()


def attacker_dies(scene):
    """The attacker's process is killed."""
    scene.attacker.signal(signal.SIGKILL)
    scene.attacker.process.wait()
    return ()


def attacker_hangs_up(scene):
    """The attacker ends its connection to the broker."""
    scene.attacker.do("hangup")
    return (scene.attacker,)


def reduced(stage):
    """A queue pair's access is reduced: the descriptor for writing is worth nothing any more."""
    scene = armed(stage)
    before = scene.where(WRITABLE)
    scene.victim.do("access", scene.qp, LOCAL_WRITE | REMOTE_READ)
    if scene.where(WRITABLE) == before:
        raise Failed("the memory has not moved")
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    # What it may still do, it does directly again, and by a descriptor for reading.
    scene.go_direct(op="read")
    kept = scene.keep()
    if kept[2:] != [3, 2]:
        raise Failed(f"{kept[2]} segments granted, {kept[3]} of them for reading")
    scene.attacker.do("upgrade")
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    scene.victim.do("access", scene.qp, LOCAL_WRITE)
    scene.revoked(scene.attacker)


def reregistered(stage):
    """ibv_rereg_mr takes a region out of the attacker's protection domain, and out of its hands."""
    scene = armed(stage)
    scene.victim.do("rereg", WRITABLE, SHARED_PD, READ_ONLY)
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    for area in (WRITABLE, READABLE):
        scene.victim.do("rereg", area, OTHER_PD, READ_WRITE)
    scene.revoked(scene.attacker)


def two_queue_pairs(stage):
    """What two queue pairs entitle to is lost with the second."""
    scene = armed(stage)
    second = scene.connect(scene.attacker, SHARED_PD)
    before = scene.where(WRITABLE)
    scene.victim.do("destroy", scene.qp)
    if scene.where(WRITABLE) != before:
        raise Failed("moved though there is a queue pair left")
    scene.go_direct(qp=second)
    scene.victim.do("destroy", second)
    if scene.where(WRITABLE) == before:
        raise Failed("the memory has not moved")
    scene.revoked(scene.attacker)


def withdraw(scene, qp, area, how):
    """The victim takes back what a queue pair reaches, in one of the ways there are; for how long
    that took, in seconds."""
    if how == "deregistration":
        return timed(scene.victim.do, "dereg", area)
    if how == "access":
        return timed(scene.victim.do, "access", qp, LOCAL_WRITE)
    return timed(scene.victim.do, how, qp)


def pretended(how):
    """An attacker that is for ever in the middle of an access delays the victim by the lease, once,
    and keeps nothing."""
    def test(stage, **cast):
        scene = armed(stage, **cast)
        scene.attacker.do("pretend", scene.keys[WRITABLE][0])
        took = withdraw(scene, scene.qp, WRITABLE, how)
        if not LEASE_SECONDS <= took <= LEASE_SECONDS + SLOW_SECONDS:
            raise Failed(f"it took {took:.2f} s")
        if how != "deregistration":
            scene.victim.do("dereg", WRITABLE)
        scene.victim.do("fill", WRITABLE, "secret")
        scene.reg(WRITABLE, SHARED_PD, READ_WRITE)
        again = timed(scene.victim.do, "dereg", WRITABLE)
        if again >= LEASE_SECONDS:
            raise Failed(f"deregistration then took {again:.2f} s")
        scene.attacker.do("rest")
        scene.revoked(scene.attacker)
        return f"{took:.2f} s, then {again * 1000:.1f} ms"
    return test


def stopped(how):
    """An attacker stopped in the middle of a copy stores the rest of it nowhere."""
    def test(stage, **cast):
        scene = Scene(stage, **cast)
        scene.area(SPARE, BIG_PAGES)
        for _ in range(STOPS_MAX):
            qp = scene.connect(scene.attacker, SHARED_PD)
            scene.reg(SPARE, SHARED_PD, READ_WRITE, "public")
            rkey, addr, length = scene.keys[SPARE]
            scene.go_direct(qp=qp, area=SPARE)
            scene.attacker.do("stream", qp, SHARED_PD, rkey, addr, length)
            before = stage.direct(scene.attacker)
            wait_until("the stream", lambda b=before: stage.direct(scene.attacker) > b)
            scene.attacker.signal(signal.SIGSTOP)
            evicted = withdraw(scene, qp, SPARE, how) >= LEASE_SECONDS
            if how == "deregistration":
                # At the same offsets, which the rest of the copy is meant for.
                scene.reg(SPARE, SHARED_PD, READ_WRITE)
            scene.victim.do("fill", SPARE, "secret")
            scene.attacker.signal(signal.SIGCONT)
            status = int(scene.attacker.do("join")[0])
            if status == SUCCESS:
                raise Failed("a WRITE to what was withdrawn succeeds")
            scene.expect_intact()
            if evicted:
                return f"status {status}"
            scene.victim.do("dereg", SPARE)
        raise Failed("it was never stopped in the middle of a copy: the test shows nothing")
    return test


def overtaken(stage):
    """Regions that another thread registers while a queue pair ends do not come to lie where its
    peer still looks."""
    scene = armed(stage)
    for count in range(FLOOD_LEAST, FLOOD_LEAST + FLOOD_ROUNDS):
        qp = scene.connect(scene.attacker, SHARED_PD)
        scene.go_direct(qp=qp)
        if count == FLOOD_LEAST:
            scene.victim.do("destroy", scene.qp)
        base, length = scene.victim.do("flood", count, SHARED_PD)
        scene.places["flood"] = (int(base, 16), int(length))
        scene.keep()
        scene.victim.do("destroy", qp)
        scene.victim.do("flooded")
        scene.expect_nothing_secret()
        scene.attacker.do("scribble", SCRIBBLE)
        scene.victim.do("ebb")
        del scene.places["flood"]
    return f"{FLOOD_ROUNDS} rounds"


ENDS = (victim_destroys, victim_errs, attacker_destroys, attacker_errs, attacker_leaves,
        attacker_dies, attacker_hangs_up)
