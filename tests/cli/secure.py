"""Whose settings count: not those of who runs a set-user-id program, nor of a program that starts
the broker."""

import os
import subprocess

from cli.opening import CC, FLAGS, HERE
from lib.netns import BUILD

# Each would have a program fail that heeds it, or give its port a LID.
SETTINGS = ("CAUSEWAY_SOCKET=/absent", "CAUSEWAY_RUNTIME_DIR=/proc/absent", "CAUSEWAY_WIRE=tin",
            "CAUSEWAY_PATIENCE=tin", "CAUSEWAY_LID=1")

# A place that other users can reach, and runtime directories of nobody else's: $1 is what was
# built, $2 the program. What it starts ends with it.
SCENE = """
mount --make-rprivate / && mount -t tmpfs -o mode=755 tmpfs /media || exit 70
mkdir /media/bin /media/lib
cp "$1/bin/causewayd" /media/bin && cp "$2" /media/plain && cp "$2" /media/secure || exit 71
cp "$1/lib/libibverbs.so.1" /media/lib && chown daemon /media/secure && chmod 4755 /media/secure
mount -t tmpfs -o mode=1777 tmpfs /tmp && mount -t tmpfs tmpfs /run || exit 72
for setting in $5; do
    for program in plain secure; do echo "$program $setting: $(env $setting /media/$program)"; done
done
# The kernel gives this user id to whoever it can't name.
echo "nameless: $(setpriv --reuid 65534 --clear-groups /media/plain)"
pkill -x causewayd
while pgrep -x causewayd; do sleep 0.05; done > /dev/null
export CAUSEWAY_OTHER=1 OTHER=1 LD_PRELOAD=/media/lib/libibverbs.so.1
/media/$3 $4 > /dev/null
tr '\\0' '\\n' < "/proc/$(pgrep -x causewayd)/environ" | sed 's/=.*//; s/^/broker: /'
"""


def settings(causeway, check, scratch):
    """Both, each in a place of its own."""
    program = os.path.join(scratch, "secure")
    subprocess.run([CC, *FLAGS, "-O2", "-o", program, f"{HERE}/secure.c", "-libverbs",
                    "-Wl,-rpath,/media/lib"], check=True)

    def scene(*argv):
        env = dict(causeway.env)
        del env["CAUSEWAY_RUNTIME_DIR"]
        command = ["sh", "-c", SCENE, "sh", BUILD, program, *argv, " ".join(SETTINGS)]
        done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "--mount-proc", *command],
                              env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, check=False)
        inherited = {line.split()[1] for line in done.stdout.splitlines()
                     if line.startswith("broker: ")}
        return done, inherited

    done, inherited = scene("plain", "")
    for name in SETTINGS:
        check(f"a program heeds {name}", f"plain {name}: " in done.stdout and
              f"plain {name}: opened" not in done.stdout, done)
        check(f"a set-user-id program does not heed {name}",
              f"secure {name}: opened" in done.stdout, done)
    check("who has the overflow user id is refused", "nameless: Permission denied" in done.stdout
          and "the broker refused" in done.stderr, done)
    check("a broker has the settings of who starts it, and nothing else",
          inherited == {"CAUSEWAY_OTHER", "PATH"}, done)
    done, inherited = scene("secure", "settle")
    check("a broker has no settings of who runs a set-user-id program", not inherited and
          "causewayd" not in done.stderr and done.returncode == 0, done)
