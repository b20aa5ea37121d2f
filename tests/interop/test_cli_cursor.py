"""`bascule cursor`, as people run it."""

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from bascule.cli.main import cli
from bascule.client import Client
from bascule.testing.processes import BrokerProcess, start_broker


def run(broker: BrokerProcess, *args: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*args, "--server", broker.address])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def answer(broker: BrokerProcess, *args: str) -> Any:
    return json.loads(run(broker, *args, "--json"))


async def prepare(broker: BrokerProcess) -> None:
    async with await Client.connect(broker.address) as client:
        await client.create_stream("s", partitions=2)
        await client.publish_many("s", [b"%d" % number for number in range(10)], partition=0)
        assert await client.fetch_cursor("billing", "s", 0) == -1
        await client.set_cursor("billing", "s", 0, 3)
        await client.set_cursor("billing", "s", 0, 6)
        await client.set_cursor("mail", "gone", 0, 6)
        assert await client.fetch_cursor("billing", "s", 0) == 6


def test_cursors_are_listed_with_their_lag_and_reset(tmp_path: Path) -> None:
    with start_broker(tmp_path, config={"cursors.stream.partitions": 2}) as broker:
        asyncio.run(prepare(broker))
        first, second = answer(broker, "cursor", "list")
        assert (first["cursor"], first["stream"], first["offset"], first["lag_messages"]) == ("billing", "s", 6, 3)
        assert 0 <= first["lag_seconds"] < 60
        assert (second["stream"], second["lag_messages"], second["lag_seconds"]) == ("gone", None, None)
        lines = run(broker, "cursor", "list", "--stream", "s").splitlines()
        assert lines[0].split() == ["cursor", "stream", "partition", "offset", "lag", "behind"]
        assert lines[1].split()[:5] == ["billing", "s", "0", "6", "3"]
        to = ["cursor", "reset", "s", "billing", "--partition", "0", "--to"]
        would = run(broker, *to, "earliest", "--dry-run")
        assert would == "cursor billing of s/0 would go from 6 to -1\n"
        assert run(broker, *to, "4") == "cursor billing of s/0 went from 6 to 3\n", "so that 4 is the next"
        assert run(broker, *to, "latest") == "cursor billing of s/0 went from 3 to 9\n"
        assert run(broker, *to, "2020-01-01") == "cursor billing of s/0 went from 9 to -1\n"
        assert run(broker, *to, "2099-01-01") == "cursor billing of s/0 went from -1 to 9\n"
        assert "ends at offset 10, and 11 is past it" in run(broker, *to, "11", code=1)
        done = answer(broker, "cursor", "reset", "s", "billing", "--to", "earliest")
        assert [(row["partition"], row["after"]) for row in done["partitions"]] == [(0, -1), (1, -1)]
        assert "no such stream: x" in run(broker, "cursor", "reset", "x", "billing", "--to", "4", code=1)


def test_without_cursors_the_setting_is_named(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream)
    assert "cursors.stream.partitions" in run(broker, "cursor", "reset", stream, "c", "--to", "latest", code=1)
    assert answer(broker, "cursor", "list") == []


def test_lag_and_reset_where_messages_are_deleted(tmp_path: Path) -> None:
    with start_broker(tmp_path, config={"cursors.stream.partitions": 1}) as broker:
        asyncio.run(prepare(broker))
        to = ["cursor", "reset", "s", "billing", "--partition", "0", "--to"]
        assert run(broker, *to, "2") == "cursor billing of s/0 went from 6 to 1\n"
        run(broker, "stream", "delete-records", "s", "--partition", "0", "--before", "4")
        assert answer(broker, "cursor", "list", "--stream", "s")[0]["lag_messages"] == 6, (
            "2 and 3 are not there any more"
        )
        assert run(broker, *to, "earliest") == "cursor billing of s/0 went from 1 to 3\n"
        run(broker, "stream", "delete-records", "s", "--partition", "0", "--before", "10")
        row = answer(broker, "cursor", "list", "--stream", "s")[0]
        assert (row["lag_messages"], row["lag_seconds"]) == (0, 0), "nothing is left to read"
        assert run(broker, *to, "earliest") == "cursor billing of s/0 went from 3 to 9\n"
        assert run(broker, *to, "2020-01-01") == "cursor billing of s/0 went from 9 to 9\n"
