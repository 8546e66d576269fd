"""Kernels and sandboxes that refuse system calls."""

import errno
import os
import subprocess

from cli.opening import CC, FLAGS, HERE

# Numbers on x86-64.
CLOSE_RANGE, FACCESSAT2, STATX, OPENAT2 = 436, 439, 332, 437
PIDFD_OPEN, PREADV2, MEMBARRIER, USERFAULTFD = 434, 327, 324, 323
IO_SETUP, IO_SUBMIT = 206, 209
# Calls that the product, or what it is made with, prefers to older ones, or can do without. Each is
# refused by itself, as a sandbox does it and as an older kernel.
DISPENSABLE = {
    "mremap": 25, "mlock": 149, "prctl": 157, "sched_setaffinity": 203,
    "sched_getaffinity": 204, "io_setup": 206, "io_submit": 209, "mbind": 237,
    "get_mempolicy": 239, "unshare": 272, "move_pages": 279, "fallocate": 285,
    "inotify_init1": 294, "recvmmsg": 299, "prlimit64": 302, "sendmmsg": 307, "setns": 308,
    "getcpu": 309, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
    "renameat2": 316, "getrandom": 318, "userfaultfd": 323, "membarrier": 324,
    "copy_file_range": 326, "preadv2": 327, "statx": 332, "rseq": 334,
    "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "close_range": 436,
    "openat2": 437, "pidfd_getfd": 438, "faccessat2": 439, "epoll_pwait2": 441}
# Calls without which there is no device, and what the error calls them. For clone3 the C library
# has another where a kernel lacks it, and not where a sandbox refuses it.
NECESSARY = (("memfd_create", 319, errno.EPERM), ("memfd_create", 319, errno.ENOSYS),
             ("ftruncate", 77, errno.EPERM), ("madvise", 28, errno.EPERM),
             ("timerfd_create", 283, errno.EPERM), ("signalfd", 289, errno.EPERM),
             ("eventfd", 290, errno.EPERM), ("epoll_create1", 291, errno.EPERM),
             ("clone3", 435, errno.EPERM))
# Both ends of a connection.
TALK = ("ibv_rc_pingpong -g 0 -n 20 & "
        "for i in $(seq 200); do ss -ltn | grep -q :18515 && break; sleep 0.05; done; "
        "ibv_rc_pingpong -g 0 -n 20 127.0.0.1 && wait $!")
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
    """Programs start, and their broker, and talk by each wire; or say which call they lack."""
    deny = os.path.join(scratch, "deny")
    subprocess.run([CC, *FLAGS, "-o", deny, f"{HERE}/deny.c"], check=True)
    sandboxes = 0

    def in_sandbox(error, calls, *runs):
        nonlocal sandboxes
        sandboxes += 1
        env = {"CAUSEWAY_RUNTIME_DIR": os.path.join(scratch, f"run-{sandboxes}")}
        by = [deny, str(error), ",".join(map(str, calls))]
        done = [causeway("run", *run, env=env, by=by) for run in runs]
        stop(env["CAUSEWAY_RUNTIME_DIR"])
        return done

    def talks(error, calls, *wires):
        runs = [("--wire", wire, "--", "sh", "-c", TALK) for wire in wires]
        for wire, done in zip(wires, in_sandbox(error, calls, *runs)):
            good = done.returncode == 0 and done.stdout.count("20 iters") == 2
            yield wire, good, done

    for name, error, calls in REFUSALS:
        for wire, good, done in talks(error, calls, "shm", "udp"):
            check(f"without {name}: {wire}", good, done)
    for name, number in DISPENSABLE.items():
        for error, wire in ((errno.EPERM, "shm"), (errno.ENOSYS, "udp")):
            for _, good, done in talks(error, (number,), wire):
                check(f"without {name} ({errno.errorcode[error]}): {wire}", good, done)
    for name, number, error in NECESSARY:
        done, = in_sandbox(error, (number,), ("--", "ibv_devinfo"))
        lines = [line for line in done.stderr.splitlines() if line.startswith("causeway: ")]
        good = done.returncode != 0 and any(name in line for line in lines)
        check(f"without {name} ({errno.errorcode[error]}): an error that names it", good, done)
