"""A file whose reads are answered when told: a FUSE server of one file."""

import ctypes
import os
import queue
import struct
import threading

from hostile.cast import Failed
from lib.patience import patient

# linux/fuse.h
GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 3, 14, 15, 18, 25, 26
FORGET, INTERRUPT, BATCH_FORGET = 2, 36, 42
ASYNC_READ, ASYNC_DIO = 1, 1 << 15
DIRECT_IO, NO_FLUSH = 1, 1 << 5
ENOSYS = 38
REQUEST_MAX = 1 << 18
FILE_BYTES = 1 << 30
PAGE = 4096
READ_BYTE = b"\xee"
MNT_DETACH = 2
# Until a read is there.
ASKED_SECONDS = patient(10.0)


class SlowFile:
    """The file, at a path of its own."""

    def __init__(self, path):
        self.path = path
        self.next = 0
        self.asked = queue.Queue()
        self.go = queue.Queue()
        self.ended = False
        with open(path, "wb"):
            pass
        self.device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        self.libc = ctypes.CDLL(None, use_errno=True)
        options = f"fd={self.device},rootmode=100644,user_id=0,group_id=0,allow_other"
        if self.libc.mount(b"slow", path.encode(), b"fuse", 0, options.encode()):
            raise Failed(f"mount: {os.strerror(ctypes.get_errno())}")
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def offset(self):
        """An offset that nobody has read from."""
        self.next += PAGE
        return self.next

    def wait_asked(self):
        """Waits for a read."""
        try:
            self.asked.get(timeout=ASKED_SECONDS)
        except queue.Empty:
            raise Failed("nobody reads the slow file") from None

    def answer(self):
        """Lets the read end."""
        self.go.put(None)

    def end(self):
        """Takes the file away. Who has it open is answered at once from now on. The thread closes
        the device when nobody has: if this did, the next file's device could get its number, and
        this thread would take requests that are for that one."""
        self.ended = True
        self.go.put(None)
        self.libc.umount2(self.path.encode(), MNT_DETACH)

    def serve(self):
        """Answers until the file is taken away, and nobody has it open."""
        try:
            self.answer_all()
        finally:
            os.close(self.device)

    def answer_all(self):
        """Answers each request, until there can be no more."""
        while True:
            try:
                request = os.read(self.device, REQUEST_MAX)
                _, code, unique = struct.unpack_from("=IIQ", request)
                if code in (FORGET, INTERRUPT, BATCH_FORGET):
                    continue
                error, body = self.reply(code, request[40:])
                os.write(self.device, struct.pack("=IiQ", 16 + len(body), error, unique) + body)
            except FileNotFoundError:
                # It was interrupted meanwhile.
                continue
            except OSError:
                return

    def reply(self, code, body):
        """The error and the answer to a request."""
        if code == INIT:
            flags = struct.unpack_from("=4I", body)[3] & (ASYNC_READ | ASYNC_DIO)
            return 0, struct.pack("=4I2H9I", 7, 31, 0, flags, 0, 0, 1 << 17, *[0] * 8)
        if code == GETATTR:
            words = [0] * 26
            words[4], words[6], words[19], words[20] = 1, FILE_BYTES, 0o100644, 1
            return 0, struct.pack("=26I", *words)
        if code == OPEN:
            return 0, struct.pack("=4I", 0, 0, DIRECT_IO | NO_FLUSH, 0)
        if code == READ:
            size = struct.unpack_from("=QQI", body)[2]
            self.asked.put(None)
            if not self.ended:
                self.go.get()
            return 0, READ_BYTE * size
        if code in (RELEASE, FLUSH):
            return 0, b""
        return -ENOSYS, b""
