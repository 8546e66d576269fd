"""Programs that run when they are asked for: one host, and two over UDP."""

from clients import matrix
from lib import netns

# These programs poll in several threads of each side: a busy machine takes its time.
LIMIT_SECONDS = 300.0
MTU = 1500
UDP = ("udp-1500", lambda: netns.TwoHosts(MTU), "udp")
WORLDS = [("shm", netns.one_host, "shm"), UDP]


class Addressed(netns.TwoHosts):
    """One host with an address of its own, for programs that take no loopback address."""

    def __init__(self):
        super().__init__(MTU)
        self.client.end()
        self.client = self.server


ADDRESSED = [("shm", Addressed, "shm"), UDP]


def stage(suite, worlds=None):
    """A stage's function, which runs a suite in each world."""
    worlds = worlds or WORLDS

    def run(report, text=""):
        words = text.split()

        def chosen(name):
            return all(word in f"{name} " for word in words)

        names = [f"{place} {name}" for place, _, _ in worlds for name in suite.NAMES]
        if not any(map(chosen, names)):
            return
        problem = suite.prepare()
        if problem:
            report.add("asked", suite.NAMES[0], problem, 0.0)
            return
        for place, make, wire in worlds:
            try:
                with make() as world:
                    suite.run(report, place, world, wire, LIMIT_SECONDS, matrix.ports, chosen)
            except netns.SetupError as error:
                report.add(place, "hosts", str(error), 0.0)
    return run
