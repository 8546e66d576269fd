"""An HTTP server over rsockets: serves one request, whatever it is, at the port given."""

import ctypes
import os
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from clients import rsockets  # noqa: E402

HEAD = "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"
REQUEST_MAX = 4096


def main():
    """Serves one request."""
    rs = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    rs.rsend.restype = rs.rrecv.restype = ctypes.c_ssize_t
    listener = rs.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(int(sys.argv[1])), bytes(4))
    assert rs.rbind(listener, address, len(address)) == 0
    assert rs.rlisten(listener, 1) == 0
    peer = rs.raccept(listener, None, None)
    request, buffer = b"", ctypes.create_string_buffer(REQUEST_MAX)
    while b"\r\n\r\n" not in request:
        got = rs.rrecv(peer, buffer, REQUEST_MAX, 0)
        assert got > 0, "the request ends early"
        request += buffer.raw[:got]
    print(request.splitlines()[0].decode())
    body = rsockets.body()
    answer = HEAD.format(len(body)).encode() + body
    assert rs.rsend(peer, answer, len(answer), 0) == len(answer)
    assert rs.rclose(peer) == 0 and rs.rclose(listener) == 0


if __name__ == "__main__":
    main()
