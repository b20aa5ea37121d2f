"""The roles of a replica on its broker, and the moves between them.

A role is given up before the next one is taken, so that most moves lead to `NONE` or from it: at no moment does a
replica write under two leader epochs. Its driver (`node.partition.roles`) asserts each move.
"""

from enum import Enum


class Role(Enum):
    NONE = "none"
    """Its log is open, and nobody writes to it."""
    FOLLOWING = "following"
    COMING_TO_LEAD = "coming to lead"
    """It is named leader, and compares its log with the others' first."""
    LEADING = "leading"
    TRUNCATING = "truncating"
    """Its log is being truncated, or begins again where the partition begins now. It has no other role until that is
    over."""
    FAILED = "failed"
    """An assertion failed: its state in memory is not trusted any more. It has no role until the broker restarts."""
    ENDED = "ended"
    """It is closed, or its stream is deleted."""


MOVES: dict[Role, tuple[Role, ...]] = {
    Role.NONE: (Role.FOLLOWING, Role.COMING_TO_LEAD, Role.LEADING, Role.TRUNCATING, Role.FAILED, Role.ENDED),
    Role.FOLLOWING: (Role.NONE, Role.TRUNCATING),
    Role.COMING_TO_LEAD: (Role.NONE, Role.LEADING, Role.TRUNCATING),
    Role.LEADING: (Role.NONE,),
    Role.TRUNCATING: (Role.NONE, Role.FOLLOWING, Role.FAILED, Role.ENDED),
    Role.FAILED: (Role.ENDED,),
    Role.ENDED: (),
}
