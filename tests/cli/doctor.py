"""What `causeway doctor` says in containers and sandboxes: each restriction is a real one."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile

from cli.opening import CC, FLAGS, HERE
from lib.netns import BUILD, stop_broker

# A user without privilege, a group that has no other meaning, and the overflow user.
USER, GROUP, OVERFLOW = 4712, 4711, 65534
# Numbers on x86-64, and EPERM.
MBIND, UNSHARE, USERFAULTFD = 237, 272, 323
REFUSED = "1"
AS_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
# The privilege by which userfaultfd(2) gives a full one.
TRACER = [*AS_USER, "--inh-caps=+sys_ptrace", "--ambient-caps=+sys_ptrace"]
# Of a mount namespace of its own; $1 are the options of the file system.
OTHER_SHM = 'mount -t tmpfs -o "$1" tmpfs /dev/shm && shift && exec "$@"'

# A directory with room for a few files; $1 is the directory.
FULL = 'mount -t tmpfs -o size=64k,nr_inodes=20,mode=700 tmpfs "$1" && shift && exec "$@"'

# A network namespace whose loopback interface has an address of IPv6 alone.
ONLY_SIX = 'ip link set lo up && ip -4 address flush dev lo && exec "$@"'

# A network namespace with an interface.
NETWORK = 'ip link set lo up && ip link add one type veth peer name two && ip link set one up && ' \
          'ip address add 10.88.0.1/24 dev one && exec "$@"'

# A machine without packages, also where there are some.
BARE = 'mount -t tmpfs tmpfs /usr/lib/systemd/system && exec "$@"'

# A broker that is stopped, and goes on when the doctor has ended.
STOPPED = f"""
{BUILD}/bin/causewayd
broker=$(cat $CAUSEWAY_RUNTIME_DIR/broker.pid)
kill -STOP $broker
"$@"
status=$?
kill -CONT $broker
exit $status
"""

# Packages as they are installed, their sockets not enabled; $1 is the file of groups.
INSTALLED = """
set -e
units=/usr/lib/systemd/system
mount -t tmpfs tmpfs $units
touch $units/causewayd.socket
mount -t tmpfs tmpfs /run
mkdir -p /run/systemd/system
[ ! -d /etc/systemd/system ] || mount -t tmpfs tmpfs /etc/systemd/system
mount --bind "$1" /etc/group
shift
exec "$@"
"""


class Doctor:
    """Runs it, and looks at its lines."""

    def __init__(self, causeway, check, scratch, stop):
        self.causeway, self.check, self.stop, self.scratch = causeway, check, stop, scratch
        self.count = 0

    def said(self, by, env, owner):
        """What it says by these commands, with a runtime directory of nobody else's."""
        self.count += 1
        place = os.path.join(self.scratch, f"run-{self.count}")
        os.mkdir(place, 0o700)
        if "setpriv" in by:
            os.chown(place, owner, owner)
        done = self.causeway("doctor", by=by, env={"CAUSEWAY_RUNTIME_DIR": place, **env})
        self.stop(place)
        return done

    def __call__(self, name, by, line, *, env=None, status=0, owner=USER):
        """One test: a line of it has this form, and it ends so."""
        done = self.said(by, env or {}, owner)
        good = done.returncode == status and re.search(f"^{line}$", done.stdout, re.MULTILINE)
        self.check(f"doctor: {name}", good, done)


def restrictions(doctor, deny):
    """Memory, files, system calls."""
    other = ["unshare", "--mount", "sh", "-c", OTHER_SHM, "sh"]
    doctor("/dev/shm as engines make it", [*other, "size=64m"],
           "WARN  /dev/shm +64 MiB;.* --shm-size 1g")
    doctor("/dev/shm that is read-only", [*other, "ro,size=1g"],
           "WARN  /dev/shm +read-only;.* --tmpfs /dev/shm")
    doctor("/dev/shm as hosts have it", [*other, "size=1g"], "OK    /dev/shm +1024 MiB")
    doctor("few open files", ["prlimit", "--nofile=256:8192"],
           "WARN  open files +256;.* ulimit -n 4096")
    doctor("few open files, for good", ["prlimit", "--nofile=256:256"],
           "WARN  open files +256,.* --ulimit nofile=4096,.*")
    doctor("a seccomp policy without mbind", [deny, REFUSED, str(MBIND)],
           "WARN  page references .* --cap-add SYS_NICE")
    without = [deny, REFUSED, str(USERFAULTFD)]
    doctor("userfaultfd by privilege", TRACER,
           r"OK    userfaultfd +a full one, by userfaultfd\(2\)")
    for who, by in (("a user", AS_USER), ("a user with that privilege", TRACER)):
        doctor(f"a seccomp policy without userfaultfd, {who}", [*by, *without],
               "WARN  userfaultfd +none:.* --device /dev/userfaultfd")
    doctor("user namespaces of root", [], "OK    user namespaces +not needed.*")
    doctor("user namespaces that a sandbox refuses", [*AS_USER, deny, REFUSED, str(UNSHARE)],
           "WARN  user namespaces .* --cap-add SYS_ADMIN .*")
    doctor("no device of a host", [], "OK    guest's driver +not needed.*")


def sockets(doctor, scratch):
    """Tenants' sockets that this process does not reach."""
    absent = os.path.join(scratch, "absent")
    doctor("a socket that is not mounted", [], f"FAIL  broker .* -v {absent}:{absent}", status=1,
           env={"CAUSEWAY_SOCKET": f"{absent}/broker.sock"})
    path = os.path.join(scratch, "broker.sock")
    with socket.socket(socket.AF_UNIX) as tenant:
        tenant.bind(path)
    env = {"CAUSEWAY_SOCKET": path}
    os.chown(path, 0, GROUP)
    os.chmod(path, 0o660)
    doctor("a socket of a group's", AS_USER, f"FAIL  broker .* usermod -aG {GROUP} USER,.* "
           f"--group-add {GROUP}", status=1, env=env)
    overflow = ["setpriv", f"--reuid={OVERFLOW}", f"--regid={OVERFLOW}", "--clear-groups"]
    doctor("the overflow user, whom a broker does not admit", overflow,
           "FAIL  broker .* user 65534, .* run as another user", status=1, owner=OVERFLOW)
    with serving(scratch) as admitting:
        doctor("a tenant that does not admit a user", AS_USER,
               "FAIL  broker .* does not admit this user; .* causewayd.toml.*", status=1,
               env={"CAUSEWAY_SOCKET": admitting})
    doctor("a socket whose broker has ended", [], "FAIL  broker .* does not listen any more.*",
           status=1, env=env)


@contextlib.contextmanager
def serving(scratch):
    """The socket of a tenant that admits one group."""
    socket_path, config = (os.path.join(scratch, name) for name in ("tenant.sock", "tenant.toml"))
    with open(config, "w", encoding="ascii") as file:
        file.write(f'[[tenant]]\nname = "jobs"\nsocket = "{socket_path}"\ngroups = [{GROUP}]\n')
    place = os.path.join(scratch, "run-tenant")
    os.mkdir(place, 0o700)
    subprocess.run([os.path.join(BUILD, "bin", "causewayd"), "--runtime-dir", place, "--config",
                    config], check=True, timeout=60, stdin=subprocess.DEVNULL,
                   stdout=subprocess.DEVNULL)
    try:
        yield socket_path
    finally:
        stop_broker(place)


def misled(doctor, scratch):
    """Settings that lead to nothing, file systems without room, hosts without IPv4."""
    doctor("a socket that is none", [], "FAIL  broker .* that is no socket: set CAUSEWAY_SOCKET.*",
           status=1, env={"CAUSEWAY_SOCKET": scratch})
    doctor("a path too long for a socket", [], "FAIL  runtime directory .* at most 95; .*",
           status=1, env={"CAUSEWAY_RUNTIME_DIR": os.path.join(scratch, "x" * 120)})
    full = os.path.join(scratch, "full")
    os.mkdir(full)
    doctor("no room", ["unshare", "--mount", "sh", "-c", FULL, "sh", full],
           "FAIL  runtime directory .*: no space is left there; .*", status=1,
           env={"CAUSEWAY_RUNTIME_DIR": full, "CAUSEWAY_IDLE_SECONDS": "0.1"})
    doctor("a broker that is stopped", ["sh", "-c", STOPPED, "sh"],
           r"FAIL  broker +no answer in .*: process \d+ is stopped .*", status=1)
    network = ["unshare", "--net", "sh", "-c", NETWORK, "sh"]
    broker = os.path.join(scratch, "broker")
    with open(f"{broker}.toml", "w", encoding="ascii") as file:
        file.write('[sisci.directory]\ncluster = "lab"\netcd = ["https://127.0.0.1:2379"]\n'
                   f'ca = "{scratch}/absent.pem"\n')
    with open(broker, "w", encoding="ascii") as file:
        file.write(f'#!/bin/sh\nexec {BUILD}/bin/causewayd --config {broker}.toml "$@"\n')
    os.chmod(broker, 0o755)
    doctor("a directory that a node daemon can't use", network, "WARN  node daemon .* "
           "causeway-noded --config FILE .*", env={"CAUSEWAY_BROKER_BIN": broker})
    for line in ("OK    UDP offload .*", r"OK    network namespace +cookie \d+"):
        doctor(f"IPv6 alone, {line[6:15]}", ["unshare", "--net", "sh", "-c", ONLY_SIX, "sh"], line)


def packages(doctor, scratch):
    """What Debian's packages set up."""
    doctor("no packages", ["unshare", "--mount", "sh", "-c", BARE, "sh"],
           "OK    socket unit +not needed.*")
    for name, line, found in (
            ("no group", "root:x:0:", "WARN  group +there is no group causeway: groupadd .*"),
            ("their group", f"root:x:0:\ncauseway:x:{GROUP}:", f"OK    group +causeway.* {GROUP}")):
        path = os.path.join(scratch, "group")
        with open(path, "w", encoding="ascii") as file:
            file.write(f"{line}\n")
        by = ["unshare", "--mount", "sh", "-c", INSTALLED, "sh", path]
        doctor(f"packages and {name}", by, found)
    doctor("packages whose socket unit is not enabled", by,
           "WARN  socket unit +not enabled.* systemctl enable --now causewayd.socket")


def versions(doctor, scratch):
    """The broker that runs, and the one that would be started."""
    doctor("a broker of this release", [], r"OK    broker's version +[\d.]+, process \d+")
    program, place = (os.path.join(scratch, name) for name in ("causewayd", "run-replaced"))
    shutil.copy(os.path.join(BUILD, "bin", "causewayd"), program)
    os.mkdir(place, 0o700)
    # It returns when the daemon is ready.
    subprocess.run([program, "--runtime-dir", place, "--idle", "0"], check=True, timeout=60,
                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    os.unlink(program)
    doctor("a broker whose file was replaced", [], r"WARN  broker's version +process (\d+): its "
           r"file was replaced .*: kill \1, .*", env={"CAUSEWAY_RUNTIME_DIR": place})
    doctor.stop(place)


def doctors(causeway, check, stop):
    """All of them."""
    with tempfile.TemporaryDirectory(prefix="causeway-doctor-",
                                     ignore_cleanup_errors=True) as scratch:
        os.chmod(scratch, 0o755)
        deny = os.path.join(scratch, "deny")
        subprocess.run([CC, *FLAGS, "-o", deny, f"{HERE}/deny.c"], check=True)
        doctor = Doctor(causeway, check, scratch, stop)
        restrictions(doctor, deny)
        sockets(doctor, scratch)
        misled(doctor, scratch)
        packages(doctor, scratch)
        versions(doctor, scratch)
