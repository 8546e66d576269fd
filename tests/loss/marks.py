"""Routers that mark packets instead of dropping them (ECN), and some that drop what may be marked.

nftables of the server stands for the router, on the packets of the client's datagrams.
"""

import re
import subprocess
import time

from kill.harness import Failed
from lib import netns
from lib.lossy import on
from lib.patience import patient

MTU = 1500
# The counters in sysfs, by the names that adapters for RoCE have.
COUNTERS = "/sys/class/infiniband/cway0/ports/1/hw_counters"
RECEIVED = "np_ecn_marked_roce_packets"
REPORTED = "rp_cnp_handled"
# Packets marked of 1,000, and how many are enough.
RATE = 20
ENOUGH = 200
# Part of them that the receiver finds at least.
FOUND = 0.95
SECONDS = patient(20.0)
LOOK_SECONDS = 0.1
# Packets that are ECT(0), of which some are treated by the words that follow.
RULES = """
table inet marks {{
    counter capable {{ }}
    counter treated {{ }}
    chain prerouting {{
        type filter hook prerouting priority -150
        iifname {link} meta l4proto udp ip ecn ect0 counter name capable
        iifname {link} meta l4proto udp ip ecn ect0 {words}
    }}
}}
"""
MARK = f"numgen random mod 1000 < {RATE} counter name treated ip ecn set ce"
DROP = "counter name treated drop"


def hosts():
    """Two hosts over whose link packets go one by one."""
    world = netns.TwoHosts(MTU, prefix="10.97")
    for host in (world.server, world.client):
        on(host, ["ip", "link", "set", "dev", netns.LINK, "gso_max_segs", "1"])
    return world


def counted(host, name):
    """What one of the counters has."""
    listed = on(host, ["nft", "list", "counter", "inet", "marks", name])
    return int(re.search(r"packets (\d+)", listed).group(1))


def read(host, name):
    """A counter as a program sees it."""
    argv = host.command([netns.CAUSEWAY, "run", "--", "cat", f"{COUNTERS}/{name}"])
    done = subprocess.run(argv, env=host.environment(), stdout=subprocess.PIPE, text=True,
                          timeout=60, check=True)
    return int(done.stdout)


def until(what, seen, both):
    """Waits for something; the programs have to go on meanwhile."""
    deadline = time.monotonic() + SECONDS
    while not seen():
        for program in both:
            if program.process.poll() is not None or "failed" in program.text:
                raise Failed(program.state())
        if time.monotonic() > deadline:
            raise Failed(f"no {what} in {SECONDS} s: {both[1].state()}")
        time.sleep(LOOK_SECONDS)


def go_on(both):
    """Both programs have more done."""
    for program in both:
        count = program.count()
        until("more traffic", lambda p=program, c=count: p.count() > c, both)


def heeded(bench):
    """The marks are found by the receiver, and the sender hears of them."""
    server, client = bench.world.server, bench.world.client
    on(server, ["nft", "-f", "-"], RULES.format(link=netns.LINK, words=MARK))
    # WRITEs: none is refused for want of a receive, and so taken twice.
    both = bench.traffic("--op", "write", "--size", "65536")
    until("marks", lambda: counted(server, "treated") >= ENOUGH, both)
    on(server, ["nft", "flush", "chain", "inet", "marks", "prerouting"])
    marked = counted(server, "treated")
    # A socket may have lost some.
    until(f"{marked} marks found", lambda: read(server, RECEIVED) >= FOUND * marked, both)
    until("report", lambda: read(client, REPORTED) > 0, both)
    found, told = read(server, RECEIVED), read(client, REPORTED)
    if found > marked or told > marked:
        raise Failed(f"{told} reports of {found} of {marked} marks")
    go_on(both)
    return f"{marked} packets marked, {found} found, {told} reports"


def spared(bench):
    """A path that drops what is ECT is used without."""
    server = bench.world.server
    on(server, ["nft", "-f", "-"], RULES.format(link=netns.LINK, words=DROP))
    both = bench.traffic("--size", "65536")
    # Each side tries it again, once, where the other tells of datagrams that came twice: that may
    # be at any time.
    deadline = time.monotonic() + SECONDS
    while True:
        dropped = counted(server, "treated")
        go_on(both)
        if counted(server, "treated") == dropped:
            break
        if time.monotonic() > deadline:
            raise Failed(f"{dropped} packets dropped, then {counted(server, 'treated')}")
    if dropped == 0:
        raise Failed("nothing was dropped")
    return f"{dropped} packets dropped"


def refused(bench):
    """CAUSEWAY_ECN=0 at one side keeps both from sending anything that is ECT."""
    server, client = bench.world.server, bench.world.client
    on(server, ["nft", "-f", "-"], RULES.format(link=netns.LINK, words="counter name treated"))
    client.settings["CAUSEWAY_ECN"] = "0"
    both = bench.traffic("--size", "65536")
    go_on(both)
    if counted(server, "capable"):
        raise Failed(f"{counted(server, 'capable')} packets are ECT")
    return ""


TESTS = (("marks are heeded", heeded), ("a path that drops what may be marked", spared),
         ("marks are turned off", refused))
