"""`causeway bench` with its other side on another host."""

import json
import subprocess
import time

from bench import measure
from lib import netns, pair

SECONDS = 900
READY_SECONDS = 20


def rows(world, what, options, quick):
    """One run of `causeway bench` of `what`, from the client's host of a world to the server's: its
    rows."""
    server = causeway(world.server, "bench", what, "--serve")
    try:
        # Without connecting to it: it serves once.
        if not pair.wait_listening(server, time.monotonic() + READY_SECONDS):
            raise measure.Failed(f"causeway bench {what} --serve does not listen")
        more = ["--quick"] if quick else []
        client = causeway(world.client, "bench", what, *options, "--json", *more)
        try:
            out, problem = client.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired as error:
            raise measure.Failed(f"causeway bench {what}: hangs") from error
        finally:
            pair.end_group(client)
    finally:
        pair.end_group(server)
    if client.returncode:
        raise measure.Failed(f"causeway bench {what}: {problem.strip()}")
    return json.loads(out)["rows"]


def causeway(host, *args):
    """Starts the command line."""
    return host.popen([netns.CAUSEWAY, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                      text=True)
