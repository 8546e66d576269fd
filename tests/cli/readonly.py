"""A machine on which nothing can be written but one tmpfs."""

import os
import subprocess

from lib.netns import CAUSEWAY

# Of the running mount namespace everything is made read-only: the mount points are read first, the
# deepest is done first. What is mounted over cannot be reached, so its failure says nothing.
READ_ONLY = """
mount --make-rprivate / && mount -t tmpfs tmpfs /media || exit 70
awk '{ print $5 }' /proc/self/mountinfo | grep -v '^/media$' | sort -r | while read -r point; do
    mount -o remount,bind,ro "$point" 2>/dev/null
done
for at in / /tmp /run /var/tmp /dev/shm "$HOME"; do
    [ ! -d "$at" ] || ! touch "$at/causeway-written" 2>/dev/null ||
        { rm -f "$at/causeway-written"; echo "$at can be written"; exit 71; }
done
exec "$@"
"""

PING = """
ibv_rc_pingpong -g 0 -n 20 & until ss -ltn | grep -q :18515; do sleep 0.05; done
ibv_rc_pingpong -g 0 -n 20 127.0.0.1 && wait $!
"""


def read_only_root(causeway, check):
    """Programs run, by each wire, told where their runtime directory is; else it is said."""
    def run(*command, env):
        return subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c",
                               READ_ONLY, "sh", *command], env={**causeway.env, **env}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120,
                              check=False)
    told = {"CAUSEWAY_RUNTIME_DIR": "/media/causeway"}
    for wire in ("shm", "udp"):
        done = run(CAUSEWAY, "run", "--wire", wire, "--", "sh", "-c", PING, env=told)
        check(f"a read-only root, {wire}",
              done.returncode == 0 and done.stdout.count("20 iters") == 2, done)
    done = run(CAUSEWAY, "run", "--", "sh", "-c",
               "ls /sys/class/infiniband && test -c /dev/infiniband/uverbs0", env=told)
    check("a read-only root: the device's files", done.stdout == "cway0\n" and
          done.returncode == 0, done)
    done = run(CAUSEWAY, "doctor", env=told)
    check("a read-only root: doctor", done.returncode == 0 and "FAIL" not in done.stdout, done)
    done = run(CAUSEWAY, "run", "--", "true", env={"CAUSEWAY_RUNTIME_DIR": "/run/absent"})
    seen = run(CAUSEWAY, "doctor", env={"CAUSEWAY_RUNTIME_DIR": "/run/absent"})
    check("a read-only root without a place: doctor", seen.returncode == 1 and
          "in a container --tmpfs /run, " in seen.stdout, seen)
    check("a read-only root without a place: run says which", done.returncode == 125 and
          "/run/absent" in done.stderr and "Read-only" in done.stderr, done)
