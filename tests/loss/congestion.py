"""Many hosts that send to one, all through one link, whose queue is short.

The receiver may not enlarge its socket's buffer beyond what the system lets anybody have, and has
so few descriptors that some senders share one.
Everything must arrive, no request may fail, and some senders must be told less than the whole
window. A time is asserted only so far that a collapse fails: the same bytes must not take three
times as long from eight as from one.
"""

import os
import re
import subprocess
import sys
import tempfile
import time

from kill.harness import START_SECONDS, Failed, Program, attempt
from lib import netns, pair
from lib.lossy import on

FAN_IN = os.path.join(netns.BUILD, "test", "fan_in")
SENDERS = 8
# Of 64 KiB: together some two thirds of a second of the link's time.
MESSAGES = 1280
ROUNDS = 2
# Eight at once reach what one does, and more on a busy machine, where one is often off its
# processor. Less than a third of it is a collapse.
COLLAPSE = 3
# Where a program may have a larger receive buffer, a sender's share of it is the whole window.
DIVIDED_MAX = 8 << 20
RATE, BURST, QUEUE = "1gbit", "32kb", "256kb"
MTU = 1500
# Descriptors that the receiver may have, and peers that get a socket of their own then, and so a
# buffer: two, and one for each 16 descriptors. Of more hosts some share one.
DESCRIPTORS = 63
PEERS_APART = 5
END_SECONDS = 150
PORT = 7970
# Without it a socket's buffer is bounded by net.core.rmem_max.
BOUND = ["prlimit", f"--nofile={DESCRIPTORS}:", "--",
         "setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", "--"]


class Star:
    """Hosts around a router, the first behind a token bucket."""

    def __init__(self, number):
        netns.need_root("making network namespaces")
        self.router = f"cwt{os.getpid()}r"
        self.spaces = [self.router]
        self.hosts = []
        try:
            netns.ip("netns", "add", self.router)
            on_router = ["ip", "netns", "exec", self.router]
            subprocess.run([*on_router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"],
                           check=True)
            for at in range(number):
                self.add(at)
            # What comes too fast is dropped packet by packet.
            subprocess.run([*on_router, "tc", "qdisc", "add", "dev", "cw0", "root", "tbf",
                            "rate", RATE, "burst", BURST, "limit", QUEUE], check=True)
        except (subprocess.CalledProcessError, OSError, netns.SetupError) as error:
            self.end()
            raise netns.SetupError(f"cannot make a star of hosts: {netns.describe(error)}") \
                from error

    def add(self, at):
        """One more host, and its link to the router."""
        name, port = f"cwt{os.getpid()}h{at}", f"cw{at}"
        self.spaces.append(name)
        netns.ip("netns", "add", name)
        netns.ip("-n", name, "link", "set", "lo", "up")
        netns.ip("link", "add", netns.LINK, "mtu", str(MTU), "netns", name, "type", "veth",
                 "peer", "name", port, "mtu", str(MTU), "netns", self.router)
        host = netns.Host(name, f"10.87.{at}.2", name, tempfile.mkdtemp(prefix=f"{name}-"))
        self.hosts.append(host)
        netns.ip("-n", self.router, "addr", "add", f"10.87.{at}.1/24", "dev", port)
        netns.ip("-n", self.router, "link", "set", port, "up")
        netns.ip("-n", name, "addr", "add", f"{host.address}/24", "dev", netns.LINK)
        netns.ip("-n", name, "link", "set", netns.LINK, "up")
        netns.ip("-n", name, "route", "add", "default", "via", f"10.87.{at}.1")
        on(host, ["ip", "link", "set", "dev", netns.LINK, "gso_max_size", str(MTU)])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """Ends hosts and router."""
        for host in self.hosts:
            host.end()
        for name in self.spaces:
            for pid in netns.pids_in(name):
                netns.kill(pid)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)

    def dropped(self):
        """Packets for which the queue had no room."""
        shown = subprocess.run(["ip", "netns", "exec", self.router, "tc", "-s", "qdisc", "show",
                                "dev", "cw0"], stdout=subprocess.PIPE, text=True, check=True)
        return int(re.search(r"dropped (\d+)", shown.stdout).group(1))


class Windows:
    """What windows some hosts are told."""

    def __init__(self, hosts):
        argv = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                             "windows.py"), netns.LINK]
        self.watchers = [host.popen(argv, stdout=subprocess.PIPE, text=True) for host in hosts]
        for watcher in self.watchers:
            if watcher.stdout.readline() != "ready\n":
                self.end()
                raise Failed("cannot listen to packets")

    def end(self):
        """Ends it; the windows."""
        told = set()
        for watcher in self.watchers:
            watcher.terminate()
            told |= {int(line) for line in watcher.communicate()[0].split()}
        return told


def transfer(star, senders, port):
    """So many senders have all messages together; how fast they came, MB/s."""
    argv = [FAN_IN, str(port), str(senders), str(MESSAGES // senders)]
    receiver, *others = star.hosts
    programs = [Program(receiver, "udp", [*BOUND, *argv])]
    try:
        if not pair.wait_listening(programs[0].process, time.monotonic() + START_SECONDS):
            raise Failed(f"{programs[0].name()} does not listen: {programs[0].text[-500:]}")
        for host in others[:senders]:
            programs.append(Program(host, "udp", [*argv, receiver.address]))
        for program in reversed(programs):
            if program.wait_end(END_SECONDS) != 0:
                raise Failed("\n".join(f"{p.name()}: {p.text[-300:]}" for p in programs))
        return float(programs[0].text.split()[-2])
    finally:
        for program in programs:
            program.end()


def buffer_max():
    """The largest receive buffer that a program without privileges gets, or 0 where the kernel does
    not say."""
    try:
        with open("/proc/sys/net/core/rmem_max", encoding="ascii") as text:
            return int(text.read())
    except FileNotFoundError:
        return 0


def together(star):
    """Eight senders, in turn with one."""
    alone, all_of_them, windows = [], [], set()
    for turn in range(ROUNDS):
        alone.append(transfer(star, 1, PORT + 2 * turn))
        watched = Windows(star.hosts[1:2 + PEERS_APART])
        try:
            all_of_them.append(transfer(star, SENDERS, PORT + 2 * turn + 1))
        finally:
            windows |= watched.end()
    figures = [" ".join(f"{rate:.1f}" for rate in rates) for rates in (alone, all_of_them)]
    told = f"one alone {figures[0]} MB/s, {SENDERS} together {figures[1]} MB/s, " \
           f"{star.dropped()} packets dropped, windows {sorted(windows)}"
    if max(all_of_them) * COLLAPSE < max(alone):
        raise Failed(f"{told}: a collapse")
    if buffer_max() <= DIVIDED_MAX and len(windows) < 2:
        raise Failed(f"{told}: the buffer is not divided")
    return told


def run(results):
    """All tests of this file."""
    name = f"{SENDERS} senders to one without privileges, {QUEUE} queue at {RATE}"
    try:
        with Star(SENDERS + 1) as star:
            attempt(results, name, together, star)
    except netns.SetupError as error:
        results.append(False)
        print(f"FAIL {name}: {error}")
