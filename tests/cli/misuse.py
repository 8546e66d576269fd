"""Mistakes that people make with the command line: each gets an error that says what to do."""

import os
import subprocess
import tempfile

from lib.netns import CAUSEWAY

# A directory with room for a broker and not for the device's files; $1 is the directory.
FULL = 'mount -t tmpfs -o size=64k,nr_inodes=20,mode=700 tmpfs "$1" && shift && exec "$@"'
AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]


def full_output(causeway, check):
    """Standard output on a full disk: an error, and no panic."""
    for verb in (["status"], ["status", "--json"], ["doctor"], ["nodes"], ["limit"],
                 ["vm", "attach", "full"], ["--help"], ["--version"], ["run", "--help"]):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([CAUSEWAY, *verb], env=causeway.env, stdout=full,
                                  stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        good = done.stderr == "causeway: standard output: No space left on device (os error 28)\n"
        check(f"{' '.join(verb)}: no room for the output", good and done.returncode in (1, 125),
              done)
    causeway("vm", "detach", "full")


def refused(causeway, check):
    """What is asked for does not exist, or can't be."""
    for words, said in (
            (["run", "--wier", "udp", "--", "true"], "unexpected argument '--wier'"),
            (["run", "-x", "true"], "unexpected argument '-x'"),
            (["vm", "attach", "a b"], 'a VM cannot be named "a b"'),
            (["vm", "attach", ".."], "letters, digits"),
            (["vm", "attach", "a", "--tenant", "absent"], 'no tenant "absent"'),
            (["vm", "detach", "absent"], 'no VM "absent" is attached'),
            (["vm", "replug", "absent", "--qmp", "/absent"], "QEMU's QMP socket /absent: "),
            (["limit", "default", "--messages", "-1"], "invalid value '-1' for '--messages"),
            (["limit", "--pid", "-1", "--none"], "invalid value '-1' for '--pid"),
            (["limit", "default"], "which limit?"),
            (["limit", "default", "--none", "--json"], "causeway limit --pid PID LIMIT"),
            (["trace", "5"], "causeway trace [OPTIONS] --all FILE")):
        done = causeway(*words)
        check(f"{' '.join(words)}: says why",
              done.returncode == 125 and said in done.stderr, done)
    for what in ("net", "vm", "dma"):
        done = causeway("bench", what, "--serve", "--node", "4")
        check(f"bench {what} has no node", done.returncode == 1 and "bench sisci" in done.stderr,
              done)
    done = causeway("run", "--", "sh", "-c", 'test "$1" = --wire', "sh", "--wire")
    check("run leaves the command's options to it", done.returncode == 0, done)
    done = causeway("run", "sh", "-c", 'test "$1" = --wire', "sh", "--wire")
    check("also without --", done.returncode == 0, done)
    done = causeway("vm", "lab", "--guests", "1", "true", by=AS_NOBODY)
    check("vm lab: a user is told at once",
          done.returncode == 125 and done.stderr.count("\n") == 1
          and f" sudo {CAUSEWAY} vm lab " in done.stderr, done)


def no_room(causeway, check):
    """A runtime directory on a full disk is named."""
    with tempfile.TemporaryDirectory(prefix="causeway-full-") as place:
        os.chmod(place, 0o700)
        # Nobody else sees the directory, so nobody can end its broker.
        env = {"CAUSEWAY_RUNTIME_DIR": place, "CAUSEWAY_IDLE_SECONDS": "0.1"}
        done = causeway("run", "--", "true", env=env,
                        by=["unshare", "--mount", "sh", "-c", FULL, "sh", place])
        good = done.returncode == 125 and f"no space is left for them in {place}:" in done.stderr
        check("run: no room in the runtime directory", good, done)


def misuse(causeway, check):
    """All of it."""
    full_output(causeway, check)
    refused(causeway, check)
    no_room(causeway, check)
