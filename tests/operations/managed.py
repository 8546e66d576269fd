"""`causeway trace` of the connection manager's messages."""

import collections

from clients import datagrams
from dissector import capture, secured
from lib import netns, pair
from lib.netns import one_host
from operations.trace import FAULTS, INBOUND, OUTBOUND, Tracer

MTU = 1500
SECONDS = 60
RPING_PORT = 7174
REQUEST, ACCEPT, SHUTDOWN, ACK, SEALED, REFUSED = 1, 2, 4, 8, 14, 15
# Bytes of IP and UDP; of a message's header, of a whole request, of a sealed message's header.
BELOW, HEADER, WHOLE, SEALED_HEADER = 28, 64, 260, 56
KEPT = 16
RSTREAM_PORT = 7471
FIELDS = ("frame.interface_name", "frame.packet_flags_direction", "frame.comment",
          "causeway.cm.opcode", "causeway.qpn", "causeway.cm.length", "causeway.cm.private",
          "frame.len", "frame.cap_len", "causeway.crc.status")

Message = collections.namedtuple("Message", "direction pid opcode qpn length private whole kept "
                                 "crc")


def rping(host):
    """A server and a client of `rping` on a host that is the server."""
    return (["rping", "-s", "-a", host.address, "-C", "5"],
            ["rping", "-c", "-a", host.address, "-C", "5"], RPING_PORT)


def rstream(host):
    """Those of `rstream`, whose requests bear private data."""
    return (["rstream", "-S", "64", "-C", "5"],
            ["rstream", "-s", host.address, "-S", "64", "-C", "5"], RSTREAM_PORT)


def run(world, programs):
    """Runs both; what became of them."""
    server, client, port = programs(world.server)
    both = pair.Pair(world, "udp", server, client, listening=datagrams.owns_udp_port(port))
    return both.run(SECONDS)


def messages(tracer):
    """The messages in its file: all that is not of a queue pair, and none at fault."""
    for faults in capture.frames(tracer.path, FAULTS, "causeway_cm"):
        assert not any(faults), faults
    others = capture.count(tracer.path, "udp && !causeway && !causeway_cm")
    assert not others, f"{others} packets are not dissected"
    found = []
    for way, direction, comment, opcode, qpn, length, private, whole, kept, crc in capture.frames(
            tracer.path, FIELDS, "causeway_cm"):
        assert way == ["udp"], way
        found.append(Message(int(direction[0], 0), comment[-1].split()[-1], int(opcode[0]),
                             [int(value, 0) for value in qpn], length, private,
                             int(whole[0]) - BELOW, int(kept[0]) - BELOW, crc))
    return found


def traced(programs, *options):
    """The messages of two programs on this host under a trace of all."""
    with one_host() as world, Tracer(world.server, "--all", *options) as tracer:
        outcome = run(world, programs)
        assert outcome.problem is None, f"{outcome.problem}: {outcome.client_text}"
        tracer.end()
        return messages(tracer)


def said(found, pid, direction):
    """What a process has sent, or received."""
    return {message.opcode for message in found
            if (message.pid, message.direction) == (pid, direction)}


def connection():
    """Each process's side of one, by pid; private data is left out."""
    found = traced(rping)
    asking = {message.pid for message in found
              if (message.opcode, message.direction) == (REQUEST, OUTBOUND)}
    assert len(asking) == 1, found
    client = asking.pop()
    server, = {message.pid for message in found} - {client}
    assert {REQUEST, ACK} <= said(found, client, OUTBOUND), found
    assert ACCEPT in said(found, client, INBOUND), found
    assert ACCEPT in said(found, server, OUTBOUND), found
    assert ACK in said(found, server, INBOUND), found
    ended = said(found, client, OUTBOUND) | said(found, server, OUTBOUND)
    assert SHUTDOWN in ended, found
    for message in found:
        assert message.kept == HEADER and not message.private, message
        assert message.whole == (WHOLE if message.opcode == REQUEST else
                                 HEADER + int(message.length[0])), message
    # Both name their queue pairs.
    names = {tuple(message.qpn) for message in found if message.opcode in (REQUEST, ACCEPT)}
    assert len(names) == 2, names
    return f"{len(found)} messages"


def payload():
    """Private data is there if payload is asked for, and so much of it."""
    for options, kept in (((), 0), ((f"--payload={KEPT}",), KEPT), (("--payload",), WHOLE)):
        found = traced(rstream, *options)
        asked = [message for message in found if message.opcode == REQUEST]
        assert asked and all(int(message.length[0]) > KEPT for message in asked), found
        for message in asked:
            shown = min(kept, int(message.length[0]))
            assert [len(text) for text in message.private] == ([2 * shown] if kept else []), \
                (options, message)
            assert message.kept == min(HEADER + kept, message.whole), (options, message)
            assert message.crc == (["good"] if message.kept == message.whole else
                                   ["not checked"]), (options, message)


def sealed():
    """Secured peers' are as they are on the wire: sealed, and refusals of them."""
    with netns.TwoHosts(MTU) as world, secured.keyed(world.server), secured.keyed(world.client), \
            Tracer(world.client, "--all") as tracer:
        assert run(world, rping).problem, "another key is no reason"
        tracer.end()
        found = messages(tracer)
    kinds = {(message.direction, message.opcode, message.kept) for message in found}
    assert kinds == {(OUTBOUND, SEALED, SEALED_HEADER), (INBOUND, REFUSED, 24)}, kinds


TESTS = [("trace: connection manager", connection),
         ("trace: connection manager's private data", payload),
         ("trace: connection manager, secured", sealed)]
