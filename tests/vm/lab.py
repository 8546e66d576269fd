"""Virtual machines for tests: a network namespace with a bridge, a broker, guests under TCG.

A Guest runs commands that it is told over a virtio serial port; its console is the serial line,
which loses interrupts under TCG.
"""

import os
import re
import selectors
import shlex
import shutil
import socket
import subprocess
import tempfile
import time

from lib.netns import BUILD, CAUSEWAY, Host, SetupError, need_root

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Where scripts/vm-root shows the worktree inside its root.
INSIDE = "/causeway"
CAUSEWAYD = os.path.join(BUILD, "bin", "causewayd")
PREFIX = "10.84.0"
BRIDGE = "cwbr0"
# Where the device is plugged in.
PORT = "cwport"
BOOT_SECONDS = 120
COMMAND_SECONDS = 60
END_SECONDS = 10
# What QEMU's TCG does well: with erms a copy falls to 29 MB/s.
CPU = "max,vendor=GenuineIntel,erms=off,fsrm=off"
# One processor, with room for another: where there can't be one, TCG does not carry out the guest's
# atomic instructions as such, and locks that are shared with others break.
SMP = "1,maxcpus=2"
MEMORY = "256M"
# How many times as long a kernel that checks itself may take for everything.
CHECKED_PATIENCE = 10
END_LINE = re.compile(rb"\r?\n<<< (\d+)\r?\n")
# How a kernel begins when something is wrong with it. What lockdep says of the memory that it has
# for "dependency info" is no complaint.
COMPLAINT = re.compile(r"WARNING: |BUG[: ]|Oops|UBSAN: |KFENCE|Call Trace|general protection|"
                       r"(?<!dependency )INFO: |corruption|Bad page|refcount_t|lockup|"
                       r"kernel panic|ODEBUG: ", re.IGNORECASE)


class GuestError(Exception):
    """A guest does not do what it should."""


def ip(*args):
    """Runs ip(8)."""
    subprocess.run(["ip", *args], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


class Lab:
    """The host: `with Lab() as lab` ends everything whatever happens."""

    def __init__(self, config="", inside=False):
        need_root("booting virtual machines on a bridge")
        self.netns = f"cwvm{os.getpid()}"
        self.dir = tempfile.mkdtemp(prefix="cwvm-")
        self.host = Host("host", f"{PREFIX}.254", self.netns, os.path.join(self.dir, "rt"))
        self.config = config
        # Whether the broker is in the namespace, and has the host's address.
        self.inside = inside
        # What guests boot from, where scripts/vm-root shows it.
        vm = os.path.join(INSIDE, os.path.relpath(BUILD, ROOT), "vm")
        self.initrd = os.path.join(vm, "initrd")
        self.kernel = os.path.join(vm, "kernel")
        self.guests = []
        self.broker = None

    def __enter__(self):
        try:
            ip("netns", "add", self.netns)
            ip("-n", self.netns, "link", "set", "lo", "up")
            ip("-n", self.netns, "link", "add", BRIDGE, "type", "bridge")
            ip("-n", self.netns, "addr", "add", f"{self.host.address}/24", "dev", BRIDGE)
            ip("-n", self.netns, "link", "set", BRIDGE, "up")
            self.start_broker()
        except subprocess.CalledProcessError as error:
            self.__exit__()
            raise SetupError(f"cannot make a bridge: {error.stderr.decode()}") from error
        return self

    def start_broker(self):
        """Starts the broker, and waits until it serves."""
        config = os.path.join(self.dir, "causewayd.toml")
        with open(config, "w", encoding="utf-8") as f:
            f.write(self.config.format(dir=self.dir))
        os.makedirs(self.host.runtime_dir, 0o700, exist_ok=True)
        ready = os.path.join(self.host.runtime_dir, "broker.pid")
        if os.path.exists(ready):
            os.remove(ready)
        with open(os.path.join(self.dir, "broker.log"), "ab") as log:
            place = ["ip", "netns", "exec", self.netns] if self.inside else []
            self.broker = subprocess.Popen(
                [*place, CAUSEWAYD, "--foreground", "--runtime-dir", self.host.runtime_dir,
                 "--config", config], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        deadline = time.monotonic() + END_SECONDS
        while not os.path.exists(ready):
            if self.broker.poll() is not None or time.monotonic() > deadline:
                raise SetupError(f"no broker: {self.broker_said()}")
            time.sleep(0.05)

    def broker_said(self):
        """The end of the broker's log."""
        with open(os.path.join(self.dir, "broker.log"), encoding="utf-8") as f:
            return f.read()[-2000:]

    def __exit__(self, *_):
        for guest in self.guests:
            guest.kill()
        if self.broker:
            self.broker.terminate()
            self.broker.wait(END_SECONDS)
        subprocess.run(["ip", "netns", "del", self.netns], check=False, stderr=subprocess.PIPE)
        shutil.rmtree(self.dir, ignore_errors=True)

    def causeway(self, *args):
        """Runs the command line on the host; returns what it prints."""
        outcome = subprocess.run([CAUSEWAY, *args], env=self.host.environment(), check=False,
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if outcome.returncode != 0:
            raise GuestError(f"causeway {' '.join(args)}: {outcome.stdout}")
        return outcome.stdout

    def bury(self):
        """Takes note of guests whose QEMU has ended by itself; what they said last."""
        said = ""
        for guest in self.guests:
            if guest.line and guest.process.poll() is not None:
                said += f"\n{guest.name} has ended ({guest.process.returncode}): {guest.tail()}"
                guest.kill()
        return said

    def boot(self, name, tenant=None):
        """Starts a guest; Guest.wait_ready waits until it has booted."""
        guest = Guest(self, name, len(self.guests) + 1, tenant)
        self.guests.append(guest)
        guest.start()
        return guest


class Guest:
    """One virtual machine."""

    def __init__(self, lab, name, number, tenant):
        self.lab = lab
        self.name = name
        self.number = number
        self.tenant = tenant
        self.address = f"{PREFIX}.{number}"
        self.console = os.path.join(lab.dir, f"{name}.console")
        self.qmp = os.path.join(lab.dir, f"{name}.qmp")
        self.process = None
        self.line = None
        self.pending = b""
        self.kernel, self.initrd = lab.kernel, lab.initrd
        self.smp, self.memory = SMP, MEMORY
        # More words for the kernel's command line.
        self.options = ""

    def start(self):
        """Starts QEMU."""
        tap = f"cwt{self.number}"
        if not os.path.exists(self.console):
            ip("-n", self.lab.netns, "tuntap", "add", tap, "mode", "tap")
            ip("-n", self.lab.netns, "link", "set", tap, "master", BRIDGE, "up")
        device = self.devices()
        ours, theirs = socket.socketpair()
        argv = ["ip", "netns", "exec", self.lab.netns, os.path.join(ROOT, "scripts", "vm-root"),
                "qemu-system-x86_64", "-accel", "tcg", "-cpu", CPU,
                "-smp", self.smp,
                "-object", f"memory-backend-memfd,id=m,size={self.memory},share=on",
                "-machine", "q35,memory-backend=m", "-m", self.memory, "-nodefaults", "-nographic",
                "-no-reboot", "-kernel", self.kernel,
                "-initrd", self.initrd,
                # On a busy host the kernel's check of its timer fails, and boots no further. An
                # emulator has no Meltdown; what is done about it makes each system call forget the
                # emulator's translations. Warnings are shown.
                "-append", "console=ttyS0 loglevel=5 panic=-1 iomem=relaxed no_timer_check "
                "mitigations=off "
                f"causeway.address={self.address}/24 {self.options}",
                "-chardev", f"file,id=console,path={self.console},append=on",
                "-serial", "chardev:console",
                "-chardev", f"socket,id=line,fd={theirs.fileno()}",
                "-device", "virtio-serial-pci,max_ports=2",
                "-device", "virtserialport,nr=1,chardev=line,name=line",
                "-netdev", f"tap,id=n,ifname={tap},script=no,downscript=no",
                "-device", f"virtio-net-pci,netdev=n,mac=52:54:00:ca:00:{self.number:02x},romfile=",
                "-qmp", f"unix:{self.qmp},server=on,wait=off",
                *device]
        log = os.path.join(self.lab.dir, f"{self.name}.qemu")
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=errors,
                                            stderr=errors, pass_fds=[theirs.fileno()],
                                            start_new_session=True)
        theirs.close()
        self.line, self.pending = ours, b""

    def devices(self):
        """What QEMU shows the guest beside what any has."""
        return ["-device", f"pcie-root-port,id={PORT},chassis=9,pref64-reserve=128G",
                *self.attach()]

    def attach(self):
        """Lets the guest attach to the broker: QEMU's arguments, with a place for the device that
        it can be taken out of."""
        tenant = ["--tenant", self.tenant] if self.tenant else []
        device = self.lab.causeway("vm", "attach", self.name, *tenant).split()
        device[-1] += f",id=cw,bus={PORT}"
        return device

    def replug(self):
        """Replaces the device, whose broker has ended, by one of the broker that is there now."""
        tenant = ["--tenant", self.tenant] if self.tenant else []
        self.lab.causeway("vm", "replug", self.name, "--qmp", self.qmp, *tenant)
        self.run("while ! [ -e /dev/causeway ]; do sleep 0.1; done")

    def read_until(self, pattern, seconds):
        """Reads from the serial line up to a match; returns what came before, and the match."""
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.line, selectors.EVENT_READ)
            while not (found := pattern.search(self.pending)):
                left = deadline - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise GuestError(f"{self.name}: no answer within {seconds} s: {self.tail()}")
                more = self.line.recv(65536)
                if not more:
                    raise GuestError(f"{self.name} has ended: {self.tail()}")
                self.pending += more
        before = self.pending[:found.start()]
        self.pending = self.pending[found.end():]
        return before.decode(errors="replace"), found

    def tail(self):
        """The end of what the guest and QEMU have said."""
        said = self.pending[-300:].decode(errors="replace")
        for path in (self.console, os.path.join(self.lab.dir, f"{self.name}.qemu")):
            with open(path, "r", encoding="utf-8", errors="replace") as f:
                said += "\n" + f.read()[-600:]
        return said

    def complaints(self):
        """What the guest's kernels have said that no kernel should, since the first boot."""
        with open(self.console, "r", encoding="utf-8", errors="replace") as f:
            said = f.read()
        found = COMPLAINT.search(said)
        return said[max(0, found.start() - 200):found.start() + 3000] if found else ""

    def wait_ready(self):
        """Waits until the guest takes commands."""
        self.read_until(re.compile(rb"ready\r?\n"), BOOT_SECONDS)

    def send(self, command):
        """Has the guest begin a command; `finish` waits for its end."""
        self.line.sendall(command.encode() + b"\n")

    def finish(self, seconds=COMMAND_SECONDS):
        """Waits for the end of a command: its exit status and output."""
        output, found = self.read_until(END_LINE, seconds)
        return int(found.group(1)), output

    def run(self, command, seconds=COMMAND_SECONDS):
        """Runs a command to its end; it must succeed."""
        self.send(command)
        status, output = self.finish(seconds)
        if status != 0:
            raise GuestError(f"{self.name}: {command}: status {status}: {output[-800:]}")
        return output

    def kill(self):
        """Kills QEMU."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_SECONDS)
        if self.line:
            self.line.close()
            self.line = None


class Bare(Guest):
    """A machine that stands for a host: the kernel of a release of Debian, a broker of its own, no
    driver."""

    def __init__(self, lab, name, number, suite):
        super().__init__(lab, name, number, None)
        self.kernel, self.initrd = (f"{path}-bare-{suite}" for path in (lab.kernel, lab.initrd))
        # Two that poll.
        self.smp, self.memory = "2", "512M"

    def devices(self):
        return []


class Checked(Guest):
    """A machine with a kernel that checks itself (guest/kasan.config)."""

    def __init__(self, lab, name, number):
        super().__init__(lab, name, number, None)
        self.kernel, self.initrd = (f"{path}-kasan" for path in (lab.kernel, lab.initrd))
        # Threads that meet; and an eighth of the memory says what of it may be touched.
        self.smp, self.memory = "2", "1G"
        # Every report, not just the first.
        self.options = "kasan_multi_shot"

    def read_until(self, pattern, seconds):
        return super().read_until(pattern, CHECKED_PATIENCE * seconds)


def quote(*argv):
    """A command line for a guest's shell."""
    return " ".join(shlex.quote(a) for a in argv)
