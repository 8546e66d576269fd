"""`causeway status --json` keeps to docs/status.schema.json."""

import json
import os
import subprocess
import time

import jsonschema

from lib import perftest
from lib.netns import BUILD, CAUSEWAY, ROOT, TwoHosts, one_host


SECONDS = 30


def until(what, found):
    """Waits for something."""
    end = time.monotonic() + SECONDS
    while True:
        value = found()
        if value:
            return value
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.1)


def listens(host, port):
    """Waits until a program of a host listens at a TCP port."""
    argv = host.command(["ss", "-Hltn", f"sport = :{port}"])
    until(f"port {port} is open", lambda: subprocess.run(
        argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


def validator():
    """The committed schema, itself a good one."""
    with open(os.path.join(ROOT, "docs", "status.schema.json"), encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def state(host):
    """What `causeway status --json` says on a host, after it was held against the schema."""
    argv = host.command([CAUSEWAY, "status", "--json"])
    done = subprocess.run(argv, env=host.environment(), stdout=subprocess.PIPE, text=True,
                          timeout=60, check=True)
    value = json.loads(done.stdout)
    problems = [f"{error.json_path}: {error.message}" for error in
                validator().iter_errors(value)]
    assert not problems, "\n".join(problems)
    return value


def idle():
    """Without a broker."""
    with one_host() as world:
        value = state(world.server)
        assert value["version"] == 1 and not value["broker"], value


def unknown():
    """The schema refuses what it does not know."""
    value = {"version": 1, "broker": True, "endpoints": [], "sisci": [], "pools": []}
    validator().validate(value)
    for wrong in ({"version": 2}, {"more": 1}, {"endpoints": [{}]}, {"broker": "yes"}):
        assert list(validator().iter_errors({**value, **wrong})), f"{wrong} is allowed"


def holding(host, orders):
    """A process with a pool, blocks and locks."""
    actor = subprocess.Popen([os.path.join(BUILD, "test", "pool")], env=host.environment(),
                             text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    answers = [actor.stdout.readline()]
    for order in orders:
        actor.stdin.write(order + "\n")
        actor.stdin.flush()
        answers.append(actor.stdout.readline())
    assert all(line.startswith("ok ") for line in answers), answers
    return actor


def pools():
    """Pools, blocks and locks of each kind."""
    with one_host() as world:
        actor = holding(world.server, (
            "create shown 8192 4 2", "alloc 0 0", "map 0 2", "name 0 frame 0", "mutex 0 0 init",
            "mutex 0 0 lock", "sem 0 128 init 3", "rwlock 0 1024 init", "rwlock 0 1024 read"))
        try:
            locks = state(world.server)["pools"][0]["blocks"][0]["locks"]
            assert {lock["kind"] for lock in locks} == {"mutex", "semaphore", "rwlock"}, locks
        finally:
            actor.stdin.close()
            actor.wait()


def traffic():
    """Queue pairs of either wire, on this host and to another."""
    for wire, make in (("shm", one_host), ("udp", lambda: TwoHosts(1500, "10.93", tag="ops"))):
        with make() as world:
            port = next(perftest.ports)
            options = ["ib_write_bw", "-F", "-D", "60", "-p", str(port)]
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            sides = [world.server.popen(options, wire=wire, **quiet)]
            try:
                listens(world.server, port)
                options.append(world.server.address)
                sides.append(world.client.popen(options, wire=wire, **quiet))
                until(f"a queue pair by {wire}", lambda: any(
                    endpoint["counters"]["tx_bytes"] and endpoint["qps"]
                    for endpoint in state(world.client)["endpoints"]))
                found = [qp for endpoint in state(world.client)["endpoints"]
                         for qp in endpoint["qps"]]
                assert {qp["wire"] for qp in found} == {wire}, found
                assert all(qp["joined"] == (wire == "shm") for qp in found), found
            finally:
                for side in sides:
                    side.kill()
                    side.wait()


TESTS = [("status --json without a broker", idle), ("status --json: what is refused", unknown),
         ("status --json: pools and locks", pools),
         ("status --json: queue pairs", traffic)]
