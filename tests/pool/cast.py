"""A broker with two tenants, and actors under several user ids that use its pools."""

import json
import os
import select
import shutil
import subprocess
import tempfile

from hostile.cast import Actor, Failed, wait_until
from lib import netns

# User ids that no distribution gives away.
OWNER, FRIEND, STRANGER = 64111, 64112, 64113
NONE, READ, WRITE, EXCLUSIVE = range(4)
SESSION, USER, EVERYBODY = range(3)
PRIVATE, EXISTING, HUGE, PERSISTENT, MOVE = 1, 2, 4, 8, 16
BLOCK = 8192
CONFIG = """
[limits]
blocks = 64
tenant_blocks = 100
block_bytes = "64 MiB"

[[tenant]]
name = "stage"
socket = "{dir}/stage/broker.sock"
users = [0, {owner}, {friend}, {stranger}]

[[tenant]]
name = "other"
socket = "{dir}/other/broker.sock"
users = [{stranger}]
"""
__all__ = ["Failed", "wait_until"]


class Refused(Exception):
    """What an actor asked for was refused, with this error number."""

    def __init__(self, errno):
        super().__init__(f"{os.strerror(errno)} ({errno})")
        self.errno = errno


class Player(Actor):
    """An actor of this stage: its answers as numbers."""

    def number(self, *words):
        """The first number of the answer; raises what was refused."""
        said = self.do(*words)
        if said[0] == "fault":
            return "fault"
        value = int(said[0])
        if value < 0:
            raise Refused(-value)
        return value

    def errno(self, *words):
        """Why this is refused; 0 if it is not."""
        try:
            self.number(*words)
        except Refused as refusal:
            return refusal.errno
        return 0

    def block(self, *words):
        """A slot and a handle."""
        self.tell(*words)
        said = self.answer()
        if int(said[0]) < 0:
            raise Refused(-int(said[0]))
        return int(said[0]), int(said[1])

    def number_of_session(self, stage):
        """The name of its session, as the broker shows it: for one that can't answer."""
        members = [m for pool in stage.pools() for m in pool["members"]]
        found = [int(m["session"], 16) for m in members if m["pid"] == self.pid]
        return found[0] if found else None

    def still_busy(self):
        """Fails if it has answered what it was told last."""
        if self.buffer or select.select([self.reader], [], [], 0)[0]:
            raise Failed(f"{self.name} has answered {self.answer()}")

    def said_all(self):
        """All that it wrote on standard error."""
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def make(self, name=None, flags=0):
        """A block, mapped for writing: slot and handle."""
        slot, handle = self.block("alloc", 0, 0)
        self.number("map", slot, WRITE)
        if name:
            self.number("name", slot, name, flags)
        return slot, handle

    def find(self, name, access=WRITE, wait=0):
        """Somebody's block, mapped."""
        slot, _ = self.block("find", name, access, wait)
        self.number("map", slot, access)
        return slot


class Stage:
    """A broker of root's, and all that come to it."""

    def __init__(self):
        netns.need_root("running programs under several user ids")
        self.dir = tempfile.mkdtemp(prefix="cwt-pool-")
        os.chmod(self.dir, 0o755)
        # Where every user can read them.
        for part in ("bin", "lib"):
            shutil.copytree(os.path.join(netns.BUILD, part), os.path.join(self.dir, part),
                            symlinks=True)
        os.mkdir(os.path.join(self.dir, "test"))
        shutil.copy(os.path.join(netns.BUILD, "test", "pool"), os.path.join(self.dir, "test"))
        self.players = []
        self.serial = 0
        self.broker = None
        self.library = None
        self.start_broker()

    def start_broker(self):
        """Starts the broker, which must not be running."""
        config = os.path.join(self.dir, "causewayd.toml")
        with open(config, "w", encoding="ascii") as file:
            file.write(CONFIG.format(dir=self.dir, owner=OWNER, friend=FRIEND,
                                     stranger=STRANGER))
        sockets = [os.path.join(self.dir, tenant, "broker.sock") for tenant in ("stage", "other")]
        for left in filter(os.path.exists, sockets):
            os.remove(left)
        argv = [os.path.join(self.dir, "bin", "causewayd"), "--foreground", "--config", config,
                "--runtime-dir", os.path.join(self.dir, "run"), "--idle", "0", "--log", "info"]
        with open(os.path.join(self.dir, "broker.log"), "ab") as log:
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

    def enter(self, uid, tenant="stage", pool="p", fault=None):
        """Starts an actor, in a pool unless told otherwise."""
        self.serial += 1
        log = os.path.join(self.dir, f"player-{self.serial}.log")
        env = dict(os.environ, CAUSEWAY_SOCKET=os.path.join(self.dir, tenant, "broker.sock"))
        env.pop("CAUSEWAY_RUNTIME_DIR", None)
        if fault:
            env |= {"CAUSEWAY_FAULT": fault, "LD_LIBRARY_PATH": self.library}
        with open(log, "wb") as errors:
            process = subprocess.Popen([os.path.join(self.dir, "test", "pool")],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=errors, env=env, cwd="/", user=uid, group=uid,
                                       extra_groups=[])
        player = Player(f"player {self.serial} ({uid})", os.dup(process.stdout.fileno()),
                        os.dup(process.stdin.fileno()), process, log)
        process.stdin.close()
        process.stdout.close()
        self.players.append(player)
        if int(player.answer()[0]) < 0:
            raise Failed(f"{player.name} cannot open the library")
        if pool:
            player.number("create", pool, BLOCK, 80, EXISTING)
        return player

    def three(self):
        """One of each user."""
        return [self.enter(uid) for uid in (OWNER, FRIEND, STRANGER)]

    def pools(self):
        """What `causeway status` says of pools."""
        return self.status("--json")["pools"]

    def status(self, *options):
        """What `causeway status` says."""
        env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=os.path.join(self.dir, "run"))
        env.pop("CAUSEWAY_SOCKET", None)
        argv = [os.path.join(self.dir, "bin", "causeway"), "status", *options]
        said = subprocess.run(argv, env=env, check=True, stdout=subprocess.PIPE).stdout
        return json.loads(said) if "--json" in options else said.decode()

    def clear(self):
        """Ends what a test left; the broker must be left with nothing."""
        for player in self.players:
            player.end()
        self.players.clear()

    def balance(self):
        """All actors have ended: no pool, no block is left."""
        self.clear()
        wait_until("an end of all pools", lambda: not self.pools())

    def end(self):
        """Ends everything."""
        self.clear()
        self.broker.terminate()
        self.broker.wait()
        shutil.rmtree(self.dir)


def expect(what, found, wanted):
    """Fails with both if they differ."""
    if found != wanted:
        raise Failed(f"{what}: {found}, not {wanted}")


def refused(errno, player, *words):
    """Something must be refused for this reason."""
    found = player.errno(*words)
    if found != errno:
        said = os.strerror(found) if found else "done"
        raise Failed(f"{player.name}: {' '.join(map(str, words))}: {said}, "
                     f"not {os.strerror(errno)}")
