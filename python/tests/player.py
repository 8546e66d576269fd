"""What another process does in a test: says what is asked of it on its standard input, by JSON."""

import json
import os
import subprocess
import sys


class Player:
    """Another process with a session, a pool and a block of it, which is told what to run."""

    def __init__(self, source):
        self.process = subprocess.Popen(
            [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=dict(os.environ), text=True)

    def hear(self):
        """The next line that it prints, from JSON."""
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the process has ended: {self.process.wait()}")
        return json.loads(line)

    def tell(self, text=""):
        """Gives it a line."""
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def kill(self):
        """Kills it, and waits until it is gone."""
        self.process.kill()
        self.end()

    def end(self):
        """Waits for its end; returns its status."""
        self.process.stdin.close()
        status = self.process.wait(60)
        self.process.stdout.close()
        return status
