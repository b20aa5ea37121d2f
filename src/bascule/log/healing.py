"""What becomes of damaged records when other replicas are asked for them."""

from collections.abc import Awaitable, Callable
from enum import Enum

from bascule.log.segment import Segment


class Healing(Enum):
    """What became of damage."""

    HEALED = "healed"
    LOST = "lost"
    """No replica has these records."""
    UNKNOWN = "unknown"
    """A replica that cannot be asked now may have them."""


OnDamage = Callable[[Segment, bool], Awaitable[Healing]]
"""Asked by readers that stand before damage in that segment, and whether they wait for what becomes of it. If the
records come back the segment is retired."""
