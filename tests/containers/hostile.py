"""The hook, called by hand for images that try to make it write, mount or run something outside
their root."""

import json
import os
import shutil
import subprocess

from lib.netns import BUILD

SECONDS = 60
HOOK = [os.path.join(BUILD, "bin", "causeway-kube"), "hook",
        "--library", "/opt/causeway/lib/libibverbs.so.1"]
# In namespaces of its own, as an engine has prepared them: $1 the root, $2 the state, $3 what is
# mounted, $4 what must not be reached; then the hook.
PREPARED = """
set -e
root=$1 state=$2 outside=$4
mount --bind "$root" "$root"
eval "$3"
shift 4
status=0
"$@" < "$state" || status=$?
if grep -F "$outside" /proc/self/mountinfo; then echo "mounted outside"; fi
[ ! -e "$root/dev/infiniband/uverbs0" ] || echo "shown in /dev"
[ ! -e "$root/sys/class/infiniband/cway0/node_type" ] || echo "shown in /sys"
exit $status
"""
SYS, DEV = 'mount -t sysfs sys "$root/sys"\n', 'mount -t tmpfs dev "$root/dev"\n'


def seen(folder):
    """Everything that a folder holds."""
    found = [(folder, os.lstat(folder).st_mtime_ns)]
    for path, dirs, files in os.walk(folder):
        for name in dirs + files:
            full = os.path.join(path, name)
            of = os.lstat(full)
            found.append((full, of.st_mode, of.st_mtime_ns))
    return sorted(found)


class Case:
    """An image, a place that it must not reach, and the hook's end."""

    def __init__(self, folder, name):
        self.base = os.path.join(folder, name)
        self.root = os.path.join(self.base, "bundle", "rootfs")
        self.outside = os.path.join(self.base, "outside")
        for path in (self.outside, *(os.path.join(self.root, part) for part in
                                     ("etc/ld.so.conf.d", "sys", "dev", "sbin"))):
            os.makedirs(path)
        shutil.copy("/etc/ld.so.cache", self.path("etc/ld.so.cache"))
        shutil.copy("/etc/ld.so.cache", os.path.join(self.outside, "ld.so.cache"))
        self.write("sbin/ldconfig", "#!/bin/sh\n: > /executed\n", 0o755)
        with open(os.path.join(self.base, "bundle", "config.json"), "w", encoding="ascii") as file:
            json.dump({"ociVersion": "1.0.2", "root": {"path": "rootfs"}}, file)
        self.state = os.path.join(self.base, "state.json")
        with open(self.state, "w", encoding="ascii") as file:
            json.dump({"ociVersion": "1.0.2", "id": name, "status": "creating",
                       "bundle": os.path.join(self.base, "bundle")}, file)

    def path(self, inside):
        """The path of something in the root."""
        return os.path.join(self.root, inside)

    def write(self, inside, text, mode=0o644):
        """A file of the image."""
        with open(self.path(inside), "w", encoding="ascii") as file:
            file.write(text)
        os.chmod(self.path(inside), mode)

    def link(self, inside, target):
        """Puts a link in the place of what the image has."""
        path = self.path(inside)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.remove(path)
        os.symlink(target, path)

    def hook(self, mounts=SYS + DEV):
        """Calls the hook: its status and words; None and why, if something outside changed."""
        before = seen(self.outside)
        argv = ["unshare", "-m", "-n", "sh", "-c", PREPARED, "sh", self.root, self.state, mounts,
                self.outside, *HOOK]
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=SECONDS, check=False)
        if seen(self.outside) != before or "mounted outside" in done.stdout:
            return None, f"something outside has changed: {done.stdout}"
        if os.path.exists(self.path("executed")):
            return None, "a program of the image was executed"
        return done.returncode, done.stdout


def refused(case, *words, mounts=SYS + DEV):
    """A problem, unless the hook refuses the image with these words."""
    status, text = case.hook(mounts)
    return None if status and all(word in text for word in words) else f"{status}: {text}"


def harmless(case, *paths):
    """A problem, unless the hook does its work, and these files of the image name our libraries."""
    status, text = case.hook()
    if status != 0 or "shown in /dev" not in text or "shown in /sys" not in text:
        return f"{status}: {text}"
    for path in paths:
        with open(case.path(path), "rb") as file:
            if b"/opt/causeway/lib" not in file.read():
                return f"nothing in {path}"
    return None


def libraries(check, folder):
    """Links where libraries are named."""
    both = ("etc/ld.so.cache", "etc/ld.so.conf.d/00-causeway.conf")
    check("hook: an ordinary image", harmless(Case(folder, "ordinary"), *both))
    case = Case(folder, "conf")
    case.link("etc/ld.so.conf.d", case.outside)
    check("hook: ld.so.conf.d leads outside", harmless(case, "etc/ld.so.cache"))
    case = Case(folder, "conf-up")
    case.link("etc/ld.so.conf.d", "../../../outside")
    check("hook: ld.so.conf.d leads above the root", harmless(case, "etc/ld.so.cache"))
    case = Case(folder, "etc")
    case.link("etc", case.outside)
    check("hook: /etc leads outside", harmless(case))
    case = Case(folder, "inside")
    case.link("etc/ld.so.conf.d", "/real")
    os.mkdir(case.path("real"))
    check("hook: ld.so.conf.d leads elsewhere in the image",
          harmless(case, "etc/ld.so.cache", "real/00-causeway.conf"))
    case = Case(folder, "files")
    for name in ("ld.so.cache.causeway", "ld.so.conf.d/00-causeway.conf"):
        case.link(f"etc/{name}", os.path.join(case.outside, "ld.so.cache"))
    check("hook: links of the names that it writes", harmless(case, *both))
    case = Case(folder, "proc")
    case.link("etc", "/proc/self/cwd/etc")
    check("hook: /etc leads through /proc", harmless(case))


def odd_files(check, folder):
    """A cache that is none."""
    case = Case(folder, "link")
    case.link("etc/ld.so.cache", os.path.join(case.outside, "ld.so.cache"))
    check("hook: the cache leads outside", refused(case, "ld.so.cache"))
    case = Case(folder, "fifo")
    os.remove(case.path("etc/ld.so.cache"))
    os.mkfifo(case.path("etc/ld.so.cache"))
    check("hook: the cache is a FIFO", refused(case, "ld.so.cache"))
    case = Case(folder, "garbage")
    case.write("etc/ld.so.cache", "glibc-ld.so.cache1.1" + "\x7f" * 4096)
    check("hook: the cache is garbage", refused(case, "ld.so.cache", "more entries than fit"))
    case = Case(folder, "none")
    os.remove(case.path("etc/ld.so.cache"))
    check("hook: an image without a cache", harmless(case))
    case = Case(folder, "volume")
    volume = f'mount --bind "{case.outside}" "$root/etc"\n'
    check("hook: /etc is somebody's volume", volume_problem(case, volume))


def volume_problem(case, volume):
    """As `refused`, with `outside` mounted in the container as a volume."""
    before = seen(case.outside)
    _, text = case.hook(SYS + DEV + volume)
    if seen(case.outside) != before:
        return "the volume was written to"
    return None if "cross-device" in text else text


def places(check, folder):
    """Links where the device's files are shown."""
    for name, target in (("sys", ""), ("dev", ""), ("sys/class", ""), ("dev/infiniband", ""),
                         ("sys/devices/virtual", "")):
        case = Case(folder, "place-" + name.replace("/", "-"))
        os.makedirs(case.path("sys/devices"), exist_ok=True)
        case.link(name, case.outside + target)
        mounts = {"sys": DEV, "dev": SYS}.get(name, "")
        check(f"hook: /{name} leads outside", refused(case, "the container's", mounts=mounts))


def hostile(check, folder):
    """All of them."""
    libraries(check, folder)
    odd_files(check, folder)
    places(check, folder)
