"""UD queue pairs on a secured wire: each pair of them makes an association at first use."""

import os
import re

from kill.harness import Failed
from lib import netns, perftest
from secure.seen import LEAST_SEEN, Ear, expect_sealed, new_key

SECONDS = 60
# Debian's, which has pyverbs.
PYTHON = "/usr/bin/python3"
FORGOTTEN = os.path.join(netns.ROOT, "tests", "secure", "forgotten.py")
SILENT = os.path.join(netns.ROOT, "tests", "secure", "silent.py")
# A peer that does not answer is given up after 5 s: who waits for that takes longer, however fast
# the machine is, and who does not takes some milliseconds.
SILENT_SECONDS = 4
# Places of the hosts' GIDs.
IPV4, IPV6 = "0", "1"
# ibv_ud_pingpong's sizes: whole on any link, and in fragments on all.
SIZES = ("512", "2048")
TOOLS = (("ib_send_lat", 64), ("ib_send_lat", 1024), ("ib_send_bw", 1024))
MESSAGES = "500"


def pingpong(scene, *options):
    """ibv_ud_pingpong on both hosts, which looks at each byte."""
    return ["ibv_ud_pingpong", "-c", "-n", MESSAGES, "-p", scene.bench.next_port(), *options]


def exchange(scene, *options):
    """Runs it to its end."""
    argv = pingpong(scene, *options)
    for program in scene.bench.pair(argv, argv):
        if program.wait_end(SECONDS) or "invalid data" in program.text:
            raise Failed(f"{options}: {program.text[-500:]}")


def pass_sealed(scene):
    """Programs run by IPv4 and IPv6, and nothing in the clear passes."""
    with Ear(scene.world.client) as ear:
        for gid in (IPV4, IPV6):
            for size in SIZES:
                exchange(scene, "-g", gid, "-s", size)
        for tool, size in TOOLS:
            extra = ["-c", "UD", "-x", IPV6]
            perftest.run(scene.world, "udp", tool, size, 200, pin=False, extra=extra)
        seen = ear.said()
    expect_sealed(seen)
    return str(seen)


def datagrams(scene):
    """The distribution's programs, unmodified, and somebody who listens."""
    scene.start([new_key()])
    return pass_sealed(scene)


def datagrams_meddled_with(scene):
    """Datagrams are sent again, late, cut off and changed: nothing changes by that."""
    scene.start([new_key()])
    with Ear(scene.world.server, True) as one, Ear(scene.world.client, True) as other:
        exchange(scene, "-g", IPV4, "-s", SIZES[0])
        done = [one.said(), other.said()]
    for counts in done:
        if len(counts) < 5 or sum(counts.values()) < LEAST_SEEN:
            raise Failed(f"too little was meddled with: {done}")
    return str(done)


def datagrams_to_who_has_forgotten(scene):
    """A queue pair that is made ready anew gets other keys, and its peer does not notice."""
    scene.start([new_key()])
    program = scene.bench.start(scene.world.client, [PYTHON, FORGOTTEN])
    if program.wait_end(SECONDS) or program.text.count("got") != 3:
        raise Failed(program.text[-500:])


def datagrams_beside_a_silent_peer(scene):
    """What waits for a peer that does not answer keeps nothing else from being sent."""
    scene.start([new_key()])
    argv = [PYTHON, SILENT, scene.world.server.address]
    program = scene.bench.start(scene.world.client, argv)
    status = program.wait_end(SECONDS)
    came = re.search(r"came after ([\d.]+) s", program.text)
    if status or not came or float(came[1]) > SILENT_SECONDS:
        raise Failed(program.text[-500:])
    return came[0]


def is_deaf(scene, words, said_by=1):
    """Nothing arrives, and one of both programs says why."""
    argv = pingpong(scene, "-g", IPV4)
    with Ear(scene.world.client) as ear:
        programs = scene.bench.pair(argv, argv)
        programs[said_by].wait_for("the reason", lambda text: words in text, SECONDS)
        if any(program.process.poll() is not None for program in programs):
            raise Failed(f"it ended: {programs[0].text[-300:]} {programs[1].text[-300:]}")
        scene.bench.clear()
        seen = ear.said()
    return seen


def datagrams_by_another_key(scene):
    """Between brokers with different keys nothing is sent, and program and broker say why."""
    scene.start([new_key()], [new_key()])
    seen = is_deaf(scene, "another key")
    if seen.get("sealed") or seen.get("plain") or seen.get("marked"):
        raise Failed(f"data passed: {seen}")
    log = scene.hosts[0].log()
    if "not in our key file" not in log:
        raise Failed(f"the server's broker says nothing: {log[-500:]}")
    return str(seen)


def datagrams_in_the_clear(scene):
    """A side that is not secured and one that is exchange nothing."""
    key = [new_key()]
    scene.start(key, key, ("off", "required"))
    seen = is_deaf(scene, "not secured")
    if seen.get("sealed") or seen.get("marked"):
        raise Failed(f"data passed: {seen}")
    scene.start(key, key, ("required", "off"))
    seen = is_deaf(scene, "drops datagrams", 0)
    if seen.get("sealed"):
        raise Failed(f"something was answered: {seen}")


TESTS = (datagrams, datagrams_meddled_with, datagrams_to_who_has_forgotten,
         datagrams_beside_a_silent_peer, datagrams_by_another_key, datagrams_in_the_clear)
