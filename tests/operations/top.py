"""`causeway top` on a terminal of 80 columns and 24 lines, by tmux."""

import contextlib
import os
import re
import subprocess

from lib import perftest
from lib.netns import CAUSEWAY, one_host
from operations import schema
from operations.schema import until

COLUMNS, LINES = 80, 24


class Terminal:
    """A terminal in which a command runs."""

    def __init__(self, host, argv):
        self.socket = os.path.join(host.runtime_dir, "tmux")
        # A terminal that colours and keys are known of, whatever the caller's is.
        self.env = dict(host.environment(), TERM="xterm-256color")
        self.env.pop("TMUX", None)
        # tmux does not always take note of a command's end.
        self.status = os.path.join(host.runtime_dir, "status")
        noting = ["sh", "-c", '"$@"; echo $? > "$0.new"; mv "$0.new" "$0"', self.status, *argv]
        self.tmux("new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), *noting,
                  ";", "set-option", "-g", "remain-on-exit", "on")

    def tmux(self, *args):
        """Runs a command of tmux."""
        done = subprocess.run(["tmux", "-S", self.socket, "-f", "/dev/null", *args], env=self.env,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=30, check=False)
        assert done.returncode == 0, f"tmux {args}: {done.stdout}"
        return done.stdout

    def screen(self):
        """What is on it."""
        return self.tmux("capture-pane", "-p")

    def await_text(self, pattern):
        """Waits for text; the screen that has it."""
        shown = ""

        def found():
            nonlocal shown
            shown = self.screen()
            return re.search(pattern, shown, re.MULTILINE)
        try:
            until(pattern, found)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{shown}") from error
        return shown

    def press(self, key):
        """Presses a key."""
        self.tmux("send-keys", key)

    def ended(self):
        """The exit status, once the command has ended."""
        try:
            with open(self.status, encoding="ascii") as file:
                return file.read().strip()
        except FileNotFoundError:
            return ""

    def close(self):
        """Ends all of it."""
        with contextlib.suppress(AssertionError):
            self.tmux("kill-server")


@contextlib.contextmanager
def top(host, *options):
    """`causeway top` on a terminal."""
    terminal = Terminal(host, [CAUSEWAY, "top", *options])
    try:
        yield terminal
    finally:
        terminal.close()


@contextlib.contextmanager
def busy(host, wire):
    """Two programs that send each other as much as they can; the processes' numbers."""
    port = next(perftest.ports)
    options = ["ib_write_bw", "-F", "-b", "-D", "120", "-p", str(port)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    sides = [host.popen(options, wire=wire, **quiet)]
    try:
        schema.listens(host, port)
        sides.append(host.popen([*options, "127.0.0.1"], wire=wire, **quiet))
        yield [side.pid for side in sides]
    finally:
        for side in sides:
            side.kill()
            side.wait()


def shows():
    """Endpoints with their rates, queue pairs, waits; sorting; the end."""
    with one_host() as world, busy(world.server, "shm") as pids, \
            top(world.server, "--interval", "0.5") as terminal:
        screen = terminal.await_text(rf"^ *{pids[1]} +ib_write_bw +default +1 +0 +[\d.]+[kMG] ")
        assert re.search(rf"^ *{pids[0]} +ib_write_bw", screen, re.MULTILINE), screen
        assert "2 endpoints, 2 QPs by shm, 0 by udp; by SENT/s" in screen, screen
        assert re.search(r"^sent [\d.]+[kMG]B/s, received", screen, re.MULTILINE), screen
        lines = screen.splitlines()
        assert all(len(line) <= COLUMNS for line in lines), screen
        assert lines[LINES - 1].startswith(" q quit"), screen
        terminal.press(">")
        terminal.await_text("by RECV/s$")
        terminal.press("r")
        terminal.await_text("by RECV/s, reversed$")
        terminal.press("2")
        terminal.await_text(rf"^ *{pids[0]} +ib_write_bw( +0x\w+){{2}} +\S+ +shm +connected")
        terminal.press("Tab")
        terminal.await_text("^(nobody waits|PID +COMMAND +WAITS FOR)")
        terminal.press("1")
        terminal.await_text(rf"^ *{pids[0]} +ib_write_bw +default")
        terminal.press("q")
        assert until("top has ended", terminal.ended) == "0"


def sorted_by_process():
    """The order of the lines is that of the column chosen."""
    with one_host() as world, busy(world.server, "udp") as pids, \
            top(world.server, "--interval", "0.5") as terminal:
        terminal.await_text(rf"^ *{pids[1]} +ib_write_bw +default +0 +1 ")
        for _ in range(4):
            terminal.press("<")
        for order in (sorted(pids), sorted(pids, reverse=True)):
            first, second = order
            terminal.await_text(rf"^ *{first} +ib_write.*\n *{second} +ib_write")
            terminal.press("r")


def waits():
    """A thread that waits for a name in a pool, and nobody."""
    with one_host() as world, top(world.server, "--interval", "0.2") as terminal:
        owner = schema.holding(world.server, ("create shown 8192 4 2",))
        terminal.press("3")
        terminal.await_text("^nobody waits")
        friend = schema.holding(world.server, ("pool shown",))
        try:
            friend.stdin.write("find late 1 -1\n")
            friend.stdin.flush()
            terminal.await_text("names in pool shown, threads: 1")
        finally:
            for actor in (friend, owner):
                actor.kill()
                actor.wait()


def without_broker():
    """No broker is no failure, and the broker that comes is shown."""
    with one_host() as world, top(world.server, "--interval", "0.2") as terminal:
        terminal.await_text("^no broker in ")
        with world.server.popen(["sleep", "60"], wire="shm") as keeper:
            terminal.await_text("^no endpoint is attached")
            keeper.kill()
        terminal.press("C-c")
        assert until("top has ended", terminal.ended) == "0"


def no_terminal():
    """Without a terminal it says so."""
    done = subprocess.run([CAUSEWAY, "top"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "needs a terminal" in done.stderr, done


def ended_by_signal():
    """A signal leaves the terminal as it was."""
    for number in ("TERM", "INT"):
        # The terminal of a program that has ended scrolls: cat(1) keeps it as it is.
        with one_host() as world:
            pid = os.path.join(world.server.runtime_dir, "top")
            line = f'sh -c \'echo $$ > "{pid}"; exec "{CAUSEWAY}" top\'; ' \
                   'echo "was $?"; stty -a; cat'
            terminal = Terminal(world.server, ["sh", "-c", line])
            try:
                terminal.await_text("^no broker in ")
                with open(pid, encoding="ascii") as file:
                    subprocess.run(["kill", f"-{number}", file.read().strip()], check=True)
                screen = terminal.await_text(r"(?s)^was \d+$.* icanon")
                assert "was 0" in screen and "-echo " not in screen, screen
            finally:
                terminal.close()


TESTS = [("top: endpoints, queue pairs, keys", shows), ("top: sorted", sorted_by_process),
         ("top: waits", waits), ("top: without a broker", without_broker),
         ("top: no terminal", no_terminal), ("top: ended by a signal", ended_by_signal)]
