"""How long a test waits for what must come soon.

The limits that programs may count on (a lease, a retry budget) are judged as they are on a machine
that is quiet: CAUSEWAY_TEST_FULL=1. A busy machine takes longer without a defect, and what hangs
still hangs after a few times the limit; the times themselves are printed.
"""

import os

FULL = os.environ.get("CAUSEWAY_TEST_FULL") == "1"
BUSY = 1.0 if FULL else 5.0


def patient(limit):
    """A limit of that time, on a machine as it is."""
    return limit * BUSY
