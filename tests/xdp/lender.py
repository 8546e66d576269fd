"""A host's node daemon that lends sockets of AF_XDP, and what its interface and kernel count."""

import json
import os
import subprocess
import tempfile
import time

from kill.harness import START_SECONDS, Failed
from lib import netns

NODED = os.path.join(netns.BUILD, "bin", "causeway-noded")
POLL_SECONDS = 0.02
# On a busy machine.
CARRY_SECONDS = 120


class Lender:
    """A daemon of a host's, with a broker of its own."""

    def __init__(self, host):
        self.host = host
        self.folder = tempfile.mkdtemp(prefix="cwx-")
        self.process = None

    def start(self, *offers):
        """Starts it; returns when it lends."""
        self.stop()
        argv = [NODED, "--runtime-dir", self.folder]
        for offer in offers:
            argv += ["--xdp", offer]
        with open(self.log_path(), "w", encoding="utf-8") as out:
            self.process = self.host.popen(argv, stdout=out, stderr=subprocess.STDOUT)
        await_(lambda: "ready" in self.log() or self.process.poll() is not None, START_SECONDS,
               "the daemon starts")
        if self.process.poll() is not None:
            raise Failed(f"the daemon does not start: {self.log()}")

    def log_path(self):
        """Where it says what it does."""
        return os.path.join(self.folder, "log")

    def log(self):
        """What it has said."""
        with open(self.log_path(), encoding="utf-8", errors="replace") as text:
            return text.read()

    def says(self, words):
        """Waits until it has said that."""
        await_(lambda: words in self.log(), START_SECONDS, f"the daemon says {words!r}",
               self.log)

    def kill(self):
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def stop(self):
        """Ends it, if it runs."""
        if self.process:
            self.process.terminate()
            self.process.wait()
            self.process = None

    def end(self):
        """Ends it and its broker."""
        self.stop()
        netns.stop_broker(self.folder)
        subprocess.run(["rm", "-rf", self.folder], check=False)


def await_(is_so, seconds, what, said=lambda: ""):
    """Waits until something is so, or fails."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"not in {seconds} s: {what}: {said()[-800:]}")
        time.sleep(POLL_SECONDS)


def steers(host, link=netns.LINK):
    """Whether a program of XDP is on an interface."""
    return "xdp" in of_link(host, link)


def of_link(host, link=netns.LINK):
    """What ip(8) says of an interface."""
    done = subprocess.run(["ip", "-n", host.netns, "-s", "-j", "link", "show", "dev", link],
                          check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)[0]


def by_kernel(host, *more):
    """Datagrams that the kernel's UDP has given to programs, of both families; and those that it
    counts by more names."""
    done = subprocess.run(["ip", "netns", "exec", host.netns, "cat", "/proc/net/snmp",
                           "/proc/net/snmp6"], check=True, stdout=subprocess.PIPE, text=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    udp = [words for words in lines if words[0] == "Udp:"]
    names = ("InDatagrams", *more)
    count = sum(int(dict(zip(*udp))[name]) for name in names)
    six = [f"Udp6{name}" for name in names]
    return count + sum(int(words[1]) for words in lines if words[0] in six)


def beside_kernel(host, link=netns.LINK):
    """Packets that an interface has received and the kernel's UDP has neither received nor dropped:
    all but some are those that went to a socket of AF_XDP."""
    received = of_link(host, link)["stats64"]["rx"]["packets"]
    return received - by_kernel(host, "NoPorts", "InErrors")


def expect_carried(hosts, datagrams=500, link=netns.LINK):
    """Waits until sockets of AF_XDP have received so many datagrams more, on each of some hosts."""
    before = [beside_kernel(host, link) for host in hosts]
    for host, count in zip(hosts, before):
        await_(lambda h=host, c=count: beside_kernel(h, link) - c >= datagrams, CARRY_SECONDS,
               f"{datagrams} datagrams by AF_XDP on {host.name}",
               lambda h=host, c=count: str((beside_kernel(h, link) - c, by_kernel(h))))


def expect_by_kernel(hosts, datagrams=500):
    """Waits until the kernel's UDP has received so many datagrams more, on each of some hosts."""
    before = [by_kernel(host) for host in hosts]
    for host, count in zip(hosts, before):
        await_(lambda h=host, c=count: by_kernel(h) - c >= datagrams, CARRY_SECONDS,
               f"{datagrams} datagrams by UDP on {host.name}")
