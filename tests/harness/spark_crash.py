"""A driver whose whole process group is killed at a named step of a micro-batch, in whichever Python of Spark takes it.

Spark's workers import this module with the source that is registered here, and so have its patches."""

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql.types import StructType

from bascule.spark import exactly, sink, source, streaming, writing
from bascule.spark.rows import Framed

GROUP, STEP = "CRASH_GROUP", "CRASH_AT"
"""Of the environment."""


def die(*_: object) -> None:
    os.killpg(int(os.environ[GROUP]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)  # a worker has a group of its own


def after(owner: Any, name: str) -> None:
    real = getattr(owner, name)

    @functools.wraps(real)
    def dying(*given: Any) -> Any:
        real(*given)
        die()

    setattr(owner, name, dying)


real_add = exactly._Part.add


async def in_the_middle(part: exactly._Part, framed: Framed) -> None:
    """Something of the task is stored, and something is not sent yet."""
    await real_add(part, framed)
    if part.write.sent:
        while part.write.acked is None:
            await asyncio.sleep(0.001)
        die()


STEPS: dict[str, Callable[[], None]] = {
    "offsets written": lambda: setattr(streaming.LiftbridgeStreamReader, "partitions", die),
    "in the middle of a task": lambda: setattr(exactly._Part, "add", in_the_middle),
    "all acked": lambda: after(sink, "_write"),
    "when the tasks are checked": lambda: setattr(writing, "check_tasks", die),
    "before the commit log": lambda: after(sink.LiftbridgeStreamWriter, "commit"),
}
"""In the order in which a batch takes them."""


class CrashingWriter(sink.LiftbridgeStreamWriter):
    """Of this module, so that executors import it."""


class CrashingSource(source.LiftbridgeSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> CrashingWriter:  # noqa: N802
        return CrashingWriter(sink.options_of(self.options, schema, overwrite))


if os.environ.get(STEP):
    STEPS[os.environ[STEP]]()


def main(servers: str, from_stream: str, to_stream: str, checkpoint: str) -> None:
    from bascule.spark.session import session
    from tests.harness.spark_crash import CrashingSource as Importable
    from tests.harness.spark_sink import start

    os.environ[GROUP] = str(os.getpgid(0))
    spark = session("crashing", master="local[2]")
    spark.dataSource.register(Importable)
    start(spark, servers, from_stream, to_stream, checkpoint).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
