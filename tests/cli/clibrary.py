"""The oldest C library that the programs and libraries load with."""

import os
import re
import subprocess

from cli.opening import CC, FLAGS, HERE
from lib.netns import BUILD

# RHEL 9 has 2.34.
NEWEST = (2, 34)
ROOT = os.path.dirname(os.path.dirname(HERE))


def versions(path):
    """The versions of glibc whose symbols a file refers to, each with one such symbol."""
    table = subprocess.run(["objdump", "-T", path], stdout=subprocess.PIPE, text=True, check=True)
    found = re.findall(r"\(GLIBC_([0-9.]+)\)\s+(\S+)", table.stdout)
    return {tuple(map(int, version.split("."))): symbol for version, symbol in found}


def oldest_c_library(check, scratch):
    """No file refers to a newer symbol, and panics unwind with and without it."""
    for folder in ("bin", "lib"):
        for name in sorted(os.listdir(os.path.join(BUILD, folder))):
            found = versions(os.path.join(BUILD, folder, name))
            newer = {version: symbol for version, symbol in found.items() if version > NEWEST}
            check(f"{name} loads with glibc {NEWEST[0]}.{NEWEST[1]}", found and not newer, newer)
    archive, program = os.path.join(scratch, "libpanics.a"), os.path.join(scratch, "panics")
    subprocess.run(["rustc", "--edition=2024", "--crate-type=staticlib", "-Copt-level=1",
                    "-Cpanic=unwind", "-o", archive, f"{HERE}/panics.rs"], check=True)
    # As mk/abi.mk links the libraries.
    subprocess.run([CC, *FLAGS, "-o", program, f"{HERE}/panics.c",
                    f"{ROOT}/compat/find_object.c", archive, "-nodefaultlibs", "-static-libgcc",
                    "-lgcc", "-lgcc_eh", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"], check=True)
    env = {name: value for name, value in os.environ.items() if name != "LACKS"}
    for name, more in (("has", {}), ("lacks", {"LACKS": "1"})):
        done = subprocess.run([program], env={**env, **more}, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=60, check=False)
        check(f"panics are caught where the C library {name} _dl_find_object",
              done.returncode == 0 and done.stdout == "asked 1, unwound 101\n", done)
