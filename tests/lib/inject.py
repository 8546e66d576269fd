"""The libraries with the points of crates/fault, for the stages that kill and stop programs."""

import fcntl
import os
import shutil
import subprocess

from lib import netns

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Beside the ordinary programs and libraries.
FOLDER = os.path.join(netns.BUILD, "fault")
LIBS = os.path.join(FOLDER, "lib")
# What each makefile builds.
PARTS = (("mk/abi.mk", "libs"), ("mk/sisci.mk", "sisci"))
# The crates that are built with points. The unit tests are built of the same crates with the same
# features, so that cargo compiles each crate once.
CRATES = ["--workspace", "--exclude", "causeway-sim",
          "--features", "causeway-verbs/inject,causeway/inject,causeway-sisci/inject"]


def build(timeout=None):
    """Compiles the libraries. Stages that run beside each other take turns."""
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for makefile, target in PARTS:
            env = dict(os.environ, BUILD=FOLDER, ABI_PROFILE="dev",
                       CARGO_FLAGS=" ".join(["--locked", *CRATES]))
            # What runs beside it has the processor first.
            subprocess.run(["nice", "-n", "10", "make", "-s", "-C", ROOT, "-f", makefile, target],
                           check=True, env=env, timeout=timeout)


def copy(folder):
    """Copies the libraries, while another stage may be building them again."""
    shutil.copytree(LIBS, folder, symlinks=True,
                    ignore=shutil.ignore_patterns("*.new", "*.map", "*.ld"))
