"""What rsockets do beyond moving bytes: ends of connections, refusals, polling, options.

Run by both ends, as `server PORT` and `client ADDRESS PORT`; each test is a connection of its own.
The library is called directly, by ctypes, as rsocket(7) says.
"""

import ctypes
import errno
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

rs = ctypes.CDLL("librdmacm.so.1", use_errno=True)
for name in ("rsend", "rrecv"):
    getattr(rs, name).restype = ctypes.c_ssize_t
LENGTH = 3_000_000
POLL_MS = 60_000
MANY = 20
# How long a server neither reads nor writes, and what a client that sleeps may compute meanwhile.
IDLE_SECONDS = 1.0
COMPUTED_SECONDS = 0.3


class PollFd(ctypes.Structure):
    """struct pollfd"""
    _fields_ = [("fd", ctypes.c_int), ("events", ctypes.c_short), ("revents", ctypes.c_short)]


def pattern(length, seed=0):
    """Bytes that tell their place."""
    block = bytes((i * 7 + seed) % 251 for i in range(251 * 16))
    return (block * (length // len(block) + 1))[:length]


def check(condition, what):
    """Fails the test."""
    if not condition:
        raise AssertionError(f"{what}, errno {errno.errorcode.get(ctypes.get_errno())}")


def fails(result, code, what):
    """The call must have failed so."""
    found = ctypes.get_errno()
    check(result == -1 and found == code, f"{what}: {result}, wanted {errno.errorcode[code]}")


def sockaddr(host, port):
    """struct sockaddr_in"""
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(host))


class Rs:
    """An rsocket."""

    def __init__(self, fd=None, kind=socket.SOCK_STREAM):
        self.fd = rs.rsocket(socket.AF_INET, kind, 0) if fd is None else fd
        check(self.fd >= 0, "rsocket")

    def connect(self, host, port):
        """rconnect's result."""
        return rs.rconnect(self.fd, sockaddr(host, port), 16)

    def send(self, data):
        """Sends all."""
        check(rs.rsend(self.fd, data, len(data), 0) == len(data), "rsend")

    def recv(self, length, flags=0):
        """Receives: bytes, or -1."""
        buf = ctypes.create_string_buffer(max(length, 1))
        got = rs.rrecv(self.fd, buf, length, flags)
        return buf.raw[:got] if got >= 0 else got

    def exactly(self, length):
        """Receives so many bytes."""
        data = self.recv(length, socket.MSG_WAITALL)
        check(data != -1 and len(data) == length, f"wanted {length} bytes")
        return data

    def poll(self, events, others=(), timeout=POLL_MS):
        """rpoll's result, and what it found."""
        fds = (PollFd * (1 + len(others)))()
        fds[0].fd, fds[0].events = self.fd, events
        for fd, other in zip(fds[1:], others):
            fd.fd, fd.events = other, select.POLLIN
        found = rs.rpoll(fds, len(fds), timeout)
        return found, [fd.revents for fd in fds]

    def select(self, others, timeout=None):
        """rselect's result, and what can be read."""
        watched = (self.fd, *others)
        bits = sum(1 << fd for fd in watched)
        read = ctypes.create_string_buffer(bits.to_bytes(128, sys.byteorder), 128)
        found = rs.rselect(1 + max(watched), read, None, None, timeout)
        ready = int.from_bytes(read.raw, sys.byteorder)
        return found, {fd for fd in watched if ready >> fd & 1}

    def option(self, level, option):
        """An option that is a number."""
        value, size = ctypes.c_int(), ctypes.c_uint(4)
        got = rs.rgetsockopt(self.fd, level, option, ctypes.byref(value), ctypes.byref(size))
        check(got == 0, "rgetsockopt")
        return value.value

    def peer_port(self, call):
        """The port of rgetpeername or rgetsockname."""
        buf, size = ctypes.create_string_buffer(16), ctypes.c_uint(16)
        check(call(self.fd, buf, ctypes.byref(size)) == 0 and size.value == 16, "a name")
        return struct.unpack("!H", buf.raw[2:4])[0]

    def shutdown(self, how):
        """rshutdown"""
        check(rs.rshutdown(self.fd, how) == 0, "rshutdown")

    def close(self):
        """rclose"""
        check(rs.rclose(self.fd) == 0, "rclose")


def duplex_server(peer, _port):
    """Echoes, while the client sends and receives at once."""
    while data := peer.recv(70_001):
        check(data != -1, "rrecv")
        peer.send(data)
    peer.close()


def duplex_client(connect):
    """Two threads use one rsocket."""
    peer, data = connect(), pattern(LENGTH)

    def sends():
        peer.send(data)
        peer.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=sends)
    thread.start()
    got = b""
    while piece := peer.recv(50_000):
        check(piece != -1, "rrecv")
        got += piece
    thread.join()
    check(got == data, "what came back differs")
    peer.close()


def halves_server(peer, _port):
    """Reads to the end, and answers after it."""
    check(peer.recv(100, socket.MSG_PEEK) == b"abcdef"[:6], "peek")
    check(peer.exactly(6) == b"abcdef", "data after a peek")
    check(peer.recv(1) == b"", "the end")
    check(peer.recv(1) == b"", "the end again")
    peer.send(pattern(100_000))
    peer.close()


def halves_client(connect):
    """Half of a connection ends."""
    peer = connect()
    peer.send(b"abcdef")
    peer.shutdown(socket.SHUT_WR)
    fails(rs.rsend(peer.fd, b"x", 1, 0), errno.EPIPE, "rsend after the end")
    check(peer.exactly(100_000) == pattern(100_000), "data after half of the end")
    check(peer.recv(1) == b"", "the other end")
    peer.close()


def crossing_server(peer, _port):
    """Ends its half before the client knows of the connection, and reads to the end."""
    peer.shutdown(socket.SHUT_WR)
    check(peer.exactly(200_000) == pattern(200_000), "what was sent before both ends")
    check(peer.recv(1) == b"", "the end")
    peer.close()


def crossing_client(connect):
    """Closes while the server's half ends."""
    peer = connect()
    peer.send(pattern(200_000))
    peer.close()


def sleepers_server(peer, _port):
    """Lets the client wait for both directions."""
    check(peer.exactly(1) == b"a", "the first byte")
    time.sleep(IDLE_SECONDS)
    peer.send(b"b")
    check(peer.exactly(LENGTH) == pattern(LENGTH), "what waited for room")
    peer.close()


def sleepers_client(connect):
    """One thread waits for data and another for room: they sleep."""
    peer = connect()
    peer.send(b"a")
    thread = threading.Thread(target=peer.send, args=(pattern(LENGTH),))
    thread.start()
    before = time.process_time()
    check(peer.recv(1) == b"b", "the answer")
    computed = time.process_time() - before
    check(computed < COMPUTED_SECONDS, f"{computed} s of the processor to wait")
    thread.join()
    check(peer.recv(1) == b"", "the end")
    peer.close()


def polls_server(peer, _port):
    """Answers each byte."""
    while data := peer.recv(1):
        peer.send(data)
    peer.close()


def polls_client(connect):
    """Polling, with an ordinary descriptor beside it; time-outs; non-blocking calls."""
    peer = connect()
    read, write = os.pipe()
    check(peer.poll(select.POLLIN, (read,), 0) == (0, [0, 0]), "nothing to be read")
    fails(peer.recv(1, socket.MSG_DONTWAIT), errno.EAGAIN, "nothing there")
    os.write(write, b"x")
    found = peer.poll(select.POLLIN | select.POLLOUT, (read,))
    check(found == (2, [select.POLLOUT, select.POLLIN]), f"a pipe and room: {found}")
    os.read(read, 1)
    for byte, asked in ((b"1", select.POLLIN), (b"2", select.POLLRDNORM)):
        peer.send(byte)
        found = peer.poll(select.POLLIN, (read,))
        check(found == (1, [select.POLLIN, 0]), f"an answer: {found}")
        check(peer.recv(9) == byte, "the answer")
    peer.send(b"3")
    found = peer.select((read,))
    check(found == (1, {peer.fd}), f"rselect: {found}")
    os.write(write, b"x")
    found = peer.select((read,))
    check(found == (2, {peer.fd, read}), f"rselect with a pipe: {found}")
    check(peer.recv(9) == b"3", "the last answer")
    # A time that never ends.
    for_ever = struct.pack("=qq", 2**63 - 1, 0)
    check(rs.rsetsockopt(peer.fd, socket.SOL_SOCKET, socket.SO_RCVTIMEO, for_ever, 16) == 0,
          "the longest time-out")
    peer.send(b"4")
    check(peer.select((), for_ever) == (1, {peer.fd}), "rselect with the longest time-out")
    check(peer.recv(9) == b"4", "an answer after the longest time-out was set")
    moment = struct.pack("=qq", 0, 20_000)
    check(rs.rsetsockopt(peer.fd, socket.SOL_SOCKET, socket.SO_RCVTIMEO, moment, 16) == 0,
          "a time-out")
    fails(peer.recv(1), errno.EAGAIN, "nothing in time")
    check(rs.rfcntl(peer.fd, 4, ctypes.c_long(os.O_NONBLOCK)) == 0, "F_SETFL")
    fails(peer.recv(1), errno.EAGAIN, "nothing there, O_NONBLOCK")
    peer.close()


def names_server(peer, port):
    """Names and options."""
    check(peer.peer_port(rs.rgetsockname) == port, "own port")
    peer.send(struct.pack("!H", peer.peer_port(rs.rgetpeername)))
    check(peer.recv(1) == b"", "the end")
    peer.close()


def names_client(connect):
    """A connection that is not waited for; names; what is not offered."""
    peer = connect(nonblocking=True)
    found = peer.poll(select.POLLOUT)
    check(found == (1, [select.POLLOUT]), f"connected: {found}")
    check(peer.connect(connect.host, connect.port) == 0, "rconnect when connected")
    check(peer.option(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "SO_ERROR")
    check(rs.rfcntl(peer.fd, 4, ctypes.c_long(0)) == 0, "F_SETFL")
    port = struct.unpack("!H", peer.exactly(2))[0]
    check(port == peer.peer_port(rs.rgetsockname), "the port that the peer sees")
    check(peer.option(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM, "SO_TYPE")
    peer.close()
    fails(rs.rclose(peer.fd), errno.EBADF, "rclose again")
    fails(rs.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0), errno.ENOTSUP, "datagrams")


def refused_server(peer, _port):
    """Nothing but a connection that ends."""
    check(peer.recv(1) == b"", "the end")
    peer.close()


def refused_client(connect):
    """Nobody listens there, with and without waiting."""
    connect().close()
    fails(connect(port=1, checked=False), errno.ECONNREFUSED, "nobody listens")
    peer = connect(port=1, nonblocking=True)
    found, revents = peer.poll(select.POLLOUT)
    check(found == 1 and revents[0] & select.POLLERR, "refused later")
    error = peer.option(socket.SOL_SOCKET, socket.SO_ERROR)
    check(error == errno.ECONNREFUSED, f"SO_ERROR {error}")
    check(peer.option(socket.SOL_SOCKET, socket.SO_ERROR) == 0, "SO_ERROR is told once")
    peer.close()


def many_server(peer, _port):
    """One of many connections."""
    check(peer.exactly(1) == b"m", "one byte")
    peer.close()


def many_client(connect):
    """A connection of many, the end of which is the peer's."""
    peer = connect()
    peer.send(b"m")
    check(peer.recv(1) == b"", "the end")
    peer.close()


def exits_server(peer, _port):
    """All that was sent comes, and then the end."""
    check(peer.exactly(100_000) == pattern(100_000), "what was sent before the exit")
    check(peer.recv(1) == b"", "the end of a process")
    peer.close()


def exits_client(connect):
    """A process ends without closing."""
    connect.another("exit")


def killed_server(peer, _port):
    """What was sent comes, and then an error."""
    check(peer.exactly(10) == pattern(10), "what was sent")
    peer.send(b"x")
    fails(peer.recv(1), errno.ECONNRESET, "the peer was killed")
    check(peer.poll(select.POLLIN)[1][0] & select.POLLHUP, "POLLHUP")
    peer.close()


def killed_client(connect):
    """A process is killed."""
    connect.another("kill")


TESTS = [
    ("both ways at once", duplex_server, duplex_client),
    ("half of a connection ends", halves_server, halves_client),
    *[("both ends at once", crossing_server, crossing_client)] * MANY,
    ("two threads sleep", sleepers_server, sleepers_client),
    ("polling", polls_server, polls_client),
    ("names and options", names_server, names_client),
    ("refusals", refused_server, refused_client),
    *[("many", many_server, many_client)] * MANY,
    ("a peer exits", exits_server, exits_client),
    ("a peer is killed", killed_server, killed_client),
]


class Connector:
    """Connects to the server."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def __call__(self, port=None, nonblocking=False, checked=True):
        peer = Rs(kind=socket.SOCK_STREAM | (socket.SOCK_NONBLOCK if nonblocking else 0))
        result = peer.connect(self.host, port or self.port)
        if nonblocking:
            fails(result, errno.EINPROGRESS, "rconnect without waiting")
        elif checked:
            check(result == 0, "rconnect")
        return peer if nonblocking or checked else result

    def another(self, how):
        """Has another process connect and end."""
        done = subprocess.run([sys.executable, __file__, how, self.host, str(self.port)],
                              check=False)
        wanted = {"exit": 0, "kill": -signal.SIGKILL}[how]
        check(done.returncode == wanted, f"the other process: {done.returncode}")


def end(how, host, port):
    """A process that ends without closing its rsocket."""
    peer = Connector(host, port)()
    peer.send(pattern(100_000 if how == "exit" else 10))
    if how == "kill":
        peer.exactly(1)
        os.kill(os.getpid(), signal.SIGKILL)


def serve(port):
    """The server's side of all tests."""
    listener = Rs()
    check(rs.rbind(listener.fd, sockaddr("0.0.0.0", port), 16) == 0, "rbind")
    check(rs.rlisten(listener.fd, 8) == 0, "rlisten")
    for title, server, _ in TESTS:
        check(listener.poll(select.POLLIN) == (1, [select.POLLIN]), "a request")
        fd = rs.raccept(listener.fd, None, None)
        check(fd >= 0, "raccept")
        print("test:", title, flush=True)
        server(Rs(fd), port)
    listener.close()


def main():
    """Runs one end."""
    how, *where = sys.argv[1:]
    if how == "server":
        serve(int(where[0]))
    elif how == "client":
        for title, _, client in TESTS:
            print("test:", title, flush=True)
            client(Connector(where[0], int(where[1])))
        print(f"all {len(TESTS)} went well")
    else:
        end(how, where[0], int(where[1]))


if __name__ == "__main__":
    main()
