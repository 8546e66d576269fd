"""Who is on the stage: a broker with two tenants, victims, attackers and friends under user ids of
their own, each of which does one command after the other and answers with a line."""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import tempfile
import time

from lib import netns

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# User ids that no distribution gives away.
VICTIM_UID, ATTACKER_UID, FRIEND_UID = 64101, 64102, 64103
REPLY_SECONDS = 30.0
START_SECONDS = 10.0
POLL_SECONDS = 0.002
# What `enum ibv_access_flags` calls them.
LOCAL_WRITE, REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC = 1, 2, 4, 8
READ_WRITE = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ | REMOTE_ATOMIC
READ_ONLY = LOCAL_WRITE | REMOTE_READ
CONFIG = """
[[tenant]]
name = "stage"
socket = "{dir}/stage/broker.sock"
users = [0, {victim}, {attacker}, {friend}]
userfaultfd = [{victim}, {attacker}, {friend}]

[[tenant]]
name = "other"
socket = "{dir}/other/broker.sock"
users = [{attacker}]
"""


class Failed(Exception):
    """A test failed."""


def wait_until(what, seen, seconds=START_SECONDS):
    """Waits until `seen()` is true, and returns it; fails after a while."""
    deadline = time.monotonic() + seconds
    while True:
        value = seen()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failed(f"{what}: not within {seconds} s")
        time.sleep(POLL_SECONDS)


class Actor:
    """A program that takes commands."""

    def __init__(self, name, reader, writer, process=None, log=None):
        self.name = name
        self.reader, self.writer = reader, writer
        self.process = process
        self.log = log
        self.pid = process.pid if process else None
        self.buffer = b""

    def tell(self, *words):
        """Gives a command without waiting for the answer."""
        line = " ".join(str(word) for word in words) + "\n"
        try:
            os.write(self.writer, line.encode())
        except OSError as error:
            raise Failed(f"{self.name}: {words}: {error}; {self.said()}") from error

    def answer(self, seconds=REPLY_SECONDS):
        """The words of an answer, after "ok"; fails if it tells of a defect."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.reader], [], [], left)[0]:
                raise Failed(f"{self.name} does not answer; {self.said()}")
            data = os.read(self.reader, 65536)
            if not data:
                raise Failed(f"{self.name} has ended: {self.said()}")
            self.buffer += data
        line, self.buffer = self.buffer.split(b"\n", 1)
        words = line.decode().split()
        if words[0] != "ok":
            raise Failed(f"{self.name}: {line.decode()}")
        return words[1:]

    def do(self, *words):
        """Has a command done; the words of the answer."""
        self.tell(*words)
        return self.answer()

    def said(self):
        """What it wrote on standard error."""
        if not self.log:
            return ""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()[-500:]

    def signal(self, number):
        """Sends a signal."""
        os.kill(self.pid, number)

    def leave(self):
        """Lets it end by itself."""
        os.close(self.writer)
        self.writer = None
        if self.process.wait(REPLY_SECONDS) != 0:
            raise Failed(f"{self.name} ends with {self.process.returncode}: {self.said()}")

    def end(self):
        """Ends it, whatever state it is in."""
        for number in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(self.pid, number)
            except OSError:
                pass
        for end in (self.reader, self.writer):
            if end is not None:
                os.close(end)
        self.reader = self.writer = None
        if self.process:
            self.process.wait()


class Stage:
    """A broker of root's, and all that come to it."""

    def __init__(self):
        netns.need_root("running programs under several user ids")
        self.dir = tempfile.mkdtemp(prefix="cwt-hostile-")
        os.chmod(self.dir, 0o755)
        # Where every user can read them.
        for part in ("bin", "lib"):
            shutil.copytree(os.path.join(netns.BUILD, part), os.path.join(self.dir, part))
        for program in ("victim", "attacker"):
            shutil.copy(os.path.join(netns.BUILD, "test", program), self.dir)
        self.open_dir = os.path.join(self.dir, "open")
        os.mkdir(self.open_dir)
        os.chmod(self.open_dir, 0o777)
        rng = random.Random()
        # Known by their complements only, lest the attackers find their own arguments.
        self.tags = [str(rng.randrange(1 << 32)) for _ in range(2)]
        self.actors = []
        self.serial = 0
        self.broker = None
        self.start_broker()

    def start_broker(self):
        """Starts the broker, which must not be running."""
        config = os.path.join(self.dir, "causewayd.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(dir=self.dir, victim=VICTIM_UID, attacker=ATTACKER_UID,
                                     friend=FRIEND_UID))
        runtime = os.path.join(self.dir, "run")
        sockets = [os.path.join(self.dir, tenant, "broker.sock") for tenant in ("stage", "other")]
        for left in filter(os.path.exists, sockets):
            os.remove(left)
        argv = [os.path.join(self.dir, "bin", "causewayd"), "--foreground", "--config", config,
                "--runtime-dir", runtime, "--idle", "0", "--log", "info"]
        log = open(os.path.join(self.dir, "broker.log"), "ab")
        with log:
            self.broker = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_until("the broker", lambda: all(map(os.path.exists, sockets)))

    def broker_said(self):
        """The end of the broker's log."""
        with open(os.path.join(self.dir, "broker.log"), encoding="utf-8") as file:
            return file.read()[-1000:]

    def kill_broker(self):
        """Kills the broker."""
        self.broker.kill()
        self.broker.wait()

    def enter(self, program, uid, tenant="stage"):
        """Starts a victim, an attacker or a friend."""
        self.serial += 1
        log = os.path.join(self.dir, f"{program}-{self.serial}.log")
        # What is attacked is there from the beginning.
        env = dict(os.environ, CAUSEWAY_SOCKET=os.path.join(self.dir, tenant, "broker.sock"),
                   CAUSEWAY_MOVE="eager")
        env.pop("CAUSEWAY_RUNTIME_DIR", None)
        argv = [os.path.join(self.dir, "bin", "causeway"), "run", "--",
                os.path.join(self.dir, program), *self.tags]
        with open(log, "wb") as errors:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, env=env, cwd=self.open_dir, user=uid,
                                       group=uid, extra_groups=[])
        name = f"{program} {self.serial}"
        actor = Actor(name, os.dup(process.stdout.fileno()), os.dup(process.stdin.fileno()),
                      process, log)
        process.stdin.close()
        process.stdout.close()
        self.actors.append(actor)
        return actor

    def accomplice(self, attacker):
        """A child of an attacker that holds all it does, and outlives it."""
        self.serial += 1
        paths = [os.path.join(self.dir, f"{way}-{self.serial}") for way in ("in", "out")]
        for path in paths:
            os.mkfifo(path)
            os.chmod(path, 0o666)
        pid = int(attacker.do("accomplice", *paths)[0])
        # Opened for both ways, so as not to wait, and never to see an end that is none.
        writer, reader = (os.open(path, os.O_RDWR) for path in paths)
        actor = Actor(f"accomplice of {attacker.name}", reader, writer, log=attacker.log)
        actor.pid = pid
        self.actors.append(actor)
        return actor

    def status(self, actor):
        """What the broker says of an endpoint."""
        env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=os.path.join(self.dir, "run"))
        env.pop("CAUSEWAY_SOCKET", None)
        argv = [os.path.join(self.dir, "bin", "causeway"), "status", "--json"]
        said = subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE).stdout
        for endpoint in json.loads(said)["endpoints"]:
            if endpoint["pid"] == actor.pid:
                return endpoint
        return None

    def direct(self, actor):
        """How many operations an actor has carried out itself."""
        endpoint = self.status(actor)
        return endpoint["counters"]["direct"] if endpoint else 0

    def clear(self):
        """Ends what a test left."""
        for actor in self.actors:
            actor.end()
        self.actors.clear()

    def end(self):
        """Ends everything."""
        self.clear()
        self.broker.terminate()
        self.broker.wait()
        shutil.rmtree(self.dir)
