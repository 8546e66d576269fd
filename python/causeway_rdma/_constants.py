"""Enumerations of causeway.h."""

import enum


class Access(enum.IntEnum):
    """What a process may do with a block (`enum cw_access`)."""

    NONE = 0
    READ = 1
    WRITE = 2
    EXCLUSIVE = 3


class Party(enum.IntEnum):
    """Whom a grant is for (`enum cw_party`): a session's id, a user's id, or everybody."""

    SESSION = 0
    USER = 1
    EVERYBODY = 2


class Pages(enum.IntEnum):
    """The pages of a block or a buffer (`enum cw_pages`)."""

    ORDINARY = 0
    HUGE = 1
    ADVISED = 2


class State(enum.IntEnum):
    """How far a transfer is (`enum cw_transfer_state`)."""

    POSTED = 0
    DONE = 1
    ABORTED = 2
    FAILED = 3


NONE, READ, WRITE, EXCLUSIVE = Access
SESSION, USER, EVERYBODY = Party

# enum cw_flags
POOL_PRIVATE = 1
POOL_EXISTING = 2
BLOCK_HUGE = 4
BLOCK_PERSISTENT = 8
MOVE = 16
