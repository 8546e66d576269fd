"""causeway bench sisci --node N: the table has every row, and what it says was written is there."""

import json
import os
import subprocess

from lib.netns import BUILD

SECONDS = 400
SIZES = {"8 B": 8, "512 B": 512, "4 KiB": 4096, "8 KiB": 8192, "64 KiB": 1 << 16,
         "1 MiB": 1 << 20, "4 MiB": 1 << 22}
# From this size on a loop of stores has no flush after each, and WRITEs stand beside UDP.
LARGE = 1 << 16
WAYS = ("SCIMemCpy", "SCIMemCpy, ERROR_CHECK", "SCITransferBlock", "DMA")
TURNS = ("WRITE, 8 B, one way", "SCIMemCpy, 8 B, one way", "store + SCIFlush, 8 B, one way",
         "trigger to who looks, and back", "trigger to who sleeps, and back",
         "data interrupt to who looks, and back", "data interrupt to who sleeps, and back")


def bench(side, *args):
    """Begins one side there."""
    return side.host.popen([os.path.join(BUILD, "bin", "causeway"), "bench", "sisci", *args],
                           text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def expected():
    """Every row's name, and its bytes; None of what has none."""
    rows = dict.fromkeys(TURNS)
    for size, count in SIZES.items():
        if count >= LARGE:
            rows[f"WRITE, {size}, in a stream"] = None
        last = "loop of stores" if count >= LARGE else "store + SCIFlush"
        rows.update({f"{way}, {size}": count for way in (*WAYS, last)})
    return rows


def problem(table):
    """What is wrong with it, if anything."""
    wanted = expected()
    rows = {row["what"]: row for row in table["rows"]}
    if list(rows) != list(wanted) or len(table["rows"]) != len(wanted):
        return f"rows: {sorted(set(rows) ^ set(wanted))}"
    for what, count in wanted.items():
        row = rows[what]
        if not (row["ns"] > 0 and row["rival_ns"] > 0 and row["rival"]):
            return f"{what}: no figures"
        if count and (row["bytes"], row["arrived"]) != (count, count):
            return f"{what}: {row['arrived']} of {row['bytes']} bytes arrived, not {count}"
        # Two programs and two node daemons.
        looks = count is None and ("who looks" in what or "SCI" in what)
        if row.get("processors") != (4 if looks else None):
            return f"{what}: processors {row.get('processors')}"
        held = "WRITE" not in what and (count is None and "data" not in what
                                        or (count or 0) >= LARGE)
        if held != ("held_to" in row):
            return f"{what}: is it held to anything?"
    return None


def benched(suite, here, there, port_is_open):
    """Measures from one host to another."""
    title = "bench sisci --node: every row, and its bytes arrive"
    if suite.wants(title):
        server = bench(there, "--serve")
        port_is_open(there, 20479, server)
        client = bench(here, "--node", str(there.number), "--quick", "--json")
        out, err = finish(client)
        _, served = finish(server)
        both = (client.returncode, server.returncode) == (0, 0)
        wrong = problem(json.loads(out)) if both else "a side has failed"
        suite.report(title, wrong, out + err + served)
    for title, args, words in (
            ("bench sisci --node: its own node", ["--node", str(here.number)], "is this one"),
            ("bench sisci --node: a node without address", ["--node", "99"], "no address"),
            ("bench sisci --node: nobody serves", ["--node", str(there.number)],
             "bench sisci --serve")):
        if suite.wants(title):
            client = bench(here, *args)
            out, err = finish(client)
            good = client.returncode == 1 and words in err
            suite.report(title, None if good else f"exit {client.returncode}", out + err)


def finish(process):
    """Waits for its end; what it has said."""
    try:
        return process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()
