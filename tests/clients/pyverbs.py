"""pyverbs' own suite, as Debian ships it: everything that belongs to no vendor's provider.

Each outcome is compared with docs/PYVERBS.md. To write that anew from a run's log:
`PYTHONPATH=tests python3 -m clients.pyverbs build/test/shm-pyverbs_own_suite.log`."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from lib import pair

NAME = "pyverbs' own suite"
SUITE = "/usr/share/doc/rdma-core/tests"
# Debian's python, for which the bindings are built.
PYTHON = "/usr/bin/python3"
PROVIDERS = ("test_mlx5", "test_efa")
DEVICE = "cway0"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PAGE = os.path.join(ROOT, "docs", "PYVERBS.md")
# "test_name (tests.module.Class.test_name)", perhaps a line about it, "... outcome".
OUTCOME = re.compile(r"^(test_\w+) \(tests\.(\w+)\.(\w+)[\w.]*\)(?:\n[^\n]*?)? \.\.\. "
                     r"(?:[^\n]*\n)??(ok|FAIL|ERROR|skipped '([^\n]*)')$", re.M)
# So many tests pass at least.
PASSES_MIN = 100
ROW = re.compile(r"^\| `([\w.]+)` \| (\w+) \|(?: (.+))? \|$", re.M)
# Why, in our words, a test is skipped that the suite skips in these.
CAUSES = [
    ("XRCD", "extended reliable connections are not offered"),
    ("ODP", "on-demand paging is not offered: registered memory is populated"),
    ("Device memory", "device memory is not offered: there is no device to have it"),
    ("Raw Packet", "raw packets and flow steering are not offered"),
    ("QP type 8", "raw packets and flow steering are not offered"),
    ("Extended CQ", "tag matching is not offered"),
    ("Extended QP", "atomic writes are not offered"),
    ("Importing a device", "a device can't be imported into another process"),
    ("dmabuf", "dma-buf is not offered, and the machine has no device to take one from"),
    ("cuda-python", "of the machine: no CUDA"),
    ("huge pages", "of the machine: no huge pages are set aside"),
]


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


def outcomes(text):
    """What came of each test by name: ("pass" | "skip" | "fail", why it was skipped)."""
    words = {"ok": "pass", "FAIL": "fail", "ERROR": "fail"}
    return {f"{module}.{group}.{name}": (words.get(outcome, "skip"), why or "")
            for name, module, group, outcome, why in OUTCOME.findall(text)}


def documented():
    """The same, as docs/PYVERBS.md has it."""
    with open(PAGE, encoding="utf-8") as page:
        rows = ROW.findall(page.read())
    return {name: (outcome, why.split(" (", 1)[-1][:-1] if why else "")
            for name, outcome, why in rows}


def differences(found, expected):
    """A line for each test whose outcome is not the documented one."""
    names = sorted(found.keys() | expected.keys())
    return [f"{name}: {found.get(name)}, docs/PYVERBS.md has {expected.get(name)}"
            for name in names if found.get(name) != expected.get(name)]


def cause(why):
    """In our words why a test is skipped that the suite skips in these."""
    return next((cause for words, cause in CAUSES if words in why), "the suite says")


def write_page(text):
    """Writes docs/PYVERBS.md from a run's output."""
    found = outcomes(text)
    passes = sum(outcome == "pass" for outcome, _ in found.values())
    lines = [
        "# pyverbs' own suite",
        "",
        "Every test of rdma-core 44's suite (`/usr/share/doc/rdma-core/tests`) that belongs to no "
        "vendor's provider, run on one",
        "host. `tests/clients/pyverbs.py` wrote this page from the output of a run; `make test` "
        "compares each run with it, and fails",
        "where they differ. What the suite says is in parentheses.",
        "",
        "```sh packages",
        "sudo apt-get install rdma-core python3-pyverbs python3",
        "```",
        "",
        "Debian packs most of the suite's files. A copy of it, unpacked, without vendors' tests:",
        "",
        "```sh",
        "cp -r /usr/share/doc/rdma-core/tests .",
        "gunzip tests/*.gz",
        "rm tests/test_mlx5* tests/test_efa*",
        "```",
        "",
        "```sh",
        "causeway run -- /usr/bin/python3 tests/run_tests.py --dev cway0 --gid 1 -v -k PDTest",
        "```",
        "",
        "```text",
        "...",
        "OK (skipped=1)",
        "```",
        "",
        "Without `-k PDTest` all of it runs, in some seconds. The host needs two addresses "
        "(`--gid 1` is the second), one of them other",
        "than loopback's; without that, the tests of multicast fail. The interpreter is Debian's, "
        "for which the bindings are built.",
        "",
        f"{len(found)} tests: {passes} pass, {len(found) - passes} are skipped.",
        "",
        "| test | outcome | why |",
        "|---|---|---|",
    ]
    for name, (outcome, why) in sorted(found.items()):
        reason = f" {cause(why)} ({why})" if why else ""
        lines.append(f"| `{name}` | {outcome} |{reason} |")
    with open(PAGE, "w", encoding="utf-8") as page:
        page.write("\n".join(lines) + "\n")


def compare(text, passed):
    """What is wrong with a run in which nothing failed."""
    wrong = differences(outcomes(text), documented())
    if wrong:
        return f"{len(wrong)} outcomes are not those of docs/PYVERBS.md: {'; '.join(wrong[:3])}"
    return None if passed >= PASSES_MIN else f"{passed} pass, {PASSES_MIN} should"


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
            problem = problem or compare(text, passed)
        except subprocess.TimeoutExpired:
            pair.end_group(process)
            text, passed, failed, problem = process.stdout.read(), 0, 0, "hangs"
    report.add(stage, NAME, problem, time.monotonic() - start, text, passed, failed)


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as log:
        write_page(log.read())
