"""The client programs on a secured wire: what runs there, and what is refused
(docs/OPERATIONS.md, "A secured wire").

Multicast is not secured. A program that needs it has to end with an error, and the library has to
say why: that is tested like the rest.
"""

import os
import secrets
import tempfile

from lib import netns

# What the library says where a program asks for what is not secured.
REFUSAL = "not secured in this version"
KEY_BYTES = 32
MTU = 1500
STAGE = "secured-1500"
# Tests of programs that need multicast, by their beginnings.
REFUSED = ("mckey",)


def is_to_be_refused(name):
    """Whether a test's program needs what is not secured."""
    return name.startswith(REFUSED)


class Judge:
    """A report in which programs that need what is not secured pass by being refused."""

    def __init__(self, report):
        self.report = report

    def add(self, stage, name, problem, seconds, text="", passed=0, failed=0):
        """As the report's own. Where a program is to be refused all of its tests are one."""
        if is_to_be_refused(name):
            refused = problem is not None and REFUSAL in text
            problem = None if refused else f"not refused: {problem or 'it went well'}"
            passed = failed = 0
        self.report.add(stage, name, problem, seconds, text, passed, failed)


class Hosts(netns.TwoHosts):
    """Two hosts whose brokers share a key, and whose programs require a secured wire."""

    def __init__(self):
        super().__init__(MTU)
        self.folder = tempfile.TemporaryDirectory(prefix="cwt-key-")
        key = os.path.join(self.folder.name, "wire.key")
        with open(key, "w", encoding="ascii",
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as out:
            out.write(secrets.token_hex(KEY_BYTES) + "\n")
        for host in (self.server, self.client):
            host.settings = {"CAUSEWAY_SECURE": "required", "CAUSEWAY_WIRE_KEY": key}

    def end(self):
        """Ends both hosts, and removes their key."""
        super().end()
        if hasattr(self, "folder"):
            self.folder.cleanup()
