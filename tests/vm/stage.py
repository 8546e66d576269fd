"""What the stages that boot virtual machines have in common: running a test, and its line."""

import time

from vm import traffic
from vm.lab import GuestError
from vm.qmp import QmpError


def attempt(lab, name, function):
    """Runs one test and prints its line; true if it passed."""
    begun = time.monotonic()
    try:
        detail, good = function(lab), True
    except (GuestError, QmpError, OSError, AttributeError) as error:
        detail, good = f"{error}{lab.bury()}", False
    detail = f": {detail}" if detail else ""
    print(f"{'PASS' if good else 'FAIL'} {name} [{time.monotonic() - begun:.1f} s]{detail}",
          flush=True)
    if not good:
        traffic.stop_all(lab)
    return good
