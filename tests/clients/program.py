"""Programs of two sides that are started, ended and judged alike."""

import subprocess

from lib import pair


class Program:
    """Two command lines, when the first listens, and what the second must print."""

    def __init__(self, name, server, client, listening=pair.listens, expect=None, env=None,
                 words=True):
        self.name = name
        self.server = server
        self.client = client
        self.listening = listening
        self.expect = expect
        self.env = env
        self.words = words


def run_one(report, stage, world, wire, seconds, program):
    """Runs one program; its outcome."""
    runner = pair.Pair(world, wire, program.server, program.client, env=program.env,
                       listening=program.listening)
    outcome = runner.run(seconds, program.expect, program.words)
    text = f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}"
    report.add(stage, program.name, outcome.problem, outcome.seconds, text)
    return outcome


def run_all(report, stage, world, wire, seconds, programs, chosen):
    """Runs every program that is chosen on one pair of hosts."""
    for program in programs:
        if chosen(f"{stage} {program.name}"):
            run_one(report, stage, world, wire, seconds, program)


def run_alone(host, argv, wire, seconds, env=None):
    """Runs a command without a partner to its end: its problem, if any, and what it printed."""
    process = host.popen(argv, wire, env, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, text=True, errors="replace")
    try:
        text, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        pair.end_group(process)
        return "hangs", process.stdout.read()
    return (pair.exit_text(process.returncode) if process.returncode else None), text
