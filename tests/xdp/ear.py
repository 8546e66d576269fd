"""Who is given what: a process that borrows a socket of AF_XDP, and shows what comes to it and what
to its UDP socket; and the tests that use it. As a program, it is that process."""

import array
import mmap
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import time

if __name__ != "__main__":
    from kill.harness import START_SECONDS, Bench, Failed, Program
    from lib import netns, pair
    from xdp.lender import expect_carried

# linux/if_xdp.h
SOL_XDP, XDP_MMAP_OFFSETS = 283, 1
RX_AT, FILL_AT = 0, 0x100000000
# As crates/xdp makes them.
FRAMES, FRAME_BYTES = 1024, 2048
NAME = "\0causeway-xdp"
BORROW = bytes([1, 1])
LEND = bytes([1, 3])
FIRST_PORT, LAST_PORT = 20481, 24500
PAYLOAD_MAX = 256
POLL_SECONDS = 0.002
USER, OTHER = 4001, 4002
SECOND = "cw1"
ENDLESS = "100000000"


class Ring:
    """A ring of the socket's, mapped."""

    def __init__(self, fd, offsets, entry, place):
        self.producer, self.consumer, self.first, _ = offsets
        self.entry = entry
        self.memory = mmap.mmap(fd, self.first + FRAMES * struct.calcsize(entry),
                                mmap.MAP_SHARED | mmap.MAP_POPULATE,
                                mmap.PROT_READ | mmap.PROT_WRITE, offset=place)

    def word(self, at, value=None):
        """Reads an index, or writes one."""
        if value is not None:
            struct.pack_into("=I", self.memory, at, value & 0xffffffff)
        return struct.unpack_from("=I", self.memory, at)[0]

    def fill(self):
        """Offers all frames."""
        for number in range(FRAMES):
            struct.pack_into(self.entry, self.memory, self.first + number * 8,
                             number * FRAME_BYTES)
        self.word(self.producer, FRAMES)

    def take(self):
        """What has come."""
        while (own := self.word(self.consumer)) != self.word(self.producer):
            at = self.first + (own % FRAMES) * struct.calcsize(self.entry)
            yield struct.unpack_from(self.entry, self.memory, at)
            self.word(self.consumer, own + 1)


def borrow(udp):
    """Borrows a socket for the port of a UDP socket: the ring and the packet memory."""
    lease = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    lease.connect(NAME)
    lease.sendmsg([BORROW], [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                              array.array("i", [udp.fileno()]))])
    answer, rights, _, _ = lease.recvmsg(1000, 100)
    if not answer.startswith(LEND):
        print("refused", answer[2:].decode(), flush=True)
        return None
    lent, memory = array.array("i", rights[0][2])
    # AF_XDP, which Python does not know.
    xdp = socket.socket(44, socket.SOCK_RAW, 0, fileno=lent)
    words = struct.unpack("=16Q", xdp.getsockopt(SOL_XDP, XDP_MMAP_OFFSETS, 128))
    fill = Ring(lent, words[8:12], "=Q", FILL_AT)
    fill.fill()
    packets = mmap.mmap(memory, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    return lease, xdp, Ring(lent, words[0:4], "=QII", RX_AT), packets


def main():
    """Shows what comes until it is killed."""
    udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    for port in range(LAST_PORT, FIRST_PORT, -1):
        try:
            udp.bind(("::", port))
            break
        except OSError:
            pass
    lent = borrow(udp) if sys.argv[1] == "borrow" else None
    print("port", udp.getsockname()[1], "lent" if lent else "plain", flush=True)
    while True:
        if select.select([udp], [], [], POLL_SECONDS)[0]:
            print("kernel", name_of(udp.recv(65536)), flush=True)
        for address, length, _ in lent[2].take() if lent else ():
            frame = lent[3][address:address + length]
            headers = 42 if frame[12:14] == b"\x08\x00" else 62
            print("frame", name_of(frame[headers:]), flush=True)


def name_of(payload):
    """The first word of a payload."""
    return payload.split()[0].decode("ascii", "replace")


def start(host, user, how):
    """Starts this as a user's process; the program and its port, once it has one."""
    argv = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", sys.executable,
            "-B", "-", how]
    program = Program(host, None, ["sh", "-c", 'exec "$@" < "$0"', os.path.abspath(__file__),
                                   *argv])
    program.wait_for("its port", lambda text: "port " in text, START_SECONDS)
    words = program.text[program.text.index("port "):].split()
    return program, int(words[1])


# `plain` ones as any program of the kernel's sends them; others with the mark of crates/xdp. The
# kernel completes the headers of raw IPv4 packets.
SENDER = """
import socket, struct, sys
IPV6_FLOWINFO_SEND, MARK = 33, b"CX"
for line in sys.stdin:
    ip, port, name, size = line.split()
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    payload = (name + " ").ljust(int(size), ".").encode()
    marked = "plain" not in name and name != "fragments"
    raw = marked and family == socket.AF_INET
    kind = (socket.SOCK_RAW, socket.IPPROTO_RAW) if raw else (socket.SOCK_DGRAM, 0)
    with socket.socket(family, *kind) as sender:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        if raw:
            udp = struct.pack(">HHHH", 40000, int(port), 8 + len(payload), 0) + payload
            header = struct.pack(">BBH2sHBBH4s4s", 0x45, 0, 20 + len(udp), MARK, 0x4000, 64, 17, 0,
                                 bytes(4), socket.inet_aton(ip))
            sender.sendto(header + udp, (ip, 0))
        elif family == socket.AF_INET:
            sender.setsockopt(socket.IPPROTO_IP, 10, 0)
            sender.sendto(payload, (ip, int(port)))
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, IPV6_FLOWINFO_SEND, 1)
            label = int.from_bytes(MARK, "big") if marked else 0
            sender.sendto(payload, (ip, int(port), label, 0))
"""


def send(host, datagrams):
    """Sends datagrams from a host: address, port, name, bytes."""
    text = "".join(" ".join(map(str, datagram)) + "\n" for datagram in datagrams)
    subprocess.run(host.command([sys.executable, "-c", SENDER]), input=text, text=True, check=True,
                   timeout=START_SECONDS)


def steered(scene):
    """A process sees in its packet memory the short datagrams of its port that were sent by
    AF_XDP, and nothing else. All others are the kernel's: those that a kernel has sent, long ones,
    fragments, broadcasts, and those of other users."""
    server, client = scene.hosts
    scene.lenders[0].start(f"{netns.LINK}={USER}")
    third = server.address.split(".")[2]
    v6, everybody = f"fd83:0:0:{third}::1", f"10.89.{third}.255"
    programs = []
    try:
        own, port = start(server, USER, "borrow")
        programs.append(own)
        other, its = start(server, OTHER, "plain")
        programs.append(other)
        refused, _ = start(server, OTHER, "borrow")
        programs.append(refused)
        if "lent" not in own.text or "no queue" not in refused.text:
            raise Failed(f"{own.text} {refused.text}")
        send(client, [(server.address, port, "short", 8), (v6, port, "six", 8),
                      (server.address, port, "longest", PAYLOAD_MAX),
                      (v6, port, "longestsix", PAYLOAD_MAX),
                      (server.address, port, "long", PAYLOAD_MAX + 1),
                      (v6, port, "longsix", PAYLOAD_MAX + 1),
                      (server.address, port, "fragments", 4000), (everybody, port, "all", 8),
                      (server.address, port, "plain", 8), (v6, port, "plainsix", 8),
                      *[(server.address, its, f"its{n}", 8) for n in range(20)],
                      (v6, its, "itssix", 8), (server.address, port, "end", 8)])
        expected = {"frame": {"short", "six", "longest", "longestsix", "end"},
                    "kernel": {"long", "longsix", "fragments", "all", "plain", "plainsix"}}
        all_seen = [f"{kind} {name}\n" for kind, names in expected.items() for name in names]
        own.wait_for("all of it", lambda text: all(line in text for line in all_seen),
                     START_SECONDS)
        other.wait_for("all of it", lambda text: text.count("kernel its") == 21, START_SECONDS)
        for kind, names in expected.items():
            lines = [line.split() for line in own.text.splitlines()]
            seen = [words[1] for words in lines if words[0] == kind]
            if sorted(seen) != sorted(names):
                raise Failed(f"{kind}: {seen}")
    finally:
        for program in programs:
            program.end()


class UserHost:
    """A host as a user sees it: a runtime directory of its own."""

    def __init__(self, host, user, address):
        self.folder = tempfile.mkdtemp(prefix="cwx-user-")
        self.host = netns.Host(host.name, address, host.netns, os.path.join(self.folder, "run"))
        os.mkdir(self.host.runtime_dir, 0o700)
        for path in (self.folder, self.host.runtime_dir):
            os.chown(path, user, user)
        self.host.settings = {**host.settings, "HOME": self.folder}
        plain = self.host.command
        as_user = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        # In the namespace, which root alone enters.
        self.host.command = lambda argv, wire=None: [
            *plain([]), *as_user, *netns.Host("", "", runtime_dir="-").command(argv, wire)]

    def end(self):
        """Ends its broker."""
        self.host.end()
        subprocess.run(["rm", "-rf", self.folder], check=False)


def two_users(scene):
    """Two users of one host have an interface each, and what each is lent is its own alone."""
    server, client = scene.hosts
    third = int(server.address.split(".")[2])
    netns.ip("link", "add", SECOND, "netns", server.netns, "type", "veth", "peer", "name", SECOND,
             "netns", client.netns)
    addresses = [f"10.91.{third}.1", f"10.91.{third}.2"]
    for host, address in zip(scene.hosts, addresses):
        netns.ip("-n", host.netns, "addr", "add", f"{address}/24", "dev", SECOND)
        netns.ip("-n", host.netns, "link", "set", SECOND, "up")
    scene.lenders[0].start(f"{netns.LINK}={USER}", f"{SECOND}={OTHER}")
    # The other side has to send by AF_XDP. Its first program is lent the first interface's queue.
    scene.lenders[1].start(f"{netns.LINK}=0", f"{SECOND}=0")
    users = [UserHost(server, USER, server.address), UserHost(server, OTHER, addresses[0])]
    benches = []
    try:
        for user in users:
            world = netns.World("a user's", (user.host, client))
            bench = Bench(world, "udp")
            bench.port += 1000 + 500 * len(benches)
            benches.append(bench)
        for index, (uid, link, bench) in enumerate(zip((USER, OTHER), (netns.LINK, SECOND),
                                                       benches)):
            # The addresses' order is the interfaces'.
            argv = ["ibv_rc_pingpong", "-g", str(index), "-e", "-s", "64", "-p",
                    bench.next_port()]
            program, _ = bench.pair([*argv, "-n", ENDLESS], [*argv, "-n", ENDLESS])
            scene.lenders[0].says(f"uid={uid}")
            if "short datagrams travel by AF_XDP" not in program.text:
                raise Failed(f"not by AF_XDP: {program.text[-500:]}")
            expect_carried([server], link=link)
        # What is another user's is not lent, though there be nothing else.
        again = benches[0].traffic()
        if f"has queue 0 of {netns.LINK}" not in again[0].text:
            raise Failed(f"no reason: {again[0].text[-500:]}")
    finally:
        for bench in benches:
            bench.clear()
        for user in users:
            user.end()


def await_listening(program):
    """Waits until a program listens for TCP."""
    if not pair.wait_listening(program.process, time.monotonic() + START_SECONDS):
        raise Failed(f"{program.name()} does not listen: {program.text[-500:]}")


if __name__ == "__main__":
    main()
