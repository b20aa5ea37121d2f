"""The outcome of asking other replicas for damaged records."""

from collections.abc import Awaitable, Callable
from enum import Enum

from bascule.log.segment import Segment


class Healing(Enum):
    """The outcome for one damaged segment."""

    HEALED = "healed"
    LOST = "lost"
    """No replica has these records."""
    UNKNOWN = "unknown"
    """A replica that cannot be asked now may have them."""


OnDamage = Callable[[Segment, bool], Awaitable[Healing]]
"""Called by readers that meet damage in that segment; the flag says whether they wait for the outcome. If the records
come back the segment is retired."""
