"""Programs under test that are killed, stopped or pestered, and the worlds they run in."""

import os
import pty
import re
import signal
import subprocess
import threading
import time

from lib import netns, pair
from lib.patience import patient

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
IDLE_SECONDS = 1
# From a death to the end of the survivor's work requests.
SHM_SECONDS = patient(2.0)
# The retry budget (at least 4 s), and time to find it used up.
UDP_SECONDS = patient(6.0)
START_SECONDS = 20.0
# Below those of the other stages that may run beside these.
FIRST_PORT = 16200
POLL_SECONDS = 0.005
TRAFFIC = os.path.join(netns.BUILD, "test", "traffic")
VERIFY = os.path.join(netns.BUILD, "test", "verify")
LEAVE = os.path.join(netns.BUILD, "test", "leave")


class Failed(Exception):
    """A test failed."""


class Program:
    """A running program whose output is seen as it writes it (it writes to a terminal)."""

    def __init__(self, host, wire, argv, env=None):
        master, slave = pty.openpty()
        env = {"CAUSEWAY_IDLE_SECONDS": str(IDLE_SECONDS)} | (env or {})
        self.argv = argv
        self.text = ""
        self.process = host.popen(argv, wire, env, stdout=slave, stderr=slave)
        os.close(slave)
        self.reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self.reader.start()

    def _read(self, master):
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:
                break
            if not data:
                break
            self.text += data.decode(errors="replace").replace("\r\n", "\n")
        os.close(master)

    def signal(self, number):
        """Sends a signal to the program itself: `causeway run` has become it."""
        os.kill(self.process.pid, number)

    def kill(self):
        """SIGKILL, and waits until the system has taken the process apart."""
        self.signal(signal.SIGKILL)
        self.process.wait()

    def wait_for(self, what, seen, seconds):
        """Waits until `seen(text)`, or fails."""
        deadline = time.monotonic() + seconds
        while not seen(self.text):
            if self.process.poll() is not None:
                self.reader.join()
                if seen(self.text):
                    return
                raise Failed(f"{self.name()} ended before {what}: {self.text[-500:]}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name()}: no {what} in {seconds} s: {self.text[-500:]}"
                             + pair.stacks(self.process))
            time.sleep(POLL_SECONDS)

    def wait_end(self, seconds):
        """Waits for the end; the exit status."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.name()} still runs after {seconds} s: {self.text[-500:]}"
                         + pair.stacks(self.process)) from None
        self.reader.join()
        return self.process.returncode

    def count(self):
        """The number of completions it told of last."""
        counts = re.findall(r"^count (\d+)$", self.text, re.MULTILINE)
        return int(counts[-1]) if counts else 0

    def state(self):
        """What it is at, for a message."""
        status = self.process.poll()
        if status is None:
            return f"{self.text[-500:]}{pair.stacks(self.process)}"
        return f"{pair.exit_text(status)}: {self.text[-500:]}"

    def name(self):
        """What it is, for a message."""
        return " ".join([os.path.basename(self.argv[0])] + self.argv[1:])

    def end(self):
        """Ends it, whatever state it is in."""
        pair.end_group(self.process)
        self.reader.join()


class Bench:
    """A world, a wire, and the programs started there."""

    def __init__(self, world, wire):
        self.world = world
        self.wire = wire
        self.limit = SHM_SECONDS if wire == "shm" else UDP_SECONDS
        self.programs = []
        self.port = FIRST_PORT

    def start(self, host, argv):
        """Starts a program under `causeway run`."""
        program = Program(host, self.wire, argv)
        self.programs.append(program)
        return program

    def pair(self, server_argv, client_argv):
        """Starts a server, waits until it listens, and starts its client."""
        server = self.start(self.world.server, server_argv)
        if not pair.wait_listening(server.process, time.monotonic() + START_SECONDS):
            raise Failed(f"{server.name()} does not listen: {server.text[-500:]}")
        client = self.start(self.world.client, client_argv + [self.world.server.address])
        return server, client

    def traffic(self, *options, server=()):
        """Starts a pair of our own traffic programs; returns when they are in full swing."""
        argv = [TRAFFIC, "--port", self.next_port(), *options]
        both = self.pair(argv + list(server), argv)
        for program, other in zip(both, reversed(both)):
            try:
                program.wait_for("traffic", lambda text: "running" in text, START_SECONDS)
            except Failed as failed:
                raise Failed(f"{failed}\nthe other: {other.state()}") from failed
        return both

    def next_port(self):
        """A TCP port that no earlier test used."""
        self.port += 4
        return str(self.port)

    def clear(self):
        """Ends what a test left."""
        for program in self.programs:
            program.end()
        self.programs.clear()


def expect_progress(programs, what):
    """Every program must complete more than it has so far, and none may have failed."""
    for program in programs:
        before = program.count()
        program.wait_for(f"progress {what}", lambda _, p=program, b=before: p.count() > b,
                         START_SECONDS)
        if "failed" in program.text:
            raise Failed(f"{program.name()} failed {what}: {program.text[-500:]}")


def build():
    """Compiles the programs; they are like any other program of the distribution."""
    subprocess.run(["make", "-s", "-C", ROOT, f"BUILD={netns.BUILD}", "verify"], check=True)
    here = os.path.join(ROOT, "tests", "kill")
    for program in (TRAFFIC, LEAVE):
        # Two stages use it, at the same time: neither may start what the other has half written.
        own = f"{program}.{os.getpid()}"
        source = os.path.join(here, f"{os.path.basename(program)}.c")
        subprocess.run([os.environ.get("CC", "cc"), "-std=gnu11", "-O2", "-g", "-Wall", "-Wextra",
                        "-Werror", "-o", own, source,
                        os.path.join(ROOT, "tests", "verify", "common.c"), "-libverbs"],
                       check=True)
        os.replace(own, program)


def attempt(results, name, function, *args):
    """Runs one test and prints its line."""
    start = time.monotonic()
    try:
        detail = function(*args)
        good = True
    except (Failed, OSError, netns.SetupError) as error:
        detail, good = error, False
    results.append(good)
    detail = f": {detail}" if detail else ""
    print(f"{'PASS' if good else 'FAIL'} {name} [{time.monotonic() - start:.1f} s]{detail}",
          flush=True)
