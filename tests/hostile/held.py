"""Memory that something else refers to: a direct read into it (by a thread, AIO, an io_uring),
process_vm_writev(2), or a pipe. Whatever is asked for meanwhile, among friends and with a stranger:
not one byte is lost, and no stranger keeps what was taken from it."""

import errno
import os

from hostile.cast import (ATTACKER_UID, READ_ONLY, READ_WRITE, VICTIM_UID, Failed, wait_until)
from hostile.scene import SCRIBBLE, SHARED_PD, SPARE, SUCCESS, WRITABLE, Scene
from hostile.slow import SlowFile

WAYS = ("pread", "aio", "io_uring", "process_vm_writev", "vmsplice")
# Ways that hold a page without a reader of the file.
SILENT = ("vmsplice",)


# Operations by ring after which a region of the scene's size would long have been moved.
LONG_USED = 40


class Held:
    """A victim, one page of whose memory is held, and its peer."""

    def __init__(self, stage, slow, way, stranger):
        self.slow, self.way, self.stranger = slow, way, stranger
        uid = ATTACKER_UID if stranger else VICTIM_UID
        self.scene = Scene(stage, attacker=uid, friend=uid)
        self.victim = self.scene.victim
        self.scene.go_direct()
        self.inode = self.scene.where(WRITABLE)
        self.scene.keep()
        if not self.inode:
            raise Failed("the memory is in no segment: the test shows nothing")
        self.begin()

    def begin(self):
        """Something takes hold of a page."""
        self.victim.do("hold", WRITABLE, self.way, self.slow.path, self.slow.offset())
        if self.way not in SILENT:
            self.slow.wait_asked()

    def answer(self):
        """The file's server answers."""
        if self.way not in SILENT:
            self.slow.answer()

    def let_go(self):
        """It ends; what was read must be there."""
        self.answer()
        self.victim.do("letgo")

    def refused(self, *command):
        """A stranger could have the memory: it stays registered, and reachable as ever."""
        said = int(self.victim.do(*command)[0])
        if said != errno.EBUSY:
            raise Failed(f"{command[0]} says {said}")
        self.stays()

    def stays(self):
        """The memory is where it was: not at every moment, since its moving is tried again."""
        wait_until("the memory is where it was",
                   lambda: self.scene.where(WRITABLE) == self.inode)

    def reached(self):
        """The peer's operations succeed."""
        if self.scene.rdma("write", self.scene.attacker, self.scene.qp, WRITABLE) != SUCCESS:
            raise Failed("the region is not valid any more")

    def end(self):
        """The memory is the victim's own, all of it."""
        self.victim.do("fill", WRITABLE, "secret")
        self.scene.expect_intact()
        if self.stranger:
            self.scene.revoked(self.scene.attacker)


def dereg(held):
    """The registration ends."""
    if held.stranger:
        held.refused("dereg?", WRITABLE)
        held.reached()
        held.let_go()
        held.victim.do("dereg", WRITABLE)
        if held.scene.where(WRITABLE):
            raise Failed("the memory is still in a segment")
    else:
        held.victim.do("dereg", WRITABLE)
        held.let_go()
        # Where it was, and at once direct when it is registered again.
        if held.scene.where(WRITABLE) != held.inode:
            raise Failed("the memory has moved")
        held.scene.reg(WRITABLE, SHARED_PD, READ_WRITE, "public")
        held.scene.go_direct()
        held.victim.do("dereg", WRITABLE)
    held.end()


def rereg(held):
    """The registration changes, and with it the segment."""
    if held.stranger:
        held.refused("rereg?", WRITABLE, SHARED_PD, READ_ONLY)
        held.reached()
        held.let_go()
        held.victim.do("rereg", WRITABLE, SHARED_PD, READ_ONLY)
    else:
        held.victim.do("rereg", WRITABLE, SHARED_PD, READ_ONLY)
        held.let_go()
    held.victim.do("dereg", WRITABLE)
    held.end()


def evict(held):
    """The peer is for ever in an access: it is evicted, and what it may store into goes back."""
    held.scene.attacker.do("pretend", held.scene.keys[WRITABLE][0])
    held.refused("dereg?", WRITABLE)
    held.let_go()
    held.scene.attacker.do("rest")
    held.victim.do("dereg", WRITABLE)
    # A friend's next segment is one that the evicted peer does not have.
    inode = held.scene.where(WRITABLE)
    if inode == held.inode or inode and held.stranger:
        raise Failed("the memory is still in a segment")
    held.victim.do("fill", WRITABLE, "secret")
    held.scene.attacker.do("scribble", SCRIBBLE)
    held.end()


def renew(held):
    """The victim destroys the queue pair: a stranger's segment is given up for another."""
    held.victim.do("destroy", held.scene.qp)
    held.stays()
    held.let_go()
    if held.stranger:
        wait_until("the memory follows", lambda: held.scene.where(WRITABLE) != held.inode)
    held.victim.do("dereg", WRITABLE)
    held.end()


def stranger_comes(held):
    """The first stranger connects: it gets no segment that friends have."""
    stage = held.scene.stage
    stranger = stage.enter("attacker", ATTACKER_UID)
    qp = held.scene.connect(stranger, SHARED_PD)
    status = held.scene.rdma("write", stranger, qp, WRITABLE)
    if status != SUCCESS:
        raise Failed(f"the stranger's WRITE fails with {status}")
    held.victim.do("fill", WRITABLE, "public")
    held.let_go()
    held.scene.keep(stranger)
    held.victim.do("dereg", WRITABLE)
    held.victim.do("fill", WRITABLE, "secret")
    held.scene.expect_nothing_secret(stranger)
    held.scene.expect_intact()


def fork(held):
    """A child is made, and writes to its copy."""
    child = held.victim.do("fork", WRITABLE)[0]
    held.let_go()
    held.victim.do("reap", child)
    held.victim.do("dereg", WRITABLE)
    held.end()


def execute(held):
    """Programs are executed, in each way."""
    held.victim.do("run")
    held.let_go()
    held.victim.do("dereg", WRITABLE)
    held.end()


def leave(held):
    """The victim's process ends in good order; its peer goes on."""
    os.close(held.victim.writer)
    held.victim.writer = None
    held.answer()
    if held.victim.process.wait() != 0:
        raise Failed(f"it ends with {held.victim.process.returncode}: {held.victim.said()}")
    if held.scene.rdma("write", held.scene.attacker, held.scene.qp, WRITABLE) == SUCCESS:
        raise Failed("a dead process's memory is written to")


def kept_out(stage, slow, way, stranger):
    """Who holds a page when the region is to be moved keeps it out then, and not for ever."""
    uid = ATTACKER_UID if stranger else VICTIM_UID
    scene = Scene(stage, attacker=uid, friend=uid)
    scene.area(SPARE)
    scene.victim.do("fill", SPARE, "public")
    scene.victim.do("hold", SPARE, way, slow.path, slow.offset())
    if way not in SILENT:
        slow.wait_asked()
    # What is read comes to lie amid what is public.
    scene.reg(SPARE, SHARED_PD, READ_WRITE, "public")
    for _ in range(LONG_USED):
        if scene.rdma("write", scene.attacker, scene.qp, SPARE) != SUCCESS:
            raise Failed("a WRITE to memory that is held fails")
    if scene.where(SPARE):
        raise Failed("memory that is held was moved: the test shows nothing")
    if way not in SILENT:
        slow.answer()
    scene.victim.do("letgo")
    scene.go_direct(area=SPARE)
    scene.victim.do("dereg", SPARE)
    scene.victim.do("fill", SPARE, "secret")
    scene.expect_intact()


EVENTS = (("deregistered", dereg), ("registered otherwise", rereg), ("a peer evicted", evict),
          ("its queue pair destroyed", renew), ("a child made", fork), ("programs run", execute),
          ("the process ends", leave))


def all_tests():
    """Names and functions of all tests; each is given the stage."""
    def case(event, way, stranger):
        def test(stage):
            slow = SlowFile(os.path.join(stage.open_dir, f"slow-{stage.serial}"))
            try:
                event(Held(stage, slow, way, stranger))
            finally:
                slow.end()
        return test

    def moved_later(way, stranger):
        def test(stage):
            slow = SlowFile(os.path.join(stage.open_dir, f"slow-{stage.serial}"))
            try:
                kept_out(stage, slow, way, stranger)
            finally:
                slow.end()
        return test

    for peer in ("a friend", "a stranger"):
        for name, event in EVENTS:
            for way in WAYS:
                yield f"held by {way}, {peer}: {name}", case(event, way, peer == "a stranger")
        for way in WAYS:
            yield f"held by {way}, {peer}: not moved yet", moved_later(way, peer == "a stranger")
    for way in WAYS:
        yield f"held by {way}: a stranger comes", case(stranger_comes, way, False)
