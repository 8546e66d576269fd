"""The client programs on a secured wire: all that run between hosts run there
(docs/OPERATIONS.md, "A secured wire")."""

import os
import secrets
import tempfile

from lib import netns

KEY_BYTES = 32
MTU = 1500
STAGE = "secured-1500"


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
