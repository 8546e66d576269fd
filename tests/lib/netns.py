"""Hosts for tests: this machine, or network namespaces joined by a veth pair.

A Host knows how to start a command on it. Needs root for everything but LocalHost.
"""

import atexit
import os
import shutil
import signal
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.environ.get("CAUSEWAY_BUILD") or os.path.join(ROOT, "build")
CAUSEWAY = os.path.join(BUILD, "bin", "causeway")


# The network interface of either host.
LINK = "cw0"


class SetupError(Exception):
    """The machine cannot provide what a test needs."""


def need_root(why):
    """Says clearly what is missing; a test that needs it counts as failed."""
    if os.geteuid() != 0:
        raise SetupError(f"{why} needs root: run `sudo make test`")


class Host:
    """A place to run commands: a network namespace (or none) and a runtime directory."""

    def __init__(self, name, address, netns=None, runtime_dir=None):
        self.name = name
        self.address = address
        self.netns = netns
        self.runtime_dir = runtime_dir or tempfile.mkdtemp(prefix=f"cwt-{name}-")
        # Of the release that this host has.
        self.program = CAUSEWAY
        # What programs here find in their environment beside that.
        self.settings = {}

    def environment(self, extra=None):
        """The environment of a command on this host."""
        env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=self.runtime_dir, LC_ALL="C.UTF-8")
        for name in ("CAUSEWAY_WIRE", "CAUSEWAY_SYSFS", "LD_PRELOAD"):
            env.pop(name, None)
        env.update({**self.settings, **(extra or {})})
        return env

    def command(self, argv, wire=None):
        """The full command line: in the namespace, under `causeway run` if a wire is given."""
        if wire:
            argv = [self.program, "run", "--wire", wire, "--"] + argv
        if self.netns:
            argv = ["ip", "netns", "exec", self.netns] + argv
        return argv

    def popen(self, argv, wire=None, env=None, **kwargs):
        """Starts a command in a process group of its own."""
        kwargs.setdefault("stdin", subprocess.DEVNULL)
        return subprocess.Popen(self.command(argv, wire), env=self.environment(env),
                                start_new_session=True, **kwargs)

    def end(self):
        """Ends this host's broker, if one still runs, and removes the runtime directory."""
        stop_broker(self.runtime_dir)
        shutil.rmtree(self.runtime_dir, ignore_errors=True)


def stop_broker(runtime_dir):
    """Ends the broker of a runtime directory that a test made."""
    try:
        with open(os.path.join(runtime_dir, "broker.pid"), encoding="ascii") as f:
            pid = int(f.read())
        with open(f"/proc/{pid}/comm", encoding="ascii") as f:
            if f.read().strip() == "causewayd":
                os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        pass


class World:
    """One or two hosts; `with World(...) as w` ends them whatever happens."""

    def __init__(self, name, hosts):
        self.name = name
        self.server, self.client = hosts

    def __enter__(self):
        atexit.register(self.end)
        return self

    def __exit__(self, *_):
        self.end()
        atexit.unregister(self.end)

    def end(self):
        """Ends both hosts."""
        self.server.end()
        if self.client is not self.server:
            self.client.end()


def one_host():
    """Both roles on this machine, in one runtime directory."""
    host = Host("local", "127.0.0.1")
    return World("one host", (host, host))


class TwoHosts(World):
    """Two network namespaces joined by veth, each with a broker of its own."""

    serial = 0

    def __init__(self, mtu, prefix="10.83", share_broker=False, tag="cwt"):
        need_root("making network namespaces")
        TwoHosts.serial += 1
        tag = f"{tag}{os.getpid()}x{TwoHosts.serial}"
        self.names = [f"{tag}a", f"{tag}b"]
        third = TwoHosts.serial % 250
        addresses = [f"{prefix}.{third}.1", f"{prefix}.{third}.2"]
        shared = tempfile.mkdtemp(prefix="cwt-shared-") if share_broker else None
        hosts = [Host(n, a, n, shared or tempfile.mkdtemp(prefix=f"{n}-"))
                 for n, a in zip(self.names, addresses)]
        super().__init__(f"two hosts, MTU {mtu}", hosts)
        self.mtu = mtu
        try:
            self.build(addresses, third)
        except (subprocess.CalledProcessError, OSError) as error:
            self.end()
            raise SetupError(f"cannot make network namespaces: {describe(error)}") from error

    def build(self, addresses, third):
        """Makes the namespaces and the link between them."""
        a, b = self.names
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", LINK, "mtu", str(self.mtu), "netns", a, "type", "veth",
           "peer", "name", LINK, "mtu", str(self.mtu), "netns", b)
        for i, name in enumerate(self.names):
            # No search for duplicates: the IPv6 addresses are usable at once.
            ip("netns", "exec", name, "sh", "-c",
               f"echo 0 > /proc/sys/net/ipv6/conf/{LINK}/accept_dad")
            ip("-n", name, "addr", "add", f"{addresses[i]}/24", "dev", LINK)
            ip("-n", name, "addr", "add", f"fd83:0:0:{third}::{i + 1}/64", "dev", LINK)
            ip("-n", name, "link", "set", LINK, "up")

    def end(self):
        super().end()
        for name in self.names:
            for pid in pids_in(name):
                kill(pid)
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def ip(*args):
    """Runs ip(8), raising CalledProcessError with its words."""
    subprocess.run(["ip", *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                   text=True)


def pids_in(netns):
    """The processes that live in a namespace this module made."""
    found = subprocess.run(["ip", "netns", "pids", netns], stdout=subprocess.PIPE,
                           stderr=subprocess.DEVNULL, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


def kill(pid):
    """SIGKILL, if the process still exists."""
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass


def describe(error):
    """An exception in one line, with what the failed command said."""
    said = getattr(error, "stdout", None)
    return f"{error} {said.strip()}" if said else str(error)
