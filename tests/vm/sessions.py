"""SISCI and libcauseway between machines: the conformance programs with their processes in
different machines, programs as written for hardware, files through segments, many segments, locks.

Nobody configures nodes: all machines are one, so that programs find what they look for.
"""

import hashlib
import os

from lib.netns import BUILD
from lib.report import count_closing_lines
from vm import traffic
from vm.lab import Guest, GuestError

TESTS = {name: os.path.join("sisci", name)
         for name in ("local", "pair", "three", "interrupts", "dma")}
TESTS |= {name: os.path.join("vm", name)
          for name in ("segments", "locks", "pingpong", "intr", "reflect", "dmabench")}
# Where the conformance programs wait for each other.
CHECK_PORT = 7471
# The test of what guests have not got.
OWN_MEMORY = "memory of the program's own"
# That of what the broker does not see of other machines.
STOPPED = "is stopped"
# TCG takes its time, and the machine may be busy.
SECONDS = 180
FILE_BYTES = 3 * 1024 * 1024 + 4096
# 1,000 take a minute on a quiet machine: shown when everything is asked for.
MANY = 1000 if os.environ.get("CAUSEWAY_TEST_FULL") else 200
LOCK_ROUNDS = 200
# What pages of a segment begin with, how many there are, how many of the window are looked at.
SECRET = 0x5ec2e75ec2e75ec2
SECRET_PAGES = 8
SCANNED_PAGES = 16384


def programs():
    """The files that guests need."""
    return [os.path.join(BUILD, "test", path) for path in TESTS.values()]


def path_of(place, name):
    """How a program is called in a place."""
    return name if isinstance(place, Guest) else os.path.join(BUILD, "test", TESTS[name])


def begin(place, name, *args, **env):
    """Starts a program in the background."""
    traffic.start(place, [path_of(place, name), *map(str, args)], **env)


def end(place, name, seconds=SECONDS):
    """Waits for a program's end, which must be a good one; its output."""
    status, text = traffic.wait(place, name, seconds)
    if status != 0:
        raise GuestError(f"{name}: exit status {status}: {text[-1500:]}")
    return text


def conformance(name, place, peers):
    """A conformance program whose other processes run elsewhere."""
    for peer in dict.fromkeys(peers):
        begin(peer, name, CHECK_SERVE=str(CHECK_PORT))
        traffic.wait_listening(peer, CHECK_PORT)
    env = {"CHECK_SKIP": OWN_MEMORY} if isinstance(place, Guest) else {}
    if peers:
        env["CHECK_SKIP"] = f"{OWN_MEMORY};{STOPPED}"
        env["CHECK_PEERS"] = ",".join(f"{peer.address}:{CHECK_PORT}" for peer in peers)
    begin(place, name, **env)
    try:
        text = end(place, name)
    finally:
        for peer in dict.fromkeys(peers):
            traffic.stop(peer, name)
    good, bad = count_closing_lines(text)
    if bad or not good:
        raise GuestError(text[-1500:])
    return f"{good} passed"


def client(name, server, place, *args):
    """A program as written for hardware."""
    begin(server, name, "server", *args)
    begin(place, name, "client", *args)
    text = end(place, name)
    end(server, name)
    return text.strip().splitlines()[-1]


def checksum(place, path):
    """SHA-256 of a file."""
    if isinstance(place, Guest):
        return place.run(f"sha256sum {path}").split()[0]
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def file_transfer(sender, receiver, folder):
    """A file goes through a segment of the receiver's."""
    there = {}
    for place, what in ((sender, "sent"), (receiver, "received")):
        there[what] = f"/tmp/{what}" if isinstance(place, Guest) else os.path.join(folder, what)
    make = f"dd if=/dev/urandom of={there['sent']} bs=4096 count={FILE_BYTES // 4096} 2>/dev/null"
    if isinstance(sender, Guest):
        sender.run(make)
    else:
        with open(there["sent"], "wb") as f:
            f.write(os.urandom(FILE_BYTES))
    begin(receiver, "segments", "receive", there["received"], FILE_BYTES)
    begin(sender, "segments", "send", there["sent"])
    end(sender, "segments")
    end(receiver, "segments")
    sums = checksum(sender, there["sent"]), checksum(receiver, there["received"])
    if sums[0] != sums[1]:
        raise GuestError(f"{sums[0]} was sent, {sums[1]} was received")
    return f"{FILE_BYTES} bytes, sha256 {sums[0][:12]}..."


def many(server, place):
    """More segments than there may be mappings."""
    begin(server, "segments", "serve", MANY)
    begin(place, "segments", "use", MANY)
    text = end(place, "segments")
    end(server, "segments")
    return text.strip()


def scan(place):
    """How many pages with the secret the guest's root finds in the window."""
    address = place.run("for d in /sys/bus/pci/devices/*; do grep -q 0x1af4 $d/vendor && "
                        "grep -q 0x1064 $d/device && sed -n 5p $d/resource; done").split()[0]
    return int(place.run(f"segments scan {address} {SCANNED_PAGES} {SECRET}").split()[0])


def window(lab):
    """In the window is what a guest's own processes use now, and nothing else."""
    a, b = lab.guests[:2]
    begin(b, "segments", "hold", SECRET)
    traffic.wait_said(b, "segments", "held")
    during = [scan(guest) for guest in lab.guests]
    a.run("segments release")
    end(b, "segments")
    after = [scan(guest) for guest in lab.guests]
    if during[0] or during[2] or during[1] != SECRET_PAGES or any(after):
        raise GuestError(f"pages found: {during}, afterwards {after}")
    return f"{SECRET_PAGES} pages in use are there, and gone afterwards"


def locks(first, second):
    """Every kind of lock."""
    begin(first, "locks", "first", LOCK_ROUNDS)
    begin(second, "locks", "second", LOCK_ROUNDS)
    end(second, "locks")
    return end(first, "locks").strip()


def dead_owner(first, second):
    """An owner of a lock in another machine is killed."""
    begin(first, "locks", "first", 2, "kill")
    begin(second, "locks", "second", 2, "kill")
    traffic.wait_said(second, "locks", "held")
    traffic.stop(second, "locks")
    text = end(first, "locks")
    if "the owner was dead" not in text:
        raise GuestError(text)
    return "the next owner is told"


def tests():
    """Name and function of every test, in order; a function is called with the lab."""
    def place(lab, letter):
        return lab.host if letter == "h" else lab.guests["ab".index(letter)]

    def named(title, function, *letters, then=()):
        names = ", ".join({"h": "host"}.get(letter, letter) for letter in letters)
        return f"{title}: {names}", lambda lab: function(*(place(lab, l) for l in letters), *then)

    for name, own, peers in (("local", "a", ""), ("pair", "a", "b"), ("pair", "h", "b"),
                             ("pair", "b", "h"), ("three", "a", "bh"), ("three", "h", "ab"),
                             ("interrupts", "a", "b"), ("interrupts", "h", "a"),
                             ("interrupts", "b", "h"), ("dma", "a", "b")):
        yield named(f"sisci {name}", lambda own, *peers, name=name: conformance(name, own, peers),
                    own, *peers)
    for server, other in ("ab", "ha", "bh"):
        for name, args in (("pingpong", ["500"]), ("intr", ["50"]), ("reflect", [])):
            yield named(f"client {name}", lambda server, other, name=name, args=args:
                        client(name, server, other, *args), server, other)
        yield (f"file: {server} to {other}", lambda lab, server=server, other=other:
               file_transfer(place(lab, server), place(lab, other), lab.dir))
        yield named("locks", locks, server, other)
        yield named("a lock's owner killed", dead_owner, server, other)
    yield named(f"{MANY} segments", many, "a", "b")
    yield "what a guest sees of its window", window
