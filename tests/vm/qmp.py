"""QEMU's machine protocol."""

import json
import re
import socket
import time

SECONDS = 60
# For so long nothing new is shown before a machine is stopped.
QUIET_SECONDS = 1.0
LOOK_SECONDS = 0.1
# What QEMU calls a range of a window that shows something: the last number is where.
SHOWN = re.compile(r"virtio-shmem-\d+-[0-9a-f]+")


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


def shown(qmp):
    """What QEMU shows in the window of a machine, once each."""
    tree = qmp.execute("human-monitor-command", **{"command-line": "info mtree"})
    return set(SHOWN.findall(tree))


def stop(qmp):
    """Stops a machine while nothing is asked of its QEMU: one that is asked to map or to unmap at
    that very moment ends itself (VM.md)."""
    deadline = time.monotonic() + SECONDS
    before, since = shown(qmp), time.monotonic()
    while time.monotonic() - since < QUIET_SECONDS:
        if time.monotonic() > deadline:
            raise QmpError("what is shown goes on changing")
        time.sleep(LOOK_SECONDS)
        if (now := shown(qmp)) != before:
            before, since = now, time.monotonic()
    qmp.execute("stop")
