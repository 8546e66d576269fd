"""Verbs between guests, and between guest and host, both ways: ibv_rc_pingpong, perftest's eight
tools, and the verification program, which compares every byte and every completion."""

import json
import os
import re
import time

from lib import perftest
from lib.netns import BUILD
from lib.report import count_closing_lines
from vm import traffic
from vm.lab import Guest, GuestError

PINGPONG = "ibv_rc_pingpong"
PERFTEST = ["ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_atomic_lat",
            "ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw"]
ITERATIONS = "100"
# The verification program: its port, how much it does, and how long that may take under TCG.
VERIFY_PORT = 18600
VERIFY = ["--qps", "2", "--ops", "2000", "--max-size", "65536"]
VERIFY_SECONDS = 180
# Operations of a run that is ended before it ends.
MANY = "10000000"
# The case that needs a network namespace of its own, which a guest's processes have not.
OTHER_NETWORK = "PORT_ERR"


def programs():
    """The files of ours that guests need."""
    return [os.path.join(BUILD, "test", name) for name in ("verify", "errors")]


def pingpong(server, client, wire="shm"):
    """ibv_rc_pingpong, which counts its own bytes."""
    argv = [PINGPONG, "-g", "0", "-n", ITERATIONS]
    text = traffic.pair(server, client, argv, wire)
    return re.search(r"[\d.]+ usec/iter", text).group(0)


def measure(server, client, tool, wire="shm"):
    """A perftest tool in both directions of nothing but its own."""
    argv = [tool, "-F", "-x", "0", "-n", ITERATIONS]
    size = 8 if "atomic" in tool or perftest.is_latency(tool) else 65536
    if "atomic" not in tool:
        argv += ["-s", str(size)]
    if not perftest.is_latency(tool):
        argv.append("--report_gbits")
    text = traffic.pair(server, client, argv, wire)
    value = perftest.figure(tool, size, text)
    if value is None:
        raise GuestError(f"no figure: {text[-600:]}")
    return f"{perftest.show(tool, value).strip()} (TCG)"


def path_of(place, name):
    """How a program of ours is called in a place."""
    return name if isinstance(place, Guest) else os.path.join(BUILD, "test", name)


def verify(server, client, *both):
    """The verification program with every operation; each side checks what it gets."""
    traffic.start(server, [path_of(server, "verify"), *both], "shm")
    traffic.wait_listening(server, VERIFY_PORT)
    traffic.start(client, [path_of(client, "verify"), *both, *VERIFY, server.address], "shm")
    for place in (client, server):
        status, text = traffic.wait(place, "verify", VERIFY_SECONDS)
        if status != 0:
            raise GuestError(f"{place.name} ends with {status}: {text[-800:]}")
    return f"{VERIFY[1]} queue pairs, {VERIFY[3]} operations"


def begin_direct(lab, server, client, *reaching):
    """Has those who reach into the other's memory do so, until they are stopped: all could go by
    ring. How many accesses were made."""
    traffic.start(server, [path_of(server, "verify")], "shm")
    traffic.wait_listening(server, VERIFY_PORT)
    argv = [path_of(client, "verify"), "--ops", MANY, server.address]
    traffic.start(client, argv, "shm")
    in_guest = [isinstance(place, Guest) for place in reaching]
    deadline = traffic.deadline_after()
    made = []
    while len(made) != len(reaching) or not all(made):
        if time.monotonic() > deadline:
            raise GuestError(f"accesses: {made}\n{lab.causeway('status')}")
        time.sleep(traffic.PAUSE)
        endpoints = json.loads(lab.causeway("status", "--json"))["endpoints"]
        made = [endpoint["counters"]["direct"] for endpoint in endpoints
                if endpoint["command"] == "verify" and (endpoint["pid"] == 0) in in_guest]
    return sum(made)


def direct(lab, server, client, *reaching):
    """Memory is reached in place."""
    made = begin_direct(lab, server, client, *reaching)
    for place in (client, server):
        traffic.stop(place, "verify")
    return f"{made} accesses"


def errors(guest):
    """The error cases, which count themselves."""
    traffic.start(guest, ["errors", "--without", OTHER_NETWORK], "shm")
    status, text = traffic.wait(guest, "errors", VERIFY_SECONDS)
    good, bad = count_closing_lines(text)
    if status != 0 or bad or not good:
        raise GuestError(f"exit status {status}: {text[-1500:]}")
    return f"{good} passed"


def tests():
    """Name and function of every test, in order; a function is called with the lab."""
    def place(lab, letter):
        return lab.host if letter == "h" else lab.guests["ab".index(letter)]

    def named(title, function, client, server, *more):
        names = " to ".join({"h": "host"}.get(letter, letter) for letter in (client, server))
        return (f"{title} {names}",
                lambda lab: function(place(lab, server), place(lab, client), *more))

    for client, server in ("ba", "ab", "ha", "ah"):
        yield named("pingpong", pingpong, client, server)
        for tool in PERFTEST:
            yield named(tool, measure, client, server, tool)
        yield named("verify", verify, client, server)
    yield ("memory of the host is reached from a guest, and a guest's from there",
           lambda lab: direct(lab, lab.host, lab.guests[0], lab.guests[0], lab.host))
    yield ("memory of guests is reached from other guests",
           lambda lab: direct(lab, *lab.guests[:2], *lab.guests[:2]))
    # Other threads register and give up memory meanwhile.
    yield named("verify, registering,", verify, "a", "h", "--churn")
    yield named("verify, events,", verify, "a", "b", "--events", "--recv-depth", "4")
    yield "verify, errors: a", lambda lab: errors(lab.guests[0])
