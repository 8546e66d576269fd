"""The node daemon that a broker starts, and what else may have its port."""

import os
import re
import signal
import subprocess
import sys
import time

from lib.netns import BUILD
from sisci import cluster
from sisci.cluster import PORT, SECONDS
from sisci.pairs import HERE, THERE, addresses, expect, pair

SOON = 20


def on_demand(suite, world, asked_for):
    """The broker starts the daemon, without privileges, and again; it ends with the broker. It does
    so at once if the configuration asks for it, and with the first program if it says nothing."""
    world.stop()
    config = suite.configuration("demand", addresses(world), node_daemon=asked_for)
    here, there = (world.side(number, config, daemon=False) for number in range(2))
    for side in (here, there):
        if not asked_for:
            expect("a daemon that nobody needs", not keeps_daemon(side), side.log())
            side.causeway("nodes")
        expect("no daemon is started", side.says("causeway_node::server: ready"), side.log())
    for side, node in ((here, THERE), (there, HERE)):
        status, output = side.probe(node)
        expect("the other node is not there", status == 0, output, there.log())
    daemon = child(there.broker.pid)
    with open(f"/proc/{daemon}/status", encoding="ascii") as f:
        status = f.read()
    for line in ("CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"):
        expect(f"not {line!r}", line in status, status)
    sockets = subprocess.run(["ip", "netns", "exec", there.host.netns, "ss", "-tlpn"],
                             stdout=subprocess.PIPE, text=True, check=True).stdout
    expect("the broker has a network socket", f"pid={there.broker.pid}," not in sockets, sockets)
    os.kill(daemon, signal.SIGKILL)
    until = time.monotonic() + SOON
    while there.log().count("causeway_node::server: ready") < 2 and time.monotonic() < until:
        time.sleep(0.01)
    expect("it is not started again", child(there.broker.pid) not in (None, daemon), there.log())
    daemon = child(there.broker.pid)
    there.broker.kill()
    there.broker.wait()
    until = time.monotonic() + SOON
    while not has_ended(daemon) and time.monotonic() < until:
        time.sleep(0.01)
    expect("it outlives the broker", has_ended(daemon))


def has_ended(pid):
    """Whether a process is gone, or nothing of it is left but its status. Its memory goes before
    its sockets, so that it has no program any more does not say that its port is free."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def keeps_daemon(side):
    """Whether the broker has a thread that keeps a daemon up, or a daemon."""
    tasks = f"/proc/{side.broker.pid}/task"
    names = []
    for task in os.listdir(tasks):
        with open(f"{tasks}/{task}/comm", encoding="ascii") as f:
            names.append(f.read().strip())
    return "causeway-noded" in names or child(side.broker.pid) is not None


def off(suite, world):
    """A broker that is to start no daemon starts none, and programs go on without."""
    here, there = pair(suite, world, {}, {})
    there.node.kill()
    there.node.wait()
    for side in (here, there):
        side.causeway("nodes")
    status, output = there.probe(HERE)
    expect("a program does not reach the other node", status == 0, output)
    for side in (here, there):
        expect("a daemon is started", not keeps_daemon(side), side.log())


def by_hand(suite, world):
    """Of two daemons the first serves: beside one that was started by hand the broker starts none,
    and one that comes later is told why it cannot have the port."""
    here, there = pair(suite, world, {"node_daemon": None}, {"node_daemon": None})
    for side, node in ((here, THERE), (there, HERE)):
        status, output = side.probe(node)
        expect("the other node is not there", status == 0, output)
    there.node.kill()
    there.node.wait()
    there.causeway("nodes")
    for side in (here, there):
        log = cluster.read(side.broker_log)
        expect("the broker starts one beside it", not keeps_daemon(side), log)
        expect("the broker's log tells of daemons", not re.search("node.daemon", log), log)
    world.stop()
    config = suite.configuration("later", addresses(world), node_daemon=None)
    here = world.side(0, config, daemon=False)
    here.causeway("nodes")
    expect("no daemon is started", here.says("causeway_node::server: ready"), here.log())
    status, output = here.run([os.path.join(BUILD, "bin", "causeway-noded")])
    expect("a second daemon", status == 3 and "node_daemon = false" in output, status, output)
    expect("the first has ended", child(here.broker.pid) is not None, here.log())


def child(pid):
    """The child of a process that is a node daemon."""
    done = subprocess.run(["ps", "-o", "pid=,comm=", "--ppid", str(pid)], stdout=subprocess.PIPE,
                          text=True, check=False)
    found = re.search(r"(\d+) causeway-noded", done.stdout)
    return int(found[1]) if found else None


def port_taken(suite, world, asked_for):
    """Where another process has the port, programs are told so, and doctor names it."""
    world.stop()
    config = suite.configuration("taken", addresses(world), node_daemon=asked_for)
    squatter = world.hosts[0].popen(
        [sys.executable, "-c", f"import socket, sys\ns = socket.create_server(('', {PORT}))\n"
         "print('listens', flush=True)\nsys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        expect("the squatter", squatter.stdout.readline() == "listens\n")
        here = world.side(0, config, daemon=False)
        there = world.side(1, config, daemon=False)
        for side in (here, there):
            side.causeway("nodes")
        expect("the broker does not say so", here.says("another process has it"), here.log())
        said = here.log().count("the node daemon")
        expect(f"the broker says so in {said} lines", said == 1, here.log())
        status, output = here.probe(THERE)
        expect("not NO_LINK_ACCESS", status and "SCI_ERR_NO_LINK_ACCESS" in output
               and "another process has TCP port 20480" in output, output)
        _, output = here.causeway("doctor")
        named = f"TCP port {PORT} is taken: process {squatter.pid} (python"
        expect("doctor does not name it", named in output, output)
    finally:
        squatter.communicate(timeout=SECONDS)
    until = time.monotonic() + SECONDS
    while here.probe(THERE)[0] and time.monotonic() < until:
        time.sleep(0.1)
    status, output = here.probe(THERE)
    expect("not even when the port is free again", status == 0, output)
