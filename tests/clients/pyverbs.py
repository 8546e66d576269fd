"""pyverbs' own suite, as Debian ships it: everything that belongs to no vendor's provider."""

import gzip
import os
import re
import shutil
import subprocess
import tempfile
import time

from lib import pair

NAME = "pyverbs' own suite"
SUITE = "/usr/share/doc/rdma-core/tests"
# Debian's python, for which the bindings are built.
PYTHON = "/usr/bin/python3"
PROVIDERS = ("test_mlx5", "test_efa")
DEVICE = "cway0"


def unpack(folder):
    """Puts the suite into a folder, unpacked, less what needs a vendor's device."""
    tests = os.path.join(folder, "tests")
    os.mkdir(tests)
    for name in os.listdir(SUITE):
        source = os.path.join(SUITE, name)
        if name.startswith(PROVIDERS) or not os.path.isfile(source):
            continue
        opener = gzip.open if name.endswith(".gz") else open
        with opener(source, "rb") as packed, \
                open(os.path.join(tests, name.removesuffix(".gz")), "wb") as plain:
            shutil.copyfileobj(packed, plain)


def judge(text, code):
    """Passed, failed, and what is wrong. A skipped test counts as neither."""
    ran = re.search(r"^Ran (\d+) tests", text, re.M)
    if not ran:
        return 0, 0, "ran no test"
    end = text[ran.end():]
    counts = {word: int(n) for word, n in re.findall(r"(\w+)=(\d+)", end)}
    failed = counts.get("failures", 0) + counts.get("errors", 0)
    passed = int(ran[1]) - failed - counts.get("skipped", 0)
    problem = f"{failed} of {ran[1]} failed" if failed or code else None
    return passed, failed, problem


def run(report, stage, host, wire, seconds):
    """Runs the suite on one host."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="cwt-pyverbs-") as folder:
        unpack(folder)
        process = host.popen([PYTHON, "tests/run_tests.py", "--dev", DEVICE, "--gid", "1", "-v"],
                             wire, cwd=folder, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
        try:
            text, _ = process.communicate(timeout=seconds)
            passed, failed, problem = judge(text, process.returncode)
        except subprocess.TimeoutExpired:
            pair.end_group(process)
            text, passed, failed, problem = process.stdout.read(), 0, 0, "hangs"
    report.add(stage, NAME, problem, time.monotonic() - start, text, passed, failed)
