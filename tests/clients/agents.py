"""NIXL's UCX backend: two agents move memory of 16 MiB, blocks of it, and lose each other."""

import os
import re
import subprocess

from clients import program
from clients.program import Program
from lib import netns

VERSION = "1.5.1"
PEER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nixl_peer.py")
PLACE = os.path.join(netns.BUILD, "venv", f"nixl-{VERSION}")
PYTHON = os.path.join(PLACE, "bin", "python")
# What the wheels are used for here needs nothing else of what they depend on (PyTorch).
WHEELS = [f"nixl=={VERSION}", f"nixl-cu12=={VERSION}", "numpy"]
# What the peer calls a test, and how many times the initiator says that bytes are right.
TESTS = {"whole": 2, "blocks": 3, "killed": 4}
# Has UCX say what it moves memory by, which is to be the device, whatever else the hosts have.
SETTINGS = {"UCX_LOG_LEVEL": "info"}
CHOSEN = "rma(rc_verbs/cway0:1)"
NAMES = [f"nixl, {test}" for test in TESTS]


def prepare():
    """Installs the wheels, once; a problem, if any."""
    done = os.path.join(PLACE, "installed")
    if os.path.exists(done):
        return None
    for argv in (["/usr/bin/python3", "-m", "venv", PLACE],
                 [PYTHON, "-m", "pip", "install", "-q", "--no-deps", *WHEELS]):
        made = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode:
            return f"{argv[0]}: {made.stdout.strip()}"
    with open(done, "w", encoding="ascii"):
        return None


def verified(test):
    """Whether the initiator has verified all that its test moves."""
    def expect(text):
        found = text.count(": verified\n")
        if test == "killed" and "refused by " not in text:
            return "no transfer was refused"
        chosen = [line for line in text.splitlines() if re.search(r"(intra|inter)-node cfg#", line)]
        if not chosen or not all(CHOSEN in line for line in chosen):
            return f"memory does not move by {CHOSEN}: {chosen}"
        return None if found == TESTS[test] else f"{found} of {TESTS[test]} transfers verified"
    return expect


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each test with a target of its own."""
    where = [str(next(ports)), world.server.address]
    # UCX reports a killed target as an error, which the test wants.
    found = [Program(f"nixl, {test}", [PYTHON, PEER, "target", *where],
                     [PYTHON, PEER, "initiator", *where, test], expect=verified(test),
                     env=SETTINGS, words=test != "killed") for test in TESTS]
    program.run_all(report, stage, world, wire, seconds, found, chosen)
