"""Other transports' own benchmarks, run as Causeway's are: pinned, the same sizes.

UCX's put and tag are measured with ucx_perftest, libfabric's messages with fi_pingpong. Either may
be missing from the machine; what is left out is said, never passed over.
"""

import itertools
import re
import shutil

from bench import measure
from lib import pair

MB = 1 << 20
UCX, FABRIC = "ucx_perftest", "fi_pingpong"
ports = itertools.count(29000)

# Transports that UCX may use. Its put over cma takes no shared-memory shortcut only at the lower
# level (UCT), where the transport is an option and not the environment's choice.
UCX_TLS = {"posix": "posix,self", "cma": "cma,posix,self", "tcp": "tcp,self"}
UCT_CMA = ["-x", "cma", "-d", "memory", "-D", "zcopy"]
# Shared memory is a reliable datagram provider, TCP is fastest as plain message endpoints.
FABRIC_ENDPOINT = {"shm": "rdm", "tcp": "msg"}


def missing():
    """The programs that are not installed."""
    return [name for name in (UCX, FABRIC) if not shutil.which(name)]


def ucx_figure(test, text):
    """The figure in the CSV output of ucx_perftest: microseconds (median) or GB/s."""
    rows = [line.split(",") for line in text.splitlines()
            if re.fullmatch(r"\d+(,[\d.]+){7}", line.strip())]
    if not rows:
        return None
    # iterations, median, average and overall latency, average and overall MiB/s, rates.
    return float(rows[-1][1]) if test.endswith("lat") else float(rows[-1][5]) * MB / 1e9


def ucx_command(test, transport, size, count):
    """The command line of one test: `put_lat`, `put_bw`, `tag_lat` or `tag_bw`."""
    argv = [UCX, "-f", "-v", "-s", str(size), "-n", str(count), "-w", str(max(1, count // 10)),
            "-p", str(next(ports))]
    if transport == "cma" and test.startswith("put"):
        return argv + ["-t", test, *UCT_CMA]
    return argv + ["-t", f"ucp_{test}" if test.startswith("put") else test]


def ucx(world, test, transport, size, count, device=None):
    """One run of ucx_perftest; its figure. `device` is the interface for tcp."""
    env = {"UCX_TLS": UCX_TLS[transport], "UCX_WARN_UNUSED_ENV_VARS": "n"}
    if device:
        env["UCX_NET_DEVICES"] = device
    argv = ucx_command(test, transport, size, count)
    return run(world, argv, argv + [world.server.address], env, lambda t: ucx_figure(test, t))


def fabric_figure(size, text):
    """Microseconds one way in the output of fi_pingpong, or None."""
    # bytes, sent, acknowledged, total, time, MB/s, us/transfer, transfers.
    for words in map(str.split, text.splitlines()):
        if len(words) == 8 and words[0] == abbreviated(size) and \
                re.fullmatch(r"[\d.]+", words[6]):
            return float(words[6])
    return None


def abbreviated(size):
    """A size as fi_pingpong writes it."""
    for unit, name in ((MB, "m"), (1024, "k")):
        if size >= unit:
            return f"{size // unit}{name}"
    return str(size)


def fabric(world, provider, size, count):
    """One run of fi_pingpong; microseconds one way."""
    port = str(next(ports))
    argv = [FABRIC, "-p", provider, "-e", FABRIC_ENDPOINT[provider], "-S", str(size), "-I",
            str(count)]
    return run(world, argv + ["-B", port], argv + ["-P", port, world.server.address], {},
               lambda text: fabric_figure(size, text))


def run(world, server, client, env, figure):
    """Runs a peer's server and client without Causeway; the figure in the client's output."""
    outcome = pair.Pair(world, None, server, client, env, pin=True).run(
        measure.LIMIT_SECONDS, words=False)
    value = figure(outcome.client_text)
    if outcome.problem or value is None:
        raise measure.Failed(f"{' '.join(client)}: {outcome.problem or 'no figure'}\n"
                             f"{outcome.client_text[-500:]}")
    return value
