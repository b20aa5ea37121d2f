"""What fuzzing found, each bug as small as it gets."""

import asyncio

import pytest

from bascule.errors import ConfigError
from bascule.log.checkpoint import read_checkpoint, write_checkpoint
from bascule.log.commandlog import CommandLog
from bascule.testing.disk import MemoryDisk
from bascule.wire.http2 import frames
from bascule.wire.nats import ServerAddress
from tests.harness import http2_peer as peer


def test_changes_after_a_damaged_command_that_a_snapshot_covers_survive_the_next_start() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        log = CommandLog(disk, "metadata")
        await log.open()
        for index in (1, 2):
            await log.append(index, b"command %d" % index)
        await log.snapshot(2, b"state 2")
        path = f"metadata/{1:020}.commands"
        disk.put(path, disk.content(path)[:-1])

        log = CommandLog(disk, "metadata")
        assert await log.open() == (2, b"state 2", [])
        await log.append(3, b"command 3")
        assert await CommandLog(disk, "metadata").open() == (2, b"state 2", [(3, b"command 3")])

    asyncio.run(scenario())


def test_a_checkpoint_whose_header_turned_to_zeros_is_no_empty_checkpoint() -> None:
    async def scenario() -> None:
        disk = MemoryDisk()
        await write_checkpoint(disk, "server", b"content")
        disk.put("server", disk.content("server")[:4] + bytes(8))
        assert await read_checkpoint(disk, "server") is None
        await write_checkpoint(disk, "server", b"")
        assert await read_checkpoint(disk, "server") == b""

    asyncio.run(scenario())


def test_a_failed_connection_does_not_hold_what_was_read() -> None:
    connection = peer.Server().connection
    received = b"".join(peer.raw(frames.PING, 0, 0, bytes(8)) for _ in range(100)) + peer.window_update(1, 1)
    connection.receive(received, 0, len(received), 100.0)
    assert connection.error is not None
    assert connection.error.__traceback__ is None


@pytest.mark.parametrize("url", ["nats://[fe80::1%25e@th0]:1", "nats://[a@:]", "nats://[b@x]y"])
def test_half_a_bracket_in_the_credentials_does_not_make_the_other_half_a_host(url: str) -> None:
    with pytest.raises(ConfigError):
        ServerAddress.parse(url)


@pytest.mark.parametrize("url", ["tls://user:s3cret@://host", "user:s3cret://x@[h", "nats://user:s3cret@a@h:x"])
def test_no_mistake_in_an_address_makes_the_error_tell_the_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerAddress.parse(url)
    assert "s3cret" not in str(caught.value)
