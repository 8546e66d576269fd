"""The wheel: made twice alike, installed where nothing else of Causeway is, and used."""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time

from lib import netns

PYTHON = "/usr/bin/python3"
SECONDS = 120
SCRIPT = os.path.join(netns.ROOT, "scripts", "wheel")
# Another time zone, umask and locale than the first.
OTHER = "umask 077; export TZ=Asia/Tokyo LC_ALL=C.UTF-8; exec "
SHARED = """
import causeway_rdma as causeway
assert "site-packages" in causeway.__file__, causeway.__file__
with causeway.open() as session:
    block = session.create_pool("wheel", block_size=4096, capacity=1).allocate()
    block.view()[:5] = b"wheel"
    print(bytes(block.view()[:5]).decode())
"""


class Failed(Exception):
    """Something was not as it should be."""


def expect(good, what):
    """Raises unless it is good."""
    if not good:
        raise Failed(what)


def run(command, env=None, cwd="/"):
    """Runs a command to its end; returns what it printed."""
    done = subprocess.run(command, env=env, cwd=cwd, text=True, timeout=SECONDS, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise Failed(f"{command}: exit status {done.returncode}: {done.stdout[-1000:]}")
    return done.stdout


def digest(path):
    """Of a file's contents."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


class Place:
    """A virtual environment with the wheel alone, and a runtime directory."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="cwt-wheel-")
        self.bin = os.path.join(self.dir, "venv", "bin")
        self.env = dict(os.environ, CAUSEWAY_RUNTIME_DIR=os.path.join(self.dir, "run"))
        for name in ("CAUSEWAY_SOCKET", "CAUSEWAY_LIBRARY", "CAUSEWAY_BROKER_BIN", "PYTHONPATH"):
            self.env.pop(name, None)
        os.mkdir(self.env["CAUSEWAY_RUNTIME_DIR"], 0o700)

    def path(self, name):
        """Of a program that the wheel brought."""
        return os.path.join(self.bin, name)

    def end(self):
        """Ends its broker and removes it."""
        netns.stop_broker(self.env["CAUSEWAY_RUNTIME_DIR"])
        shutil.rmtree(self.dir, ignore_errors=True)


def is_made_alike(place):
    """Two runs make the same bytes."""
    env = dict(os.environ, BUILD=netns.BUILD)
    first = run([SCRIPT], env).split()[-1]
    before = digest(first)
    second = run(["bash", "-c", OTHER + SCRIPT], env).split()[-1]
    expect(before == digest(second), "two wheels of one build differ")
    place.wheel = second
    return os.path.basename(second)


def is_installed(place):
    """By pip, into an environment that has nothing."""
    run([PYTHON, "-m", "venv", os.path.join(place.dir, "venv")])
    run([place.path("pip"), "install", "--no-index", "--no-deps", place.wheel])
    said = run([place.path("causeway"), "--version"], place.env)
    expect(re.match(r"causeway \d+\.\d+\.\d+", said), said)


def memory_is_shared(place):
    """The module finds its library, and that its broker."""
    said = run([place.path("python"), "-c", SHARED], place.env)
    expect(said.split() == ["wheel"], said)
    with open(os.path.join(place.env["CAUSEWAY_RUNTIME_DIR"], "broker.pid"),
              encoding="ascii") as file:
        program = os.readlink(f"/proc/{int(file.read())}/exe")
    expect(program.startswith(place.dir), f"the broker is {program}")


def verbs_programs_run(place):
    """Debian's program between two processes, by what the wheel brought."""
    command = [place.path("causeway"), "run", "--", "ibv_rc_pingpong", "-g", "0"]
    log = os.path.join(place.dir, "server.log")
    with open(log, "w", encoding="utf-8") as out, \
            subprocess.Popen(command, env=place.env, stdout=out, stderr=out) as server:
        try:
            await_server(server)
            said = run([*command, "localhost"], place.env)
            server.wait(SECONDS)
        finally:
            server.kill()
    expect("1000 iters" in said and server.returncode == 0, said)


def await_server(server):
    """Until it listens at the program's port."""
    end = time.monotonic() + SECONDS
    while server.poll() is None and time.monotonic() < end:
        listening = run(["ss", "-Hltn", "sport", "=", ":18515"])
        if listening.strip():
            return
        time.sleep(0.05)
    raise Failed("the server does not listen")


TESTS = (is_made_alike, is_installed, memory_is_shared, verbs_programs_run)


def attempt(text):
    """Runs the tests whose names hold the text; returns how many passed, and failed."""
    place = Place()
    passed = failed = 0
    try:
        names = [f"wheel: {test.__name__}" for test in TESTS]
        # Each stands on those before it.
        for test in TESTS if any(text in name for name in names) else ():
            try:
                detail = test(place)
            except (Failed, OSError, subprocess.SubprocessError) as error:
                print(f"FAIL wheel: {test.__name__}: {error}", flush=True)
                failed += 1
                break
            print(f"ok   wheel: {test.__name__}{f': {detail}' if detail else ''}", flush=True)
            passed += 1
    finally:
        place.end()
    return passed, failed
