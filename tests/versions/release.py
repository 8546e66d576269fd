"""The release before this tree: found in the repository's history, built once, and kept.

What is built is the last tag before the newest commit, or, while there is none, the commit that
tests/versions/LAST names.
"""

import fcntl
import os
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LAST = os.path.join(ROOT, "tests", "versions", "LAST")
PACKAGES = ["causeway-cli", "causeway-broker", "causeway-verbs", "causeway-rdmacm",
            "causeway-sisci", "causeway"]
PROGRAMS = ["causeway", "causewayd"]
# Nobody debugs or measures the old build: it is to be there soon.
PROFILE = {"CARGO_PROFILE_DEV_DEBUG": "0", "CARGO_PROFILE_DEV_OPT_LEVEL": "0",
           "CARGO_INCREMENTAL": "0"}
BUILD_SECONDS = 900
NO_HISTORY = ("the release before this one is built from the repository's history, which is not "
              "here")

# A node of SISCI: a program compiled with a release's headers needs that release or a later one.
SISCI_PROGRAM = os.path.join("build", "test", "sisci", "queries")


class Unavailable(Exception):
    """There is no earlier release to be had; the text says why, and what to do."""


def git(*args):
    """What git prints. The tests run as root, the repository may be another user's."""
    done = subprocess.run(["git", "-c", f"safe.directory={ROOT}", *args], cwd=ROOT,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, args, done.stdout, done.stderr)
    return done.stdout.strip()


def fallback():
    """The commit that tests/versions/LAST names."""
    with open(LAST, encoding="ascii") as f:
        return next(line.strip() for line in f if line.strip() and line[0] != "#")


def last_tag():
    """The last release's tag before the newest commit; None while there is none."""
    try:
        git("rev-parse", "HEAD")
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unavailable(f"{NO_HISTORY}: run the tests in a clone made by git ({error})") from None
    try:
        return git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "HEAD^")
    except subprocess.CalledProcessError:
        return None


def find():
    """Name and commit of the last release before this tree."""
    name = last_tag() or fallback()
    try:
        return name, git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except subprocess.CalledProcessError:
        shallow = git("rev-parse", "--is-shallow-repository") == "true"
        cure = "git fetch --unshallow --tags" if shallow else "git fetch --tags origin"
        kind = "a shallow clone" if shallow else "a clone without that commit"
        raise Unavailable(f"{NO_HISTORY}: {name} is missing from {kind}; run `{cure}`") from None


def run(argv, folder, env=None):
    """Runs a step of the build; its output counts only if it fails."""
    done = subprocess.run(argv, cwd=folder, env=dict(os.environ, **(env or {})),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=BUILD_SECONDS, check=False)
    if done.returncode:
        raise Unavailable(f"`{' '.join(argv)}` fails in {folder}: {done.stdout[-3000:]}")


def unpack(commit, folder, *paths):
    """The tree of a commit, or parts of it, in a new folder."""
    os.makedirs(folder)
    with subprocess.Popen(["git", "-c", f"safe.directory={ROOT}", "archive", commit,
                           *paths], cwd=ROOT,
                          stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
    if archive.returncode:
        raise Unavailable(f"git archive {commit}: exit status {archive.returncode}")


def build(commit, folder):
    """Builds programs and libraries of a tree into its `build`."""
    target = os.path.join(folder, "target")
    env = dict(PROFILE, CARGO_TARGET_DIR=target)
    cargo = os.environ.get("CARGO", "cargo")
    packages = [word for package in PACKAGES for word in ("-p", package)]
    unpack(commit, folder)
    run([cargo, "build", "--quiet", "--locked", *packages], folder, env)
    # What make would have cargo build is there; fewer packages at a time would be other builds.
    run(["make", "--no-print-directory", "CARGO=true", f"CARGO_TARGET_DIR={target}",
         "ABI_PROFILE=dev", "BUILD=build", "libs", "sisci", "paths", SISCI_PROGRAM], folder, env)
    programs = os.path.join(folder, "build", "bin")
    os.makedirs(programs)
    for name in PROGRAMS:
        shutil.copy(os.path.join(target, "debug", name), programs)
    shutil.rmtree(target)


def get(parent):
    """Name of the last release, and the folder of its build below `parent`, made if need be."""
    name, commit = find()
    os.makedirs(parent, exist_ok=True)
    with open(os.path.join(parent, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = os.path.join(parent, commit[:12])
        whole = os.path.join(folder, "whole")
        if not os.path.exists(whole):
            # Another release's, or one whose build was interrupted.
            for old in os.scandir(parent):
                if old.is_dir():
                    shutil.rmtree(old.path)
            build(commit, folder)
            with open(whole, "w", encoding="ascii"):
                pass
    return name, os.path.join(folder, "build")
