"""The image of `make image`: built on a plain Debian, then two containers of it that talk."""

import os
import shutil
import subprocess
import time

from containers.engine import Engine
from containers.podman import PORT, SECONDS, USER, expect, talk
from lib import netns

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BASE, IMAGE = "localhost/base", "localhost/causeway"
# What the Dockerfile says it is built on has these packages.
SUITE = "bookworm"
BUILD_SECONDS = 600
PROGRAMS = (["ib_send_lat", "-n", "200"], ["ib_write_bw", "-n", "500"])
WIRES = ("shm", "udp")


def make_base(folder):
    """An archive of a Debian with nothing but what every Debian has; registries of images are not
    to be had everywhere, Debian's mirrors are."""
    path = os.path.join(folder, "base.tar")
    mirror = subprocess.run([os.path.join(ROOT, "scripts", "debian-mirror")], check=True, text=True,
                            stdout=subprocess.PIPE).stdout.strip()
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase",
                    "--aptopt=Acquire::Check-Valid-Until \"false\"",
                    "--aptopt=Acquire::Languages \"none\"", SUITE, path,
                    f"deb {mirror} {SUITE} main"], check=True, stdin=subprocess.DEVNULL)
    return path


def build(engine):
    """Runs `make image`, of what is built already; what is wrong if something is."""
    done = subprocess.run(["make", "-s", "-o", "all", "-o", "kube", "image", f"IMAGE_BASE={BASE}",
                           f"ENGINE={' '.join(engine.command())}"], cwd=ROOT, text=True,
                          env=engine.environment(), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          timeout=BUILD_SECONDS)
    return expect((done.returncode, done.stdout))


def run(engine, *argv, **more):
    """A command line that runs a command in a container of the image, as it is."""
    return engine.run(*argv, image=IMAGE, device=None, **more)


def alone(check, engine, who):
    """One container."""
    check(f"{who}: the image is OCI's", expect(
        engine("image", "inspect", "--format", "{{.ManifestType}}", IMAGE),
        "application/vnd.oci.image.manifest.v1+json"))
    check(f"{who}: its own command", expect(engine(*run(engine)), "cway0", "PORT_ACTIVE"))
    check(f"{who}: its causeway", expect(
        engine(*run(engine, "/opt/causeway/bin/causeway", "--version")), "causeway "))
    check(f"{who}: a root that is read-only", expect(
        engine(*run(engine, "ibv_devinfo", options=["--read-only", "--tmpfs", "/run"])), "cway0"))


def pairs(check, engine, runtime):
    """Two containers of root: by shared memory with one runtime directory and one network, by UDP
    with nothing in common."""
    with netns.TwoHosts(1500, tag="image") as world:
        for program in PROGRAMS:
            check(f"image: {program[0]}, two networks: udp",
                  talk(engine, program, world.server, world.client, image=IMAGE, device=None))
            check(f"image: {program[0]}, one network: shm",
                  talk(engine, program, world.server, world.server, "-e", "CAUSEWAY_WIRE=shm",
                       "-v", f"{runtime}:/run/causeway", image=IMAGE, device=None))
        check("image: shm is not to be had without a common runtime directory", None if talk(
            engine, PROGRAMS[0], world.server, world.server, "-e", "CAUSEWAY_WIRE=shm", image=IMAGE,
            device=None) else "it ended well")


def rootless_pair(engine, program, wire, runtime):
    """A problem, unless both sides of a program end well in containers of a user, who has no
    networks but those that his containers share."""
    options = ["-e", "LC_ALL=C.UTF-8", "-e", f"CAUSEWAY_WIRE={wire}", "-v",
               f"{runtime}:/run/causeway"]
    name = f"{program[0]}-{wire}".replace("_", "-")
    argv = run(engine, *program, options=["--detach", "--name", name, *options])
    status, text = engine(*(word for word in argv if word != "--rm"))
    if status:
        return text
    until = time.monotonic() + SECONDS
    while PORT not in engine("exec", name, "ss", "-Hltn")[1]:
        if time.monotonic() > until:
            return f"the server does not listen: {engine('logs', name)[1]}"
        time.sleep(0.05)
    outcome = engine(*run(engine, *program, "127.0.0.1", network=f"container:{name}",
                          options=options))
    status, text = engine("wait", name)
    server = (status or int(text.split()[-1]), engine("logs", name)[1])
    return expect(outcome, "cway0") or expect(server, "cway0")


def rootless(check, folder, archive):
    """The same image in the engine of a user without privilege."""
    place, runtime = os.path.join(folder, "rootless"), os.path.join(folder, "run-rootless")
    for path in (place, runtime):
        os.mkdir(path, 0o700 if path == runtime else 0o755)
    os.chown(runtime, USER, USER)
    engine = Engine(place, USER, "overlay")
    try:
        check("image, rootless: it is loaded",
              expect(engine("load", "--input", archive, seconds=BUILD_SECONDS), IMAGE))
        alone(check, engine, "image, rootless")
        for program in PROGRAMS:
            for wire in WIRES:
                check(f"image, rootless: {program[0]}, {wire}",
                      rootless_pair(engine, program, wire, runtime))
    finally:
        engine.end()
    check("image, rootless: no process is left", engine.left())


def built(check, folder):
    """As root, and as a user without privilege."""
    place, runtime = os.path.join(folder, "engine"), os.path.join(folder, "run")
    os.mkdir(place, 0o755)
    os.mkdir(runtime, 0o700)
    archive = os.path.join(folder, "causeway.tar")
    engine = Engine(place, driver="overlay")
    try:
        check("image: a plain Debian",
              expect(engine("import", make_base(folder), BASE, seconds=BUILD_SECONDS)))
        problem = build(engine)
        check("image: make image", problem)
        if problem:
            return
        alone(check, engine, "image")
        pairs(check, engine, runtime)
        check("image: it is saved", expect(engine(
            "save", "--format", "oci-archive", "--output", archive, IMAGE, seconds=BUILD_SECONDS)))
        os.chmod(archive, 0o644)
    finally:
        engine.end()
    check("image: no process is left", engine.left())
    rootless(check, folder, archive)
    shutil.rmtree(runtime, ignore_errors=True)
