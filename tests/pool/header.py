"""The header, as compilers of every dialect see it, and the library's list of symbols."""

import os
import re
import subprocess
import tempfile

from lib import netns
from pool.cast import Failed

DIALECTS = (("cc", "c99"), ("cc", "c11"), ("cc", "c17"), ("c++", "c++17"), ("c++", "c++20"))
FLAGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only")


def header_compiles(_stage):
    """In C99, C11, C17, C++17 and C++20, pedantically, and nothing else before it."""
    with tempfile.TemporaryDirectory() as folder:
        for compiler, dialect in DIALECTS:
            suffix = ".cc" if "+" in compiler else ".c"
            source = os.path.join(folder, f"header{suffix}")
            with open(source, "w", encoding="ascii") as file:
                file.write("#include <causeway.h>\n#include <causeway.h>\n"
                           "int f(cw_block *b) { return cw_mutex_lock(b, CW_SYNC_ALIGN); }\n")
            done = subprocess.run([compiler, f"-std={dialect}", *FLAGS,
                                   f"-I{netns.BUILD}/include", source], text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if done.returncode:
                raise Failed(f"{dialect}: {done.stdout}")


def symbols_agree(_stage):
    """The library exports what the header declares, and nothing else."""
    with open(os.path.join(netns.BUILD, "include", "causeway.h"), encoding="ascii") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(cw_[a-z_]+)\(", text))
    said = subprocess.run(["nm", "-D", "--defined-only", os.path.join(netns.BUILD, "lib",
                                                                     "libcauseway.so.0")],
                          check=True, stdout=subprocess.PIPE, text=True).stdout
    names = {line.split()[-1] for line in said.splitlines()}
    exported = {name.split("@")[0] for name in names} - {"CAUSEWAY_0"}
    if declared != exported:
        raise Failed(f"not the same: {sorted(declared ^ exported)}")
    if not all("@@CAUSEWAY_0" in name or name.startswith("CAUSEWAY_0") for name in names):
        raise Failed("a symbol without its version")


def loading_does_nothing(_stage):
    """The library, loaded into a program, opens no file and starts no thread."""
    code = ("import ctypes, os; before = sorted(os.listdir('/proc/self/fd')); "
            f"ctypes.CDLL({os.path.join(netns.BUILD, 'lib', 'libcauseway.so.0')!r}); "
            "assert sorted(os.listdir('/proc/self/fd')) == before; "
            "assert len(os.listdir('/proc/self/task')) == 1")
    subprocess.run(["python3", "-c", code], check=True)


TESTS = (header_compiles, symbols_agree, loading_does_nothing)
