#!/usr/bin/python3
"""Sends many datagrams to a UD queue pair that does not answer, and then one to a queue pair of
this process. Prints after how many seconds that has come. By Debian's pyverbs."""

import ipaddress
import sys
import time

from forgotten import DEVICE, GID_INDEX, PORT, QKEY, SECONDS, End
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.wr import SGE, SendWR

# Twice what may wait for a peer.
DEPTH, SIZE = 1024, 2048
# The first of slot 7, which no process has.
SILENT_QPN = 7 << 12


def main():
    """The address of the host that has no such queue pair is the argument."""
    context = Context(name=DEVICE)
    pd = PD(context)
    sender, receiver = End(pd, context, DEPTH + 1, SIZE), End(pd, context)

    def route(gid):
        way = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=GID_INDEX), is_global=1, port_num=PORT)
        return AH(pd, attr=way)

    mapped = ipaddress.IPv6Address(f"::ffff:{sys.argv[1]}").exploded
    silent, own = route(GID(mapped)), route(context.query_gid(PORT, GID_INDEX))
    for _ in range(DEPTH):
        work = SendWR(sg=[SGE(sender.mr.buf, SIZE, sender.mr.lkey)], num_sge=1)
        work.set_wr_ud(silent, SILENT_QPN, QKEY)
        sender.qp.post_send(work)
    receiver.receive()
    started = time.monotonic()
    # The completion that it waits for is that of the first; all of them are to come.
    sender.send(own, receiver.qp.qp_num)
    for _ in range(DEPTH):
        if not sender.await_one(SECONDS):
            raise SystemExit("a datagram is not complete")
    if not receiver.await_one(SECONDS):
        raise SystemExit("nothing has come")
    print(f"came after {time.monotonic() - started:.3f} s", flush=True)


if __name__ == "__main__":
    main()
