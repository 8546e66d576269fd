"""QEMU's machine protocol, as much of it as plugging a device takes."""

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
        self.events = []
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
            self.events.append(answer)

    def wait_event(self, name):
        """Waits for an event."""
        while True:
            for event in self.events:
                if event.get("event") == name:
                    self.events.remove(event)
                    return event
            self.events.append(self.receive())


def options(text):
    """The driver and the properties of a `-device` argument."""
    driver, *rest = text.split(",")
    return driver, dict(item.split("=", 1) for item in rest)


def replug(path, chardev, device):
    """Takes a device of the name `cw` out and plugs it in again, to a new socket: the arguments of
    `-chardev` and `-device`."""
    kind, where = options(chardev)
    driver, properties = options(device)
    address = {"type": "unix", "data": {"path": where["path"]}}
    with Qmp(path) as qmp:
        qmp.execute("device_del", id="cw")
        while qmp.wait_event("DEVICE_DELETED")["data"].get("device") != "cw":
            pass
        qmp.execute("chardev-remove", id=where["id"])
        backend = {"type": kind, "data": {"addr": address, "server": False}}
        qmp.execute("chardev-add", id=where["id"], backend=backend)
        numbers = {k: int(v) if v.isdigit() else v for k, v in properties.items()}
        qmp.execute("device_add", driver=driver, **numbers)
