"""podman: two containers with unmodified programs, by shared memory and by UDP."""

import os
import re
import shutil
import subprocess
import time

from containers import image
from containers.engine import IMAGE, Engine
from containers.kubelet import Kubelet, messages
from containers.node import Node
from lib import netns

SECONDS = 60
# A user that has no other meaning, here or in the stages beside this one.
USER = 4003
RDMA_NAMES = re.compile("cway|infiniband|rdma|uverbs")
PORT = ":18515 "
FILES = ["sh", "-c", "ls /sys/class/infiniband /dev/infiniband && "
         "cat /sys/class/infiniband/cway0/ports/1/state"]
OTHERS = ["sh", "-c", "ls /sys/class/net/lo/ && ls -d /dev/shm && : > /dev/null && "
          "cat /sys/class/mem/null/dev && ls /sys/devices/virtual/mem"]
DOCTOR = ["/opt/causeway/bin/causeway", "doctor"]
# What the engine's own seccomp policy and sizes take away.
ADVICE = ("--device /dev/userfaultfd", "--cap-add SYS_NICE", "--shm-size 1g", " 0 failures")
# What Debian's packages have of ours among files of others.
PREFIX = {"bin": ("causeway", "causewayd", "causeway-kube"),
          "lib": ("libibverbs.so.1", "librdmacm.so.1", "libcauseway-paths.so")}
PLACES = {"bin": "bin", "lib": "lib/x86_64-linux-gnu/causeway"}
SEEN = {"causeway", "causewayd", *PREFIX["lib"]}
# Ours before the image's, also when its cache has been made anew.
AGAIN = ["sh", "-c", "ldconfig && ldconfig -p && ibv_devinfo"]
FIRST = re.compile(r"^\s*libibverbs\.so\.1 .*=> /opt/causeway/lib/libibverbs\.so\.1", re.MULTILINE)


def expect(outcome, *words):
    """A problem, unless a command ended well and said all of that."""
    status, text = outcome
    missing = [word for word in words if word not in text]
    return f"status {status}, no {missing}: {text[-700:]}" if status or missing else None


def listens(namespace):
    """Whether somebody listens for perftest's connection in a network namespace."""
    said = subprocess.run(["ip", "netns", "exec", namespace, "ss", "-Hltn"], text=True,
                          stdout=subprocess.PIPE, check=False).stdout
    return PORT in said


def talk(engine, program, server, client, *options, **more):
    """A problem, unless a program's two sides, each in a container in a network namespace, end
    well; `more` is for `Engine.run`."""
    options = ["-e", "LC_ALL=C.UTF-8", *options]
    networks = [f"ns:/run/netns/{host.netns}" for host in (server, client)]
    first = engine.popen(*engine.run(*program, network=networks[0], options=options, **more))
    until = time.monotonic() + SECONDS
    while not listens(server.netns) and first.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    outcome = engine(*engine.run(*program, server.address, network=networks[1], options=options,
                                 **more))
    try:
        text, _ = first.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        first.kill()
        text = f"did not end: {first.communicate()[0]}"
    return expect(outcome, "cway0") or expect((first.returncode, text), "cway0")


def specification(check, who, node, *options):
    """Writes it."""
    done = node.cdi(*options)
    check(f"{who}: the CDI specification", expect((done.returncode, done.stdout)))


def own_broker(check, engine, node, who):
    """Containers that share nothing with anybody: the device, and its files."""
    specification(check, who, node)
    run = engine.run
    check(f"{who}: without the device",
          None if engine(*run("ibv_devinfo", device=None))[0] else "ibv_devinfo found a device")
    check(f"{who}: ibv_devinfo", expect(engine(*run("ibv_devinfo")), "cway0", "PORT_ACTIVE"))
    check(f"{who}: the device's files",
          expect(engine(*run(*FILES)), "cway0", "uverbs0", "ACTIVE"))
    check(f"{who}: without an environment",
          expect(engine(*run("env", "-i", "/bin/ibv_devices")), "cway0"))
    check(f"{who}: what else there is",
          expect(engine(*run(*OTHERS)), "mtu", "/dev/shm", "1:3", "null"))
    check(f"{who}: doctor", expect(engine(*run(*DOCTOR)), *ADVICE))
    status, text = engine(*run(*AGAIN))
    check(f"{who}: ldconfig in the container",
          expect((status, text), "cway0") or (None if FIRST.search(text) else text[-700:]))
    if not engine.user:
        # A user's own engine has one user to give, where /etc/subuid names no more.
        check(f"{who}: an ordinary user in the container",
              expect(engine(*run(*FILES, options=["--user", "4711:4711"])), "cway0", "ACTIVE"))
    check(f"{who}: a root that is read-only",
          expect(engine(*run("ibv_devinfo", options=["--read-only"])), "cway0"))


def packaged(check, engine, folder):
    """Programs and libraries as Debian's packages have them, among those of others: containers get
    ours alone."""
    prefix = os.path.join(folder, "usr")
    for part, names in PREFIX.items():
        place = os.path.join(prefix, PLACES[part])
        os.makedirs(place)
        for name in names:
            shutil.copy(os.path.join(netns.BUILD, part, name), place)
    done = subprocess.run([os.path.join(prefix, "bin", "causeway-kube"), "cdi"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    check("podman, package: the CDI specification", expect((done.returncode, done.stdout)))
    status, text = engine(*engine.run("ls", "/opt/causeway/bin", "/opt/causeway/lib"))
    seen = {line for line in text.split() if not line.startswith("/")}
    check("podman, package: no other files", None if not status and seen == SEEN else text)
    status, text = engine(*engine.run(*AGAIN))
    check("podman, package: ibv_devinfo, after ldconfig in the container",
          expect((status, text), "cway0") or (None if FIRST.search(text) else text[-700:]))


def again(check, engine):
    """A container that is started a second time."""
    argv = [word for word in engine.run("ibv_devinfo")[1:] if word != "--rm"]
    status, text = engine("create", *argv)
    name = text.split()[-1] if not status else ""
    for time_ in ("once", "twice"):
        check(f"podman: a container is started {time_}",
              text if status else expect(engine("start", "--attach", name), "cway0"))


def pairs(check, engine, node):
    """Two containers that come to one broker's tenant."""
    node.start_broker()
    specification(check, "podman, with a tenant", node, "--socket", node.socket)
    latency, bandwidth = ["ib_send_lat", "-n", "200"], ["ib_write_bw", "-n", "500"]
    with netns.TwoHosts(1500, tag="kube") as world:
        server, client = world.server, world.client
        for program in (latency, bandwidth):
            name = program[0]
            check(f"podman: {name}, two networks: udp",
                  talk(engine, program, server, client, "-e", "CAUSEWAY_WIRE=auto"))
            check(f"podman: {name}, one network: shm",
                  talk(engine, program, server, server, "-e", "CAUSEWAY_WIRE=shm"))
        check("podman: shm is not to be had between two networks",
              None if talk(engine, latency, server, client, "-e", "CAUSEWAY_WIRE=shm")
              else "it ended well")
        network = f"ns:/run/netns/{server.netns}"
        status, text = engine(*engine.run("cat", "/sys/class/infiniband/cway0/ports/1/gids/0",
                                          network=network))
        last = "".join(f"{int(part):02x}" for part in server.address.split("."))
        check("podman: the files show the container's own addresses",
              expect((status, text.replace(":", "")), f"ffff{last}"))


def allocated(check, engine, node, api):
    """What the device plugin answers kubelet, carried out by podman."""
    network = ("--network", "none")
    for how in ("cdi", "mounts"):
        kubelet = Kubelet(api, node.plugins)
        try:
            node.start_plugin("--inject", how)
            plugin = kubelet.next()
            answer = plugin.allocate("cway0-0")
            plugin.close()
            node.stop_plugin()
        finally:
            kubelet.stop()
        options = [word for device in answer.cdi_devices for word in ("--device", device.name)]
        options += [word for mount in answer.mounts
                    for word in ("-v", f"{mount.host_path}:{mount.container_path}:ro")]
        options += [word for env in answer.envs.items() for word in ("-e", "=".join(env))]
        check(f"podman: as the plugin tells kubelet, {how}",
              expect(engine("run", "--rm", *network, *options, IMAGE, "ibv_devinfo"), "cway0"))


def entries():
    """What everybody on the host sees of RDMA devices. Others may add entries of their own
    meanwhile."""
    names = [name for path in ("/dev", "/sys/class", "/sys/devices/virtual")
             for name in os.listdir(path)]
    return sorted(name for name in names if RDMA_NAMES.search(name))


def podman(check, folder):
    """As root, and as a user without privilege."""
    before = entries()
    root = image.make(os.path.join(folder, "image"))
    os.mkdir(os.path.join(folder, "node"), 0o755)
    # Where the users' engines may look.
    own = os.path.join(folder, "causeway")
    for name in ("bin", "lib"):
        shutil.copytree(os.path.join(netns.BUILD, name), os.path.join(own, name), symlinks=True)
    node = Node(os.path.join(folder, "node"), own)
    for user in (None, USER):
        who = "podman, rootless" if user else "podman"
        place = os.path.join(folder, f"engine{user or ''}")
        os.mkdir(place, 0o755)
        engine = Engine(place, user)
        try:
            engine.load(root)
            own_broker(check, engine, node, who)
            if not user:
                again(check, engine)
                packaged(check, engine, os.path.join(folder, "package"))
                pairs(check, engine, node)
                os.mkdir(os.path.join(folder, "messages"))
                allocated(check, engine, node, messages(os.path.join(folder, "messages")))
        finally:
            node.end()
            engine.end()
        check(f"{who}: no process is left", engine.left())
    check("podman: the host shows no device", None if entries() == before else "it does")
