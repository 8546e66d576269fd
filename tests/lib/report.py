"""Counts and records of tests: one line per test on stdout, everything kept in a folder."""

import json
import os
import re
import sys
import time

COUNTS = re.compile(r"^(?:\w+: )?(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.MULTILINE)
# What tells of a failure in what a stage printed, and how much of it the end of a run repeats.
TELLING = re.compile(r"^(?:FAIL\b|failed: |.* panicked at |.*\bFAILED\b)")
TELLING_LINES_MAX = 24
CARGO = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored", re.MULTILINE)


class Report:
    """Collects results. `results` of a stage are kept in FOLDER/results.json."""

    def __init__(self, folder):
        self.folder = folder
        self.results = []
        self.turn = None
        os.makedirs(folder, exist_ok=True)

    def begin_turn(self, turn, turns):
        """What is recorded from now on is of this turn of several, and its output kept apart."""
        self.turn = turn
        print(f"turn {turn} of {turns}", flush=True)

    def add(self, stage, name, problem, seconds, output="", passed=0, failed=0):
        """Records one test, or a stage that counted its own tests (`passed`, `failed`)."""
        if not passed and not failed:
            passed, failed = (0, 1) if problem else (1, 0)
        elif problem and not failed:
            failed = 1
        log = self._keep(stage, name, output)
        self.results.append({"stage": stage, "name": name, "passed": passed, "failed": failed,
                             "problem": problem, "seconds": round(seconds, 2), "output": log,
                             "turn": self.turn})
        word = "FAIL" if failed else "ok"
        counts = f" ({passed} passed, {failed} failed)" if passed + failed > 1 else ""
        print(f"{word:<4} {stage}: {name}{counts} [{seconds:.1f} s]", flush=True)
        if problem:
            print(f"     {problem}\n     output: {log}", flush=True)

    def _keep(self, stage, name, output):
        turn = f"-turn{self.turn}" if self.turn else ""
        file = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{stage}-{name}")[:150] + turn + ".log"
        path = os.path.join(self.folder, file)
        with open(path, "w", encoding="utf-8", errors="replace") as f:
            f.write(output)
        return os.path.relpath(path)

    def close(self):
        """Writes results.json and the closing line; returns the exit status."""
        passed = sum(r["passed"] for r in self.results)
        failed = sum(r["failed"] for r in self.results)
        with open(os.path.join(self.folder, "results.json"), "w", encoding="utf-8") as f:
            json.dump({"passed": passed, "failed": failed, "results": self.results}, f, indent=1)
        for result in self.results:
            if result["failed"]:
                problem = result["problem"] or "see its output"
                print(f"failed: {result['stage']}: {result['name']}: {problem}")
                for line in telling_lines(result["output"]):
                    print(f"    {line}")
        if passed + failed == 0:
            print("no test ran", file=sys.stderr)
            failed = 1
        print(f"{passed} passed, {failed} failed", flush=True)
        return 1 if failed else 0


def telling_lines(log):
    """What a log says of failures, each with the line after it; or else its last lines. A run on
    a machine that nobody can look at later leaves nothing but what it printed."""
    with open(log, encoding="utf-8", errors="replace") as f:
        lines = f.read().rstrip().splitlines()
    told = [i for i, line in enumerate(lines) if TELLING.match(line)]
    wanted = sorted({i + after for i in told for after in (0, 1) if i + after < len(lines)})
    return ([lines[i] for i in wanted] or lines)[-TELLING_LINES_MAX:]


def count_closing_lines(text):
    """Sums the closing lines of our own runners and of cargo test: (passed, failed)."""
    own = COUNTS.findall(text)
    if own:
        return int(own[-1][0]), int(own[-1][1])
    cargo = CARGO.findall(text)
    return sum(int(c[0]) for c in cargo), sum(int(c[1]) for c in cargo)


def has_closing_lines(text):
    """Whether a runner came to its closing line."""
    return bool(COUNTS.search(text) or CARGO.search(text))


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self):
        self.start = time.monotonic()

    def seconds(self):
        """Seconds so far."""
        return time.monotonic() - self.start
