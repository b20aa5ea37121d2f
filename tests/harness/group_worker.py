"""A member of a group as a process of its own, for tests that kill it and make it stand still: what it reads, and what
is assigned, are lines of JSON."""

import argparse
import asyncio
import json
from typing import Any

from bascule.client import Client
from bascule.errors import BasculeError


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


async def work(servers: str, stream: str, group: str, auto_commit: float) -> None:
    async with Client.connect(servers, timeout=30) as client:
        while True:
            try:
                async with client.consumer(
                    stream,
                    group=group,
                    auto_commit=auto_commit,
                    on_assigned=lambda given: tell(event="assigned", partitions=given.get(stream, [])),
                    on_revoked=lambda lost: tell(event="revoked", partitions=lost.get(stream, [])),
                ) as consumer:
                    async for batch in consumer.batches():
                        tell(
                            event="read",
                            partition=batch[0].partition,
                            offset=batch[0].offset,
                            values=[message.value.decode() for message in batch],
                        )
            except BasculeError as error:
                tell(event="error", kind=type(error).__name__, text=str(error), retryable=error.retryable)
                if not error.retryable:
                    raise


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("servers", "stream", "group"):
        parser.add_argument(f"-{name}", required=True)
    parser.add_argument("-commit", type=float, default=0.2)
    given = parser.parse_args()
    asyncio.run(work(given.servers, given.stream, given.group, given.commit))


if __name__ == "__main__":
    main()
