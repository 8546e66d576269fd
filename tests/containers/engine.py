"""podman, with storage of its own in a folder that the test removes."""

import os
import shutil
import subprocess
import time

SECONDS = 60
POLL_SECONDS = 0.05
# Within what a test's own process may have, where it must not raise limits.
CONF = """[containers]
default_ulimits = ["nofile=1024:4096", "nproc=1024:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
IMAGE = "localhost/plain"
DEVICE = "causeway.dev/rdma=all"


class Engine:
    """An engine of root, or of another user."""

    def __init__(self, folder, user=None, driver="vfs"):
        self.folder = folder
        self.user = user
        # "vfs" works on every file system, and copies the whole image for each container.
        self.driver = driver
        self.conf = os.path.join(folder, "containers.conf")
        for name in ("storage", "state", "home", "run"):
            os.mkdir(os.path.join(folder, name), 0o700)
        with open(self.conf, "w", encoding="ascii") as file:
            file.write(CONF)
        if user:
            for path in (folder, self.conf, *(os.path.join(folder, name) for name
                                              in ("storage", "state", "home", "run"))):
                os.chown(path, user, user)

    def command(self, *args):
        """A command line of podman's."""
        argv = ["podman", "--root", f"{self.folder}/storage", "--runroot", f"{self.folder}/state",
                "--storage-driver", self.driver, "--runtime", "runc"]
        if self.user:
            # Where /etc/subuid names no more, a user's files have one owner.
            argv += ["--storage-opt", f"{self.driver}.ignore_chown_errors=true"]
        argv += args
        if self.user:
            argv = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups",
                    *argv]
        return argv

    def environment(self):
        """Nothing of the test's own."""
        return {"PATH": os.environ["PATH"], "CONTAINERS_CONF": self.conf,
                "HOME": f"{self.folder}/home", "XDG_RUNTIME_DIR": f"{self.folder}/run",
                "LC_ALL": "C.UTF-8"}

    def popen(self, *args, **kwargs):
        """Starts podman."""
        return subprocess.Popen(self.command(*args), env=self.environment(), cwd=self.folder,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, **kwargs)

    def __call__(self, *args, seconds=SECONDS):
        """Runs podman; its status and its words."""
        process = self.popen(*args)
        try:
            text, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            text = f"did not end: {process.communicate()[0]}"
        return process.returncode, text

    def load(self, root):
        """Makes the image of a root directory."""
        archive = os.path.join(self.folder, "image.tar")
        subprocess.run(["tar", "-C", root, "--owner=0", "--group=0", "-cf", archive, "."],
                       check=True)
        os.chmod(archive, 0o644)
        status, text = self("import", archive, IMAGE)
        os.remove(archive)
        if status:
            raise OSError(f"podman import: {text}")

    def run(self, *argv, options=(), network="none", device=DEVICE, image=IMAGE):
        """A command line that runs a command in a container of an image."""
        device = ["--device", device] if device else []
        return ("run", "--rm", "--network", network, *device, *options, image, *argv)

    def processes(self):
        """Every process of podman's own that runs, whoever its parent is."""
        home = f"HOME={self.folder}/home".encode()
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    if home not in file.read().split(b"\0"):
                        continue
                with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
                    found.append(f"{pid} {file.read().strip()}")
            except OSError:
                # It has ended.
                continue
        return found

    def left(self):
        """A problem, unless all processes end that `end` was to end."""
        until = time.monotonic() + SECONDS
        while (found := self.processes()) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
        return f"still run: {found}" if found else None

    def end(self):
        """Ends every container, and what podman leaves running for its next command."""
        self("rm", "--all", "--force", "--time", "0")
        if self.user:
            # What it stored belongs to its users.
            self("unshare", "rm", "-rf", f"{self.folder}/storage")
            # Each command of an ordinary user's starts a process that keeps the user namespace, if
            # there is none. This one ends it, so it comes last.
            self("system", "migrate")
        subprocess.run(["umount", "-l", f"{self.folder}/storage/{self.driver}"], check=False,
                       stderr=subprocess.DEVNULL)
        shutil.rmtree(self.folder, ignore_errors=True)
