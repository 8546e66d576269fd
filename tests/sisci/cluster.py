"""Hosts of a cluster: network namespaces on one bridge, with brokers and node daemons."""

import os
import select
import signal
import subprocess
import tempfile
import time

from lib import netns
from lib.netns import BUILD, Host, SetupError

SECONDS = 120
PORT = 20480
TAG = "wn"


class Cluster:
    """So many hosts on one bridge; `with Cluster(...) as c` ends them whatever happens."""

    serial = 0

    def __init__(self, count, prefix="10.0.0"):
        netns.need_root("making network namespaces")
        Cluster.serial += 1
        self.tag = f"{TAG}{os.getpid()}x{Cluster.serial}"
        self.hub = f"{self.tag}h"
        self.hosts = []
        self.sides = []
        try:
            self.build(count, prefix)
        except (subprocess.CalledProcessError, OSError) as error:
            self.end()
            raise SetupError(f"no network namespaces: {netns.describe(error)}") from error

    def build(self, count, prefix):
        """Makes the bridge and the hosts."""
        netns.ip("netns", "add", self.hub)
        netns.ip("-n", self.hub, "link", "add", "br0", "type", "bridge")
        netns.ip("-n", self.hub, "link", "set", "br0", "up")
        for number in range(1, count + 1):
            name = f"{self.tag}n{number}"
            netns.ip("netns", "add", name)
            self.hosts.append(Host(name, f"{prefix}.{number}", name))
            netns.ip("link", "add", "cw0", "netns", name, "type", "veth", "peer", "name",
                     f"p{number}", "netns", self.hub)
            netns.ip("-n", self.hub, "link", "set", f"p{number}", "master", "br0", "up")
            netns.ip("-n", name, "link", "set", "lo", "up")
            netns.ip("-n", name, "addr", "add", f"{prefix}.{number}/24", "dev", "cw0")
            netns.ip("-n", name, "link", "set", "cw0", "up")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def side(self, number, config, daemon=True, options=(), **settings):
        """A host's broker with a configuration, and its daemon, which is given `options`."""
        side = Side(self.hosts[number], config, settings, options)
        self.sides.append(side)
        if daemon:
            side.start_node()
        return side

    def stop(self):
        """Ends brokers and daemons."""
        for side in self.sides:
            side.end()
        self.sides = []

    def end(self):
        """Ends all."""
        for side in self.sides:
            side.kill()
        for host in self.hosts:
            # A daemon that sees its broker's end may start another before its turn comes.
            while pids := netns.pids_in(host.netns):
                end_all(pids, host.name)
            host.end()
        for name in [host.netns for host in self.hosts] + [self.hub]:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


class Side:
    """One host's broker and node daemon."""

    def __init__(self, host, config, settings, options=()):
        self.host, self.node, self.node_log, self.options = host, None, None, options
        self.config = config
        self.settings = {"LD_LIBRARY_PATH": os.path.join(BUILD, "lib"), **settings}
        self.start_broker()

    def start_broker(self):
        """Starts the broker."""
        self.broker_log = tempfile.NamedTemporaryFile("w+", prefix=f"{self.host.name}-broker-")
        self.broker = self.host.popen([os.path.join(BUILD, "bin", "causewayd"), "--foreground",
                                       "--idle", "0", "--config", self.config], env=self.settings,
                                      stdout=subprocess.DEVNULL, stderr=self.broker_log)
        self.await_line(" ready", self.broker, self.broker_log)

    def start_node(self):
        """Starts the daemon."""
        self.node_log = tempfile.NamedTemporaryFile("w+", prefix=f"{self.host.name}-node-")
        self.node = self.host.popen([os.path.join(BUILD, "bin", "causeway-noded"),
                                     *self.options], env=self.settings,
                                    stdout=subprocess.DEVNULL, stderr=self.node_log)
        self.await_line("ready")

    def log(self):
        """What the daemon has said; without one of its own, what the broker and its child have."""
        return read(self.node_log or self.broker_log)

    def await_line(self, text, process=None, log=None):
        """Waits until the daemon, or another process, says something."""
        process, log = process or self.node or self.broker, log or self.node_log or self.broker_log
        until = time.monotonic() + SECONDS
        while text not in read(log):
            if process.poll() is not None or time.monotonic() > until:
                raise SetupError(f"{process.args} does not say {text!r}: {read(log)}")
            time.sleep(0.01)

    def says(self, text, seconds=20):
        """Whether the daemon says something soon."""
        until = time.monotonic() + seconds
        while text not in self.log():
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return True

    def run(self, argv, **settings):
        """Runs a command on the host to its end: exit status and output."""
        process = self.host.popen(argv, env={**self.settings, **settings}, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return 124, output
        return process.returncode, output

    def probe(self, node, **settings):
        """Asks for a node by a program of SISCI."""
        return self.run([os.path.join(BUILD, "test", "sisci", "far"), str(node)], **settings)

    def causeway(self, *args):
        """Runs the command line."""
        return self.run([os.path.join(BUILD, "bin", "causeway"), *args])

    def kill(self):
        """Kills both. The daemon first: one without a broker starts another."""
        for process in filter(None, (self.node, self.broker)):
            process.kill()
            process.wait()

    def end(self):
        """Ends both, and waits for a daemon that the broker has started."""
        # Which that starts no other now.
        self.broker.send_signal(signal.SIGSTOP)
        pids = netns.pids_in(self.host.netns)
        daemons = [pid for pid in pids if name_of(pid) == "causeway-noded"]
        waited = [fd for fd in map(pidfd_of, daemons) if fd is not None]
        self.kill()
        await_ends(waited, f"a node daemon on {self.host.name}")


def pidfd_of(pid):
    """A descriptor of a process, unless it is gone."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def await_ends(pidfds, what):
    """Waits for the ends of processes, when their sockets are closed: a process leaves its network
    namespace before. Closes the descriptors."""
    until = time.monotonic() + SECONDS
    try:
        for fd in pidfds:
            left = max(0, until - time.monotonic())
            if not select.select([fd], [], [], left)[0]:
                raise SetupError(f"{what} does not end")
    finally:
        for fd in pidfds:
            os.close(fd)


def end_all(pids, where):
    """Kills processes and waits for their ends."""
    fds = {pid: fd for pid in pids if (fd := pidfd_of(pid)) is not None}
    for pid in fds:
        netns.kill(pid)
    await_ends(list(fds.values()), f"a process on {where}")


def name_of(pid):
    """The name of a process, if it is still there."""
    try:
        with open(f"/proc/{pid}/comm", encoding="ascii", errors="replace") as f:
            return f.read().strip()
    except OSError:
        return None


def read(log):
    """The text of a log so far."""
    with open(log.name, encoding="utf-8", errors="replace") as f:
        return f.read()
