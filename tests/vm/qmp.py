"""QEMU's machine protocol."""

import json
import socket

SECONDS = 60


class QmpError(Exception):
    """QEMU refuses, or does not answer."""


class Qmp:
    """A connection to a QEMU."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(path)
        self.file = self.socket.makefile("r", encoding="utf-8")
        self.receive()
        self.execute("qmp_capabilities")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def receive(self):
        """The next message."""
        line = self.file.readline()
        if not line:
            raise QmpError("QEMU has ended")
        return json.loads(line)

    def execute(self, command, **arguments):
        """Runs a command; returns what it returns."""
        request = {"execute": command, "arguments": arguments}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            answer = self.receive()
            if "error" in answer:
                raise QmpError(f"{command}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
            # Else it is an event.
