"""What tests of two hosts have in common: the hosts, and what is found."""

# The nodes of the first two.
HERE, THERE = 4, 24


class Failed(Exception):
    """What a test found."""


class Skipped(Exception):
    """What a test lacks: it is not counted."""


def expect(what, held, *evidence):
    """Fails unless something holds."""
    if not held:
        raise Failed("\n".join([what, *map(str, evidence)]))


def addresses(world):
    """Of the first two hosts."""
    return [host.address for host in world.hosts[:2]]


def pair(suite, world, first, second, **settings):
    """Two hosts with configurations that differ from the usual one by these."""
    world.stop()
    return [world.side(number, suite.configuration(f"side{number}", addresses(world), **changes),
                       **(settings if number else {}))
            for number, changes in enumerate((first, second))]
