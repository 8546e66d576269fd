"""Kernels and sandboxes that refuse system calls."""

import errno
import os
import subprocess

from cli.opening import CC, FLAGS, HERE

# Numbers on x86-64.
CLOSE_RANGE, FACCESSAT2, STATX, OPENAT2 = 436, 439, 332, 437
PIDFD_OPEN, PREADV2, MEMBARRIER, USERFAULTFD = 434, 327, 324, 323
IO_SETUP, IO_SUBMIT = 206, 209
# What is refused, how, by whom.
REFUSALS = (("close_range as before Linux 5.11", errno.EINVAL, (CLOSE_RANGE,)),
            ("close_range by a sandbox", errno.EPERM, (CLOSE_RANGE,)),
            ("faccessat2 by an older Docker", errno.EPERM, (FACCESSAT2,)),
            ("all newer calls by a sandbox", errno.EPERM,
             (CLOSE_RANGE, FACCESSAT2, STATX, OPENAT2, PIDFD_OPEN, USERFAULTFD)),
            ("asynchronous I/O", errno.EPERM, (IO_SETUP, IO_SUBMIT)),
            ("asynchronous I/O once it is set up", errno.EPERM, (IO_SUBMIT,)),
            ("calls that older kernels lack", errno.ENOSYS,
             (CLOSE_RANGE, FACCESSAT2, STATX, OPENAT2, PIDFD_OPEN, PREADV2, MEMBARRIER)))


def refused_calls(causeway, check, scratch, stop):
    """Programs start, and their broker, and talk by each wire."""
    deny = os.path.join(scratch, "deny")
    subprocess.run([CC, *FLAGS, "-o", deny, f"{HERE}/deny.c"], check=True)
    for number, (name, error, calls) in enumerate(REFUSALS):
        env = {"CAUSEWAY_RUNTIME_DIR": os.path.join(scratch, f"run-{number}")}
        by = [deny, str(error), ",".join(map(str, calls))]
        for wire in ("shm", "udp"):
            done = causeway("run", "--wire", wire, "--", "sh", "-c",
                            "ibv_rc_pingpong -g 0 -n 20 & "
                            "until ss -ltn | grep -q :18515; do sleep 0.05; done; "
                            "ibv_rc_pingpong -g 0 -n 20 127.0.0.1 && wait $!", env=env, by=by)
            good = done.returncode == 0 and done.stdout.count("20 iters") == 2
            check(f"without {name}: {wire}", good, done)
        stop(env["CAUSEWAY_RUNTIME_DIR"])
