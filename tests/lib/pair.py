"""Runs a server program and a client program, and judges both by what they say.

Nothing is tried twice, and nothing sleeps in the hope that something has happened: the client is
started when the server's listening socket shows in the kernel's table.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

from lib.silence import Limit

# Words with which these programs report trouble; a zero exit status does not excuse them.
TROUBLE = re.compile(
    r"fail|error|couldn.t|unable|cannot|invalid|not supported|mismatch|segmentation|panicked|"
    r"undefined symbol|can.t ", re.IGNORECASE)
# Lines that hold such a word in a run without trouble.
HARMLESS = re.compile(r"max_qp_rd_atom|Mtu .*: .*Invalid mtu|phys_state|ERROR_", re.IGNORECASE)
TCP_LISTEN = "0A"
POLL_SECONDS = 0.005
# Between two looks at how much two programs have said. While they run, nobody takes a processor
# from them but for these.
SAID_SECONDS = 1.0
# A program whose partner failed may notice, or wait for it for ever.
SURVIVOR_SECONDS = 3.0
# On a busy machine a debugger takes long to read the symbols; what it says is no more than a help.
GDB_SECONDS = 60


class Outcome:
    """What a pair of programs did: `problem` is None if all went well."""

    def __init__(self, problem, server_text, client_text, seconds):
        self.problem = problem
        self.server_text = server_text
        self.client_text = client_text
        self.seconds = seconds


def listening_inodes(pid):
    """The inodes of the listening TCP sockets in the network namespace of a process."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
        except OSError:
            continue
        inodes.update(row[9] for row in rows if row[3] == TCP_LISTEN)
    return inodes


def owned_sockets(pid):
    """The inodes of the sockets that a process holds."""
    inodes = set()
    try:
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    except OSError:
        pass
    return inodes


def listens(process):
    """Whether a process listens for TCP."""
    return bool(owned_sockets(process.pid) & listening_inodes(process.pid))


def wait_listening(process, deadline, listening=listens):
    """Waits until a process listens; False if it ends first or the deadline passes."""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            return False
        if listening(process):
            return True
        time.sleep(POLL_SECONDS)
    return False


def stacks(process):
    """Where the threads of a hung process stand, if a debugger is installed."""
    if not shutil.which("gdb") or process.poll() is not None:
        return ""
    try:
        found = subprocess.run(
            ["gdb", "-p", str(process.pid), "-batch", "-ex", "thread apply all bt 25"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace", timeout=GDB_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"\n--- no stacks of {process.args[-3:]}: gdb took more than {GDB_SECONDS} s\n"
    return f"\n--- stacks of {process.args[-3:]}\n{found.stdout}"


def end_group(process):
    """Ends a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:
        pass
    process.wait()


class Pair:
    """One run of a server and a client."""

    def __init__(self, world, wire, server_argv, client_argv, env=None, pin=False,
                 listening=listens):
        self.world = world
        self.wire = wire
        self.argv = (list(server_argv), list(client_argv))
        self.env = env
        self.listening = listening
        if pin:
            self.argv = tuple(["taskset", "-c", str(cpu)] + argv
                              for cpu, argv in zip((0, 1), self.argv))

    def run(self, seconds, expect=None, words=True):
        """Runs both to their ends: one that hangs says nothing for so many seconds.
        `expect(client_text)` may return a problem; with `words`, so do words of trouble in either
        output."""
        start = time.monotonic()
        files = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(2)]
        processes = []
        try:
            problem = self._run(files, processes, seconds)
        finally:
            for process in processes:
                end_group(process)
        texts = []
        for file in files:
            file.seek(0)
            texts.append(file.read())
            file.close()
        if problem is None and words:
            problem = find_trouble(texts)
        if problem is None and expect:
            problem = expect(texts[1])
        return Outcome(problem, texts[0], texts[1], time.monotonic() - start)

    def _start(self, host, argv, file, processes):
        process = host.popen(argv, self.wire, self.env, stdout=file, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    def _run(self, files, processes, seconds):
        limit = Limit(seconds, time.monotonic())
        server = self._start(self.world.server, self.argv[0], files[0], processes)
        if not wait_listening(server, limit.deadline, self.listening):
            if server.poll() is not None:
                return f"the server ended early: {exit_text(server.returncode)}"
            files[0].write(stacks(server))
            return "the server does not listen"
        client = self._start(self.world.client, self.argv[1], files[1], processes)
        if not self._wait_both(files, processes, limit):
            for file, process in zip(files, processes):
                file.seek(0, os.SEEK_END)
                file.write(stacks(process))
            if all(process.returncode in (None, 0) for process in processes):
                return "hangs"
        for name, process in (("server", server), ("client", client)):
            if process.returncode:
                return f"the {name} failed: {exit_text(process.returncode)}"
        return None

    @staticmethod
    def _wait_both(files, processes, limit):
        """Waits until both have ended; once one fails, the other has a moment only."""
        with ended_each(processes) as ended:
            while True:
                codes = [process.poll() for process in processes]
                if None not in codes:
                    return True
                said = sum(os.fstat(file.fileno()).st_size for file in files)
                left = limit.left(said, time.monotonic())
                if any(codes):
                    try:
                        processes[codes.index(None)].wait(min(SURVIVOR_SECONDS, max(0.0, left)))
                    except subprocess.TimeoutExpired:
                        return False
                elif left < 0:
                    return False
                else:
                    ended(min(SAID_SECONDS, left))


@contextlib.contextmanager
def ended_each(processes):
    """A function that sleeps until another one of these has ended, or for so many seconds."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for process in processes:
            descriptor = os.pidfd_open(process.pid)
            stack.callback(os.close, descriptor)
            poll.register(descriptor, select.POLLIN)

        def ended(seconds):
            for descriptor, _ in poll.poll(1000 * seconds):
                # It stays readable.
                poll.unregister(descriptor)
        yield ended


def find_trouble(texts):
    """The first line of the server's or client's output that reports trouble, if any."""
    for name, text in zip(("server", "client"), texts):
        for line in text.splitlines():
            if TROUBLE.search(line) and not HARMLESS.search(line):
                return f"the {name} says: {line.strip()}"
    return None


def exit_text(code):
    """An exit status in words."""
    if code < 0:
        return signal.Signals(-code).name
    return f"exit status {code}"
