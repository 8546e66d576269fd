"""Programs in guests and on the host, a server and a client of each.

A program in a guest runs in the background, so that the guest can be asked of it: its output and
exit status are files there.
"""

import os
import subprocess
import time

from lib.netns import BUILD
from lib.output import rest_of_output
from vm.lab import Guest, GuestError, quote

# How long a program may take; TCG is slow, and the machine may be busy.
SECONDS = 60
# Descriptors that a program in a guest may have.
FILES = 8192
# Between two looks.
PAUSE = 0.1
# Bytes.
PAGE = 4096

# Programs on the host, by name.
running = {}
# How many times as long everything may take: more where a kernel checks itself.
patience = 1


def deadline_after(seconds=SECONDS):
    """When something must have happened."""
    return time.monotonic() + patience * seconds


def name_of(argv):
    """What a program is known by."""
    return os.path.basename(argv[0])


def start(place, argv, wire=None, launch=False, **env):
    """Starts a program in the background; if `launch`, in a guest too by `causeway run`."""
    name = name_of(argv)
    if isinstance(place, Guest):
        if wire:
            env["CAUSEWAY_WIRE"] = wire
        before = ["causeway", "run", "--"] if launch else []
        words = [f"{key}={value}" for key, value in env.items()]
        command = quote("env", *words, *before, *argv)
        place.run(f"rm -f /tmp/{name}.*")
        place.run(f"(ulimit -n {FILES}; {command} > /tmp/{name}.out 2>&1; "
                  f"echo $? > /tmp/{name}.new; mv /tmp/{name}.new /tmp/{name}.status) &")
        return
    if not wire:
        env["LD_LIBRARY_PATH"] = os.path.join(BUILD, "lib")
    running[name] = place.popen(argv, wire=wire, env=env, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)


def wait(place, name, seconds=SECONDS):
    """Waits for a program's end: its exit status and output."""
    if not isinstance(place, Guest):
        process = running.pop(name)
        try:
            output = rest_of_output(process, process.stdout, patience * seconds)
        except subprocess.TimeoutExpired as late:
            process.kill()
            process.wait()
            raise GuestError(f"{name} on the host does not end: {late.output[-600:]}") from None
        return process.returncode, output
    deadline = deadline_after(seconds)
    while time.monotonic() < deadline:
        place.send(f"cat /tmp/{name}.status")
        found, text = place.finish()
        if found == 0:
            return int(text.split()[-1]), place.run(f"cat /tmp/{name}.out")
        time.sleep(PAUSE)
    output = place.run(f"cat /tmp/{name}.out")
    stop(place, name)
    raise GuestError(f"{name} in {place.name} does not end: {output[-600:]}{said_on_host()}")


def wait_said(place, name, word, seconds=SECONDS):
    """Waits until a program has said a word."""
    deadline = deadline_after(seconds)
    while time.monotonic() < deadline:
        if isinstance(place, Guest):
            if word in place.run(f"cat /tmp/{name}.out"):
                return
        elif word in (line := running[name].stdout.readline()):
            return
        elif not line:
            break
        time.sleep(PAUSE)
    raise GuestError(f"{name} in {place.name} has not said {word!r}")


def said_on_host():
    """What programs on the host, which are ended, have said."""
    said = ""
    for name, process in running.items():
        process.kill()
        said += f"\n{name} on the host: {process.communicate()[0][-600:]}"
    running.clear()
    return said


def stop(place, name):
    """Ends a program, if it runs."""
    if isinstance(place, Guest):
        place.run(f"killall -9 {name} 2>/dev/null; wait; true")
    elif name in running:
        running[name].kill()
        running.pop(name).communicate()


def stop_all(lab):
    """Ends every program, so that the next test begins with none."""
    for name in list(running):
        stop(lab.host, name)
    for guest in lab.guests:
        if guest.line:
            guest.run("killall -9 -q ibv_rc_pingpong ib_send_lat ib_write_lat ib_read_lat "
                      "ib_atomic_lat ib_send_bw ib_write_bw ib_read_bw ib_atomic_bw "
                      "local pair three interrupts dma segments locks pingpong intr reflect "
                      "dmabench intruder verify errors owner peer rping rstream ucx_perftest "
                      "home ioctls paced; "
                      "wait; true")


def wait_listening(place, port, seconds=SECONDS, udp=False):
    """Waits until a server listens; the connection manager's does by UDP."""
    table = "u" if udp else "t"
    pattern = f":{port} "
    deadline = deadline_after(seconds)
    while time.monotonic() < deadline:
        if isinstance(place, Guest):
            text = place.run(f"netstat -ln{table}")
        else:
            text = subprocess.run(place.command(["ss", f"-Hln{table}"]), check=True, text=True,
                                  stdout=subprocess.PIPE).stdout
        if pattern in text:
            return
        time.sleep(PAUSE)
    raise GuestError(f"no server at port {port}")


def pair(server, client, argv, wire):
    """Runs a server and its client to their ends; both must succeed. The client's output."""
    name = name_of(argv)
    start(server, argv, wire)
    wait_listening(server, 18515)
    start(client, argv + [server.address], wire)
    status, text = wait(client, name)
    if status != 0:
        stop(server, name)
        said = server.run(f"cat /tmp/{name}.out") if isinstance(server, Guest) else ""
        raise GuestError(f"the client ends with {status}: {text[-800:]}\nthe server: {said[-800:]}")
    status, other = wait(server, name)
    if status != 0:
        raise GuestError(f"the server ends with {status}: {other[-800:]}")
    return text
