"""The hold of an archive: the broker removes nothing at or above it, and it is raised only to what is durable.

A hold is never lowered. One that is above what an archive has is another's, and the broker refuses to set it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from bascule.errors import FailedPrecondition, NotFound
from bascule.pipelines.ledger import Part
from bascule.spark.connecting import connect
from bascule.spark.options import ReadOptions
from bascule.spark.planning import is_paused
from bascule.spark.retrying import Retrying

ASKED_AT_ONCE = 32


def raise_holds(
    options: ReadOptions, name: str, offsets: Mapping[Part, int | None], retrying: Retrying | None = None
) -> dict[Part, int]:
    """Sets the hold of each partition to the offset, or, for None, to where the partition begins now; gives where each
    hold is then. A partition that is gone or paused by now is left out, if the options say so: its hold goes up when
    the archive goes on with it."""

    async def main() -> dict[Part, int]:
        turns = asyncio.Semaphore(ASKED_AT_ONCE)
        async with await connect(options) as client:

            async def one(part: Part, offset: int | None) -> tuple[Part, int | None]:
                async with turns:
                    try:
                        return part, await client.admin.set_hold(*part, name, offset)
                    except NotFound:
                        if options.fail_on_loss:
                            raise
                        return part, None
                    except FailedPrecondition as error:
                        if is_paused(error) and options.paused == "skip":
                            return part, None
                        raise FailedPrecondition(
                            f"the hold of {part[0]}/{part[1]} cannot be set to {offset}: {error}. If another archive "
                            "raises it, give this one a hold of its own (the key `hold`)"
                        ) from None

            found = await asyncio.gather(*(one(*each) for each in offsets.items()))
            return {part: hold for part, hold in found if hold is not None}

    return (retrying or Retrying(0.0)).ask(main)
