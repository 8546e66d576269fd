"""A broker, and programs that use libsisci and are killed, stopped or attacked."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile

from hostile.cast import Failed, wait_until
from lib import netns

MORTAL = os.path.join(netns.BUILD, "test", "sisci", "mortal")
SECONDS = 20.0
# What stands for a descriptor that joins the broker to a caller, and to one that has closed its
# end.
CALLER, GONE = "caller", "gone"
__all__ = ["Failed", "wait_until"]


def connected():
    """The Unix sockets that have, or had, a peer, as /proc/PID/fd names them: what each is."""
    rows = subprocess.run(["ss", "-xHan", "state", "connected"], check=True, text=True,
                          stdout=subprocess.PIPE).stdout.splitlines()
    found = {}
    for row in rows:
        *_, inode, _, peer = row.split()
        found[f"socket:[{inode}]"] = GONE if peer == "0" else CALLER
    return found


class Program:
    """A program that ends when its standard input does; what it says goes to a file."""

    def __init__(self, folder, serial, argv, env, uid=None):
        self.title = f"{' '.join(argv[1:])} ({serial})"
        self.path = os.path.join(folder, f"program-{serial}")
        who = {"user": uid, "group": uid, "extra_groups": []} if uid is not None else {}
        with open(self.path, "wb") as out:
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=out,
                                            stderr=out, cwd="/", **who)

    @property
    def text(self):
        """All that it has said."""
        with open(self.path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def count(self, word):
        """How many lines begin with a word."""
        return len(re.findall(rf"^{word}\b", self.text, re.MULTILINE))

    def wait_for(self, what, seen, seconds=SECONDS):
        """Waits until `seen(self)`; it must live meanwhile."""
        def look():
            if seen(self):
                return True
            if self.process.poll() is not None and not seen(self):
                raise Failed(f"{self.title} has ended before {what}")
            return False
        wait_until(f"{self.title}: {what}", look, seconds)

    def expect_more(self, word, more=1):
        """Waits until it has said a word more often than now."""
        before = self.count(word)
        self.wait_for(f"more of {word}", lambda p: p.count(word) >= before + more)

    def stop(self):
        """Has it end in good order."""
        self.process.stdin.close()

    def ended_well(self):
        """It must end by itself, with nothing to complain of."""
        try:
            status = self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.title} does not end") from None
        if status or "ended" not in self.text or "trouble" in self.text:
            raise Failed(f"{self.title} ends with {status}")

    def is_stopped(self):
        """Whether it stands still."""
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"

    def end(self):
        """Ends it, whatever state it is in."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        if not self.process.stdin.closed:
            self.process.stdin.close()


class Stage:
    """A broker, with a tenant for `users` if there are any, and the programs that use it."""

    def __init__(self, users=(), library=None, trusted=()):
        netns.need_root("a broker for several users")
        self.dir = tempfile.mkdtemp(prefix="cwt-sisci-")
        os.chmod(self.dir, 0o755)
        self.users = users
        # Users who are lent the broker's userfaultfd.
        self.trusted = trusted
        source = library or os.path.join(netns.BUILD, "lib")
        for folder, name in ((os.path.join(netns.BUILD, "bin"), "bin"), (source, "lib"),
                             (os.path.join(netns.BUILD, "test", "sisci"), "test")):
            shutil.copytree(folder, os.path.join(self.dir, name), symlinks=True)
        self.run_dir = os.path.join(self.dir, "run")
        self.socket = os.path.join(self.run_dir, "broker.sock")
        self.programs = []
        self.serial = 0
        self.broker = None
        self.empty = None
        self.start_broker()

    def start_broker(self):
        """Starts the broker, and waits until it answers."""
        argv = [os.path.join(self.dir, "bin", "causewayd"), "--foreground", "--idle", "0",
                "--runtime-dir", self.run_dir]
        if self.users:
            self.socket = os.path.join(self.dir, "stage", "broker.sock")
            config = os.path.join(self.dir, "causewayd.toml")
            with open(config, "w", encoding="ascii") as file:
                file.write(f"[[tenant]]\nname = 'stage'\nsocket = '{self.socket}'\n"
                           f"users = {[0, *self.users]}\n"
                           f"userfaultfd = {[*self.trusted]}\n")
            argv += ["--config", config]
        with open(os.path.join(self.dir, "broker.log"), "ab") as log:
            self.broker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log)
        wait_until("a broker", lambda: self.answers(self.socket))

    def kill_broker(self):
        """Kills it."""
        self.broker.kill()
        self.broker.wait()

    @staticmethod
    def answers(path):
        """Whether somebody listens at a socket."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as caller:
            return caller.connect_ex(path) == 0

    def start(self, *words, fault="", uid=None, program="mortal"):
        """Starts a program; returns when it has begun, unless it has a fault."""
        self.serial += 1
        env = dict(os.environ, CAUSEWAY_SOCKET=self.socket, CAUSEWAY_FAULT=fault,
                   LD_LIBRARY_PATH=os.path.join(self.dir, "lib"))
        env.pop("CAUSEWAY_RUNTIME_DIR", None)
        if not fault:
            del env["CAUSEWAY_FAULT"]
        argv = [os.path.join(self.dir, "test", program), *map(str, words)]
        started = Program(self.dir, self.serial, argv, env, uid)
        self.programs.append(started)
        if fault in ("", "list"):
            started.wait_for("its beginning", lambda p: p.count("ready"))
        return started

    def run(self, program, test, uid):
        """Runs one test of a conformance program as a user to its end: what it says."""
        env = dict(os.environ, CAUSEWAY_SOCKET=self.socket, TEST=test,
                   LD_LIBRARY_PATH=os.path.join(self.dir, "lib"))
        env.pop("CAUSEWAY_RUNTIME_DIR", None)
        argv = [os.path.join(self.dir, "test", program)]
        done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, cwd="/", text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=4 * SECONDS, user=uid, group=uid, extra_groups=[])
        return done.stdout

    def clear(self, *but):
        """Ends all programs but these."""
        for program in self.programs:
            if program not in but:
                program.end()
        self.programs = list(but)

    def said(self):
        """The end of what everyone has said."""
        return "".join(f"\n{p.title}: {p.text[-400:]}" for p in self.programs)

    def status(self):
        """What `causeway status` says."""
        env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=self.run_dir)
        env.pop("CAUSEWAY_SOCKET", None)
        argv = [os.path.join(self.dir, "bin", "causeway"), "status", "--json"]
        return json.loads(subprocess.run(argv, env=env, check=True,
                                         stdout=subprocess.PIPE).stdout)

    def tables(self):
        """What the broker knows of SISCI, and its descriptors; each that joins it to a caller
        stands as `CALLER` or `GONE`."""
        callers = connected()
        names = []
        folder = f"/proc/{self.broker.pid}/fd"
        for name in os.listdir(folder):
            try:
                target = os.readlink(os.path.join(folder, name))
            except OSError:
                continue
            names.append(callers.get(target) or re.sub(r"\[\d+\]", "", target))
        return self.status()["sisci"], sorted(names)

    def settled(self):
        """The tables once the broker has noticed all who have closed their end: `causeway status`
        is one of them, each time that it is asked."""
        found = []

        def look():
            found[:] = [self.tables()]
            return GONE not in found[0][1]
        wait_until("a broker that knows who has gone", look)
        return found[0]

    def balance(self):
        """The tables must be what they were when `empty` was set."""
        def balanced():
            return self.tables() == self.empty
        try:
            wait_until("balance", balanced)
        except Failed:
            raise Failed(f"the broker's tables were {self.empty}, and are {self.tables()}"
                         ) from None

    def end(self):
        """Ends everything."""
        self.clear()
        self.broker.terminate()
        self.broker.wait()
        shutil.rmtree(self.dir)
