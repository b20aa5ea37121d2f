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
        "paused": 0,
        "readonly": 0,
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
    heads = ["partition", "leader", "replicas", "in sync", "eligible", "start", "hw end", "end", "bytes", "segments"]
    assert lines[1].split() == " ".join([*heads, "first", "last", "state"]).split()
    start, hw_end, end, size, segments, began, ended, state = lines[2].split()[-8:]
    assert (start, hw_end, end, segments, state) == ("0", "2", "2", "1", "ok")
    assert int(size) == replica["bytes"] > 0
    assert began <= ended
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


def test_a_stream_is_paused_resumed_and_set_read_only(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream, "--partitions", "2")
    run(broker, "pub", stream, "--partition", "0", "one")
    run(broker, "pub", stream, "--partition", "1", "two")
    assert run(broker, "stream", "pause", stream, "--partition", "1").startswith(f"partition 1 of {stream} is paused; ")
    (listed,) = (each for each in answer(broker, "stream", "list") if each["name"] == stream)
    assert (listed["paused"], listed["readonly"]) == (1, 0)
    assert "paused" in run(broker, "stream", "info", stream)
    read = CliRunner().invoke(cli, ["sub", stream, "--server", broker.address])
    assert read.stdout == "one\n"
    assert f"partition 1 of {stream} is paused and left out: `bascule stream resume {stream}`" in read.stderr
    assert "cannot be read" in run(broker, "sub", stream, "--partition", "1", code=1)
    assert run(broker, "stream", "resume", stream) == f"{stream} is resumed\n"
    assert run(broker, "sub", stream, "--partition", "1") == "two\n"
    assert answer(broker, "stream", "readonly", stream) == {"readonly": stream, "partitions": []}
    assert "readonly" in run(broker, "pub", stream, "x", code=1)
    followed = CliRunner().invoke(cli, ["sub", stream, "--follow", "--raw", "--server", broker.address])
    assert (followed.exit_code, sorted(followed.stdout.split())) == (0, ["one", "two"])
    assert "is read-only, and this was its end" in followed.stderr
    assert run(broker, "stream", "readonly", stream, "--off") == f"{stream} is writable\n"
    run(broker, "pub", stream, "x")
    for command in ("pause", "resume", "readonly"):
        assert f"no such stream: {stream}-x; `bascule stream list`" in run(
            broker, "stream", command, f"{stream}-x", code=1
        )
        assert "no such partition: 9" in run(broker, "stream", command, stream, "--partition", "9", code=1)


def test_holds_are_set_listed_and_removed(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream, "--partitions", "2")
    run(broker, "pub", stream, "--partition", "0", "one", "two", "three")
    assert (
        "has no holds" in CliRunner().invoke(cli, ["stream", "hold", "list", stream, "--server", broker.address]).stderr
    )
    assert run(broker, "stream", "hold", "set", stream, "archive") == (
        f"hold archive keeps {stream}/0 from offset 0 on\nhold archive keeps {stream}/1 from offset 0 on\n"
    )
    assert "name it with --partition" in run(
        broker, "stream", "hold", "set", stream, "archive", "--offset", "1", code=1
    )
    raised = ["stream", "hold", "set", stream, "archive", "--partition", "0", "--offset"]
    assert answer(broker, *raised, "2") == [{"partition": 0, "name": "archive", "offset": 2}]
    assert "never lowered" in run(broker, *raised, "1", code=1)
    assert "past the end of partition 0, which is 3" in run(broker, *raised, "4", code=1)
    first, second = answer(broker, "stream", "hold", "list", stream)
    assert (first["name"], first["offset"], first["held_messages"], second["offset"]) == ("archive", 2, 1, 0)
    assert first["held_bytes"] > 0
    assert first["age_seconds"] < 60
    lines = run(broker, "stream", "info", stream).splitlines()
    assert lines[4].split() == ["hold", "partition", "offset", "age", "messages", "bytes"]
    assert lines[5].split()[:3] == ["archive", "0", "2"]
    removed = answer(broker, "stream", "hold", "remove", stream, "archive")
    assert removed == {"removed": "archive", "partitions": [0, 1]}
    assert f"{stream} has no hold 'archive'" in run(broker, "stream", "hold", "remove", stream, "archive", code=1)


def test_settings_of_a_stream_are_altered(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream)
    assert run(broker, "stream", "alter", stream, "retention.max.age=90m", "compact.enabled=off") == (
        f"{stream} has now: retention.max.age=1h30m, compact.enabled=false, min.isr=1\n"
    )
    assert "settings: retention.max.age=1h30m, compact.enabled=false" in run(broker, "stream", "info", stream)
    told = answer(broker, "stream", "info", stream)["settings"]
    assert (told["retention_max_age"], told["compact_enabled"], told["segment_max_bytes"]) == (5_400_000, False, None)
    assert answer(broker, "stream", "alter", stream, "--reset", "retention.max.age", "segment.max.bytes=9") == {
        "segment.max.bytes": 9,
        "compact.enabled": False,
        "min.isr": 1,
    }
    assert "can never be met" in run(broker, "stream", "alter", stream, "min.isr=2", code=1)
    assert "there are retention.max.bytes" in run(broker, "stream", "alter", stream, "--reset", "colour", code=2)
    for wrong in ("soon", "3600", "-1s", "1us", ""):
        said = run(broker, "stream", "alter", stream, f"cleaner.interval={wrong}", code=2)
        assert f"{wrong!r} is no value of cleaner.interval: it is a time like 24h" in said
    for wrong in ("-1", "x", str(1 << 63)):
        assert "it is a number" in run(broker, "stream", "alter", stream, f"segment.max.bytes={wrong}", code=2)
    assert "it is true or false" in run(broker, "stream", "alter", stream, "compact.enabled=1", code=2)
    assert "encryption of a stream cannot be altered" in run(broker, "stream", "alter", stream, "encryption=on", code=2)
    assert "min.isr is given twice" in run(broker, "stream", "alter", stream, "min.isr=1", "min.isr=1", code=2)
    assert "is not SETTING=VALUE" in run(broker, "stream", "alter", stream, "min.isr", code=2)
    assert "nothing is to be changed" in run(broker, "stream", "alter", stream, code=2)
    assert f"no such stream: {stream}-x" in run(broker, "stream", "alter", f"{stream}-x", "--reset", "min.isr", code=1)


def test_a_stream_is_created_with_settings_of_its_own(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream, "retention.max.age=24h", "segment.max.bytes=9", "--min-isr", "1")
    assert "settings: retention.max.age=24h, segment.max.bytes=9" in run(broker, "stream", "info", stream)
    assert "not both" in run(broker, "stream", "create", f"{stream}-2", "--min-isr", "1", "min.isr=1", code=2)
    assert "can never be met" in run(broker, "stream", "create", f"{stream}-2", "min.isr=2", code=1)
    assert "there are retention.max.bytes" in run(broker, "stream", "create", f"{stream}-2", "colour=red", code=2)
    assert f"no such stream: {stream}-2" in run(broker, "stream", "info", f"{stream}-2", code=1)


def test_records_are_deleted_before_an_offset(broker: BrokerProcess, stream: str) -> None:
    run(broker, "stream", "create", stream)
    run(broker, "pub", stream, "one", "two", "three")
    command = ["stream", "delete-records", stream, "--partition", "0"]
    assert run(broker, *command, "--before", "2", "--dry-run") == (
        f"would delete offsets 0 to 1 of {stream}/0: it would begin at 2\n"
    )
    assert "past the end of partition 0, which is 3" in run(broker, *command, "--before", "4", code=1)
    run(broker, "stream", "hold", "set", stream, "archive", "--offset", "1")
    assert "hold 'archive' keeps partition 0 from offset 1 on" in run(broker, *command, "--before", "2", code=1)
    run(broker, "stream", "hold", "remove", stream, "archive")
    assert answer(broker, *command, "--before", "2") == {
        "partition": 0,
        "start": 2,
        "previous_start": 0,
        "deleted": 2,
        "dry_run": False,
    }
    assert run(broker, *command, "--before", "2") == f"{stream}/0 begins at offset 2: there is nothing to delete\n"
    assert run(broker, *command, "--expired") == f"{stream}/0 begins at offset 2: there is nothing to delete\n"
    assert "give either --before OFFSET or --expired" in run(broker, *command, code=2)
    assert run(broker, "sub", stream, "--raw", "--from", "earliest").splitlines() == ["three"]
