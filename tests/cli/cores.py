"""What is left of a program that dies by its own fault while it has memory registered."""

import os
import re
import signal
import subprocess

from cli.opening import CC, FLAGS, HERE

PATTERN = "/proc/sys/kernel/core_pattern"
# How it dies: the signal, where, its code, and where in a page the address lies that it tells.
DEATHS = {"fault": (signal.SIGSEGV, "load", 1, 0x123),
          "bus": (signal.SIGBUS, "load", 2, 0x123),
          "sent": (signal.SIGSEGV, "kill", 0, None)}
MARK = 0x5eed5eed5eed5eed
SHOW = ('printf "signal %d code %d address %#lx r12 %#lx\\n", $_siginfo.si_signo, '
        '$_siginfo.si_code, $_siginfo._sifields._sigfault.si_addr, $r12')
SHOWN = re.compile(r"^signal (\d+) code (-?\d+) address (0x[0-9a-f]+|0) r12 (0x[0-9a-f]+|0)$", re.M)


COMMANDS = ["gdb", "-nx", "-batch"]


def shown_by(core, causeway, argv):
    """What gdb shows of a program's end: of its core file or, where there is none because the
    kernel hands it to a program, of the program when the signal comes for the second time."""
    last = ["-ex", SHOW, "-ex", "info symbol $pc"]
    if core:
        return subprocess.run([*COMMANDS, *last, argv[0], core], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False).stdout
    live = ["-ex", "run", "-ex", "continue", *last, "--args"]
    return causeway("run", "--", *COMMANDS, *live, *argv).stdout


def core_file(scratch):
    """The core file that the kernel has left in a folder; None where it hands them to a program."""
    with open(PATTERN, encoding="ascii") as file:
        pattern = file.read().strip()
    if pattern.startswith("|"):
        return None
    folder, name = os.path.split(os.path.join(scratch, pattern))
    begin = re.split("%", name)[0]
    found = [os.path.join(folder, each) for each in os.listdir(folder) if each.startswith(begin)]
    return max(found, key=os.path.getmtime, default=None)


def cores(causeway, check, scratch):
    """A core file tells of the program's own fault, not of the handler in front of its own."""
    program = os.path.join(scratch, "mortal")
    subprocess.run([CC, *FLAGS, "-O2", "-o", program, f"{HERE}/mortal.c", "-libverbs"], check=True)
    for how, (number, where, code, address) in DEATHS.items():
        done = causeway("run", "--", program, how, cwd=scratch)
        core = core_file(scratch)
        text = shown_by(core, causeway, [program, how])
        found = SHOWN.search(text)
        good = found and done.returncode == -number and f"\n{where} + " in text and (
            int(found[1]), int(found[2])) == (number, code)
        if good and address:
            good = (int(found[3], 16) % 4096, int(found[4], 16)) == (address, MARK)
        check(f"the core file of a program that dies: {how}", good, (done, core, text))
        if core:
            os.unlink(core)
