"""The broker's configurations that the documents show: a broker takes each as it stands.

A block of code whose language is `toml` is one. The files that it names below /etc/causeway are
made for it elsewhere.
"""

import os
import re
import subprocess
import tempfile

from lib import netns

BLOCK = re.compile(r"^```toml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# A block with a table of the broker's is one, and has to say so.
TABLE = re.compile(r"^```\n(?:[^`]*\n)?\[+(?:limits|rates|sisci|tenant|vm|wire)[].]", re.MULTILINE)
PLACE = "/etc/causeway"
KEY = "0123456789abcdef" * 4
SECONDS = 60


def of(path):
    """The configurations of a page, each with the line where it is."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    return [(page.count("\n", 0, match.start()) + 1, match[1]) for match in BLOCK.finditer(page)]


def unmarked(path):
    """Whether a page shows one that is not marked."""
    with open(path, encoding="utf-8") as f:
        return TABLE.search(f.read()) is not None


def mistake(text, program=os.path.join(netns.BUILD, "bin", "causewayd")):
    """How a broker refuses a configuration: its status, and what it says. None if it takes it."""
    with tempfile.TemporaryDirectory(prefix="cwt-configuration-") as folder:
        for name in set(re.findall(rf'"{PLACE}/([\w.-]+)"', text)):
            with open(os.path.join(folder, name), "w", encoding="ascii",
                      opener=lambda path, flags: os.open(path, flags, 0o600)) as f:
                f.write(KEY + "\n")
        path = os.path.join(folder, "causewayd.toml")
        with open(path, "w", encoding="utf-8") as f:
            # Distributions number their groups as they like.
            f.write(text.replace(PLACE, folder).replace('"rdma"', '"daemon"'))
        done = subprocess.run([program, "--check", "--config", path], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
        return f"status {done.returncode}\n{done.stdout}" if done.returncode else None


def killed():
    """The same of a broker that a signal ends before it has said anything."""
    with tempfile.TemporaryDirectory(prefix="cwt-configuration-") as folder:
        program = os.path.join(folder, "causewayd")
        with open(program, "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o700)) as f:
            f.write("#!/bin/sh\nkill -KILL $$\n")
        return mistake("", program)
