"""A Debian machine: the root that scripts/deb-root made, booted with its own systemd by
systemd-nspawn. What it changes is lost when it ends."""

import os
import signal
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BOOT_SECONDS = 90
COMMAND_SECONDS = 120
STOP_SECONDS = 30
POLL_SECONDS = 0.1
# $1 the root, $2 an empty directory, $3 what is at /packages; then the machine's name.
BOOT = """
set -e
mount -t tmpfs tmpfs "$2"
mkdir "$2/upper" "$2/work" "$2/top"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/top"
exec systemd-nspawn --quiet --directory="$2/top" --machine="$4" --register=no --keep-unit \
    --private-network --bind-ro="$3:/packages" --bind=/dev/userfaultfd --console=pipe --boot \
    systemd.show_status=false SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1
"""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class MachineError(Exception):
    """The machine, or a command on it, does not do what it should."""


def has_parent(pid, parent):
    """Whether a process is a child of another."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return int(f.read().rsplit(")", 1)[1].split()[1]) == parent
    except OSError:
        return False


def is_first(pid):
    """Whether a process is the first of a PID namespace below this one."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
            ids = next(line.split()[1:] for line in f if line.startswith("NSpid:"))
    except (OSError, StopIteration):
        return False
    return len(ids) > 1 and ids[-1] == "1"


class Machine:
    """One that runs while it is entered."""

    def __init__(self, root, packages, name):
        self.root, self.packages, self.name = root, packages, name
        self.scratch = self.nspawn = self.leader = self.log = None

    def __enter__(self):
        self.scratch = tempfile.TemporaryDirectory(prefix=f"{self.name}-")
        self.log = tempfile.TemporaryFile()
        argv = ["unshare", "-m", "sh", "-c", BOOT, "sh", self.root, self.scratch.name,
                self.packages, self.name]
        self.nspawn = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log,
                                       stderr=subprocess.STDOUT, start_new_session=True)
        try:
            self.wait_booted()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """Shuts the machine down."""
        self.nspawn.send_signal(signal.SIGTERM)
        try:
            self.nspawn.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            # Its processes end with the first of its PID namespace.
            if self.leader:
                os.kill(self.leader, signal.SIGKILL)
            self.nspawn.kill()
            self.nspawn.wait()
        self.log.close()
        self.scratch.cleanup()

    def wait_booted(self):
        """Waits until systemd says that it has started everything."""
        deadline = time.monotonic() + BOOT_SECONDS
        state = "no process"
        while time.monotonic() < deadline:
            if self.nspawn.poll() is not None:
                break
            if self.leader is None:
                pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
                self.leader = next((pid for pid in pids if has_parent(pid, self.nspawn.pid)
                                    and is_first(pid)), None)
            else:
                state = self.call(["systemctl", "is-system-running"])[1].strip()
                if state in ("running", "degraded"):
                    return
            time.sleep(POLL_SECONDS)
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")[-1500:]
        raise MachineError(f"it does not boot: {state}: {said}")

    def command(self, argv, user=None, netns=None):
        """The command line that runs another on the machine, as a user."""
        enter = ["nsenter", "-t", str(self.leader), "-m", "-u", "-i", "-n", "-p", "-r", "-w", "--",
                 "env", "-i", f"PATH={PATH}", "HOME=/", "LANG=C.UTF-8",
                 "DEBIAN_FRONTEND=noninteractive"]
        if netns:
            enter += ["ip", "netns", "exec", netns]
        if user:
            enter += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--"]
        return enter + argv

    def start(self, argv, user=None, netns=None):
        """Starts a command; its output is for `finish`."""
        return subprocess.Popen(self.command(argv, user, netns), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def call(self, argv, user=None, netns=None):
        """Runs a command; its status and what it says."""
        done = subprocess.run(self.command(argv, user, netns), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=COMMAND_SECONDS, check=False)
        return done.returncode, done.stdout

    def run(self, argv, user=None, netns=None):
        """Runs a command that must succeed; what it says."""
        status, text = self.call(argv, user, netns)
        if status != 0:
            raise MachineError(f"{' '.join(argv)}: status {status}: {text[-1500:]}")
        return text

    def until(self, what, look):
        """Waits until `look` finds something, and returns that."""
        deadline = time.monotonic() + COMMAND_SECONDS
        while time.monotonic() < deadline:
            found = look()
            if found:
                return found
            time.sleep(POLL_SECONDS)
        raise MachineError(f"{what}: not within {COMMAND_SECONDS} s")


def finish(process, what):
    """Waits for a command of `Machine.start`, which must succeed; what it said."""
    try:
        text = process.communicate(timeout=COMMAND_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        raise MachineError(f"{what}: still runs after {COMMAND_SECONDS} s") from None
    if process.returncode != 0:
        raise MachineError(f"{what}: status {process.returncode}: {text[-1500:]}")
    return text
