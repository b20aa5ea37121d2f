"""Names for the numbers that must not be mixed up.

Inside the code positions are exclusive ends (`end`, `synced_end`, `hw_end`): 0 is an empty log. Only the API
border converts to Liftbridge's inclusive offsets, where -1 is an empty log.
"""

from typing import NewType

Epoch = NewType("Epoch", int)
"""The term of one leader of a partition: the index of the command that made it leader."""

PartitionId = NewType("PartitionId", int)
