"""The packages as files: built, built again elsewhere, examined, and made older."""

import glob
import hashlib
import os
import re
import shutil
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.join(ROOT, os.environ.get("BUILD", "build"))
NAMES = ["causeway", "causeway-guest-dkms", "causeway-kube", "causeway-sisci", "libcauseway-dev",
         "libcauseway0"]
# Other circumstances, which must make no difference.
ELSEWHERE = {"LC_ALL": "C", "LANG": "C", "TZ": "Pacific/Kiritimati", "USER": "somebody",
             "DEB_BUILD_OPTIONS": "noautodbgsym parallel=1"}
HERE = {"LC_ALL": "C.UTF-8", "TZ": "UTC", "DEB_BUILD_OPTIONS": "noautodbgsym parallel=2"}
OLDER = "0.0.1"


class PackageError(Exception):
    """A package is not as it should be."""


def run(argv, **more):
    """Runs a command that must succeed; what it says."""
    done = subprocess.run(argv, cwd=ROOT, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL, **more)
    if done.returncode != 0:
        raise PackageError(f"{argv[0]}: status {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def build(folder, env, umask):
    """Packs what is built; without symbols for debuggers, which take as long as all else."""
    run(["packaging/deb", folder], env=dict(os.environ, **env), umask=umask)
    return {re.split("_", os.path.basename(path))[0]: path
            for path in glob.glob(os.path.join(folder, "*.deb"))}


def digests(folder):
    """What the packages in a folder are, by their names."""
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.deb"))):
        with open(path, "rb") as f:
            found[os.path.basename(path)] = hashlib.sha256(f.read()).hexdigest()
    return found


def lint(folder):
    """What lintian says of them."""
    options = ["--fail-on", "none", "--tag-display-limit", "0", "--pedantic", "--allow-root"]
    if not os.path.isdir(os.path.join(BUILD, "share", "man")):
        options += ["--suppress-tags", "no-manual-page"]
    text = run(["lintian", *options, *glob.glob(os.path.join(folder, "*.changes"))])
    return [line for line in text.splitlines() if re.match(r"[EWP]: ", line)]


def from_source(commit, folder, env, umask):
    """Builds the packages of a commit from nothing, in a clone below a folder."""
    tree = os.path.join(folder, "causeway")
    run(["git", "clone", "-q", "--no-checkout", ROOT, tree])
    run(["git", "-C", tree, "checkout", "-q", "--detach", commit])
    # Neither what the caller has built, nor its choices.
    kept = {name: value for name, value in os.environ.items()
            if name not in ("BUILD", "CARGO_TARGET_DIR", "RUSTFLAGS", "MAKEFLAGS", "CFLAGS")}
    done = subprocess.run(["dpkg-buildpackage", "-b", "-us", "-uc"], cwd=tree, umask=umask,
                          env=dict(kept, **env), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise PackageError(f"dpkg-buildpackage: status {done.returncode}: {done.stdout[-3000:]}")
    shutil.rmtree(tree)


def version(folder):
    """What version the packages in a folder are."""
    path, = glob.glob(os.path.join(folder, "causeway_*_amd64.deb"))
    return run(["dpkg-deb", "-f", path, "Version"]).strip()


def older(folder, into):
    """The packages that are built for a processor, as another version has them; which they are."""
    mine = version(folder)
    os.makedirs(into)
    for path in glob.glob(os.path.join(folder, "*_amd64.deb")):
        tree = os.path.join(into, "tree")
        run(["dpkg-deb", "-R", path, tree])
        control = os.path.join(tree, "DEBIAN", "control")
        with open(control, encoding="utf-8") as f:
            text = f.read()
        with open(control, "w", encoding="utf-8") as f:
            f.write(re.sub(rf"(?<=[ (=]){re.escape(mine)}(?=\)|$)", OLDER, text, flags=re.M))
        run(["dpkg-deb", "-z1", "--root-owner-group", "--build", tree, into])
        shutil.rmtree(tree)
    return mine
