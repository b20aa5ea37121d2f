"""A partition that cannot be opened when its broker starts, and is opened later."""

import asyncio
import errno

import pytest

from bascule.log.sync import SyncMode
from bascule.log.tail import Tail
from bascule.node.partition.verification import Verification
from bascule.testing.loop import run
from tests.harness.members import followers, until
from tests.harness.replicas import end, loaded

RELAXED = SyncMode("interval", 3_600_000_000_000)


def test_a_log_that_is_opened_late_after_an_unclean_stop_is_suspect_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under relaxed sync records that it had promised may be gone with the power, and nothing in the log shows it."""

    async def main() -> None:
        members = await loaded(mode=RELAXED)
        victim = followers(members)[0]
        end(victim)
        path = next(path for path in victim.disk.paths() if path.startswith("streams/s@"))
        folder = path.rpartition("/")[0]
        victim.disk.injected_error = lambda path: errno.EIO if path.startswith(folder) else None
        marked: list[Tail] = []
        original = Verification.mark_suspect

        def mark_suspect(self: Verification) -> None:
            original(self)
            marked.append(self.tail)

        monkeypatch.setattr(Verification, "mark_suspect", mark_suspect)
        await victim.start()
        await until(lambda: victim.broker.manager.caught_up)
        await asyncio.sleep(1)
        assert victim.broker.replicas.find("s", 0) is None
        marked.clear()
        victim.disk.heal()
        await until(lambda: victim.broker.replicas.find("s", 0) is not None)
        assert marked == [Tail.SUSPECT]

    run(main())
