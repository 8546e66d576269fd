"""Containers made of namespaces and chroot(1), as container engines make them: own processes, own
hostname, own file system with the host's /usr, and of Causeway what the recipe of
docs/CONTAINERS.md mounts."""

import os
import shlex
import shutil
import subprocess
import tempfile

from lib import netns

# Of the host, read-only; what is a symbolic link there is one here.
SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin", "usr", "etc")
DEVICES = ("null", "zero", "urandom")
CAUSEWAY = "/opt/causeway"
RUN = "/run/causeway"


def recipe(root, run_dir):
    """The commands that build the container's file system, in its own mount namespace."""
    lines = [f"mount -t tmpfs -o mode=755 root {root}", f"cd {root}",
             "mkdir -p proc sys dev tmp run opt/causeway", "chmod 1777 tmp",
             "mkdir -m 700 run/causeway"]
    for name in SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            lines.append(f"ln -s {shlex.quote(os.readlink(path))} {name}")
        elif os.path.isdir(path):
            lines += [f"mkdir {name}", f"mount --rbind -o ro {path} {name}"]
    for name in DEVICES:
        lines += [f"touch dev/{name}", f"mount --bind /dev/{name} dev/{name}"]
    for name in ("bin", "lib"):
        lines += [f"mkdir opt/causeway/{name}",
                  f"mount --bind -o ro {netns.BUILD}/{name} opt/causeway/{name}"]
    if run_dir:
        lines.append(f"mount --bind {run_dir} run/causeway")
    # What is in /sys of the network namespace that it lives in; of its own process namespace.
    return lines + ["mount -t sysfs -o ro sys sys", "mount -t proc proc proc"]


class Container(netns.Host):
    """A host whose commands run in a container. With `run_dir` it shares the broker there, as with
    one bind-mounted; without it starts its own."""

    def __init__(self, name, address, namespace=None, run_dir=None, isolate=False):
        super().__init__(name, address, namespace)
        self.root = tempfile.mkdtemp(prefix="cwt-root-")
        self.run_dir = run_dir
        self.isolate = isolate

    def command(self, argv, wire=None):
        if wire:
            isolate = ["--isolate"] if self.isolate else []
            argv = [f"{CAUSEWAY}/bin/causeway", "run", *isolate, "--wire", wire, "--", *argv]
        enter = f"exec chroot {self.root} {shlex.join(argv)}"
        script = "set -e; " + "; ".join(recipe(self.root, self.run_dir) + [enter])
        argv = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--cgroup", "--fork",
                "--kill-child", "sh", "-c", script]
        return ["ip", "netns", "exec", self.netns, *argv] if self.netns else argv

    def environment(self, extra=None):
        return super().environment({"CAUSEWAY_RUNTIME_DIR": RUN, **(extra or {})})

    def output(self, argv, wire=None):
        """Runs a command to its end; its status and its words."""
        done = subprocess.run(self.command(argv, wire), env=self.environment(),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def end(self):
        super().end()
        shutil.rmtree(self.root, ignore_errors=True)
