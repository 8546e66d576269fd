"""Debian 12's own kernel, 6.1, as the host: memory in place without UFFDIO_MOVE, pages that are
held, and what causeway doctor says there."""

import json
import os
import subprocess
import time

from lib.netns import BUILD
from vm import traffic
from vm.lab import ROOT, Bare, GuestError
from vm.verbs import MANY, VERIFY, VERIFY_PORT, VERIFY_SECONDS

# Kernels that can move pages singly (UFFDIO_MOVE), as major and minor.
MOVES_PAGES = (6, 8)
# What a test program of Rust's may take under TCG.
TESTS_SECONDS = 240
# The test programs that are run there, by package, and how cargo names them.
TESTS = {"held": ("causeway-pins", ["--test", "held"]),
         "causeway_memory": ("causeway-memory", ["--lib"]),
         "idle": ("causeway-memory", ["--test", "idle"])}


def executable(package, which):
    """Where cargo has put a test program."""
    argv = ["cargo", "test", "--locked", "--no-run", "--message-format=json", "-p", package, *which]
    outcome = subprocess.run(argv, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found = [json.loads(line).get("executable") for line in outcome.stdout.splitlines()
             if line.startswith("{")]
    return next(path for path in found if path)


def make_image():
    """Makes what the machine boots."""
    folder = os.path.join(BUILD, "vm", "bare")
    os.makedirs(folder, exist_ok=True)
    files = [os.path.join(BUILD, "bin", "causewayd"), os.path.join(BUILD, "test", "verify")]
    for name, (package, which) in TESTS.items():
        link = os.path.join(folder, name)
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(executable(package, which), link)
        files.append(link)
    subprocess.run(["guest/make-image", "--bare", *files], cwd=ROOT, check=True)


def boot(lab):
    """Starts the machine, and waits until it takes commands."""
    make_image()
    bare = Bare(lab, "bare", len(lab.guests) + 1)
    lab.guests.append(bare)
    bare.start()
    bare.wait_ready()
    return bare


def run_tests(bare, program, *options):
    """Runs a test program: its closing line."""
    bare.send(f"{program} --test-threads=1 {' '.join(options)} > /tmp/{program}.tests 2>&1")
    status, _ = bare.finish(TESTS_SECONDS)
    text = bare.run(f"cat /tmp/{program}.tests")
    if status != 0 or "test result: ok. 0 passed" in text or "no FUSE here" in text:
        raise GuestError(f"{program} ends with {status}: {text[-1500:]}")
    return next(line for line in text.splitlines() if line.startswith("test result")).strip()


def expect_doctor(bare):
    """What is needed is found, and what the kernel lacks is named."""
    text = bare.run("causeway doctor; true")
    for topic, words in (("userfaultfd", "a full one"), ("page references", "the kernel tells"),
                         ("memory in place", "mremap")):
        line = next((line for line in text.splitlines() if topic in line), "")
        if words not in line or not line.startswith("OK"):
            raise GuestError(f"{topic}: {line or text}")


def counters(bare):
    """How often each of the two has reached into the other's memory."""
    endpoints = json.loads(bare.run("causeway status --json"))["endpoints"]
    return [e["counters"]["direct"] for e in endpoints if e["command"] == "verify"]


def expect_direct(bare):
    """Both sides of the verification program reach into each other's memory; one that ends by
    itself compares every byte."""
    traffic.start(bare, ["verify"], "shm")
    traffic.wait_listening(bare, VERIFY_PORT)
    bare.run("ln -sf /opt/causeway/bin/verify /tmp/caller")
    traffic.start(bare, ["/tmp/caller", "--ops", MANY, "127.0.0.1"], "shm")
    deadline = traffic.deadline_after()
    made = []
    while len(made) < 1 or not any(made):
        if time.monotonic() > deadline:
            said = bare.run("cat /tmp/verify.out /tmp/caller.out; causeway status")
            raise GuestError(f"accesses: {made}\n{said}")
        time.sleep(traffic.PAUSE)
        made = counters(bare)
    for name in ("verify", "caller"):
        traffic.stop(bare, name)
    return sum(made)


def verified(bare):
    """Every operation, every byte."""
    traffic.start(bare, ["verify"], "shm", CAUSEWAY_MOVE="eager")
    traffic.wait_listening(bare, VERIFY_PORT)
    traffic.start(bare, ["/tmp/caller", *VERIFY, "127.0.0.1"], "shm", CAUSEWAY_MOVE="eager")
    for name in ("caller", "verify"):
        status, text = traffic.wait(bare, name, VERIFY_SECONDS)
        if status != 0:
            raise GuestError(f"{name} ends with {status}: {text[-800:]}")


def host(lab):
    """The wire `direct`, and pages that are held, on a kernel without UFFDIO_MOVE."""
    bare = boot(lab)
    try:
        release = bare.run("uname -r").strip()
        if tuple(int(part) for part in release.split(".")[:2]) >= MOVES_PAGES:
            raise GuestError(f"{release} can move pages: the test shows nothing")
        expect_doctor(bare)
        made = expect_direct(bare)
        verified(bare)
        for program, options in (("held", ()), ("causeway_memory", ("held", "back")), ("idle", ())):
            run_tests(bare, program, *options)
        if said := bare.complaints():
            raise GuestError(said)
    finally:
        bare.kill()
        lab.guests.remove(bare)
    return f"{release}: {made} direct accesses"


def tests():
    """Name and function of every test, in order."""
    yield "Debian 12's kernel as the host", host
