"""Programs that open the libraries while they run instead of linking them."""

import os
import subprocess

from lib.netns import BUILD

HERE = os.path.dirname(os.path.abspath(__file__))
CC = os.environ.get("CC", "cc")
SYSTEM = "/usr/lib/x86_64-linux-gnu"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror")
# Whatever a program calls them, by the version, by the development package's name, by a path.
VERBS = ("libibverbs.so.1", "libibverbs.so", f"{SYSTEM}/libibverbs.so.1", f"{SYSTEM}/libibverbs.so",
         f"{SYSTEM}/../../lib//x86_64-linux-gnu/libibverbs.so.1")
MANAGER = ("librdmacm.so.1", "librdmacm.so", f"{SYSTEM}/librdmacm.so.1", f"{SYSTEM}/librdmacm.so")


def build(scratch):
    """The opener with a RUNPATH to a plug-in, with one to the system's libraries, and without."""
    plugins = os.path.join(scratch, "plugins")
    os.makedirs(plugins)
    source = os.path.join(scratch, "plugin.c")
    with open(source, "w", encoding="ascii") as file:
        file.write("int plugin(void); int plugin(void) { return 1; }\n")
    subprocess.run([CC, *FLAGS, "-shared", "-fPIC", "-o", f"{plugins}/libplugin.so", source],
                   check=True)
    programs = {}
    for name, rpath in (("plain", ()), ("runpath", ("-Wl,-rpath,$ORIGIN/plugins",)),
                        ("system", (f"-Wl,-rpath,{SYSTEM}",)),
                        ("rpath", (f"-Wl,--disable-new-dtags,-rpath,{SYSTEM}",))):
        programs[name] = os.path.join(scratch, name)
        subprocess.run([CC, *FLAGS, "-O2", "-o", programs[name], f"{HERE}/opener.c", *rpath,
                        "-ldl"], check=True)
    return programs


def opened_at_run_time(causeway, check, scratch):
    """By whatever name and call they are opened, the libraries are ours and have the device."""
    programs, ours = build(scratch), os.path.join(BUILD, "lib")
    for option in ((), ("--no-paths",), ("--isolate",)):
        for program in ("plain", "system", "rpath"):
            for how in ("dlopen", "dlmopen", "noload"):
                names = [f"{how}:{name}" for name in VERBS + MANAGER]
                done = causeway("run", *option, "--", programs[program], *names)
                wanted = [f"{ours}/libibverbs.so.1 1 cway0"] * len(VERBS)
                wanted += [f"{ours}/librdmacm.so.1 1 -"] * len(MANAGER)
                check(f"run {' '.join(option)}: {how} by a program with {program} paths",
                      done.stdout.splitlines() == wanted, done.stdout.splitlines())
    others(causeway, check, programs, scratch)


def others(causeway, check, programs, scratch):
    """Every other library is found where it would be, and missed in the same words."""
    names = [f"{how}:{name}" for how in ("dlopen", "dlmopen")
             for name in ("libplugin.so", "libabsent.so.1", "/absent/libibverbs.so.2")]
    for program in ("plain", "runpath"):
        done = causeway("run", "--", programs[program], *names)
        bare = subprocess.run([programs[program], *names], stdout=subprocess.PIPE, text=True,
                              check=True)
        found = f"{scratch}/plugins/libplugin.so" in bare.stdout
        check(f"other libraries, {program} paths",
              done.stdout == bare.stdout and found == (program == "runpath"), done)
