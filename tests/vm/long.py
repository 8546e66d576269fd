"""Transfers that do not end by themselves, for tests that end one of their sides."""

import json
import time

from vm import traffic
from vm.lab import GuestError

# A survivor hears of its peer's death from the broker; TCG takes its time.
DEATH_SECONDS = 20


def begin_long(server, client):
    """A transfer that does not end by itself."""
    argv = ["ib_write_bw", "-F", "-x", "0", "-D", "300", "-s", "4096"]
    traffic.start(server, argv, "shm")
    traffic.wait_listening(server, 18515)
    traffic.start(client, argv + [server.address], "shm")
    # Once they are connected perftest's two sides still talk by TCP, and wait for each other there:
    # a client whose server's machine dies now waits for ever, whatever its queue pair says.
    wait_beyond(server.lab, 0)


def writes_complete(lab):
    """How many WRITEs of a client have completed over a ring, by the broker's word."""
    endpoints = json.loads(lab.causeway("status", "--json"))["endpoints"]
    joined = [endpoint for endpoint in endpoints
              if any(qp["wire"] == "shm" and qp["joined"] for qp in endpoint["qps"])]
    return sum(e["counters"]["tx_messages"] for e in joined) if len(joined) == 2 else 0


def wait_beyond(lab, count, seconds=traffic.SECONDS):
    """Waits until more than `count` WRITEs have completed."""
    deadline = traffic.deadline_after(seconds)
    while writes_complete(lab) <= count:
        if time.monotonic() > deadline:
            raise GuestError(lab.causeway("status"))
        time.sleep(traffic.PAUSE)


def expect_failure(place):
    """The survivor ends with an error, in time."""
    begun = time.monotonic()
    status, text = traffic.wait(place, "ib_write_bw", DEATH_SECONDS)
    if status == 0:
        raise GuestError(f"the survivor noticed nothing: {text[-400:]}")
    return f"the survivor fails after {time.monotonic() - begun:.1f} s"
