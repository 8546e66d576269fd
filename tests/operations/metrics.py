"""Metrics: served by causeway-noded, liked by promtool, scraped by Prometheus."""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from lib import perftest
from lib.netns import BUILD, one_host
from operations.schema import listens, until

SIZE, MESSAGES = 65536, 500
SECONDS = 30
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")


def free_port():
    """A TCP port that nobody listens at."""
    with socket.socket() as end:
        end.bind(("127.0.0.1", 0))
        return end.getsockname()[1]


@contextlib.contextmanager
def daemon(host, *options):
    """A node daemon; what it has logged is in its file `log`."""
    argv = [os.path.join(BUILD, "bin", "causeway-noded"), "--runtime-dir", host.runtime_dir,
            "--listen", "127.0.0.1:0", *options]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(argv, env=host.environment(), stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)

        def said():
            assert process.poll() is None, f"the daemon has ended: {process.returncode}"
            return os.pread(log.fileno(), 1 << 20, 0).decode()
        try:
            until("the daemon is ready", lambda: "ready" in said())
            yield said
        finally:
            process.kill()
            process.wait()


def page(port, path="/metrics", method="GET"):
    """Status and text of a page."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def samples(port):
    """All samples, by name and labels."""
    status, text = page(port)
    assert status == 200, f"{status}: {text}"
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.match(line).groups()
            found[name, tuple(sorted(re.findall(r'(\w+)="(.*?)"', labels or "")))] = float(value)
    return found


def of_tenant(found, name, **labels):
    """A sample of the broker's own tenant."""
    return found[f"causeway_{name}", tuple(sorted({"tenant": "default", **labels}.items()))]


def off():
    """Nobody listens unless it was asked for, and a taken port is an error."""
    with one_host() as world:
        with daemon(world.server) as said:
            assert "metrics" not in said(), said()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            at = f"127.0.0.1:{taken.getsockname()[1]}"
            argv = [os.path.join(BUILD, "bin", "causeway-noded"), "--runtime-dir",
                    world.server.runtime_dir, "--listen", "127.0.0.1:0", "--metrics", at]
            done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, timeout=SECONDS,
                                  check=False)
            assert done.returncode and at in done.stderr, done


def promtool(text):
    """Prometheus' own tool finds nothing wrong with a page."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS,
                          check=False)
    assert done.returncode == 0 and not done.stdout, f"{done.returncode}: {done.stdout}"


def checked():
    """promtool finds nothing, with traffic on both wires."""
    port = free_port()
    with one_host() as world, daemon(world.server, "--metrics", f"127.0.0.1:{port}"):
        for wire in ("shm", "udp"):
            perftest.run(world, wire, "ib_write_bw", SIZE, MESSAGES)
        _, text = page(port)
        promtool(text)
        for path, method, status in (("/", "GET", 404), ("/metrics", "POST", 405),
                                     ("/metrics?a=b", "GET", 200)):
            assert page(port, path, method)[0] == status, (path, method)
    return f"{len(text.splitlines())} lines"


def traffic():
    """What is counted is what was moved, and nothing is lost with the processes."""
    port = free_port()
    with one_host() as world, daemon(world.server, "--metrics", f"127.0.0.1:{port}"):
        for wire in ("shm", "udp"):
            before = samples(port)
            perftest.run(world, wire, "ib_write_bw", SIZE, MESSAGES)
            bytes_sent = SIZE * MESSAGES

            def change(name, **labels):
                now = samples(port)
                return of_tenant(now, name, **labels) - of_tenant(before, name, **labels)
            until("all is counted", lambda: change(
                "payload_bytes_total", direction="sent") >= bytes_sent)
            assert change("payload_bytes_total", direction="sent") == bytes_sent
            assert change("messages_total", direction="sent") == MESSAGES
            by_udp = change("udp_payload_bytes_total")
            assert by_udp == (bytes_sent if wire == "udp" else 0), f"{wire}: {by_udp}"
            assert (change("udp_bytes_total", direction="sent") > bytes_sent) == (wire == "udp")
            until("both have ended", lambda: change("endpoints_ended_total") == 2)


def busy(host, wire):
    """A server, and a client that writes to it for a minute."""
    tcp = next(perftest.ports)
    options = ["ib_write_bw", "-F", "-D", "60", "-p", str(tcp)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    yield host.popen(options, wire=wire, **quiet)
    listens(host, tcp)
    yield host.popen([*options, "127.0.0.1"], wire=wire, **quiet)


def queue_pairs():
    """Queue pairs of programs that run, by wire, and the limits."""
    port = free_port()
    with one_host() as world, daemon(world.server, "--metrics", f"127.0.0.1:{port}"):
        for wire in ("shm", "udp"):
            sides = [*busy(world.server, wire)]
            try:
                until(f"two queue pairs by {wire}", lambda: of_tenant(
                    samples(port), "queue_pairs", wire=wire) == 2)
            finally:
                for process in sides:
                    process.kill()
                    process.wait()
        found = samples(port)
        assert of_tenant(found, "endpoints_limit") == 4096, found
        assert of_tenant(found, "endpoints") >= 1, "the daemon's own endpoint"


def of_processes(port):
    """What single processes have sent, by their ids."""
    return {int(dict(labels)["pid"]): value for (name, labels), value in samples(port).items()
            if name == "causeway_process_sent_bytes_total"}


def processes():
    """Those that have moved most by themselves, as many as were asked for."""
    ports = {most: free_port() for most in (0, 1, 16)}
    with one_host() as world, contextlib.ExitStack() as stack:
        for most, port in ports.items():
            stack.enter_context(daemon(world.server, "--metrics", f"127.0.0.1:{port}",
                                       "--metrics-processes", str(most)))
        sides = [*busy(world.server, "shm")]
        try:
            pids = {process.pid for process in sides}
            until("both are shown", lambda: pids <= set(of_processes(ports[16])))
            client = sides[1].pid
            until("the client's bytes", lambda: of_processes(ports[16])[client] > SIZE * MESSAGES)
            assert set(of_processes(ports[1])) == {client}, "others than the busiest"
            assert not any("process_" in name for name, _ in samples(ports[0])), "by default"
            promtool(page(ports[16])[1])
            labels = {"pid": str(client), "uid": "0", "command": "ib_write_bw"}
            assert of_tenant(samples(ports[1]), "process_queue_pairs", **labels) == 1
        finally:
            for process in sides:
                process.kill()
                process.wait()
        until("they are gone", lambda: not pids & set(of_processes(ports[16])))


def scraped():
    """Prometheus scrapes, and knows what was moved."""
    port, own = free_port(), free_port()
    base = tempfile.mkdtemp(prefix="causeway-prometheus-")
    config = os.path.join(base, "prometheus.yml")
    with open(config, "w", encoding="utf-8") as file:
        file.write("global: {scrape_interval: 1s, scrape_timeout: 1s}\n"
                   "scrape_configs:\n- job_name: causeway\n"
                   f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n")
    subprocess.run(["promtool", "check", "config", config], check=True, timeout=SECONDS,
                   stdout=subprocess.DEVNULL)
    with one_host() as world, daemon(world.server, "--metrics", f"127.0.0.1:{port}"):
        prometheus = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={base}/data",
             f"--web.listen-address=127.0.0.1:{own}"], stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=base)
        try:
            perftest.run(world, "shm", "ib_write_bw", SIZE, MESSAGES)

            def value(query):
                address = f"http://127.0.0.1:{own}/api/v1/query?"
                address += urllib.parse.urlencode({"query": query})
                try:
                    with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                        result = json.load(answer)["data"]["result"]
                except OSError:
                    return 0
                return float(result[0]["value"][1]) if result else 0
            until("Prometheus has scraped", lambda: value("up{job='causeway'}") == 1)
            query = "causeway_payload_bytes_total{tenant='default',direction='sent'}"
            until("Prometheus knows the bytes", lambda: value(query) == SIZE * MESSAGES)
        finally:
            prometheus.kill()
            prometheus.wait()
            shutil.rmtree(base, ignore_errors=True)


TESTS = [("metrics: off unless asked for", off), ("metrics: promtool", checked),
         ("metrics: traffic", traffic), ("metrics: queue pairs", queue_pairs),
         ("metrics: processes", processes), ("metrics: Prometheus", scraped)]
