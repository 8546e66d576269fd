"""causeway bench net: two hosts measure each other, and what else comes to the port is refused."""

import json
import re
import subprocess
import sys
import time

from lib.netns import CAUSEWAY, TwoHosts

PORT = 20479
SECONDS = 120
HELLO = {"version": "0.0.1", "udp": 9, "qpn": 1, "psn": 1, "addr": 0, "rkey": 0}
ROWS = 8
LISTENING = f":{PORT:04X} "
# As the other side's port, of a connection that is established.
CONNECTED = f":{PORT:04X} 01 "
# However far the two have come.
ENDED = re.compile("other side has ended|connection to the other side")
# Says what it was given to the port, and waits until the other side has ended.
STRANGER = """
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
s.sendall(sys.argv[3].encode("latin-1") + b"\\n")
while s.recv(4096):
    pass
"""


def bench(host, *args):
    """Begins one side there."""
    return subprocess.Popen(host.command([CAUSEWAY, "bench", "net", *args]),
                            env=host.environment(), text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def serving(host):
    """The other side, once it listens."""
    server = bench(host, "--serve")
    while server.poll() is None:
        with open(f"/proc/{server.pid}/net/tcp6", encoding="ascii") as six, \
                open(f"/proc/{server.pid}/net/tcp", encoding="ascii") as four:
            if LISTENING in six.read() + four.read():
                break
        time.sleep(0.02)
    return server


def network(check):
    """Two namespaces."""
    with TwoHosts(1500, prefix="10.87") as hosts:
        nobody = bench(hosts.client, hosts.server.address)
        _, err = nobody.communicate(timeout=SECONDS)
        check("bench net: nobody serves", nobody.returncode == 1 and "bench net --serve" in err,
              err)
        measured(check, hosts)
        killed(check, hosts)
        for name, line, words in (
                ("another release", json.dumps(HELLO), "0.0.1"),
                ("rubbish", "GET / HTTP/1.1", "no answer"),
                ("rubbish that is no text", "\xff", "no answer")):
            server = serving(hosts.server)
            stranger = hosts.client.command([sys.executable, "-c", STRANGER,
                                             hosts.server.address, str(PORT), line])
            subprocess.run(stranger, timeout=SECONDS, check=False, stderr=subprocess.DEVNULL)
            _, err = server.communicate(timeout=SECONDS)
            check(f"bench net: {name}", server.returncode == 1 and words in err, err)


def killed(check, hosts):
    """The other side is killed as soon as it is connected."""
    server = serving(hosts.server)
    client = bench(hosts.client, hosts.server.address)
    while client.poll() is None:
        with open(f"/proc/{client.pid}/net/tcp", encoding="ascii") as four:
            if CONNECTED in four.read():
                break
        time.sleep(0.02)
    server.kill()
    server.communicate(timeout=SECONDS)
    _, err = client.communicate(timeout=SECONDS)
    check("bench net: the other side is killed",
          client.returncode == 1 and ENDED.search(err), err)


def measured(check, hosts):
    """Both families, and what is printed."""
    for family, address in (("IPv4", hosts.server.address), ("IPv6", six(hosts.server))):
        server = serving(hosts.server)
        client = bench(hosts.client, address, "--quick", "--json")
        out, err = client.communicate(timeout=SECONDS)
        _, served = server.communicate(timeout=SECONDS)
        both = (client.returncode, server.returncode) == (0, 0)
        check(f"bench net: {family}", both, err + served)
        table = json.loads(out) if both else {"rows": []}
        rows = table["rows"]
        right = len(rows) == ROWS and all(r["ns"] > 0 and r["rival_ns"] > 0 for r in rows)
        check(f"bench net: {family}, the table", right and table["path_mtu"] == 1500, table)


def six(host):
    """Its IPv6 address."""
    shown = subprocess.run(["ip", "-n", host.netns, "-6", "-j", "addr", "show", "scope", "global"],
                           stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(shown.stdout)[0]["addr_info"][0]["local"]
