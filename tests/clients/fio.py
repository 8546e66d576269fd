"""fio's engine for RDMA: memory and channel semantics."""

import re

from clients import datagrams, program
from clients.program import Program

SIZE = "16m"
BLOCK = "64k"
DEPTH = "8"
# A receive for each block: fio asks for no repetition where there is none.
RECEIVES = "256"
CHECKED = ["--verify=crc32c"]
# Else a file of where it stood is left behind.
NO_STATE = "--verify_state_save=0"
# Neither side of an RDMA WRITE or READ knows what fio put into the other's memory, so only what is
# received can be verified: by the receiver.
MODES = {"write": ([], []), "read": ([], []),
         "send": (CHECKED, [*CHECKED, "--do_verify=0", NO_STATE])}
NAMES = [f"fio verb={verb}" for verb in MODES]


def finished(text):
    """fio tells the errors of a job, and the bytes of all."""
    if not re.search(r"\(groupid=0, jobs=1\): err= 0:", text):
        return "no job without error in the client's output"
    if not re.search(r"WRITE: .* io=16\.0MiB ", text):
        return f"not {SIZE} written"
    return None


def programs(world, ports):
    """A receiver and a sender for each verb."""
    for verb, (receiver, sender) in MODES.items():
        port = next(ports)
        # A job in the process itself, where the listener is looked for.
        both = ["fio", "--thread", "--ioengine=rdma", f"--port={port}", f"--bs={BLOCK}",
                f"--size={SIZE}"]
        yield Program(
            f"fio verb={verb}",
            [*both, "--name=receiver", "--rw=read", f"--iodepth={RECEIVES}", *receiver],
            [*both, "--name=sender", "--rw=write", f"--hostname={world.server.address}",
             f"--verb={verb}", f"--iodepth={DEPTH}", "--iodepth_batch_complete_min=1", *sender],
            datagrams.owns_udp_port(port), finished)


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs each verb."""
    program.run_all(report, stage, world, wire, seconds, programs(world, ports), chosen)
