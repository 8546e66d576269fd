"""`causeway trace`: what perftest sends by each way, as tshark shows it; who ends it, and how."""

import collections
import os
import re
import signal
import subprocess
import tempfile

from dissector import capture
from lib import perftest
from lib.netns import CAUSEWAY, one_host
from lib.output import rest_of_output
from operations import schema
from operations.schema import until
from operations.top import busy

SECONDS = 60
EXCHANGES = 200
SIZE, MESSAGES = 65536, 300
FAULTS = ("causeway.malformed", "causeway.segment.malformed", "causeway.crc.bad",
          "causeway.port.other", "causeway.retransmission")
FIELDS = ("frame.interface_name", "frame.packet_flags_direction", "frame.comment",
          "_ws.col.Protocol", "causeway.src_qpn", "causeway.dst_qpn", "causeway.psn",
          "causeway.rdmap.opcode", "causeway.length", "causeway.stag", "frame.len",
          "frame.cap_len", "causeway.payload", *FAULTS)
WRITE, READ, ANSWER, SEND, ATOMIC, ATOMIC_ANSWER = 0, 1, 2, 3, 10, 11
INBOUND, OUTBOUND = 1, 2
# Bytes of IP, UDP, TRP's header and that of a tagged segment.
HEADERS = 20 + 8 + 40 + 14
# Records that a ring holds, and more.
TOO_MANY = 100000

Packet = collections.namedtuple("Packet", "way direction comment src dst psn opcode length key "
                                "whole kept payload")


class Tracer:
    """`causeway trace` on a host, which records by the time that this is made."""

    def __init__(self, host, what, *options):
        self.folder = tempfile.TemporaryDirectory(prefix="cwt-trace-")
        self.path = os.path.join(self.folder.name, "trace.pcapng")
        self.process = host.popen([CAUSEWAY, "trace", what, self.path, *options],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.said = self.process.stderr.readline()
        assert "tracing, " in self.said, (self.said, self.process.poll())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        self.folder.cleanup()

    def wait(self):
        """Waits until it has ended; what it says then."""
        said = rest_of_output(self.process, self.process.stderr, SECONDS)
        assert self.process.returncode == 0, (said, self.process.returncode)
        return said

    def end(self):
        """Ends it as Ctrl-C does."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def packets(self):
        """The packets of its file, each dissected and without a fault."""
        rows = capture.frames(self.path, FIELDS)
        found = []
        for way, direction, comment, protocol, *rest in rows:
            assert protocol == ["Causeway"], (protocol, rest)
            *rest, malformed, segment, crc, port, again = rest
            faults = (malformed, segment, crc, port)
            assert not any(faults), (rest, faults)
            if again:
                continue
            src, dst, psn, opcode, length, key, whole, kept, payload = (
                [int(value, 0) for value in cell] if name != "payload" else cell
                for name, cell in zip(("src", "dst", "psn", "opcode", "length", "key", "whole",
                                       "kept", "payload"), rest))
            found.append(Packet(way[0], int(direction[0], 0), ",".join(comment), src[0], dst[0],
                                psn, opcode, length, key, whole[0], kept[0], payload))
        return found


def sent(packets, *ways):
    """Those that were sent by these ways, with their segments' opcodes and lengths."""
    return [packet for packet in packets
            if packet.direction == OUTBOUND and packet.way in ways]


def of(packets, opcode):
    """Those that carry segments of an opcode."""
    return [packet for packet in packets if opcode in packet.opcode]


def traced(wire, tool, size, count, *options, extra=(), passive=False):
    """The packets of a run of perftest under a trace of all. A passive server has none where the
    client reaches its memory itself."""
    with one_host() as world, Tracer(world.server, "--all", *options) as tracer:
        perftest.run(world, wire, tool, size, count, extra=extra)
        said = tracer.end()
        assert "lost" not in said, said
        packets = tracer.packets()
        assert f"{len(packets)} packets" in said or wire == "udp", (said, len(packets))
    processes = {packet.comment.split()[-1] for packet in packets}
    assert len(processes) in ((1, 2) if passive else (2,)), processes
    assert all(re.fullmatch(rf"{packet.way}, process \d+", packet.comment) for packet in packets)
    return packets


def udp():
    """Datagrams: each WRITE as it was sent and as it came, keys masked, payload left out."""
    packets = traced("udp", "ib_write_lat", 8, EXCHANGES)
    assert {packet.way for packet in packets} == {"udp"}
    for direction in (INBOUND, OUTBOUND):
        found = [packet for packet in of(packets, WRITE) if packet.direction == direction]
        writes = {(packet.src, psn) for packet in found for psn in packet.psn}
        assert len(writes) == 2 * EXCHANGES, f"{direction}: {len(writes)}"
    alone = [packet for packet in of(packets, WRITE) if packet.opcode == [WRITE]]
    assert alone and {tuple(packet.key) for packet in alone} == {(0,)}
    assert {(tuple(packet.length), packet.whole, packet.kept) for packet in alone} == {
        ((8,), HEADERS + 8, HEADERS)}
    return f"{len(packets)} packets"


def direct():
    """Copies to the peer's memory: together with what went by ring before, every byte."""
    packets = traced("shm", "ib_write_lat", SIZE, MESSAGES)
    copied = of(sent(packets, "direct"), WRITE)
    ringed = of(sent(packets, "ring"), WRITE)
    total = sum(packet.length[0] for packet in copied + ringed)
    assert total == 2 * SIZE * MESSAGES, f"{total}, not {2 * SIZE * MESSAGES}"
    assert copied, f"{len(ringed)} by ring"
    assert {(packet.key[0], packet.whole - packet.length[0], packet.kept)
            for packet in copied} == {(0, HEADERS, HEADERS)}
    for src in {packet.src for packet in copied}:
        psns = [packet.psn[0] for packet in copied if packet.src == src]
        assert psns == list(range(len(psns)))
    return f"{len(copied)} direct, {len(ringed)} by ring"


def reads_and_atomics():
    """READs and atomics have requests and answers, whichever way they go."""
    packets = traced("shm", "ib_read_lat", 4096, EXCHANGES, passive=True)
    asked = of(sent(packets, "direct", "ring"), READ)
    assert len(asked) == EXCHANGES and {packet.key[0] for packet in asked} == {0}
    answered = [packet for packet in of(packets, ANSWER) if packet.direction == INBOUND]
    assert sum(packet.length[0] for packet in answered) == 4096 * EXCHANGES
    packets = traced("shm", "ib_atomic_lat", 8, EXCHANGES, "--keys", passive=True)
    asked = of(sent(packets, "direct", "ring"), ATOMIC)
    assert len(asked) == EXCHANGES and len({packet.key[0] for packet in asked} - {0}) == 1
    answered = [packet for packet in of(packets, ATOMIC_ANSWER) if packet.direction == INBOUND]
    assert len(answered) == EXCHANGES


def ring():
    """SENDs by ring: as they were sent and as they came, with as much payload as asked for."""
    packets = traced("shm", "ib_send_lat", 64, EXCHANGES, "--payload=16")
    assert {packet.way for packet in packets} == {"ring"}
    for direction in (INBOUND, OUTBOUND):
        found = [packet for packet in of(packets, SEND) if packet.direction == direction]
        assert len(found) == 2 * EXCHANGES, f"{direction}: {len(found)}"
        assert {packet.length[0] for packet in found} == {64}
        assert {len(packet.payload[0]) for packet in found} == {32}, "digits of 16 bytes"
    return f"{len(packets)} packets"


def datagrams():
    """UD queue pairs."""
    packets = traced("udp", "ib_send_lat", 64, EXCHANGES, extra=("-c", "UD"))
    out = sent(packets, "udp")
    assert len(out) >= 2 * EXCHANGES and {packet.length[0] for packet in out} == {64}
    assert {packet.kept for packet in out} == {20 + 8 + 24}


def numbers(host):
    """The queue pairs of a host, and their processes."""
    return {int(qp["qpn"]): endpoint["pid"] for endpoint in schema.state(host)["endpoints"]
            for qp in endpoint["qps"]}


def chosen():
    """One queue pair of programs that run already, and so many packets."""
    with one_host() as world, busy(world.server, "shm"):
        pairs = until("two queue pairs", lambda: len(numbers(world.server)) == 2
                      and numbers(world.server))
        qpn, pid = next(iter(pairs.items()))
        with Tracer(world.server, hex(qpn), "--count", "50") as tracer:
            said = tracer.wait()
            packets = tracer.packets()
        assert "50 packets" in said and len(packets) == 50, said
        ends = {(packet.src, packet.dst)[packet.direction == INBOUND] for packet in packets}
        assert ends == {qpn}, ends
        programs = {packet.comment.split()[-1] for packet in packets}
        assert programs == {str(pid)}, (programs, pairs)


def is_traced(pid):
    """Whether a process has a ring of a trace mapped."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        return "memfd:causeway-trace" in maps.read()


def killed():
    """A tool that is killed leaves programs that record nothing any more, and its place."""
    with one_host() as world, busy(world.server, "shm") as pids:
        until("two queue pairs", lambda: len(numbers(world.server)) == 2)
        assert not any(map(is_traced, pids))
        for _ in range(2):
            with Tracer(world.server, "--all") as tracer:
                assert "tracing, 2 processes" in tracer.said, tracer.said
                until("both record", lambda: all(map(is_traced, pids)))
                again = subprocess.run(
                    [CAUSEWAY, "trace", "--all", os.devnull], stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
                    env=world.server.environment())
                assert again.returncode == 1 and "another trace" in again.stderr, again
            until("neither records", lambda: not any(map(is_traced, pids)))
        before = moved(world.server)
        until("they go on", lambda: moved(world.server) > before)


def moved(host):
    """How many bytes the programs of a host have sent."""
    return sum(endpoint["counters"]["tx_bytes"] for endpoint in schema.state(host)["endpoints"])


def lost():
    """A tool that is stopped costs the programs no time, and says what it has missed."""
    with one_host() as world, busy(world.server, "shm"):
        until("two queue pairs", lambda: len(numbers(world.server)) == 2)
        with Tracer(world.server, "--all") as tracer:
            until("it writes", lambda: os.path.getsize(tracer.path) > 100000)
            tracer.process.send_signal(signal.SIGSTOP)
            try:
                enough = moved(world.server) + TOO_MANY * 65536
                until("more than a ring holds", lambda: moved(world.server) > enough)
            finally:
                tracer.process.send_signal(signal.SIGCONT)
            said = tracer.end()
            missed = re.search(r"(\d+) packets were lost", said)
            assert missed and int(missed[1]) > 0, said
            # The file is whole all the same.
            told = subprocess.run(["capinfos", "-M", "-c", tracer.path], stdout=subprocess.PIPE,
                                  text=True, timeout=SECONDS, check=True).stdout
            count = re.search(r"(\d+) packets\n", said)[1]
            assert re.search(rf"Number of packets: +{count}\b", told), (said, told)


def seconds():
    """It ends by itself; without programs there is nothing."""
    with one_host() as world, Tracer(world.server, "--all", "--seconds", "0.5") as tracer:
        assert "tracing, 0 processes" in tracer.said
        assert "0 packets" in tracer.wait()
        assert not tracer.packets()


def refused():
    """What can't be written is told, and a queue pair's number is needed."""
    with one_host() as world:
        for options, word in ((["--all", "/nonexistent/f"], "No such file"),
                              (["0x1000000", "f"], "not the number of a queue pair"),
                              (["f"], "required")):
            done = subprocess.run([CAUSEWAY, "trace", *options], stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
                                  env=world.server.environment())
            assert done.returncode and word in done.stderr, done


def same_file():
    """A trace that does not begin leaves alone what is in its file; a new file is the user's."""
    with one_host() as world, Tracer(world.server, "--all") as tracer:
        assert os.stat(tracer.path).st_mode & 0o777 == 0o600, oct(os.stat(tracer.path).st_mode)
        until("it has begun the file", lambda: os.path.getsize(tracer.path) > 0)
        before = os.path.getsize(tracer.path)
        done = subprocess.run([CAUSEWAY, "trace", "--all", tracer.path], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, timeout=SECONDS, check=False,
                              env=world.server.environment())
        assert done.returncode == 1 and "another trace" in done.stderr, done
        assert os.path.getsize(tracer.path) >= before, os.path.getsize(tracer.path)
        tracer.end()
        assert not tracer.packets()
        # One that begins starts from nothing.
        with open(tracer.path, "ab") as file:
            file.write(bytes(1 << 20))
        subprocess.run([CAUSEWAY, "trace", "--all", "--seconds", "0.1", tracer.path],
                       stderr=subprocess.DEVNULL, timeout=SECONDS, check=True,
                       env=world.server.environment())
        assert not tracer.packets() and os.path.getsize(tracer.path) < 1 << 20


def without_streams():
    """What the tool says does not get into its file, where it has no standard streams."""
    with one_host() as world, tempfile.TemporaryDirectory(prefix="cwt-trace-") as folder:
        path = os.path.join(folder, "trace.pcapng")
        line = f"exec {CAUSEWAY} trace --all --seconds 0.1 {path} <&- >&- 2>&-"
        done = subprocess.run(["sh", "-c", line], timeout=SECONDS, check=False,
                              env=world.server.environment())
        with open(path, "rb") as file:
            content = file.read()
        assert done.returncode == 0 and content, done
        assert b"causeway:" not in content, content


TESTS = [("trace: UDP", udp), ("trace: direct", direct),
         ("trace: READs and atomics", reads_and_atomics), ("trace: rings", ring),
         ("trace: UD", datagrams), ("trace: one queue pair", chosen), ("trace: killed", killed),
         ("trace: lost", lost), ("trace: seconds", seconds), ("trace: refused", refused),
         ("trace: a file that is another's", same_file),
         ("trace: without standard streams", without_streams)]
