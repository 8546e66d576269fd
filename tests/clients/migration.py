"""QEMU's live migration over RDMA: one QEMU sends its guest to another.

The guest of the first test stands still, and has random bytes in its memory. That of the others
runs a boot sector of ours, which adds 1 to each of 32,768 words in turn and for ever: at any moment
some words from the first on are one ahead of the rest, and a page that came late, twice or not
breaks that.
"""

import json
import os
import socket
import subprocess
import tempfile
import time

from lib import pair

QEMU = "qemu-system-x86_64"
# Megabytes; the guest needs less.
MEMORY = "64"
PATTERN_BYTES, PATTERN_AT = 8 << 20, 16 << 20
# mov ax, 0x2000; mov ds, ax; xor bx, bx; again: inc word [bx]; add bx, 2; jmp again
COUNTER = bytes.fromhex("b80020 8ed8 31db ff07 83c302 ebf9")
COUNTED_AT, COUNTED_BYTES = 0x20000, 0x10000
SECTOR = 512
POLL_SECONDS = 0.02


class Broken(Exception):
    """What a test found."""


class Machine:
    """A QEMU on a host, and its monitor."""

    def __init__(self, host, wire, folder, name, options):
        self.name = name
        self.path = os.path.join(folder, name)
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        argv = [QEMU, "-machine", "pc", "-accel", "tcg", "-m", MEMORY, "-display", "none",
                "-nodefaults", "-qmp", f"unix:{self.path},server=on,wait=off", *options]
        self.process = host.popen(argv, wire, stdout=self.log, stderr=subprocess.STDOUT)
        self.monitor = None

    def connect(self, until):
        """Opens the monitor."""
        while self.monitor is None:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(self.path)
                self.monitor = connection.makefile("rw")
            except OSError as error:
                connection.close()
                if self.process.poll() is not None or time.monotonic() > until:
                    raise Broken(f"the {self.name} does not start: {error}") from error
                time.sleep(POLL_SECONDS)
        connection.settimeout(max(1.0, until - time.monotonic()))
        self.monitor.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        """What the monitor answers."""
        self.monitor.write(json.dumps({"execute": command, "arguments": arguments}) + "\n")
        self.monitor.flush()
        for line in self.monitor:
            said = json.loads(line)
            if "error" in said:
                raise Broken(f"{self.name}: {command}: {said['error']['desc']}")
            if "return" in said:
                return said["return"]
        raise Broken(f"the {self.name} has ended")

    def memory(self, at, size):
        """A piece of the guest's memory."""
        path = f"{self.path}.memory"
        self.ask("pmemsave", val=at, size=size, filename=path)
        with open(path, "rb") as f:
            return f.read()

    def end(self):
        """Ends it; what it said."""
        if self.monitor:
            self.monitor.close()
        pair.end_group(self.process)
        self.log.seek(0)
        text = f"--- {self.name}\n{self.log.read()}"
        self.log.close()
        return text


def wait(what, until, condition):
    """Waits until something is so."""
    while not condition():
        if time.monotonic() > until:
            raise Broken(f"waits in vain: {what}")
        time.sleep(POLL_SECONDS)


def move(source, target, uri, until):
    """Sends the guest, and waits until it has gone; what the monitor says of it."""
    source.ask("migrate", uri=uri)
    wait("the migration", until, lambda: source.ask("query-migrate").get("status") in
         ("completed", "failed", "cancelled"))
    said = source.ask("query-migrate")
    if said["status"] != "completed":
        raise Broken(f"the migration has {said['status']}: {said.get('error-desc')}")
    wait("the target", until, lambda: target.ask("query-status")["status"] != "inmigrate")
    return said


def counted(machine):
    """The first and the last of the words that the guest counts in; all are as they must be."""
    data = machine.memory(COUNTED_AT, COUNTED_BYTES)
    words = [int.from_bytes(data[at:at + 2], "little") for at in range(0, len(data), 2)]
    steps = [at for at in range(1, len(words)) if words[at] != words[at - 1]]
    if len(steps) > 1 or (steps and (words[0] - words[-1]) % 0x10000 != 1):
        raise Broken(f"the guest's memory is not whole: {len(steps)} steps, {words[0]} to "
                     f"{words[-1]}")
    return words[0]


class Pair:
    """Two QEMUs, one of which waits for the other's guest."""

    def __init__(self, world, wire, port, options, of_source=()):
        self.folder = tempfile.TemporaryDirectory(prefix="cwt-migration-")
        self.uri = f"rdma:{world.server.address}:{port}"
        self.target = Machine(world.server, wire, self.folder.name, "target",
                              [*options, "-incoming", "defer"])
        self.source = Machine(world.client, wire, self.folder.name, "source",
                              [*options, *of_source])

    def start(self, until, *capabilities):
        """Opens the monitors; the target listens."""
        for machine in (self.target, self.source):
            machine.connect(until)
            machine.ask("migrate-set-capabilities", capabilities=[
                {"capability": name, "state": True} for name in capabilities])
        self.target.ask("migrate-incoming", uri=self.uri)

    def end(self):
        """Ends both; what they said."""
        text = self.target.end() + self.source.end()
        self.folder.cleanup()
        return text


def still(world, wire, port, until, said):
    """A guest that does nothing: its memory comes as it was."""
    pattern = os.urandom(PATTERN_BYTES)
    with tempfile.NamedTemporaryFile(prefix="cwt-migration-") as file:
        file.write(pattern)
        file.flush()
        loader = f"loader,file={file.name},addr={PATTERN_AT:#x},force-raw=on"
        both = Pair(world, wire, port, ["-S"], ["-device", loader])
        try:
            both.start(until)
            move(both.source, both.target, both.uri, until)
            if both.target.memory(PATTERN_AT, PATTERN_BYTES) != pattern:
                raise Broken("the guest's memory is not what it was")
        finally:
            said.append(both.end())


def running(*capabilities):
    """A guest that counts goes on counting on the other host."""
    def test(world, wire, port, until, said):
        with tempfile.NamedTemporaryFile(prefix="cwt-migration-") as disk:
            disk.write(COUNTER.ljust(SECTOR - 2, b"\0") + b"\x55\xaa")
            disk.truncate(1 << 20)
            disk.flush()
            drive = f"file={disk.name},format=raw,if=ide,file.locking=off"
            both = Pair(world, wire, port, ["-drive", drive])
            try:
                both.start(until, *capabilities)
                wait("the guest", until, lambda: any(both.source.memory(COUNTED_AT, 2)))
                move(both.source, both.target, both.uri, until)
                both.source.ask("query-status")
                both.target.ask("stop")
                before = counted(both.target)
                both.target.ask("cont")
                wait("the guest's counting", until,
                     lambda: both.target.memory(COUNTED_AT, 2) != before.to_bytes(2, "little"))
                both.target.ask("stop")
                counted(both.target)
            finally:
                said.append(both.end())
    return test


TESTS = {"qemu migrate, a guest that stands still": still,
         "qemu migrate, a running guest": running(),
         "qemu migrate, a running guest, rdma-pin-all": running("rdma-pin-all")}
NAMES = list(TESTS)


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each migration."""
    for name, test in TESTS.items():
        if not chosen(f"{stage} {name}"):
            continue
        start, problem, said = time.monotonic(), None, []
        try:
            test(world, wire, next(ports), start + seconds, said)
        except (Broken, OSError, ValueError) as error:
            problem = str(error)
        report.add(stage, name, problem, time.monotonic() - start, "".join(said))
