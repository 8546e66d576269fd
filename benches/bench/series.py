"""What is shown over size: which lines stand in which panel, in the table and in the figure."""

import collections
import statistics

from bench.results import ONE, TWO, Key

# label: in the table and the figure; name: of the keys; family: its look in the figure; size: of
# the only figure of a limit that does not vary with size (drawn across), else None; drawn: in the
# figure too, or in the table only; rival: the family of Causeway's line that does the same work.
Series = collections.namedtuple("Series", "label name family size drawn rival",
                                defaults=(None, True, None))
Panel = collections.namedtuple("Panel", "title unit hosts sizes series")

CAUSEWAY = (("Causeway WRITE", "ib_write", "write"), ("Causeway READ", "ib_read", "read"),
            ("Causeway SEND", "ib_send", "send"))
# UCX's tests by what they compete with.
RIVALS = {"put": "write", "tag": "send"}


def causeway(kind):
    """Causeway's own lines, `lat` or `bw`."""
    return [Series(label, f"{name}_{kind}", family) for label, name, family in CAUSEWAY]


def ucx(kind, transports, drawn=("posix put", "posix tag", "cma put", "tcp tag")):
    """UCX's lines."""
    return [Series(f"UCX {transport} {test}", f"UCX {transport} {test}_{kind}", "ucx",
                   drawn=f"{transport} {test}" in drawn, rival=RIVALS[test])
            for transport in transports for test in ("put", "tag")]


def panels(latency_sizes, bandwidth_sizes, network):
    """The four panels; `network` picks the sizes measured between hosts."""
    shared = ("posix", "cma", "tcp")
    return [
        Panel("Latency, one host", "µs", ONE, latency_sizes, [
            Series("limit: copy and flag", "hand-over", "limit"), *causeway("lat"),
            *ucx("lat", shared), Series("libfabric shm", "libfabric shm", "fabric", rival="send"),
            Series("libfabric tcp", "libfabric tcp", "fabric", drawn=False, rival="send"),
            Series("TCP, busy-polled", "TCP ping-pong", "tcp", rival="send")]),
        Panel("Bandwidth, one host", "GB/s", ONE, bandwidth_sizes, [
            Series("limit: memcpy", "memcpy", "limit"), *causeway("bw"), *ucx("bw", shared),
            Series("TCP stream", "TCP stream", "tcp", rival="send")]),
        Panel("Latency, two hosts", "µs", TWO, network(latency_sizes), [
            Series("limit: UDP, busy-polled", "UDP ping-pong", "limit"), *causeway("lat"),
            *ucx("lat", ("tcp",)), Series("libfabric tcp", "libfabric tcp", "fabric", rival="send"),
            Series("TCP, busy-polled", "TCP ping-pong", "tcp", rival="send")]),
        Panel("Bandwidth, two hosts", "GB/s", TWO, network(bandwidth_sizes), [
            Series("limit: UDP, GSO and GRO", "UDP stream", "limit", 0), *causeway("bw"),
            *ucx("bw", ("tcp",)), Series("TCP stream", "TCP stream", "tcp", rival="send")]),
    ]


def points(panel, series, results):
    """(size, median) of a line, for the sizes that were measured."""
    found = []
    for size in panel.sizes:
        key = Key(series.name, size if series.size is None else series.size, panel.hosts)
        figure = results.median(key)
        if figure:
            found.append((size, figure.value))
    return found


def ahead(panel, name, family, size, results):
    """True if Causeway's line is ahead of all its rivals at a size, None without any of them."""
    latency = panel.unit == "µs"
    own = Key(f"{name}_{'lat' if latency else 'bw'}", size, panel.hosts)
    verdicts = []
    for line in panel.series:
        taken = results.comparable(own, Key(line.name, size, panel.hosts))
        if line.rival == family and taken:
            ratio = statistics.median(o.value / peer.value for o, peer in taken)
            verdicts.append(ratio < 1 if latency else ratio > 1)
    return all(verdicts) if verdicts else None
