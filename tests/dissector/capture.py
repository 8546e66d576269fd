"""Captures the traffic between two hosts, and what tshark's dissector makes of it."""

import os
import re
import signal
import subprocess
import tempfile

from lib import netns
from lib.output import rest_of_output

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, "packaging", "wireshark", "causeway.lua")
SECONDS = 180
# tshark writes between the values of a field that occurs several times.
SEVERAL = ","


class Failed(Exception):
    """What a test found."""


class Capture:
    """`with Capture(host) as capture`: all UDP packets that pass a host's link, in `path`."""

    def __init__(self, host):
        self.folder = tempfile.TemporaryDirectory(prefix="cwt-capture-")
        self.path = os.path.join(self.folder.name, "traffic.pcapng")
        argv = ["dumpcap", "-q", "-i", netns.LINK, "-f", "udp", "-B", "64", "-w", self.path]
        self.process = host.popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                  text=True)
        # It names its file when it has opened the interface.
        said = []
        for line in self.process.stderr:
            said.append(line)
            if line.startswith("File:"):
                return
        raise netns.SetupError(f"dumpcap does not start: {''.join(said)}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
        self.folder.cleanup()

    def stop(self):
        """Ends the capture; the file is whole."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        # What it has said of packets that it saw and lost.
        said = rest_of_output(self.process, self.process.stderr, SECONDS)
        lost = re.search(r"received/dropped on interface .*: \d+/(\d+) ", said)
        if lost and lost[1] != "0":
            raise Failed(f"the capture is not whole: {said}")


def tshark(path, *options):
    """What tshark prints of a file; it and the dissector must not complain."""
    argv = ["tshark", "-X", f"lua_script:{SCRIPT}", "-n", "-r", path, *options]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=SECONDS, check=False)
    said = [line for line in done.stderr.splitlines() if not line.startswith("Running as user")]
    if done.returncode or said or "Lua Error" in done.stdout:
        raise Failed(f"{' '.join(argv)}: {done.returncode}: {said} {done.stdout[-400:]}")
    return done.stdout


def frames(path, fields, wanted=""):
    """The values of `fields` in each frame that the filter `wanted` lets through."""
    options = ["-T", "fields", "-E", f"aggregator={SEVERAL}"]
    for field in fields:
        options += ["-e", field]
    if wanted:
        options += ["-Y", wanted]
    rows = [line.split("\t") for line in tshark(path, *options).splitlines()]
    return [[cell.split(SEVERAL) if cell else [] for cell in row] for row in rows]


def count(path, wanted):
    """How many frames a filter lets through."""
    return len(frames(path, ["frame.number"], wanted))
