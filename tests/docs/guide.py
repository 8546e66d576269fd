"""Runs the commands of a page of the documents as a person would type them.

A block of code whose language is `sh` is typed into a shell that stays from block to block. Further
words name another: `sh server` is another terminal of the same host, `sh second-host` one of
another host. What is typed into a terminal named `server` goes on while the others do; the next
block waits until it listens. What is typed into one named `beside` goes on without that; `sh again`
is typed until it shows what it should. A block of `text` behind one says what was printed: its
lines, in order, where `...` stands for anything and spaces for any number of them.

Not typed are `sh packages`, whose packages must be installed (scripts/setup), `sh source`, which
fetches what is here already, and, unless asked for, `sh vm`, which boots virtual machines.
"""

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import tempfile
import time

from lib import netns, pair

BLOCK = re.compile(r"^```(sh|text)((?: [\w-]+)*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The addresses that the pages give to the hosts.
FIRST, SECOND = "10.0.0.1", "10.0.0.2"
SECONDS = 90
# The first time, what guests are booted from is fetched and made.
GUEST_SECONDS = 1200
# Ports from here on are endpoints'.
FIRST_SLOT = 20480
MARK = "guide-block-has-ended"
SHELL = ["bash", "--norc", "--noprofile", "-u"]
# As Debian's /etc/sudoers has it.
SECURE_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Failed(Exception):
    """What a page says does not come true."""


class Block:
    """Lines to type, or to see; `line` is where the page has them."""

    def __init__(self, kind, words, text, line):
        self.kind, self.words, self.text, self.line = kind, set(words.split()), text, line


def blocks(path):
    """What a page has to type and to see."""
    with open(path, encoding="utf-8") as f:
        page = f.read()
    return [Block(kind, words, text, page.count("\n", 0, match.start()) + 1)
            for match in BLOCK.finditer(page) for kind, words, text in [match.groups()]]


def installed(text):
    """The packages that a page has people install are those that tests have."""
    for line in text.splitlines():
        command, _, names = line.partition(" install ")
        if command != "sudo apt-get":
            raise Failed(f"what is this? {line}")
        for name in names.split():
            found = subprocess.run(["dpkg-query", "-W", "-f", "${db:Status-Status}", name],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                   check=False)
            if found.stdout != "installed":
                raise Failed(f"{name} is not installed: see scripts/setup")


def fetched(text):
    """The address of the source is the one that its manifest names."""
    with open(os.path.join(netns.ROOT, "Cargo.toml"), encoding="utf-8") as f:
        address = re.search(r'^repository = "(.*)"', f.read(), re.MULTILINE)[1]
    if f"git clone {address} " not in text:
        raise Failed(f"the source is at {address}")


class Terminal:
    """A shell on a host."""

    def __init__(self, host, folder, env):
        self.said, self.busy = "", False
        self.process = host.popen(SHELL, env=env, cwd=folder, stdin=subprocess.PIPE,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        os.set_blocking(self.process.stdout.fileno(), False)

    def enter(self, text):
        """Types lines; the first that fails ends them."""
        self.said, self.busy = "", True
        script = f"( set -e\n{text}\n) < /dev/null; echo {MARK} $?\n"
        # Variables stay, as they do for a person.
        if re.search(r"^(export |[A-Za-z_]+=\S*$|cd )", text, re.MULTILINE):
            script = f"{{ set -e\n{text}\nset +e; }} < /dev/null; echo {MARK} 0\n"
        self.process.stdin.write(script.encode())
        self.process.stdin.flush()

    def read(self, until):
        """Takes what is printed until the time `until`, or the end of the block; its status."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while True:
                found = re.search(rf"^{MARK} (\d+)$", self.said, re.MULTILINE)
                if found:
                    self.busy = False
                    return int(found[1])
                if not selector.select(max(0.0, until - time.monotonic())):
                    return None
                data = self.process.stdout.read()
                if data == b"":
                    return self.process.wait()
                self.said += (data or b"").decode(errors="replace")

    def listens(self):
        """Whether a process of the shell listens, for TCP or as librdmacm does."""
        todo = children(self.process.pid)
        while todo:
            pid = todo.pop()
            own = pair.owned_sockets(pid)
            if own & (pair.listening_inodes(pid) | listeners(pid)):
                return True
            todo += children(pid)
        return False


def children(pid):
    """The processes that a process has started."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
            return [int(word) for word in f.read().split()]
    except OSError:
        return []


def listeners(pid):
    """The inodes of UDP sockets at service ports: the connection manager's listeners."""
    found = set()
    for table in ("udp", "udp6"):
        with contextlib.suppress(OSError):
            with open(f"/proc/{pid}/net/{table}", encoding="ascii") as lines:
                rows = [line.split() for line in lines][1:]
            found.update(row[9] for row in rows
                         if 0 < int(row[1].rsplit(":", 1)[1], 16) < FIRST_SLOT)
    return found


class Guide:
    """A page on its hosts: one, or two if it speaks of a second."""

    def __init__(self, path, guests=False):
        self.path = path
        self.guests = guests
        self.blocks = blocks(path)
        two = any("second-host" in block.words for block in self.blocks)
        self.world = netns.TwoHosts(1500) if two else netns.one_host()
        self.folders = {}
        self.terminals = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for terminal in self.terminals.values():
            pair.end_group(terminal.process)
            terminal.process.stdin.close()
            terminal.process.stdout.close()
        self.world.end()
        for folder in self.folders.values():
            shutil.rmtree(folder, ignore_errors=True)

    def terminal(self, words):
        """The shell into which a block is typed."""
        name = " ".join(sorted(words)) or "first"
        if name not in self.terminals:
            host = self.world.client if "second-host" in words else self.world.server
            folder = self.folders.setdefault(host.name, tempfile.mkdtemp(prefix="cwt-guide-"))
            shim = os.path.join(folder, ".sudo")
            # Who runs this is root; others have the command, which looks for programs in the
            # system's places alone.
            os.makedirs(shim, exist_ok=True)
            with open(os.path.join(shim, "sudo"), "w", encoding="ascii") as f:
                f.write(f'#!/bin/sh\nPATH={SECURE_PATH}\nexec "$@"\n')
                os.fchmod(f.fileno(), 0o755)
            env = {"PATH": f"{shim}:{netns.BUILD}/bin:{os.environ['PATH']}",
                   "CAUSEWAY_SOURCE": netns.ROOT, "CAUSEWAY_BUILD": netns.BUILD}
            self.terminals[name] = Terminal(host, folder, env)
        return self.terminals[name]

    def addressed(self, text):
        """Text with this world's addresses, and the place of what is tested."""
        return text.replace(FIRST, self.world.server.address) \
            .replace(SECOND, self.world.client.address) \
            .replace("$CAUSEWAY_SOURCE/build/", "$CAUSEWAY_BUILD/")

    def run(self):
        """Types everything; how many blocks that were."""
        terminal, again, typed = None, None, 0
        for block in self.blocks:
            if "packages" in block.words:
                installed(block.text)
            elif "source" in block.words:
                fetched(block.text)
            elif "vm" in block.words and not self.guests:
                terminal = None
            elif block.kind == "sh":
                terminal = self.terminal(block.words - {"vm", "again"})
                again = block if "again" in block.words else None
                self.type_in(terminal, block)
                typed += 1
            elif terminal:
                self.see(terminal, block, again)
        return typed

    def where(self, block):
        """Where the page has a block."""
        return f"{os.path.relpath(self.path, netns.ROOT)}:{block.line}"

    def type_in(self, terminal, block):
        """Types one block, and waits until it has ended or listens."""
        where = self.where(block)
        until = time.monotonic() + (GUEST_SECONDS if "vm" in block.words else SECONDS)
        if terminal.busy:
            # What was typed before has to end first.
            status = terminal.read(until)
            if status != 0:
                raise Failed(f"before {where}: status {status}\n{terminal.said}")
        terminal.enter(self.addressed(block.text))
        if "beside" in block.words:
            return
        if "server" not in block.words:
            status = terminal.read(until)
            if status != 0:
                raise Failed(f"{where}: {'hangs' if status is None else f'status {status}'}\n"
                             f"{terminal.said}{self.others(terminal)}")
            return
        while not terminal.listens():
            status = terminal.read(time.monotonic() + pair.POLL_SECONDS)
            if status is not None or time.monotonic() > until:
                raise Failed(f"{where}: no server, status {status}\n{terminal.said}")

    def others(self, terminal):
        """What the servers have said."""
        text = ""
        for name, other in self.terminals.items():
            if other is not terminal:
                other.read(time.monotonic())
                text += f"--- {name}\n{other.said}"
        return text

    def see(self, terminal, block, again):
        """What a page shows must have been printed; a server may still be about to."""
        where, text = self.where(block), self.addressed(block.text)
        patterns = [re.sub(r"(\\?\s)+", r"\\s+", re.escape(line.strip())).replace(r"\.\.\.", ".*")
                    for line in text.splitlines() if line.strip() not in ("", "...")]
        until = time.monotonic() + SECONDS
        while missing := unseen(patterns, terminal.said):
            over = time.monotonic() > until
            if again and not over:
                time.sleep(pair.POLL_SECONDS)
                self.type_in(terminal, again)
            elif over or terminal.read(min(until, time.monotonic() + 1)) is not None:
                raise Failed(f"{where}: not printed: {missing}\n{terminal.said}")


def unseen(patterns, said):
    """The first pattern that is on no line behind that of the one before."""
    at = 0
    for pattern in patterns:
        found = re.compile(rf"^\s*{pattern}\s*$", re.MULTILINE).search(said, at)
        if not found:
            return pattern
        at = found.end()
    return None
