"""What the tests of a secured wire have in common: keys, and somebody who listens."""

import json
import os
import secrets
import subprocess
import sys

from kill.harness import START_SECONDS, Failed
from lib import netns, pair
from lib.output import rest_of_output

EAR = os.path.join(netns.ROOT, "tests", "secure", "ear.py")
LEAST_SEEN = 50


def new_key():
    """As `openssl rand -hex 32` makes it."""
    return secrets.token_hex(32)


class Ear:
    """Somebody on the link of a host, who listens, or meddles."""

    def __init__(self, host, meddles=False):
        argv = [sys.executable, EAR] + (["meddle"] if meddles else [])
        self.process = host.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise Failed("the listener does not start")

    def said(self):
        """What it has seen, or done."""
        return json.loads(rest_of_output(self.process, self.process.stdout, START_SECONDS))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pair.end_group(self.process)


def expect_sealed(seen):
    """All that passed was sealed, and no number came twice."""
    if seen.get("sealed", 0) < LEAST_SEEN or not seen.get("handshake"):
        raise Failed(f"too little was seen: {seen}")
    if seen.get("plain") or seen.get("marked") or seen.get("repeated numbers"):
        raise Failed(f"something passed in the clear, or twice: {seen}")
