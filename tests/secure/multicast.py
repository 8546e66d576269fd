"""Multicast on a secured wire: what is sent to a group is sealed by secrets that brokers derive."""

import itertools
import os

from clients.datagrams import done, in_group
from kill.harness import Failed
from lib import netns, perftest
from secure.crowd import Spoken
from secure.seen import LEAST_SEEN, Ear, new_key

SECONDS = 60
GROUP = os.path.join(netns.BUILD, "test", "group")
# Of IPv4, as the connection manager maps it, and of IPv6.
GIDS = ("ff0e::ffff:239.83.8.{}", "ff15::83:{}")
# Places of the hosts' GIDs for these.
GID_INDICES = ("0", "1")
# Whole on any link, just whole on none, and in fragments on all.
SIZES = (512, 1400, 4096)
# Told at a time, and waited for: fewer than there are receives, so that none is lost.
BATCH, BATCHES = 16, 8
MCKEY_GROUP = "239.83.7.{}"
MESSAGES = "100"
# By perftest's own numbers, a byte each.
PERFTEST_GROUP = "255:14:0:0:0:0:0:0:0:0:255:255:239:83:9:{}"

numbers = itertools.count(1)


class Side(Spoken):
    """One of the program's sides, ready."""

    def __init__(self, host, role, way):
        super().__init__(host, [GROUP, role, *way], "udp")
        said = self.line()
        if said != "ready":
            raise Failed(f"{role}: {said}")


def ways(sizes=SIZES):
    """Groups, sizes and addresses."""
    for gid, index in zip(GIDS, GID_INDICES):
        for size in sizes:
            yield gid.format(next(numbers)), str(size), index


def talk(teller, hearers, tag, batches=BATCHES):
    """One tells, the others hear all of it, once and unchanged."""
    for _ in range(batches):
        said = [teller.ask(f"tell {BATCH} {tag}")]
        said += [hearer.ask(f"hear {BATCH} {tag}") for hearer in hearers]
    return said


def expect_sealed(seen, least=LEAST_SEEN):
    """All that passed to groups was sealed, and no number came twice."""
    if seen.get("to groups", 0) < least:
        raise Failed(f"too little was seen: {seen}")
    if seen.get("plain") or seen.get("marked") or seen.get("repeated numbers"):
        raise Failed(f"something passed in the clear, or twice: {seen}")


def exchange(scene, sizes=SIZES):
    """Every byte, with members on both hosts, and senders one after the other."""
    world = scene.world
    for way in ways(sizes):
        hearers = [Side(host, "hear", way) for host in (world.server, world.client)]
        # The second is as the first, started again.
        for tag, host in ((1, world.client), (2, world.client), (3, world.server)):
            teller = Side(host, "tell", way)
            talk(teller, hearers, tag)
            teller.last()
        for hearer in hearers:
            hearer.last()


def mckey(scene):
    """rdma_cm's multicast between the hosts."""
    world, group = scene.world, MCKEY_GROUP.format(next(numbers))
    argv = ["mckey", "-m", group, "-C", MESSAGES]
    member = scene.bench.start(world.server, [*argv, "-b", world.server.address])
    member.wait_for("the group", lambda _: in_group(group)(member.process), SECONDS)
    sender = scene.bench.start(world.client, [*argv, "-b", world.client.address, "-s"])
    for program in (sender, member):
        if program.wait_end(SECONDS) or done(program.text):
            raise Failed(program.text[-500:])


def pass_sealed(scene):
    """Every byte, mckey and perftest, and nothing in the clear passes."""
    with Ear(scene.world.client) as ear:
        exchange(scene)
        mckey(scene)
        group = PERFTEST_GROUP.format(next(numbers))
        for tool in ("ib_send_bw", "ib_send_lat"):
            perftest.run(scene.world, "udp", tool, 1024, 100, pin=False,
                         extra=["-c", "UD", "-g", "-M", group])
        seen = ear.said()
    expect_sealed(seen)
    return str(seen)


def multicast(scene):
    """The distribution's programs, unmodified, by IPv4 and IPv6, and somebody who listens."""
    scene.start([new_key()])
    return pass_sealed(scene)


def multicast_meddled_with(scene):
    """Datagrams are sent again, late, cut off and changed: each comes once, and unchanged."""
    scene.start([new_key()])
    with Ear(scene.world.server, True) as one, Ear(scene.world.client, True) as other:
        exchange(scene, SIZES[:1])
        made = [one.said(), other.said()]
    if sum(sum(counts.values()) for counts in made) < LEAST_SEEN:
        raise Failed(f"too little was meddled with: {made}")
    return str(made)


def multicast_while_keys_change(scene):
    """One key takes another's place, host by host: what either sends is heard by both."""
    old, new = new_key(), new_key()
    steps = [([old], [old]), ([old, new], [old]), ([new, old], [old, new]), ([new], [new, old])]
    for server, client in steps:
        scene.start(server, client)
        exchange(scene, SIZES[:1])
    return f"{len(steps)} steps"


def is_deaf(scene, heard_from):
    """What the client tells nobody hears, and what is told on the server's host is heard."""
    way = next(ways())
    hearer = Side(scene.world.server, "hear", way)
    foreign = Side(scene.world.client, "tell", way)
    own = Side(scene.world.server, "tell", way)
    for _ in range(BATCHES):
        foreign.ask(f"tell {BATCH} 1")
        talk(own, [hearer], heard_from, 1)
    for program in (own, foreign, hearer):
        program.last()


def multicast_by_another_key(scene):
    """Members with another key hear nothing of it."""
    scene.start([new_key()], [new_key()])
    is_deaf(scene, 2)


def multicast_in_the_clear(scene):
    """A side that is secured and one that is not hear nothing of each other."""
    key = [new_key()]
    for secure in (("required", "off"), ("off", "required")):
        scene.start(key, key, secure)
        is_deaf(scene, 2)


TESTS = (multicast, multicast_meddled_with, multicast_while_keys_change, multicast_by_another_key,
         multicast_in_the_clear)
