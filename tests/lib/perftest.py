"""Runs a perftest tool between two hosts and reads its figure."""

import itertools
import math
import re

from lib import pair

LIMIT_SECONDS = 120
BYTES_PER_GIGABIT = 1e9 / 8

ports = itertools.count(18515)

# perftest samples the processor's frequency at each start. If another program takes the processor
# in between, it finds the sample useless, takes 0 for the frequency and still transfers
# everything: the row then holds infinite times, or a bandwidth and a rate of 0.
UNTIMED = re.compile(r"^ *(\d+) +\d+ +(?:inf +inf +inf\b|0\.0+\s+0\.0+\s+0\.0+ *$)", re.MULTILINE)
ROW = re.compile(r"^ *(\d+) +\d+ +(?:\d[\d.]*|inf)\s", re.MULTILINE)


class Failed(Exception):
    """A run failed; the text says how, with both outputs."""


def is_latency(tool):
    """True if the tool's figure is a time, false if it is a bandwidth."""
    return tool.endswith("_lat")


def unit(tool):
    """The unit of a tool's figure: a bandwidth of eight bytes a time says nothing."""
    if is_latency(tool):
        return "us"
    return "M/s" if "atomic" in tool else "GB/s"


def sizes(text):
    """The sizes that a tool's output has a row for: their transfers are complete."""
    return ROW.findall(text)


def figure(tool, size, text):
    """The figure for one size in a tool's output: the median time, the average bandwidth, or for
    atomics millions of operations a second. It is NaN where perftest had no clock, and None where
    there is no row."""
    if str(size) in UNTIMED.findall(text):
        return math.nan
    for line in text.splitlines():
        words = line.split()
        if len(words) < 5 or not words[0].isdigit() or int(words[0]) != size:
            continue
        if not all(re.fullmatch(r"[\d.]+", word) for word in words[:5]):
            continue
        # Latency: bytes iterations min max typical ... Bandwidth: ... peak average rate.
        if unit(tool) == "GB/s":
            return float(words[3]) * BYTES_PER_GIGABIT / 1e9
        return float(words[4])
    return None


def run(world, wire, tool, size, iterations, pin=True, extra=(), client_prefix=()):
    """One run, with extra options, the client behind other words; the tool's figure, NaN if
    everything was transferred and perftest could not time it."""
    options = ["-F", "-n", str(iterations), "-p", str(next(ports)), *extra]
    if "atomic" not in tool:
        options += ["-s", str(size)]
    if not is_latency(tool):
        options.append("--report_gbits")
    client = [*client_prefix, tool, *options, world.server.address]
    runner = pair.Pair(world, wire, [tool, *options], client, pin=pin)
    outcome = runner.run(LIMIT_SECONDS)
    value = figure(tool, size, outcome.client_text)
    problem = outcome.problem or (None if value is not None else "no figure in its output")
    if problem:
        raise Failed(f"{tool} {size} on {world.name}, {wire}: {problem}\n"
                     f"--- server\n{outcome.server_text}\n--- client\n{outcome.client_text}")
    return value


def show(tool, value):
    """A figure with its unit."""
    if math.isnan(value):
        return "no clock"
    return f"{value:8.2f} {unit(tool)}"
