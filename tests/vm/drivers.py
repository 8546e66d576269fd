"""Other versions in a guest: drivers, a later one, an earlier one and the last release's, and the
last release's libraries."""

import os
import re
import shutil
import subprocess

from lib.netns import BUILD
from versions import release
from vm import traffic
from vm.lab import GuestError
from vm.verbs import PINGPONG, pingpong

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SOURCE = os.path.join(ROOT, "guest", "driver")
# Where they are built, below BUILD, one folder for each with its source.
FOLDER = os.path.join("vm", "drivers")
# The version of the device that driver and broker agree on.
VERSION = re.compile(r"(#define CW_CONFIG_VERSION )(\d+)")
HEADER = "causeway_virtio.h"
OTHERS = {"later": 1, "earlier": -1}
LAST = "last"
# The last release's library for verbs: it lies among the programs until a test needs it.
LIBRARY = "libibverbs.so.1"
LIBRARIES = "/tmp/last"
PINGPONG_PORT = 18515
VERSIONS = re.compile(r"speaks version \d+ of the remoting protocol, this build version \d+")
REFUSAL = re.compile(r"the device is of version (\d+), this driver of version (\d+)")


def version(folder):
    """The version that a driver's source names."""
    with open(os.path.join(folder, HEADER), encoding="ascii") as f:
        return int(VERSION.search(f.read())[2])


def source_of(name):
    """The folder with a driver's source, made anew."""
    parent = os.path.join(BUILD, FOLDER, name)
    shutil.rmtree(parent, ignore_errors=True)
    if name == LAST:
        _, commit = release.find()
        release.unpack(commit, parent, os.path.relpath(SOURCE, ROOT))
        return os.path.join(parent, "guest", "driver")
    shutil.copytree(SOURCE, parent)
    with open(os.path.join(parent, HEADER), "r+", encoding="ascii") as f:
        text = f.read()
        f.seek(0)
        f.truncate()
        f.write(VERSION.sub(lambda m: f"{m[1]}{int(m[2]) + OTHERS[name]}", text))
    return parent


def programs():
    """The files that guests need, which are built here."""
    files = []
    for name in (*OTHERS, LAST):
        source = source_of(name)
        out = os.path.join(BUILD, FOLDER, f"{name}-built")
        inside = [os.path.join("/causeway", os.path.relpath(path, ROOT)) for path in (source, out)]
        subprocess.run(["scripts/vm-root", "/causeway/guest/build-driver", *inside], cwd=ROOT,
                       check=True)
        files.append(os.path.join(out, f"causeway-{name}.ko"))
        os.replace(os.path.join(out, "causeway.ko"), files[-1])
    return files + [last_library()]


def last_library():
    """The last release's library for verbs, built once for all tests."""
    _, folder = release.get(os.path.join(BUILD, "test", "last-release"))
    stripped = os.path.join(BUILD, FOLDER, LIBRARY)
    subprocess.run(["strip", "--strip-debug", "-o", stripped,
                    os.path.join(folder, "lib", LIBRARY)], check=True)
    return stripped


def loaded(guest, name):
    """Loads a driver; what the kernel says of it."""
    guest.run(f"dmesg -c > /dev/null; insmod /opt/causeway/bin/causeway-{name}.ko")
    return guest.run("dmesg")


def refused(guest, name, ours, theirs):
    """A driver that does not fit says so by both versions, and offers no device."""
    said = loaded(guest, name)
    found = REFUSAL.search(said)
    if not found or found.groups() != (str(ours), str(theirs)):
        raise GuestError(f"the {name} driver, of version {theirs}: {said[-800:]}")
    guest.run("! [ -e /dev/causeway ]; rmmod causeway")
    return found[0]


def others(lab):
    """Drivers of other versions are refused by name; the last release's works, or is refused so."""
    a, b = lab.guests[:2]
    ours = version(SOURCE)
    b.run("rmmod causeway")
    said = [refused(b, name, ours, ours + step) for name, step in OTHERS.items()]
    last = version(os.path.join(BUILD, FOLDER, LAST, "guest", "driver"))
    if last == ours:
        loaded(b, LAST)
        said.append(f"the last release's: {pingpong(a, b)}")
        b.run("rmmod causeway")
    else:
        said.append(refused(b, LAST, ours, last))
    b.run("insmod /lib/modules/causeway.ko")
    pingpong(b, a)
    return "; ".join(said)


def libraries(lab):
    """The last release's library in a guest works with this tree's, or names both versions."""
    a, b = lab.guests[:2]
    b.run(f"mkdir -p {LIBRARIES}; mv /opt/causeway/bin/{LIBRARY} {LIBRARIES}")
    traffic.start(a, [PINGPONG, "-g", "0"])
    traffic.wait_listening(a, PINGPONG_PORT)
    traffic.start(b, [PINGPONG, "-g", "0", a.address], LD_LIBRARY_PATH=LIBRARIES)
    status, text = traffic.wait(b, PINGPONG)
    traffic.stop(a, PINGPONG)
    if status == 0:
        return "works"
    if not VERSIONS.search(text):
        raise GuestError(f"neither works nor names both versions: {text[-800:]}")
    return VERSIONS.search(text)[0]


# Those that need what `programs` builds.
TESTS = (others, libraries)
