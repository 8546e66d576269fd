#!/usr/bin/python3
"""Sends datagrams from one UD queue pair to another of this process, which then is reset: it has
forgotten the keys, and gets others. Prints how many it has got. By Debian's pyverbs."""

import time

import pyverbs.enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

DEVICE, PORT, GID_INDEX = "cway0", 1, 0
GRH, SIZE, QKEY = 40, 64, 0x11111111
ROUNDS, WAIT_SECONDS, SECONDS = 3, 0.05, 20


def attributes():
    """Those of a UD queue pair on its way to be ready."""
    attr = QPAttr(port_num=PORT)
    attr.qkey = QKEY
    return attr


class End:
    """A queue pair with queues and memory of its own."""

    def __init__(self, pd, context, sends=16, size=SIZE):
        self.cq = CQ(context, sends + 16)
        init = QPInitAttr(qp_type=e.IBV_QPT_UD, scq=self.cq, rcq=self.cq,
                          cap=QPCap(max_send_wr=sends, max_recv_wr=16))
        self.qp = QP(pd, init, attributes())
        self.mr = MR(pd, GRH + size, e.IBV_ACCESS_LOCAL_WRITE)

    def restart(self):
        """Resets it, and makes it ready again."""
        self.qp.modify(QPAttr(qp_state=e.IBV_QPS_RESET), e.IBV_QP_STATE)
        self.qp.to_rts(attributes())

    def receive(self):
        """Posts a receive."""
        self.qp.post_recv(RecvWR(sg=[SGE(self.mr.buf, GRH + SIZE, self.mr.lkey)], num_sge=1))

    def send(self, route, qpn):
        """Sends a datagram, and waits until that is complete."""
        work = SendWR(sg=[SGE(self.mr.buf, SIZE, self.mr.lkey)], num_sge=1)
        work.set_wr_ud(route, qpn, QKEY)
        self.qp.post_send(work)
        self.await_one(SECONDS)

    def await_one(self, seconds):
        """Waits for a completion, for so long. Returns whether there was one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            count, completions = self.cq.poll(1)
            if count:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    raise SystemExit(f"status {completions[0].status}")
                return True
        return False


def main():
    """Sends until something has come, each time."""
    context = Context(name=DEVICE)
    pd = PD(context)
    sender, receiver = End(pd, context), End(pd, context)
    gid = context.query_gid(PORT, GID_INDEX)
    way = AHAttr(gr=GlobalRoute(dgid=gid, sgid_index=GID_INDEX), is_global=1, port_num=PORT)
    route = AH(pd, attr=way)
    for got in range(1, ROUNDS + 1):
        receiver.receive()
        deadline = time.monotonic() + SECONDS
        # Datagrams by keys that are forgotten are lost.
        while True:
            sender.send(route, receiver.qp.qp_num)
            if receiver.await_one(WAIT_SECONDS):
                break
            if time.monotonic() > deadline:
                raise SystemExit(f"nothing comes any more after {got - 1}")
        print(f"got {got}", flush=True)
        receiver.restart()


if __name__ == "__main__":
    main()
