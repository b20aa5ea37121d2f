"""`bascule group`, as people run it; the members are played by calls, and by go-liftbridge's Consumer."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bascule.cli.main import cli
from bascule.client import Client
from bascule.client.cursors import BEFORE_THE_FIRST
from bascule.testing.jsonlines import JsonProgram
from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.pb import api_pb2 as api
from tests.harness.stub import Stub


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """With cursors, and members that may be silent for long."""
    config = {"cursors.stream.partitions": 3, "groups.consumer.timeout": "10m"}
    with start_broker(tmp_path_factory.mktemp("groups"), config=config) as running:
        yield running


def run(broker: BrokerProcess, *args: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, [*args, "--server", broker.address])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def answer(broker: BrokerProcess, *args: str) -> Any:
    return json.loads(run(broker, *args, "--json"))


def join(broker: BrokerProcess, group: str, consumer: str, *streams: str) -> None:
    with Stub(broker.address) as stub:
        request = api.JoinConsumerGroupRequest(groupId=group, consumerId=consumer, streams=streams)
        stub.JoinConsumerGroup(request, timeout=10)


def leave(broker: BrokerProcess, group: str, consumer: str) -> None:
    with Stub(broker.address) as stub:
        stub.LeaveConsumerGroup(api.LeaveConsumerGroupRequest(groupId=group, consumerId=consumer), timeout=10)


def fill(broker: BrokerProcess, stream: str, **cursors: int) -> None:
    """Two partitions, ten messages in the first, and cursors of groups in it."""

    async def work() -> None:
        async with await Client.connect(broker.address) as client:
            await client.create_stream(stream, partitions=2)
            await client.publish_many(stream, [b"%d" % number for number in range(10)], partition=0)
            for group, offset in cursors.items():
                await client.set_cursor(f"__group:{group}", stream, 0, offset)

    asyncio.run(work())


def only(rows: list[dict[str, Any]], group: str) -> dict[str, Any]:
    (row,) = [each for each in rows if each["group"] == group]
    return row


def test_groups_are_listed_and_described_with_members_and_lag(broker: BrokerProcess, stream: str) -> None:
    fill(broker, stream, live=6, ended=1)
    join(broker, "live", "c1", stream)
    join(broker, "live", "c2", stream)
    row = only(answer(broker, "group", "list"), "live")
    assert (row["state"], row["members"], row["partitions"], row["lag_messages"]) == ("stable", 2, 2, 3)
    assert row["coordinator"]
    assert 0 <= row["lag_seconds"] < 60
    assert not any(each["group"] == "ended" for each in answer(broker, "group", "list"))
    ended = only(answer(broker, "group", "list", "--all"), "ended")
    assert (ended["state"], ended["members"], ended["lag_messages"]) == ("empty", 0, 8)
    assert "lag_messages" not in only(answer(broker, "group", "list", "--no-lag"), "live")
    heads = run(broker, "group", "list").splitlines()[0]
    assert heads.split() == ["group", "state", "members", "partitions", "coordinator", "epoch", "lag", "behind"]

    told = answer(broker, "group", "describe", "live")
    assert (told["state"], told["epoch"], told["coordinator"]) == ("stable", row["epoch"], row["coordinator"])
    assert told["members"] == [
        {"consumer": "c1", "streams": [stream], "assignments": {stream: [0]}},
        {"consumer": "c2", "streams": [stream], "assignments": {stream: [1]}},
    ]
    first, second = told["partitions"]
    assert (first["partition"], first["consumer"], first["offset"], first["end"]) == (0, "c1", 6, 10)
    assert (first["lag_messages"], 0 <= first["lag_seconds"] < 60) == (3, True)
    assert (second["consumer"], second["offset"], second["end"], second["lag_messages"]) == ("c2", None, 0, None)
    lines = run(broker, "group", "describe", "live").splitlines()
    assert lines[0] == f"group live: stable, coordinator {row['coordinator']}, epoch {row['epoch']}"
    assert ["c1", "1", stream] in [line.split() for line in lines]
    assert [stream, "0", "c1", "6", "10", "3"] in [line.split()[:6] for line in lines]
    assert [stream, "1", "c2", "-", "0", "-", "-"] in [line.split() for line in lines]


def test_a_group_without_members_is_described_by_its_cursors(broker: BrokerProcess, stream: str) -> None:
    fill(broker, stream, over=4)
    (row,) = answer(broker, "group", "describe", "over")["partitions"]
    assert (row["partition"], row["consumer"], row["offset"], row["lag_messages"]) == (0, None, 4, 5)
    told = answer(broker, "group", "describe", "over", "--stream", stream)
    assert [(each["offset"], each["lag_messages"]) for each in told["partitions"]] == [(4, 5), (None, None)]
    assert run(broker, "group", "describe", "over").splitlines()[0] == "group over: empty"
    assert "no such group: nobody" in run(broker, "group", "describe", "nobody", code=1)
    assert f"no such stream: {stream}-x" in run(broker, "group", "describe", "over", "--stream", f"{stream}-x", code=1)


def test_a_group_is_reset_by_offset_time_and_end_with_a_dry_run(broker: BrokerProcess, stream: str) -> None:
    fill(broker, stream, back=6)
    to = ["group", "reset", "back", "--stream", stream, "--partition", "0", "--to"]
    assert run(broker, *to, "4", "--dry-run") == f"group back of {stream}/0 would go from 6 to 3\n"
    assert run(broker, *to, "4") == f"group back of {stream}/0 went from 6 to 3\n", "so that 4 is the next"
    assert run(broker, *to, "latest") == f"group back of {stream}/0 went from 3 to 9\n"
    assert run(broker, *to, "2020-01-01") == f"group back of {stream}/0 went from 9 to {BEFORE_THE_FIRST}\n"
    assert run(broker, *to, "2099-01-01") == f"group back of {stream}/0 went from {BEFORE_THE_FIRST} to 9\n"
    assert "ends at offset 10, and 11 is past it" in run(broker, *to, "11", code=1)
    assert "neither earliest" in run(broker, *to, "soon", code=2)
    done = answer(broker, "group", "reset", "back", "--stream", stream, "--to", "earliest")
    rows = [{"stream": stream, "partition": number, "before": [9, -1][number], "after": -2} for number in (0, 1)]
    assert done == {"group": "back", "done": True, "partitions": rows}
    (first, second) = answer(broker, "group", "describe", "back")["partitions"]
    assert (first["lag_messages"], second["lag_messages"]) == (10, 0)
    assert "name streams with --stream" in run(broker, "group", "reset", "back", "--to", "0", code=2)
    assert "of a single stream" in run(
        broker, "group", "reset", "back", "--all-streams", "--partition", "0", "--to", "0", code=2
    )
    assert "has no cursors" in run(broker, "group", "reset", "nobody", "--all-streams", "--to", "0", code=1)
    assert "no such partition: 7" in run(
        broker, "group", "reset", "back", "--stream", stream, "--partition", "7", "--to", "0", code=1
    )
    done = answer(broker, "group", "reset", "back", "--all-streams", "--to", "latest")
    assert [row["after"] for row in done["partitions"]] == [9, -2], "the other partition is empty: its end is its start"


def test_a_group_with_members_is_not_reset(broker: BrokerProcess, stream: str) -> None:
    fill(broker, stream, busy=6)
    join(broker, "busy", "c1", stream)
    to = ["group", "reset", "busy", "--stream", stream, "--to", "earliest"]
    assert "group busy has 1 members, which would overwrite what is set here" in run(broker, *to, code=1)
    assert [row["before"] for row in answer(broker, *to, "--dry-run")["partitions"]] == [6, -1]
    result = CliRunner().invoke(cli, [*to, "--dry-run", "--server", broker.address])
    assert "it would be refused now: group busy has 1 members" in result.stderr
    leave(broker, "busy", "c1")
    assert answer(broker, *to)["done"]


def test_without_cursors_a_group_is_described_and_the_setting_is_named(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        run(broker, "stream", "create", "s")
        assert answer(broker, "group", "list") == []
        join(broker, "g", "c1", "s")
        result = CliRunner().invoke(cli, ["group", "describe", "g", "--server", broker.address])
        assert "cursors.stream.partitions is 0" in result.stderr
        assert result.exit_code == 0
        assert answer(broker, "group", "list")[0]["lag_messages"] is None
        assert "no such group: h" in run(broker, "group", "describe", "h", code=1)
        leave(broker, "g", "c1")
        told = run(broker, "group", "reset", "g", "--stream", "s", "--to", "latest", code=1)
        assert "cursors.stream.partitions" in told


def test_go_liftbridge_goes_on_where_a_group_is_reset_to(
    tmp_path: Path, go_against: Callable[[BrokerProcess], JsonProgram]
) -> None:
    """Also with the first message, although it is told to begin with new ones where it finds no cursor."""
    config = {"cursors.stream.partitions": 1, "groups.consumer.timeout": "2s"}
    with start_broker(tmp_path, config=config) as broker:
        fill(broker, "s")
        flags = {"stream": "s", "group": "g", "checkpoint": "100ms", "timeout": "60s"}
        with go_against(broker).start("consume", consumer="c1", **flags) as member:
            member.next("joined")
            assert [member.next("message")["offset"] for _ in range(10)] == list(range(10))
            assert poll(lambda: answer(broker, "group", "describe", "g")["partitions"][0]["lag_messages"] == 0)
            (row,) = answer(broker, "group", "list")
            assert (row["group"], row["members"], row["lag_messages"]) == ("g", 1, 0)
        assert poll(lambda: answer(broker, "group", "list") == []), "it was killed, and is gone after its timeout"
        for target, expected in (("7", [7, 8, 9]), ("earliest", list(range(10)))):
            run(broker, "group", "reset", "g", "--stream", "s", "--partition", "0", "--to", target)
            with go_against(broker).start("consume", consumer="c2", new_only=True, **flags) as member:
                member.next("joined")
                assert [member.next("message")["offset"] for _ in expected] == expected
            assert poll(lambda: answer(broker, "group", "list") == [])
