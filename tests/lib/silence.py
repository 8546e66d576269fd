"""When a run of programs hangs: when they have been silent for long, however long it takes."""

# How many times as long as they may be silent programs may take that go on talking.
SILENCES = 4


class Limit:
    """Of a run in which nothing is said for `seconds` at most. Every `now` is of the same clock, in
    seconds."""

    def __init__(self, seconds, now):
        self.seconds = seconds
        self.said = 0
        self.end = now + SILENCES * seconds
        self.deadline = now + seconds

    def left(self, said, now):
        """Seconds until it hangs, where so many bytes have been said."""
        if said > self.said:
            self.said = said
            self.deadline = min(self.end, now + self.seconds)
        return self.deadline - now


def self_test():
    """What the limit must find: name, and whether it did."""
    silent, slow, endless = (Limit(90, 1000) for _ in range(3))
    rows = [slow.left(60 * row, 1000 + 80 * row) for row in range(1, SILENCES + 1)]
    talk = [endless.left(row, 1000 + row) for row in range(90 * SILENCES + 1)]
    return [
        ("a run that is silent hangs", silent.left(0, 1089) > 0 > silent.left(0, 1091)),
        ("a run that is slow, and goes on, does not hang", min(rows) > 0),
        ("it hangs once it stops", slow.left(rows[-1], 1000 + 80 * SILENCES + 91) < 0),
        ("a run that talks for ever hangs", talk[-2] > 0 >= talk[-1]),
    ]
