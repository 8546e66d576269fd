"""An image with the distribution's own programs and libraries, and nothing of Causeway."""

import os
import re
import shutil
import subprocess

from lib.netns import BUILD

PROGRAMS = ("sh", "ls", "cat", "env", "id", "ibv_devices", "ibv_devinfo", "ib_write_bw",
            "ib_send_lat", "ldconfig")
# What `ldconfig` in an image reads, as Debian's libc-bin has it.
CONF = "include /etc/ld.so.conf.d/*.conf\n"
DIRS = ("bin", "dev", "etc/ld.so.conf.d", "proc", "run", "sys", "tmp")


def copy(path, root):
    """Copies a file to its place in the root."""
    place = os.path.join(root, path.lstrip("/"))
    if not os.path.exists(place):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        shutil.copy(path, place)


def libraries(path):
    """The libraries that a program is linked to."""
    said = subprocess.run(["ldd", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, check=False).stdout
    return re.findall(r"(/\S+) \(0x", said)


def make(root):
    """Makes the root directory of the image."""
    for name in DIRS:
        os.makedirs(os.path.join(root, name), exist_ok=True)
    for name in PROGRAMS:
        path = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
        shutil.copy(path, os.path.join(root, "bin", name))
    needed = {library for name in PROGRAMS
              for library in libraries(os.path.join(root, "bin", name))}
    # Every Debian image has libgcc-s1.
    broker = os.path.join(BUILD, "bin", "causewayd")
    needed |= {library for library in libraries(broker) if "libgcc_s" in library}
    for library in needed:
        copy(library, root)
    dirs = {os.path.dirname(library) for library in needed}
    with open(os.path.join(root, "etc/ld.so.conf"), "w", encoding="ascii") as file:
        file.write(CONF)
    with open(os.path.join(root, "etc/ld.so.conf.d/system.conf"), "w", encoding="ascii") as file:
        file.write("".join(f"{directory}\n" for directory in sorted(dirs)))
    subprocess.run(["ldconfig", "-r", root], check=True, stderr=subprocess.DEVNULL)
    return root
