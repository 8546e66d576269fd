"""libfabric's verbs provider: what it offers, and fi_pingpong over each kind of endpoint."""

import re
import time

from clients import program
from clients.program import Program

# Few: RDM over datagrams repeats packets in software, and a MiB takes its time.
ITERATIONS = "20"
INFO = "fi_info -p verbs"
# Endpoint and provider: RDM endpoints are made by utility providers out of the two others.
KINDS = [("msg", "verbs"), ("dgram", "verbs"), ("rdm", "verbs;ofi_rxm"), ("rdm", "verbs;ofi_rxd")]
OFFERS = {("verbs", "FI_EP_MSG"), ("verbs", "FI_EP_DGRAM"), ("verbs;ofi_rxm", "FI_EP_RDM"),
          ("verbs;ofi_rxd", "FI_EP_RDM")}
NAMES = [INFO] + [f"fi_pingpong -p {provider} -e {kind}" for kind, provider in KINDS]
# fi_pingpong's own sizes for an endpoint without a limit of 2048 bytes or so.
FEWEST_ROWS = 3


def rows(text):
    """fi_pingpong prints a line of figures for each size."""
    found = re.findall(r"^\d+k? +\d+k? +=?\d+k? ", text, re.M)
    if len(found) >= FEWEST_ROWS:
        return None
    return f"{len(found)} rows in the client's output"


def offers(text):
    """fi_info tells the provider and the type of each endpoint."""
    found = set(re.findall(r"^provider: (\S+)$.*?^ +type: (\S+)$", text, re.M | re.S))
    missing = OFFERS - found
    return f"not offered: {sorted(missing)}" if missing else None


def programs(world, port):
    """fi_pingpong for each kind of endpoint."""
    for kind, provider in KINDS:
        both = ["fi_pingpong", "-p", provider, "-e", kind, "-I", ITERATIONS]
        yield Program(f"fi_pingpong -p {provider} -e {kind}", [*both, "-B", str(port)],
                      [*both, "-P", str(port), world.server.address], expect=rows)


def run(report, stage, world, wire, seconds, ports, chosen):
    """Runs everything on one pair of hosts."""
    if chosen(f"{stage} {INFO}"):
        start = time.monotonic()
        problem, text = program.run_alone(world.server, INFO.split(), wire, seconds)
        report.add(stage, INFO, problem or offers(text), time.monotonic() - start, text)
    program.run_all(report, stage, world, wire, seconds, programs(world, next(ports)), chosen)
