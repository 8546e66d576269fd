"""One host with a broker of its own, the libraries that stop on demand, and its tables."""

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from kill.harness import Failed, Program
from lib import inject, netns, pair
from lib.patience import patient

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORKER = os.path.join(netns.BUILD, "test", "fault-worker")
# Users that have no other meaning, for the world of strangers.
USERS = (4001, 4002)
START_SECONDS = 20.0
# From the last endpoint's end to the last page given back.
SETTLE_SECONDS = patient(5.0)
POLL_SECONDS = 0.005
# Looks at the tables, the least of which has no caller in it that has just left.
READINGS = 10
LINE_OF_POINT = "fault point "


def build():
    """Compiles the libraries with the points, and the worker."""
    inject.build()
    here = os.path.join(ROOT, "tests", "fault")
    os.makedirs(os.path.dirname(WORKER), exist_ok=True)
    sources = [os.path.join(here, name) for name in ("worker.c", "moves.c")]
    subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra",
                    "-Werror", "-o", WORKER, *sources,
                    os.path.join(ROOT, "tests", "verify", "common.c"), "-libverbs"], check=True)


class Host(netns.Host):
    """This machine, with copies of the programs where every user can read them."""

    def __init__(self, name, folder):
        super().__init__(name, "127.0.0.1", runtime_dir=os.path.join(folder, "run"))
        self.causeway = os.path.join(folder, "bin", "causeway")
        self.user = None

    def command(self, argv, wire=None):
        if wire:
            argv = [self.causeway, "run", "--wire", wire, "--"] + argv
        if self.user:
            argv = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}",
                    "--clear-groups"] + argv
        return argv


class World:
    """A broker for `friends`, two processes of one user, or for two users who do not trust each
    other. With `idles` queue pairs beside the busy one. A broker on demand ends by itself; else it
    runs until the end of the world."""

    # Other stages, which may run beside this one, use others.
    port = 16800

    def __init__(self, name, friends=True, idles=0, on_demand=False):
        self.name = name
        self.options = ["-q", str(idles)]
        self.friends = friends
        self.folder = tempfile.mkdtemp(prefix="cwt-fault-")
        os.chmod(self.folder, 0o755)
        shutil.copytree(os.path.join(netns.BUILD, "bin"), os.path.join(self.folder, "bin"))
        inject.copy(os.path.join(self.folder, "lib"))
        shim = os.path.join(netns.BUILD, "lib", "libcauseway-paths.so")
        shutil.copy(shim, os.path.join(self.folder, "lib"))
        self.worker = shutil.copy(WORKER, self.folder)
        self.hosts = [Host(self.name, self.folder) for _ in range(2)]
        self.programs = []
        self.broker = None
        self.empty = None
        # Regions move when they are registered, so that the points of a move are passed each time.
        self.settings = {"CAUSEWAY_MOVE": "eager"}
        if not friends:
            self.settings["CAUSEWAY_SOCKET"] = os.path.join(self.folder, "tenant", "web.sock")
            for host, user in zip(self.hosts, USERS):
                host.user = user
        if not on_demand:
            self.start_broker()

    def start_broker(self):
        """Starts the broker, and waits until it answers."""
        argv = [os.path.join(self.folder, "bin", "causewayd"), "--foreground", "--idle", "0",
                "--runtime-dir", self.hosts[0].runtime_dir]
        if not self.friends:
            config = os.path.join(self.folder, "causewayd.toml")
            with open(config, "w", encoding="ascii") as f:
                f.write(f"[[tenant]]\nname = 'web'\nusers = {list(USERS)}\nuserfaultfd = "
                        f"{list(USERS)}\nsocket = '{self.settings['CAUSEWAY_SOCKET']}'\n")
            argv += ["--config", config]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            self.broker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
        socket = self.settings.get("CAUSEWAY_SOCKET",
                                 os.path.join(self.hosts[0].runtime_dir, "broker.sock"))
        deadline = time.monotonic() + START_SECONDS
        while not (self.answers(socket) and self.status()["broker"]):
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise Failed("the broker does not start")
            time.sleep(POLL_SECONDS)
        self.empty = self.empty or min(self.tables() for _ in range(READINGS))

    @staticmethod
    def answers(path):
        """Whether somebody listens at a socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            return caller.connect_ex(path) == 0

    def said(self):
        """The end of what the programs of a test have said."""
        return "".join(f"\n{program.name()}: {program.text[-600:]}" for program in self.programs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clear()
        if self.broker:
            self.broker.send_signal(signal.SIGTERM)
            self.broker.wait()
        for host in self.hosts:
            host.end()
        shutil.rmtree(self.folder)

    def clear(self):
        """Ends what a test left."""
        for program in self.programs:
            program.end()
        self.programs.clear()

    def start(self, faults=("", ""), options=()):
        """Starts a server and its client, each with its fault."""
        World.port += 1
        argv = [self.worker, "-p", str(World.port), *self.options, *options]
        for side, fault in enumerate(faults):
            where = [self.hosts[0].address] if side else []
            program = self.run(side, argv + where, fault)
            if side == 0:
                self.wait_listening(program)
        return self.programs[-2:]

    def run(self, side, argv, fault=""):
        """Starts a program with a fault."""
        env = dict(self.settings, CAUSEWAY_FAULT=fault) if fault else self.settings
        program = Program(self.hosts[side], "shm", argv, env)
        self.programs.append(program)
        return program

    @staticmethod
    def wait_listening(program):
        """Waits until a server listens."""
        if not pair.wait_listening(program.process, time.monotonic() + START_SECONDS):
            raise Failed(f"the server does not listen: {program.text[-500:]}")

    def status(self):
        """The broker's view of itself."""
        host = self.hosts[0]
        done = subprocess.run([host.causeway, "status", "--json"], env=host.environment(),
                              stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def endpoint(self, pid):
        """What the broker knows of a process."""
        found = [e for e in self.status()["endpoints"] if e["pid"] == pid]
        if len(found) != 1:
            raise Failed(f"the broker knows {len(found)} endpoints of process {pid}")
        return found[0]

    def tables(self):
        """The broker's endpoints, descriptors, and the pages that it holds. A caller whose end
        it has not noticed yet may be among them."""
        folder = f"/proc/{self.broker.pid}/fd"
        blocks = 0
        names = os.listdir(folder)
        for name in names:
            path = os.path.join(folder, name)
            try:
                if "memfd:" in os.readlink(path):
                    blocks += os.stat(path).st_blocks
            except OSError:
                continue
        return len(self.status()["endpoints"]), len(names), blocks

    def balance(self):
        """After all have ended the tables must be as they were before the first."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (now := self.tables()) != self.empty:
            if time.monotonic() > deadline:
                raise Failed(f"endpoints, descriptors and blocks of the broker were {self.empty}, "
                             f"and are {now}")
            time.sleep(POLL_SECONDS)
