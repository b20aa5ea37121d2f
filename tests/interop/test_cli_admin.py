"""`bascule stream` and `bascule cluster` as people run them, against one broker: texts, JSON, exit codes."""

import json
from typing import Any

from click.testing import CliRunner

from bascule.cli.main import cli
from bascule.testing.processes import BrokerProcess, free_port


def run(broker: BrokerProcess, *args: str, code: int = 0) -> str:
    """What it says: to stdout if it works, to stderr if not."""
    result = CliRunner().invoke(cli, [*args, "--server", broker.address])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def answer(broker: BrokerProcess, *args: str) -> Any:
    return json.loads(run(broker, *args, "--json"))


def test_a_stream_is_created_listed_described_and_deleted(broker: BrokerProcess, stream: str) -> None:
    assert run(broker, "stream", "create", stream, "--partitions", "2", "--subject", f"{stream}.in") == (
        f"created {stream}\n"
    )
    assert "stream already exists" in run(broker, "stream", "create", stream, code=1)
    (listed,) = (each for each in answer(broker, "stream", "list") if each["name"] == stream)
    assert listed == {
        "name": stream,
        "subject": f"{stream}.in",
        "partitions": 2,
        "replication_factor": 1,
        "under_replicated": 0,
    }
    assert [stream, f"{stream}.in"] in [line.split()[:2] for line in run(broker, "stream", "list").splitlines()]
    CliRunner().invoke(cli, ["pub", stream, "--partition", "0", "one", "two", "--server", broker.address])
    described = answer(broker, "stream", "info", stream)
    first, second = described["partitions"]
    (replica,) = first["replicas"]
    assert (replica["end"], replica["high_watermark_end"], replica["sync"]) == (2, 2, "group")
    assert (first["online"], first["under_replicated"], second["replicas"][0]["end"]) == (True, False, 0)
    lines = run(broker, "stream", "info", stream).splitlines()
    assert lines[0] == f"stream {stream} on subject {stream}.in, min ISR 1"
    heads = ["partition", "leader", "replicas", "in sync", "eligible", "hw end", "end", "state"]
    assert lines[1].split() == " ".join(heads).split()
    assert lines[2].split()[-3:] == ["2", "2", "ok"]
    assert answer(broker, "stream", "delete", stream, "--yes") == {"deleted": stream}
    assert f"no such stream: {stream}; `bascule stream list`" in run(
        broker, "stream", "delete", stream, "--yes", code=1
    )
    assert f"no such stream: {stream}; `bascule stream list`" in run(broker, "stream", "info", stream, code=1)


def test_a_subject_that_is_refused_says_which_character_and_what_would_do(broker: BrokerProcess) -> None:
    refused = run(broker, "stream", "create", "a b", code=1)
    assert "Subject is invalid: a subject cannot contain blanks or control characters, here ' '" in refused
    assert "It is 'a b', which is the name of the stream unless another one is given; 'orders' or" in refused
    assert "two periods in a row" in run(broker, "stream", "create", "a", "--subject", "a..b", code=1)
    assert "'*' only as a wildcard" in run(broker, "stream", "create", "a", "--subject", "a*", code=1)
    assert "'>' only as a wildcard" in run(broker, "stream", "create", "a", "--subject", ">.a", code=1)
    assert "at most " in run(broker, "stream", "create", "a", "--subject", "x" * 5000, code=1)
    several = run(broker, "stream", "create", "a", "--subject", "a.>", "--partitions", "2", code=1)
    assert "a stream of several partitions cannot have one that ends with '>'" in several
    assert "blanks or control characters, here ' '" in run(broker, "pub", "a b", "x", "--create", code=1)


def test_nothing_is_deleted_by_who_does_not_confirm(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream)
    result = CliRunner().invoke(cli, ["stream", "delete", stream, "--server", broker.address], input="n\n")
    assert result.exit_code == 1
    assert any(each["name"] == stream for each in answer(broker, "stream", "list"))


def test_a_factor_no_cluster_has_is_refused(broker: BrokerProcess, stream: str) -> None:
    refused = run(broker, "stream", "create", stream, "--replication-factor", "7", code=1)
    assert "Invalid replicationFactor 7, cluster size 1: so many brokers are in the cluster" in refused
    assert "choose another name" in run(broker, "stream", "create", "__cursors", code=1)
    assert "a stream needs a copy" in run(broker, "stream", "create", stream, "--replication-factor", "0", code=1)
    assert "can never be met" in run(broker, "stream", "create", stream, "--min-isr", "2", code=1)


def test_a_minimum_that_one_replica_on_every_broker_does_not_meet_is_said(broker: BrokerProcess, stream: str) -> None:
    every = ["stream", "create", stream, "--replication-factor", "-1", "--min-isr", "2", "--server", broker.address]
    said = CliRunner().invoke(cli, every).stderr
    assert f"{stream} has 1 replicas, and --min-isr 2 can never be met: nothing will be committed" in said


def test_the_status_of_one_broker(broker: BrokerProcess) -> None:
    status = answer(broker, "cluster", "status")
    (member,) = status["members"]
    assert (member["voter"], member["alive"], member["controller"], status["current"]) == (True, True, True, True)
    assert status["controller"] == member["id"]
    text = run(broker, "cluster", "status").splitlines()
    assert text[1].split()[:4] == [member["id"], broker.address, "voter,", "controller"]
    assert text[2] == f"controller: {member['id']}"


def test_what_cannot_be_done_with_one_broker_is_refused_with_the_next_step(broker: BrokerProcess, stream: str) -> None:
    own = answer(broker, "cluster", "status")["controller"]
    assert "nobody would be left to lead" in run(broker, "cluster", "drain", own, code=1)
    assert "ask another broker" in run(broker, "cluster", "remove", own, code=1)
    for command in ("drain", "undrain", "remove"):
        assert f"no broker 'x' in this cluster; it has {own}" in run(broker, "cluster", command, "x", code=1)
    assert f"no such stream: {stream}" in run(broker, "cluster", "elect", stream, "0", code=1)
    run(broker, "stream", "create", stream)
    assert "no such partition" in run(broker, "cluster", "elect", stream, "3", code=1)
    assert "needs no such election" in run(broker, "cluster", "elect", stream, "0", "--accept-loss", code=1)


def test_no_broker_there_is_one_line() -> None:
    result = CliRunner().invoke(cli, ["cluster", "status", "--server", f"127.0.0.1:{free_port()}"])
    assert result.exit_code == 1
    assert "no broker can be reached" in result.stderr
    assert len(result.stderr.splitlines()) == 1
