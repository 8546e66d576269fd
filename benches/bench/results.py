"""Figures as they were measured: rounds, the processors' place, medians of what can be compared.

A figure is named by a Key and kept with the time of a cache line taken right after it. A virtual
machine's processors change place under the hypervisor, which alters figures by up to a factor of
four: two figures are compared within one round and only if both were taken at one place.
"""

import collections
import statistics

# Places in order of preference, with the time of a cache line one way below which a figure belongs
# to one, in nanoseconds: two processors that share their last cache; what looks like two threads
# of one core, bandwidths being half of what they are elsewhere; two that share nothing.
NEAR, SIBLINGS, FAR = "near", "siblings", "far"
SIBLINGS_NS = 35.0
NEAR_NS = 110.0
ONE, TWO = "one host", "two hosts"

# name: of the tool, limit or peer; size: bytes, or 0; hosts: ONE or TWO.
Key = collections.namedtuple("Key", "name size hosts")
# value: microseconds, GB/s or the unit of the key's kind; place: nanoseconds; steady: the place was
# the same before the figure.
Figure = collections.namedtuple("Figure", "value place steady", defaults=(True,))


def place_name(nanoseconds):
    """The place that the time of a cache line tells of."""
    return SIBLINGS if nanoseconds < SIBLINGS_NS else NEAR if nanoseconds < NEAR_NS else FAR


def place_of(figures):
    """The place at which all these figures were taken, or None if it changed meanwhile."""
    names = {place_name(figure.place) if figure.steady else None for figure in figures}
    return names.pop() if len(names) == 1 else None


class Results:
    """The rounds of a run: each a dictionary from Key to Figure."""

    def __init__(self, rounds=None):
        self.rounds = rounds if rounds is not None else []

    def keys(self):
        """Every key that some round holds."""
        return {key for figures in self.rounds for key in figures}

    def comparable(self, *keys):
        """Tuples of the figures of these keys, one for each round that has them all: of the best
        place at which they were taken together, or every one if they never were."""
        taken = [tuple(figures[key] for key in keys) for figures in self.rounds
                 if all(key in figures for key in keys)]
        for name in (NEAR, SIBLINGS, FAR):
            alike = [figures for figures in taken if place_of(figures) == name]
            if alike:
                return alike
        return taken

    def median(self, key):
        """The median Figure of a key, or None."""
        taken = [t[0] for t in self.comparable(key)]
        if not taken:
            return None
        return Figure(statistics.median(f.value for f in taken),
                      statistics.median(f.place for f in taken))

    def to_json(self):
        """What from_json() reads."""
        return [[[*key, *figure] for key, figure in figures.items()] for figures in self.rounds]

    @classmethod
    def from_json(cls, rounds):
        """Results of an earlier run."""
        return cls([{Key(*row[:3]): Figure(*row[3:]) for row in figures} for figures in rounds])
