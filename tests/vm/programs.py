"""Programs of the distribution that are in no other file here: the connection manager's, rsockets,
datagrams, and UCX, which reads the device's files too. All are started by `causeway
run`, as on a host."""

from vm import traffic
from vm.lab import GuestError

PORT = 18700
RC = {"UCX_TLS": "rc_v,self", "UCX_NET_DEVICES": "cway0:1"}
UD = {**RC, "UCX_TLS": "ud_verbs,self"}
# What programs read beside the verbs API.
TYPE = "/sys/class/infiniband/cway0/ports/1/gid_attrs/types/0"
GIDS = "/sys/class/infiniband/cway0/ports/1/gids"
# An address that comes and goes, and how its GID ends.
ADDRESS, GID = "10.85.0.1", "ffff:0a55:0001"

# What is run: the server's command line, what the client's has in addition ({s} is the server's
# address), whether the connection manager listens, the environment, the pairs of client and server.
RING = f"rping -p {PORT} -C 10 -v -a {{s}}"
STREAM = f"rstream -p {PORT} -S 4096 -I 20 -C 5"
# It takes no more completions for an event than one queue pair has receives (200), and waits for
# ever where more have piled up: a burst that came whole would bring 1,600. While an emulated
# processor does not run, several portions may come.
EVENTS = f"ib_send_bw -F -p {PORT} -n 200 -s 4096 -e -q 8 -b -R"
RUNS = {
    "rping": (f"{RING} -s", f"{RING} -c", True, {}, ("ba", "ha", "ah")),
    "rstream": (STREAM, f"{STREAM} -s {{s}}", True, {}, ("ba",)),
    "events, 8 queue pairs": (EVENTS, f"{EVENTS} {{s}}", True, {}, ("ab",)),
}
for name, test, env, pairs in (("ucx_perftest, tag", "tag_bw", RC, ("ah",)),
                               ("ucx_perftest, put", "ucp_put_lat", RC, ("ba",)),
                               ("ucx_perftest, datagrams", "ucp_am_lat", UD, ("ba",))):
    LINE = f"ucx_perftest -p {PORT} -t {test} -n 50 -w 5 -s 4096"
    RUNS[name] = (LINE, f"{LINE} {{s}}", False, env, pairs)


def tools():
    """The programs that guests need."""
    return sorted({run[0].split()[0] for run in RUNS.values()})


def run(server, client, title):
    """Runs both sides to their ends; both must succeed."""
    *lines, udp, env, _ = RUNS[title]
    tool = lines[0].split()[0]
    for place, line in zip((server, client), lines):
        argv = line.format(s=server.address).split()
        traffic.start(place, argv, "shm", launch=True, **env)
        if place is server:
            traffic.wait_listening(server, PORT, udp=udp)
    ends = [(place.name, *traffic.wait(place, tool)) for place in (client, server)]
    if any(status for _, status, _ in ends):
        raise GuestError("; ".join(f"{name} ends with {status}: {text[-600:]}"
                                   for name, status, text in ends))


def files(lab):
    """The device's files, in the view of a static program; and not outside of it."""
    guest = lab.guests[0]
    said = guest.run(f"causeway run --isolate cat {TYPE}").strip()
    if said != "RoCE v2":
        raise GuestError(f"{TYPE}: {said!r}")
    guest.run(f"! [ -e {TYPE} ]")
    # They follow the addresses.
    look = f"causeway run --isolate grep -rl {GID} {GIDS}"
    guest.run(f"! {look}")
    guest.run(f"ip addr add {ADDRESS}/24 dev eth0")
    try:
        guest.run(look)
    finally:
        guest.run(f"ip addr del {ADDRESS}/24 dev eth0")
    guest.run(f"! {look}")


def tests():
    """Name and function of every test, in order; a function is called with the lab."""
    yield "the device's files", files

    def place(lab, letter):
        return lab.host if letter == "h" else lab.guests["ab".index(letter)]

    for title, (*_, pairs) in RUNS.items():
        for client, server in pairs:
            names = " to ".join({"h": "host"}.get(x, x) for x in (client, server))
            yield (f"{title} {names}", lambda lab, client=client, server=server, title=title:
                   run(place(lab, server), place(lab, client), title))
