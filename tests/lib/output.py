"""What a process says once some lines of it have been read."""

import contextlib
import subprocess
import threading


def rest_of_output(process, stream, seconds):
    """Ends a process's input, and waits for its end; what it says on its one piped stream until
    then.

    `communicate` with a time limit reads from the descriptor, and misses what has come with the
    lines that were read before: the stream holds it.
    """
    if process.stdin:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
    said = []

    def read():
        for line in stream:
            said.append(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(seconds)
    if reader.is_alive():
        raise subprocess.TimeoutExpired(process.args, seconds, "".join(said))
    process.wait(seconds)
    return "".join(said)
