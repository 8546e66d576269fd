"""`CAUSEWAY_LOG`: what the libraries log, where, and that they are silent without it."""

import os
import re
import stat
import subprocess

from lib import perftest
from lib.netns import one_host
from operations.schema import listens

LINE = re.compile(r"^\d+\.\d{6} causeway\[(\d+)\]: (ERROR|WARN|INFO|DEBUG|TRACE) causeway_\w+")


def run(host, env):
    """A client and a server with these settings; what the client says on standard error."""
    port = next(perftest.ports)
    options = ["ib_write_bw", "-F", "-n", "200", "-p", str(port)]
    server = host.popen(options, wire="shm", stdout=subprocess.DEVNULL,
                        stderr=subprocess.DEVNULL)
    try:
        listens(host, port)
        command = host.command(["timeout", "60", *options, "127.0.0.1"], wire="shm")
        client = subprocess.run(command, env=host.environment(env), stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, timeout=90, check=True)
        server.wait(60)
    finally:
        server.kill()
        server.wait()
    return [line for line in client.stderr.splitlines() if "causeway" in line]


def by_level():
    """Each level says what those before it say, and silence is the default."""
    with one_host() as world:
        assert not run(world.server, {}), "something without the setting"
        assert not run(world.server, {"CAUSEWAY_LOG": "error"}), "an error"
        info = run(world.server, {"CAUSEWAY_LOG": "info"})
        debug = run(world.server, {"CAUSEWAY_LOG": "debug"})
    for line in info + debug:
        assert LINE.match(line), line
    assert any("the device is open" in line for line in info), info
    assert any(" connected " in line and 'wire="shm"' in line for line in info), info
    assert not any(" DEBUG " in line for line in info), info
    assert len(debug) > len(info) and any(" DEBUG " in line for line in debug), debug


def to_file():
    """A file instead of standard error, the owner's alone."""
    with one_host() as world:
        path = os.path.join(world.server.runtime_dir, "own.log")
        said = run(world.server, {"CAUSEWAY_LOG": "info", "CAUSEWAY_LOG_FILE": path})
        assert not said, said
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
        assert lines and all(LINE.match(line) for line in lines), lines
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def wrong():
    """What is no level is said once, and the program runs; so it does without a place to write."""
    with one_host() as world:
        world.server.popen(["true"], wire="shm").wait(30)
        said = run(world.server, {"CAUSEWAY_LOG": "loud"})
        assert said and all("CAUSEWAY_LOG: loud is not" in line for line in said), said
        said = run(world.server, {"CAUSEWAY_LOG": "debug",
                                  "CAUSEWAY_LOG_FILE": "/proc/nowhere/log"})
        assert said and all("CAUSEWAY_LOG_FILE: /proc/nowhere/log: " in line
                            for line in said), said


TESTS = [("logs: levels", by_level), ("logs: to a file", to_file), ("logs: wrong", wrong)]
