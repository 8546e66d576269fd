"""Two hosts, and programs on them that go through a session step by step (session.c)."""

import os
import select
import signal
import subprocess
import time

from lib.netns import BUILD, SetupError, kill, pids_in
from sisci.cluster import Cluster, name_of

CLIENT_NODE, OWNER_NODE = 4, 24
# Longer than any call may take (5 s for one of a daemon or a broker), on a machine that others
# use too.
BOUND = 30
# A tenth of what they are by default: how long a queue pair and a process try to come back, and how
# long the daemon's broker waits for that.
TIMERS = {"CAUSEWAY_PATIENCE": "0.4", "CAUSEWAY_SISCI_RECONNECT": "1000"}
LINGER_MS = 1000


class Failed(Exception):
    """What a test found."""


class Actor:
    """A program that takes steps when it is told to."""

    def __init__(self, side, *words):
        self.words = " ".join(words)
        self.process = side.host.popen(
            [os.path.join(BUILD, "test", "sisci", "session"), *words], env=side.settings,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.rest = b""
        self.history = []
        if not self.line().startswith("ready"):
            raise Failed(f"{self.words} does not begin: {self.history}")

    def line(self, seconds=BOUND):
        """The next line it says."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise Failed(f"{self.words} hangs: {self.history}")
            more = os.read(self.process.stdout.fileno(), 65536)
            if not more:
                raise Failed(f"{self.words} has ended: {self.history} {self.rest}")
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        self.history.append(line.decode(errors="replace"))
        return self.history[-1]

    def begin(self, step):
        """Has it take a step, and does not wait."""
        self.process.stdin.write(f"{step}\n".encode())
        self.process.stdin.flush()

    def outcome(self, step, seconds=BOUND):
        """What came of it: the error's name and what else the function says."""
        while True:
            line = self.line(seconds)
            words = line.split()
            # The library may say something of its own.
            if words[:1] == ["step"]:
                break
        if words[1] != step:
            raise Failed(f"{self.words}: {line}, not {step}")
        return words[2].removeprefix("SCI_ERR_"), words[3]

    def take(self, step):
        """Takes a step to its end."""
        self.begin(step)
        return self.outcome(step)

    def well(self, step):
        """Takes a step, which must go well."""
        error, state = self.take(step)
        if error != "OK" or state in ("ERROR", "RETRIABLE", "PENDING", "NOT_RETRIABLE"):
            raise Failed(f"{self.words}: {step} ends with {error} {state}: {self.history[-4:]}")
        return state

    def in_the_end(self, step, seconds=BOUND):
        """Takes a step again and again until it goes well."""
        until = time.monotonic() + seconds
        while True:
            error, state = self.take(step)
            if error == "OK" and state in ("OK", "DONE", "-"):
                return
            if state == "NOT_RETRIABLE" or time.monotonic() > until:
                raise Failed(f"{self.words}: {step} still ends with {error} {state}")

    def until_event(self, wanted, seconds=BOUND):
        """Waits until the last event of its segment is this one."""
        until = time.monotonic() + seconds
        seen = []
        while seen[-1:] != [wanted]:
            _, state = self.take("event")
            if state != "-":
                seen.append(state)
            elif time.monotonic() > until:
                raise Failed(f"{self.words}: no {wanted}, but {seen}")

    def stop(self):
        """Stops it by a signal."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        """Ends that."""
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        """Ends it."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def is_alive(self):
        """Whether it is there."""
        return self.process.poll() is None


class Stage:
    """Two hosts with brokers and node daemons."""

    def __init__(self, scratch, prefix, timers=True):
        self.cluster = Cluster(2, prefix)
        self.scratch = os.path.join(scratch, prefix)
        os.mkdir(self.scratch)
        self.config = os.path.join(self.scratch, "nodes.toml")
        with open(self.config, "w", encoding="ascii") as f:
            f.write("[sisci]\nnode_daemon = false\n")
            for node, host in zip((CLIENT_NODE, OWNER_NODE), self.cluster.hosts):
                f.write(f'[[sisci.node]]\nid = {node}\naddresses = ["{host.address}"]\n'
                        'trust = "address"\n')
        settings = {"CAUSEWAY_BROKER_BIN": self.starter(), **(TIMERS if timers else {})}
        options = ["--linger-ms", str(LINGER_MS)] if timers else []
        self.here, self.there = (
            self.cluster.side(number, self.config, options=options, **settings)
            for number in range(2))
        self.actors = []

    def starter(self):
        """The broker that is started on demand: with the same configuration."""
        path = os.path.join(self.scratch, "causewayd")
        with open(path, "w", encoding="ascii") as f:
            f.write(f'#!/bin/sh\nexec {os.path.join(BUILD, "bin", "causewayd")} --idle 0 '
                    f'--config {self.config} "$@"\n')
        os.chmod(path, 0o755)
        return path

    def owner(self):
        """A program on the owner's host that has a segment and an interrupt."""
        owner = self.actor(self.there, "owner")
        # Those of one that was killed are still the broker's for a moment.
        until = time.monotonic() + BOUND
        while True:
            error, _ = owner.take("create")
            if error == "OK":
                return owner
            if error not in ("SEGMENTID_USED", "INTNO_USED") or time.monotonic() > until:
                raise Failed(f"an owner can create nothing: {error}")
            owner.kill()
            owner = self.actor(self.there, "owner")

    def client(self):
        """A program on the other host."""
        return self.actor(self.here, "client", str(OWNER_NODE))

    def actor(self, side, *words):
        """Starts a program."""
        actor = Actor(side, *words)
        self.actors.append(actor)
        return actor

    def clear(self):
        """Ends all programs."""
        for actor in self.actors:
            if actor.is_alive():
                actor.kill()
        self.actors = []

    def broker_pid(self):
        """The process of the broker on the owner's host, once there is one."""
        until = time.monotonic() + BOUND
        while time.monotonic() < until:
            for pid in pids_in(self.there.host.netns):
                if name_of(pid) == "causewayd":
                    return pid
            time.sleep(0.01)
        raise Failed("there is no broker")

    def kill_broker(self):
        """Ends it; who needs it starts another."""
        pid = self.broker_pid()
        kill(pid)
        if pid == self.there.broker.pid:
            self.there.broker.wait()
        until = time.monotonic() + BOUND
        while name_of(pid) == "causewayd":
            if time.monotonic() > until:
                raise SetupError("a broker does not end")
            time.sleep(0.005)

    def end(self):
        """Ends everything."""
        self.clear()
        self.cluster.end()
