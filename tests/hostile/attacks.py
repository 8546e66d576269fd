"""The attacks, a function each, by who attacks whom."""

import signal

from hostile import held, takeback, windows
from hostile.cast import (ATTACKER_UID, LOCAL_WRITE, READ_ONLY, READ_WRITE, REMOTE_READ,
                          VICTIM_UID, Failed, wait_until)
from hostile.scene import (LOCAL, OTHER, OTHER_PD, READABLE, REMOTE_ACCESS_ERROR, SCRIBBLE,
                           SHARED_PD, SPARE, WRITABLE, Scene, armed)

# How often what depends on chance is done.
ROUNDS = 12
# WRITEs that show that a victim carries them out itself, and how many of a program's newest posts
# `causeway status` may not show yet.
BELIEVED = 64
UNCOUNTED = 32


def granted(stage, **cast):
    """While its queue pair is valid, the attacker reaches what was granted and nothing else."""
    scene = armed(stage, **cast)
    attacker = scene.attacker
    attacker.do("upgrade")
    scene.expect_intact()
    # The broker gives no more than the library asked for, whatever it is asked.
    segments = attacker.do("segments")
    writers, readers, refused = forge(scene, segments)
    if (len(segments), writers, readers) != (3, 1, 1):
        raise Failed(f"of {segments} {writers} given for writing, {readers} for reading")
    attacker.do("scribble", SCRIBBLE)
    scene.expect_intact(WRITABLE)
    attacker.do("punch")
    scene.expect_intact(WRITABLE)
    scene.victim.do("fill", WRITABLE, "public")
    scene.expect_nothing_secret()
    scene.friend_goes_on()
    return f"{scene.held}; {refused} requests refused"


def forge(scene, segments, attacker=None):
    """What the broker answers to forged requests: given for writing, for reading, refused."""
    attacker = attacker or scene.attacker
    qpn = scene.stage.status(attacker)["qps"][0]["qpn"]
    return [int(n) for n in attacker.do("forge", qpn, *segments)]


def not_entitled(stage):
    """A queue pair that allows nothing entitles to no segment; nor does one that was connected to
    a queue pair of the victim's that is another's."""
    scene = armed(stage)
    segments = scene.attacker.do("segments")
    for access in (LOCAL_WRITE, READ_WRITE):
        attacker = stage.enter("attacker", ATTACKER_UID)
        qp = scene.connect(attacker, SHARED_PD, access=access)
        if access == READ_WRITE:
            # A valid one tells the number of the friend's; it is destroyed at both ends.
            scene.victim.do("destroy", qp)
            attacker.do("destroy", qp)
            theirs = scene.victim.do("qp", scene.qps, SHARED_PD, READ_WRITE)
            friends = scene.friend.do("qp", scene.qps, SHARED_PD, LOCAL_WRITE)
            attacker.do("qp", scene.qps, SHARED_PD, LOCAL_WRITE)
            scene.victim.do("connect", scene.qps, *friends)
            scene.friend.do("connect", scene.qps, *theirs)
            attacker.do("connect", scene.qps, *theirs)
        writers, readers, refused = forge(scene, segments, attacker)
        if writers or readers:
            raise Failed(f"{writers} given for writing, {readers} for reading")
        attacker.end()
    return f"{refused} requests refused"


def lied_to(stage):
    """The attacker's table leads the victim's own operations astray: to the ends of a mapping and
    of the segment, and beyond. They go there or fail, and touch nothing but the attacker's."""
    scene = armed(stage)
    window, end, length = 1 << 36, 1 << 47, 1 << 18
    offsets = [0, window - 4096, window - 8, end - length, end - 4096, end, (1 << 64) - 4096,
               (1 << 64) - 8]
    fates = []
    for offset in offsets:
        attacker = stage.enter("attacker", ATTACKER_UID)
        qp = scene.connect(attacker, SHARED_PD)
        # The victim is the one who reaches out: the attacker's QP has to allow it.
        attacker.do("access", qp, READ_WRITE)
        rkey, addr = attacker.do("offer", SHARED_PD, 4 * length)
        addr = int(addr, 16)
        before = stage.direct(scene.victim)

        def one_more():
            scene.victim.do("write", qp, rkey, addr, length, SCRIBBLE)
            return stage.direct(scene.victim) > before

        wait_until("a WRITE carried out by the victim itself", one_more)
        attacker.do("keep")
        attacker.do("lie", offset)
        before = stage.direct(scene.victim)
        for op in ("write", "read"):
            fates.append(scene.victim.do(op, qp, rkey, addr, length, SCRIBBLE)[0])
        if offset == 0:
            for _ in range(BELIEVED):
                scene.victim.do("write", qp, rkey, addr, length, SCRIBBLE)
            if stage.direct(scene.victim) < before + BELIEVED - UNCOUNTED:
                raise Failed("the victim does not believe the table: the test shows nothing")
        scene.expect_intact()
        attacker.end()
    scene.friend_goes_on()
    return f"statuses {' '.join(fates)}"


def other_process(stage):
    """What the kernel keeps apart is apart: no reading of the victim by its process id."""
    scene = armed(stage)
    scene.attacker.do("process", scene.victim.pid)


def wrong_keys(stage):
    """Operations that name what was not granted are refused by the victim's library."""
    scene = armed(stage)
    targets = [("write", READABLE), ("add", READABLE), ("read", OTHER), ("write", OTHER),
               ("read", LOCAL), ("write", LOCAL)]
    for op, area in targets:
        qp = scene.connect(scene.attacker, SHARED_PD)
        rkey, addr, _ = scene.keys[area]
        addr += -addr % 8
        status = int(scene.attacker.do(op, qp, rkey, addr, 8, SCRIBBLE)[0])
        if status != REMOTE_ACCESS_ERROR:
            raise Failed(f"{op} of area {area} completes with status {status}")
    rkey, addr, length = scene.keys[WRITABLE]
    for at, size in ((addr - 8, 16), (addr + length - 8, 16), (addr - 4096, 8)):
        qp = scene.connect(scene.attacker, SHARED_PD)
        status = int(scene.attacker.do("write", qp, rkey, at, size, SCRIBBLE)[0])
        if status != REMOTE_ACCESS_ERROR:
            raise Failed(f"a WRITE beyond the region completes with status {status}")
    scene.expect_intact()
    return f"{len(targets) + 3} refused"


def prefilled(stage):
    """Pages that a peer has put where a region will come do not become the region's."""
    scene = armed(stage)
    scene.area(SPARE)
    scene.keep()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.search()
    scene.attacker.do("hammer", SCRIBBLE)
    for access in (READ_ONLY, READ_WRITE):
        scene.reg(SPARE, OTHER_PD, access)
        scene.expect_intact(WRITABLE)
        scene.victim.do("dereg", SPARE)
        scene.reg(SPARE, SHARED_PD, READ_ONLY, "public")
        scene.expect_intact(WRITABLE)
        scene.victim.do("dereg", SPARE)
    scene.attacker.do("rest")
    scene.expect_intact(WRITABLE)
    scene.reg(SPARE, SHARED_PD, READ_WRITE, "public")
    scene.expect_intact(WRITABLE)
    scene.go_direct(area=SPARE)


def read_only_qp(stage):
    """By a queue pair that allows READ only, a region that others may write is not writable."""
    scene = Scene(stage)
    scene.victim.do("destroy", scene.qp)
    scene.qp = scene.connect(scene.attacker, SHARED_PD, access=LOCAL_WRITE | REMOTE_READ)
    scene.go_direct(op="read")
    scene.go_direct(area=READABLE, op="read")
    kept = scene.keep()
    if kept[2:] != [2, 2]:
        raise Failed(f"{kept[2]} segments granted, {kept[3]} of them for reading")
    if not scene.expect_nothing_secret():
        raise Failed("the attacker does not see what it was granted: the test shows nothing")
    scene.attacker.do("upgrade")
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    scene.victim.do("destroy", scene.qp)
    scene.revoked(scene.attacker)


def churned(stage):
    """Pages taken away and put back all the time disturb nothing but the region's contents."""
    scene = armed(stage)
    scene.attacker.do("churn", SCRIBBLE)
    for _ in range(ROUNDS):
        scene.victim.do("fill", WRITABLE, "public")
        scene.expect_intact(WRITABLE)
    child = scene.victim.do("fork", WRITABLE)[0]
    scene.victim.do("reap", child)
    for _ in range(ROUNDS):
        scene.victim.do("dereg", WRITABLE)
        scene.victim.do("fill", WRITABLE, "secret")
        scene.expect_intact()
        scene.reg(WRITABLE, SHARED_PD, READ_WRITE, "public")
    scene.expect_intact(WRITABLE)
    scene.victim.do("destroy", scene.qp)
    scene.victim.do("fill", WRITABLE, "secret")
    scene.expect_intact()
    scene.attacker.do("rest")
    scene.friend_goes_on()
    scene.revoked(scene.attacker)


def own_ways(stage):
    """What the victim does with its memory behind a region's back stays its own: growing, mapping
    anew, a child's copy."""
    scene = armed(stage)
    scene.area(SPARE)
    scene.reg(SPARE, SHARED_PD, READ_WRITE, "public")
    scene.go_direct(area=SPARE)
    scene.keep()
    child = scene.victim.do("fork", SPARE)[0]
    scene.expect_nothing_secret()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.victim.do("reap", child)
    scene.victim.do("renew", SPARE)
    scene.expect_nothing_secret()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.attacker.do("punch")
    scene.expect_intact(WRITABLE)
    scene.victim.do("grow", READABLE)
    base, length = scene.places.pop(READABLE)
    scene.places[READABLE] = (base, 2 * length)
    scene.keep()
    scene.expect_nothing_secret()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.attacker.do("punch")
    scene.victim.do("grown")
    del scene.places[READABLE]
    scene.expect_intact(WRITABLE)


def mangled(stage):
    """Rubbish in every ring, inbox and table that the attacker shares: the victim, which sends to
    it meanwhile, and its other connections go on."""
    for seed in range(ROUNDS):
        scene = armed(stage)
        rkey, addr, _ = scene.keys[WRITABLE]
        scene.attacker.do("mangle", seed)
        # The victim sends by what is left of the connection; what comes of it is no matter.
        scene.victim.tell("write", scene.qp, rkey, addr, 4096, SCRIBBLE)
        scene.attacker.do("mangle", seed + ROUNDS)
        scene.victim.answer()
        scene.friend_goes_on()
        scene.attacker.signal(signal.SIGKILL)
        scene.expect_intact(WRITABLE)
        scene.friend_goes_on()
        stage.clear()
    return f"{ROUNDS} seeds"


def victim_dies(stage):
    """What a dead victim left in segments is gone."""
    scene = armed(stage)
    scene.victim.signal(signal.SIGKILL)
    scene.victim.process.wait()
    wait_until("the segments' end", lambda: scene.search() == (0, 0))


def broker_restarted(stage):
    """The broker is killed; the attacker dies, its accomplice keeps all; the next broker learns of
    neither, and has the victim move all the same."""
    scene = armed(stage)
    accomplice = stage.accomplice(scene.attacker)
    before = [scene.where(area) for area in (WRITABLE, READABLE)]
    stage.kill_broker()
    scene.attacker.signal(signal.SIGKILL)
    scene.attacker.process.wait()
    stage.start_broker()
    for area, inode in zip((WRITABLE, READABLE), before):
        wait_until("memory moved", lambda a=area, i=inode: scene.where(a) != i, 20)
    scene.revoked(accomplice)
    scene.friend_goes_on()


def other_tenant(stage):
    """Between tenants nothing is mapped: the attacker has a connection, and no descriptor."""
    scene = Scene(stage, tenant="other")
    scene.stays_on_ring(WRITABLE, "write")
    scene.stays_on_ring(READABLE, "read")
    wires = {qp["wire"] for qp in stage.status(scene.attacker)["qps"]}
    if wires != {"udp"}:
        raise Failed(f"wires: {wires}")
    scene.victim.do("fill", WRITABLE, "public")
    kept = scene.keep()
    if kept[2]:
        raise Failed(f"{kept[2]} segments granted")
    scene.expect_nothing()
    scene.attacker.do("upgrade")
    for area in (OTHER, LOCAL):
        qp = scene.connect(scene.attacker, SHARED_PD)
        status = scene.rdma("write", scene.attacker, qp, area)
        if status != REMOTE_ACCESS_ERROR:
            raise Failed(f"status {status}")
    scene.expect_intact()
    scene.friend_goes_on()
    return f"{kept[0]} descriptors, all its own"


def root_attacker(stage):
    """Root, who could open anything again for writing, is granted nothing for reading only."""
    scene = Scene(stage, attacker=0)
    scene.go_direct()
    scene.stays_on_ring(READABLE, "read")
    kept = scene.keep()
    if kept[2:] != [1, 0]:
        raise Failed(f"{kept[2]} segments granted, {kept[3]} of them for reading")
    segments = scene.attacker.do("segments")
    writers, readers, _ = forge(scene, segments)
    if (len(segments), writers, readers) != (3, 1, 0):
        raise Failed(f"of {segments} {writers} given for writing, {readers} for reading")
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact(WRITABLE)
    scene.expect_nothing_secret()


def same_user(stage):
    """One user's processes are inside one boundary, yet what was never registered, or no longer
    is, is in nobody's hands."""
    scene = armed(stage, attacker=VICTIM_UID)
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact(WRITABLE)
    scene.expect_nothing_secret()
    for area in (WRITABLE, READABLE):
        scene.victim.do("dereg", area)
        scene.victim.do("fill", area, "secret")
    scene.expect_nothing()
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    scene.reg(WRITABLE, OTHER_PD, READ_WRITE)
    scene.go_direct(scene.friend, scene.other_qp, WRITABLE)
    scene.victim.do("fill", WRITABLE, "secret")
    scene.attacker.do("scribble", SCRIBBLE)
    scene.expect_intact()
    scene.expect_nothing_secret()


CASTS = (
    ("an ordinary user against another", {}),
    ("an ordinary user against root", {"victim": 0}),
)


def all_attacks():
    """Names and functions of all tests; each is given the stage."""
    def case(function, cast):
        return lambda stage: function(stage, **cast)

    for who, cast in CASTS:
        yield f"{who}: what is granted", case(granted, cast)
        yield f"{who}: deregistration", case(takeback.deregistered, cast)
        for how in ("deregistration", "access", "error", "destroy"):
            yield f"{who}: for ever in flight, {how}", case(takeback.pretended(how), cast)
            yield f"{who}: stopped in a copy, {how}", case(takeback.stopped(how), cast)
        for how in takeback.ENDS:
            what = how.__doc__.rstrip(".").replace("The", "the", 1)
            yield f"{who}: {what}", case(takeback.ended(how), cast)
    yield "memory behind a window", windows.hidden
    yield "for ever in flight by a window's key", windows.pretended
    yield "for ever in flight, and other queue pairs", windows.others_go_on
    yield "the victim's process", other_process
    yield "keys of others", wrong_keys
    yield "queue pairs that entitle to nothing", not_entitled
    yield "two queue pairs", takeback.two_queue_pairs
    yield "a table that lies", lied_to
    yield "access reduced", takeback.reduced
    yield "registered otherwise", takeback.reregistered
    yield "memory that cannot be taken back", takeback.pinned
    yield "memory that cannot move at once", takeback.renewed
    yield "a queue pair for reading", read_only_qp
    yield "offsets filled before", prefilled
    yield "registration while a queue pair ends", takeback.overtaken
    yield "pages that come and go", churned
    yield "memory that grows, is mapped anew, is copied", own_ways
    yield "rubbish", mangled
    yield "the victim dies", victim_dies
    yield "the broker restarted", broker_restarted
    yield "another tenant", other_tenant
    yield "root against an ordinary user", root_attacker
    yield "one user", same_user
    yield from held.all_tests()
