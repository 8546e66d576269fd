"""Programs of a Debian machine that talk to each other, and what tests of the packages share."""

import json
import os
import subprocess

from deb import packages
from deb.machine import COMMAND_SECONDS, MachineError, finish

# Two members of the group, and somebody else.
MEMBERS, OTHER = ["alice", "bob"], "carol"
PORT = 18515
# A program that is connected for this long.
LONG_SECONDS = 30
# What is installed and upgraded: all but the guests' driver.
INSTALLED = ["causeway", "causeway-kube", "causeway-sisci", "libcauseway0", "libcauseway-dev"]
HERE = "127.0.0.1"
results = []


def check(name, test, *args):
    """Runs one test and prints its line; what it returned, or None if it failed."""
    detail = outcome = None
    try:
        outcome = test(*args)
        good = True
    except (MachineError, packages.PackageError, AssertionError, OSError,
            subprocess.TimeoutExpired) as error:
        good, detail = False, error
    results.append(good)
    print(f"{'ok  ' if good else 'FAIL'} {name}{f': {detail}' if detail else ''}", flush=True)
    return outcome


def expect(condition, what):
    """Fails with what is wrong unless the condition holds."""
    if not condition:
        raise MachineError(what)


def install(machine, folder, *names):
    """Installs packages of a folder by apt."""
    paths = [os.path.join("/packages", folder, name)
             for name in os.listdir(os.path.join(machine.packages, folder))
             if name.endswith(".deb") and name.split("_")[0] in names]
    return machine.run(["apt-get", "install", "-y", "-q", *sorted(paths)])


def add_users(machine):
    """Users, some of them members of the group."""
    for user in [*MEMBERS, OTHER]:
        more = ["-G", "causeway"] if user in MEMBERS else []
        machine.run(["useradd", "-M", "-d", "/", *more, user])


class Pair:
    """Two programs that connect to each other, each as a user and in a network namespace. The
    client is started at once, or `later`, by `connect`."""

    def __init__(self, machine, argv, users, places=(None, None), address=HERE, later=False):
        self.machine, self.what = machine, argv[0]
        line = ["causeway", "run", "--", *argv]
        port = argv[argv.index("-p") + 1] if "-p" in argv else PORT
        self.server, self.client = machine.start(line, users[0], places[0]), None
        machine.until(f"{self.what} listens", lambda: self.server.poll() is not None
                      or f":{port} " in machine.run(["ss", "-ltn"], netns=places[0]))
        self.second = [*line, address], users[1], places[1]
        if not later:
            self.connect()

    def connect(self):
        """Starts the client."""
        self.client = self.machine.start(*self.second)

    def alive(self):
        """Whether both still run."""
        return self.server.poll() is None and self.client.poll() is None

    def finish(self):
        """Waits until both have ended well; the client first, for which the server waits."""
        try:
            client = finish(self.client, f"{self.what}, client")
            return [client, finish(self.server, f"{self.what}, server")]
        finally:
            self.server.kill()

    def outcome(self):
        """Status and words of both, however they end; the server is not waited for without the
        client."""
        try:
            said = self.client.communicate(timeout=COMMAND_SECONDS)[0]
            if self.client.returncode:
                self.server.terminate()
            said += self.server.communicate(timeout=COMMAND_SECONDS)[0]
            return self.client.returncode or self.server.returncode, said
        finally:
            self.client.kill()
            self.server.kill()


def pingpong(machine, users, places=(None, None), address=HERE):
    """The distribution's program."""
    said = Pair(machine, ["ibv_rc_pingpong", "-g", "0"], users, places, address).finish()
    expect(all("1000 iters in" in text for text in said), said)


def endpoints(machine, user):
    """The endpoints that a user's broker has."""
    return json.loads(machine.run(["causeway", "status", "--json"], user))["endpoints"]


def connected(machine, pair):
    """Waits until two programs, one of them alice's, are connected."""
    machine.until("it is connected", lambda: not pair.alive() or any(
        e["qps"] for e in endpoints(machine, "alice")))


def broker(machine):
    """The process id of the broker's service."""
    return machine.run(["systemctl", "show", "-P", "MainPID", "causewayd.service"]).strip()


def close():
    """Prints the closing line; the exit status."""
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1
