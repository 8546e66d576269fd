"""Which processes of containers trust each other, as `causeway status` says of connected ones."""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time

from isolate.container import CAUSEWAY, Container
from lib import netns

SECONDS = 60
# Sleeps between its rounds, and goes on until it is ended.
TALK = ["ibv_rc_pingpong", "-g", "0", "-e", "-n", "100000000"]
WITHIN = f"{CAUSEWAY}/bin/causeway run --wire shm -- {' '.join(TALK)}"


class Member(Container):
    """A container whose programs come to a tenant's broker by the socket in the shared folder."""

    def environment(self, extra=None):
        socket = {"CAUSEWAY_SOCKET": "/run/causeway/broker.sock"}
        return super().environment({**socket, **(extra or {})})


def trust(status, start, listens=None):
    """Whether two queue pairs trust each other, once they are connected, or None if they never
    are. `start` yields the server's process, and once that listens the client's, if it is
    another."""
    started = []
    until = time.monotonic() + SECONDS
    try:
        steps = start()
        started.append(next(steps))
        while listens and not listens(started[0]) and time.monotonic() < until:
            time.sleep(0.05)
        started += steps
        while time.monotonic() < until:
            qps = [qp for endpoint in status()["endpoints"] for qp in endpoint["qps"]]
            if len(qps) == 2 and all(qp["joined"] for qp in qps):
                both = {qp["trusted"] for qp in qps}
                return both.pop() if len(both) == 1 else both
            time.sleep(0.05)
        return None
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        while status()["endpoints"] and time.monotonic() < until:
            time.sleep(0.05)


def status_by(env):
    """What `causeway status` says with this environment."""
    def status():
        done = subprocess.run([os.path.join(netns.BUILD, "bin", "causeway"), "status", "--json"],
                              env=dict(os.environ, **env), stdout=subprocess.PIPE, check=False)
        return json.loads(done.stdout or '{"endpoints": []}')
    return status


def between(server, client):
    """Starts a program in each of two containers."""
    def start():
        yield server.popen(TALK, "shm", stdout=subprocess.DEVNULL)
        yield client.popen(TALK + ["127.0.0.1"], "shm", stdout=subprocess.DEVNULL)
    return start


def within(container):
    """Starts two programs in one container, the second when the first listens."""
    def start():
        script = f"{WITHIN} & until ss -Hltn | grep -q :18515; do :; done; {WITHIN} 127.0.0.1"
        yield container.popen(["sh", "-c", script], stdout=subprocess.DEVNULL)
    return start


def says(found, expected):
    """A problem, unless trust is as expected."""
    return None if found is expected else f"trusted is {found}, not {expected}"


def boundaries(check, listens):
    """Containers of one user that share a runtime directory, and those of tenants."""
    folder = tempfile.mkdtemp(prefix="cwt-run-")
    two = [Container(f"b{i}", "127.0.0.1", run_dir=folder) for i in range(2)]
    status = status_by({"CAUSEWAY_RUNTIME_DIR": folder})
    check("two containers of one user are strangers",
          says(trust(status, between(*two), listens), False))
    check("two processes of one container trust each other",
          says(trust(status, within(two[0])), True))
    for container in two:
        container.end()
    netns.stop_broker(folder)
    for name, line, expected in (("that is one boundary", "one_boundary = true\n", True),
                                 ("that is not", "", False)):
        check(f"two containers of a tenant {name}",
              says(of_a_tenant(line, listens), expected))


def of_a_tenant(line, listens):
    """Whether two containers trust each other whose tenant is configured by this line, too."""
    own, shared = (tempfile.mkdtemp(prefix=f"cwt-{name}-") for name in ("own", "tenant"))
    os.chmod(shared, 0o755)
    config = os.path.join(own, "causewayd.toml")
    with open(config, "w", encoding="ascii") as file:
        file.write(f'[[tenant]]\nname = "jobs"\nsocket = "{shared}/broker.sock"\nusers = [0]\n'
                   + line)
    subprocess.run([os.path.join(netns.BUILD, "bin", "causewayd"), "--config", config,
                    "--runtime-dir", own, "--idle", "0"],
                   stdout=subprocess.DEVNULL, check=True)
    two = [Member(f"m{i}", "127.0.0.1", run_dir=shared) for i in range(2)]
    try:
        return trust(status_by({"CAUSEWAY_RUNTIME_DIR": own}), between(*two), listens)
    finally:
        for container in two:
            container.end()
        netns.stop_broker(own)
