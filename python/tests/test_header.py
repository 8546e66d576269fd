"""The package against causeway.h: functions, constants, and how structures lie in memory."""

import ctypes
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from causeway_rdma import _constants, _native, _sync

HEADER = pathlib.Path(os.environ["CAUSEWAY_HEADER"])
# What has another form that the package uses.
UNUSED = {"cw_mutex_lock", "cw_dma_transfer"}
STRUCTURES = {"cw_member": _native.Member, "cw_block_info": _native.BlockInfo,
              "cw_pool_info": _native.PoolInfo, "cw_piece": _native.Piece}
CONSTANTS = {
    **{f"CW_{one.name}": one for one in (*_constants.Access, *_constants.Party,
                                         *_constants.State)},
    **{f"CW_PAGES_{one.name}": one for one in _constants.Pages},
    "CW_POOL_PRIVATE": _constants.POOL_PRIVATE, "CW_POOL_EXISTING": _constants.POOL_EXISTING,
    "CW_BLOCK_HUGE": _constants.BLOCK_HUGE, "CW_BLOCK_PERSISTENT": _constants.BLOCK_PERSISTENT,
    "CW_MOVE": _constants.MOVE, "CW_SYNC_ALIGN": _sync.SYNC_ALIGN,
    "CW_MUTEX_SIZE": _sync.MUTEX_SIZE, "CW_COND_SIZE": _sync.CONDITION_SIZE,
    "CW_SEM_SIZE": _sync.SEMAPHORE_SIZE, "CW_RWLOCK_SIZE": _sync.RWLOCK_SIZE,
    "CW_BARRIER_SIZE": _sync.BARRIER_SIZE,
}


def ask_compiler(expressions):
    """What integer expressions of C are worth with the header."""
    lines = "".join(f'printf("%ld\\n", (long)({one}));' for one in expressions)
    source = f"#include <causeway.h>\n#include <stdio.h>\nint main(void) {{ {lines} }}\n"
    with tempfile.TemporaryDirectory() as place:
        program = os.path.join(place, "ask")
        subprocess.run(["cc", "-I", str(HEADER.parent), "-x", "c", "-", "-o", program],
                       input=source, text=True, check=True)
        said = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    return [int(line) for line in said.split()]


class Header(unittest.TestCase):
    """Each kind of thing in it."""

    def test_every_function_is_known(self):
        declared = set(re.findall(r"\b(cw_[a-z_]+)\(", re.sub(r"/\*.*?\*/", "",
                                                              HEADER.read_text(), flags=re.S)))
        self.assertGreater(len(declared), 60)
        self.assertEqual(declared - UNUSED, set(_native._PROTOTYPES))

    def test_constants_are_the_same(self):
        self.assertEqual(ask_compiler(CONSTANTS), [int(one) for one in CONSTANTS.values()])

    def test_structures_lie_the_same(self):
        for name, ours in STRUCTURES.items():
            fields = [field for field, *_ in ours._fields_]
            asked = [f"offsetof(struct {name}, {field.rstrip('_')})" for field in fields]
            said = ask_compiler([f"sizeof(struct {name})", *asked])
            expected = [ctypes.sizeof(ours), *(getattr(ours, field).offset for field in fields)]
            self.assertEqual(said, expected, name)


if __name__ == "__main__":
    unittest.main()
