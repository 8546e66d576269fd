"""A victim with its memory, an attacker with a valid queue pair, and a friend."""

import time

from hostile.cast import (ATTACKER_UID, FRIEND_UID, LOCAL_WRITE, READ_ONLY, READ_WRITE, VICTIM_UID,
                          Failed, wait_until)

# Areas of the victim's memory: what the attacker may write, what it may read, what is of another
# protection domain, what is registered for local use, and what is not registered at all.
WRITABLE, READABLE, OTHER, LOCAL, PRIVATE, SPARE = range(6)
PAGES = 16
# `enum ibv_wc_status`
SUCCESS, FLUSHED, REMOTE_ACCESS_ERROR = 0, 5, 10
# Protection domains, by the index that the programs give them.
SHARED_PD, OTHER_PD = 0, 1
SCRIBBLE = 0x5a


class Scene:
    """Everybody connected, everything registered."""

    def __init__(self, stage, victim=VICTIM_UID, attacker=ATTACKER_UID, tenant="stage",
                 friend=FRIEND_UID):
        self.stage = stage
        self.qps = 0
        self.victim = stage.enter("victim", victim)
        self.attacker = stage.enter("attacker", attacker, tenant)
        self.friend = stage.enter("attacker", friend)
        self.places = {}
        self.keys = {}
        for area in (WRITABLE, READABLE, OTHER, LOCAL, PRIVATE):
            self.area(area)
        self.reg(WRITABLE, SHARED_PD, READ_WRITE, "public")
        self.reg(READABLE, SHARED_PD, READ_ONLY, "public")
        self.reg(OTHER, OTHER_PD, READ_WRITE)
        self.reg(LOCAL, SHARED_PD, LOCAL_WRITE)
        self.qp = self.connect(self.attacker, SHARED_PD)
        self.friend_qp = self.connect(self.friend, SHARED_PD)
        self.other_qp = self.connect(self.friend, OTHER_PD, OTHER_PD)

    def area(self, area, pages=PAGES):
        """Has memory made, all secret."""
        base, length = self.victim.do("area", area, pages)
        self.places[area] = (int(base, 16), int(length))

    def reg(self, area, pd, access, contents="secret"):
        """Has an area registered; the attackers know its key."""
        self.victim.do("fill", area, contents)
        rkey, addr, length = self.victim.do("reg", area, pd, access)
        self.keys[area] = (int(rkey), int(addr, 16), int(length))

    def connect(self, peer, pd, own_pd=SHARED_PD, access=READ_WRITE):
        """Connects a QP of the victim, by which the peer has `access`, with one of the peer's; the
        index by which both know theirs."""
        index = self.qps
        self.qps += 1
        ours = self.victim.do("qp", index, pd, access)
        theirs = peer.do("qp", index, own_pd, LOCAL_WRITE)
        self.victim.do("connect", index, *theirs)
        peer.do("connect", index, *ours)
        return index

    def rdma(self, op, peer, qp, area, offset=0, length=64, byte=SCRIBBLE):
        """An honest operation; its completion status."""
        rkey, addr, size = self.keys[area]
        assert offset + length <= size
        status, _ = peer.do(op, qp, rkey, addr + offset, length, byte)
        return int(status)

    def go_direct(self, peer=None, qp=None, area=WRITABLE, op="write"):
        """Honest operations until one was carried out by the peer itself."""
        peer = peer or self.attacker
        qp = self.qp if qp is None else qp
        before = self.stage.direct(peer)
        # In whole pages, and aligned for atomics too.
        addr = self.keys[area][1]
        offset = -addr % 4096

        def one_more():
            status = self.rdma(op, peer, qp, area, offset)
            if status != SUCCESS:
                raise Failed(f"{op} by {peer.name} fails with status {status}")
            return self.stage.direct(peer) > before

        wait_until(f"{op} carried out by {peer.name} itself", one_more)

    def stays_on_ring(self, area, op):
        """Honest operations succeed, and none is carried out by the attacker itself."""
        before = self.stage.direct(self.attacker)
        for _ in range(20):
            status = self.rdma(op, self.attacker, self.qp, area, -self.keys[area][1] % 4096)
            if status != SUCCESS:
                raise Failed(f"{op} fails with status {status}")
        if self.stage.direct(self.attacker) != before:
            raise Failed(f"{op} was carried out by the attacker itself")

    def keep(self, who=None):
        """Has every descriptor kept and mapped: numbers of all, of writable ones, of memory
        segments, of those for reading."""
        words = [word for place in self.places.values() for word in place]
        return [int(n) for n in (who or self.attacker).do("keep", *words)]

    def search(self, who=None):
        """Numbers of secret and of public words that an attacker finds."""
        secret, public, _ = (int(n) for n in (who or self.attacker).do("search"))
        return secret, public

    def expect_nothing_secret(self, *who):
        """Attackers find nothing secret; the number of public words found."""
        total = 0
        for attacker in who or (self.attacker,):
            secret, public = self.search(attacker)
            if secret:
                raise Failed(f"{attacker.name} has found {secret} secret words")
            total += public
        return total

    def expect_nothing(self, *who):
        """Attackers find nothing at all of the victim's."""
        public = self.expect_nothing_secret(*who)
        if public:
            raise Failed(f"{public} words of what was public once are still seen")

    def expect_intact(self, *lost):
        """Every byte of the victim's is what it should be, but for the insides of the areas that
        the attacker may write."""
        for area in self.places:
            self.victim.do("check", area, "edges" if area in lost else "all")

    def where(self, area):
        """The file in which an area is, 0 for none."""
        return int(self.victim.do("where", area)[0])

    def moved(self, area, before):
        """Waits until no page of an area is where it was, and all are in another segment: one that
        the kernel refers to just then follows the others."""
        wait_until(f"area {area} moved", lambda: self.victim.do("left", area, before)[0] == "0")

    def revoked(self, *who):
        """What the attackers were granted has been taken away: new contents of the victim's are
        neither seen nor changed by all that they kept."""
        for area in (WRITABLE, READABLE):
            self.victim.do("fill", area, "secret")
        self.expect_nothing(*who)
        for attacker in who:
            attacker.do("scribble", SCRIBBLE)
            attacker.do("upgrade")
        self.expect_intact()
        for attacker in who:
            attacker.do("punch")
        self.expect_intact()
        self.expect_nothing_secret(*who)

    def friend_goes_on(self):
        """The friend's connections still work, and are direct."""
        self.go_direct(self.friend, self.friend_qp)
        self.go_direct(self.friend, self.other_qp, OTHER)
        for area in (WRITABLE, OTHER):
            self.victim.do("fill", area, "secret")


def timed(function, *args):
    """How long a call takes, in seconds."""
    start = time.monotonic()
    function(*args)
    return time.monotonic() - start


def armed(stage, **cast):
    """A scene in which the attacker has all that it can be granted, and sees it."""
    scene = Scene(stage, **cast)
    scene.go_direct()
    scene.go_direct(area=READABLE, op="read")
    scene.victim.do("fill", WRITABLE, "public")
    kept, writable, segments, readers = scene.keep()
    if (segments, readers) != (2, 1):
        raise Failed(f"{segments} segments granted, {readers} of them for reading")
    if not scene.expect_nothing_secret():
        raise Failed("the attacker does not see what it was granted: the test shows nothing")
    scene.held = f"{kept} descriptors, {writable} writable"
    return scene
