"""`bascule pub`, `sub` and `up` as people run them: as processes, through pipes, with their exit codes."""

import json
import os
import re
import signal
import subprocess
import time
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from bascule.testing.processes import BrokerProcess, free_port, script
from tests.harness.command import running

TIMEOUT_S = 60.0
PATH = f"{script('bascule').parent}:{os.environ['PATH']}"


def bascule(
    broker: BrokerProcess | None, *args: str, stdin: bytes = b"", code: int = 0
) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "BASCULE_SERVER": broker.address} if broker else dict(os.environ)
    done = subprocess.run(
        [str(script("bascule")), *args], input=stdin, capture_output=True, env=env, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    return done


def objects(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_arguments_are_published_and_printed_in_order(broker: BrokerProcess, stream: str) -> None:
    done = bascule(broker, "pub", "--create", stream, "first", "zweite Nachricht: ü")
    assert (done.stdout, done.stderr.decode().strip()) == (b"", f"published 2 to {stream}")
    assert bascule(broker, "sub", stream).stdout.decode() == "first\nzweite Nachricht: ü\n"


def test_lines_of_stdin_are_published_each_as_it_is(broker: BrokerProcess, stream: str) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(20_000))
    bascule(broker, "pub", "--create", stream, stdin=lines + b"\r\nno end")
    assert bascule(broker, "sub", stream).stdout == lines + b"\nno end\n"


def test_json_tells_acks_in_the_order_of_the_input(broker: BrokerProcess, stream: str) -> None:
    acks = objects(bascule(broker, "pub", "--create", "--json", stream, stdin=b"a\n" * 500))
    assert acks == [{"stream": stream, "partition": 0, "offset": n, "index": n} for n in range(500)]


def test_json_shows_keys_headers_and_bytes_that_are_no_text(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, "--key", "k", "--header", "a=b=c", "--ack", "leader", "text")
    bascule(broker, "pub", stream, stdin=b"\xff\xfe\n")
    first, second = objects(bascule(broker, "sub", "--json", stream))
    assert (first["offset"], first["key"], first["value"], first["headers"]) == (0, "k", "text", {"a": "b=c"})
    assert (first["stream"], first["subject"], first["partition"]) == (stream, stream, 0)
    assert isinstance(first["timestamp"], int)
    assert "value" not in second
    assert second["value_base64"] == "//4="


def test_all_partitions_are_read_by_time_and_named(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "stream", "create", stream, "--partitions", "3")
    acks = objects(bascule(broker, "pub", "--json", stream, *map(str, range(9))))
    assert sorted(ack["partition"] for ack in acks) == [0, 0, 0, 1, 1, 1, 2, 2, 2], "without a key they are spread"
    bascule(broker, "pub", stream, "--partition", "1", "last")
    shown = [line.split(b"\t") for line in bascule(broker, "sub", stream).stdout.splitlines()]
    assert {int(value): int(partition) for partition, value in shown[:9]} == {
        ack["index"]: ack["partition"] for ack in acks
    }
    assert shown[9] == [b"1", b"last"]
    told = objects(bascule(broker, "sub", stream, "--json"))
    assert [each["timestamp"] for each in told] == sorted(each["timestamp"] for each in told)
    assert bascule(broker, "sub", stream, "--last", "1").stdout == b"1\tlast\n"
    assert bascule(broker, "sub", stream, "--last", "1", "--raw").stdout == b"last\n"
    assert bascule(broker, "sub", stream, "--partition", "1", "--last", "1").stdout == b"last\n"
    two = bascule(broker, "sub", stream, "--partition", "0", "--partition", "2").stdout.splitlines()
    assert {line[:2] for line in two} == {b"0\t", b"2\t"}
    assert b"no such partition: 3" in bascule(broker, "sub", stream, "--partition", "3", code=1).stderr
    late = bascule(broker, "sub", stream, "--from", "9")
    assert b"the newest offsets of its partitions are" in late.stderr
    assert b"nothing there yet" in bascule(broker, "sub", stream, "--from", "2099-01-01").stderr


def test_follow_shows_new_messages_of_all_partitions(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "stream", "create", stream, "--partitions", "3")
    bascule(broker, "pub", stream, "--partition", "2", "before")
    command = [str(script("bascule")), "sub", stream, "--follow", "--server", broker.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == b"2\tbefore\n"
            for partition in (1, 0, 2):
                bascule(broker, "pub", stream, "--partition", str(partition), "after")
                assert reader.stdout.readline() == b"%d\tafter\n" % partition
        finally:
            reader.kill()


def test_create_asks_only_whether_the_stream_is_there(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, "x")
    bascule(broker, "pub", "--create", "--replication-factor", "3", stream, "y")
    assert (
        b"replicationFactor"
        in bascule(broker, "pub", "--create", "--replication-factor", "3", f"{stream}-new", "y", code=1).stderr
    )


def on_terminal(broker: BrokerProcess, command: str) -> str:
    """What a terminal of 120 columns gets while the shell runs this."""
    env = {**os.environ, "BASCULE_SERVER": broker.address, "COLUMNS": "120", "TERM": "xterm", "PATH": PATH}
    ours, theirs = os.openpty()
    with subprocess.Popen(["bash", "-c", command], stdin=theirs, stdout=theirs, stderr=theirs, env=env) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # EIO: the last process has closed it
            pass
        finally:
            os.close(ours)
        assert process.wait(TIMEOUT_S) == 0, shown
    return shown.decode()


def test_escape_sequences_reach_no_terminal(broker: BrokerProcess, stream: str) -> None:
    value = b"\x1b]0;title\x07 red \x1b[31m \xc2\x9b31m\r tab\t."
    bascule(broker, "pub", "--create", stream, stdin=value + b"\n")
    shown = on_terminal(broker, f"bascule sub {stream}")
    assert shown == "\\x1b]0;title\\x07 red \\x1b[31m \\x9b31m\\x0d tab\t.\r\n"
    assert "\x1b" not in on_terminal(broker, f"bascule sub {stream} --json")
    assert bascule(broker, "sub", stream).stdout == value + b"\n"
    (told,) = objects(bascule(broker, "sub", stream, "--json"))
    assert told["value"] == value.decode()
    assert on_terminal(broker, f"bascule sub {stream} --raw").encode() == value + b"\r\n"


def test_a_file_gives_percentage_and_rate(broker: BrokerProcess, stream: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a line of a file\n" * 200_000)
    shown = on_terminal(broker, f"bascule pub --create {stream} < {tmp_path / 'lines'}")
    assert re.search(r"\d+ %", shown), shown
    assert re.search(r"published [\d,]+, [\d,]+/s", shown), shown
    assert f"published 200000 to {stream}" in shown
    shown = on_terminal(broker, f"seq 200000 | bascule pub {stream}")
    assert " %" not in shown, "nobody knows how long a pipe is"


def test_where_to_begin(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, *map(str, range(10)))
    assert bascule(broker, "sub", stream, "--last", "3").stdout == b"7\n8\n9\n"
    assert bascule(broker, "sub", stream, "--last", "99").stdout.startswith(b"0\n1\n")
    assert bascule(broker, "sub", stream, "--from", "8").stdout == b"8\n9\n"
    assert bascule(broker, "sub", stream, "--from", "latest").stdout == b"9\n"
    assert len(bascule(broker, "sub", stream, "--from", "2020-01-01").stdout.splitlines()) == 10
    assert b"nothing there yet" in bascule(broker, "sub", stream, "--from", "10").stderr
    assert b"--from both" in bascule(broker, "sub", stream, "--from", "1", "--last", "1", code=2).stderr
    assert b"neither earliest" in bascule(broker, "sub", stream, "--from", "noon", code=2).stderr


def test_an_empty_stream_says_so_and_ends(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, stdin=b"")
    done = bascule(broker, "sub", stream)
    assert done.stdout == b""
    assert b"is empty; --follow waits" in done.stderr


def test_follow_shows_what_arrives_until_it_is_interrupted(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, "before")
    command = [str(script("bascule")), "sub", stream, "--follow", "--server", broker.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        try:
            assert reader.stdout.readline() == b"before\n"
            bascule(broker, "pub", stream, "after")
            assert reader.stdout.readline() == b"after\n"
            reader.send_signal(signal.SIGINT)
            out, err = reader.communicate(timeout=TIMEOUT_S)
            assert (reader.returncode, out, err) == (130, b"", b"")
        finally:
            reader.kill()


def test_a_reader_that_has_enough_ends_it_quietly(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, stdin=b"line\n" * 100_000)
    command = [str(script("bascule")), "sub", stream, "--server", broker.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        try:
            assert reader.stdout.readline() == b"line\n"
            reader.stdout.close()
            assert reader.stderr.read() == b""
            assert reader.wait(TIMEOUT_S) == 0
        finally:
            reader.kill()


def test_an_interrupt_ends_publishing_at_once_though_stdin_is_open(broker: BrokerProcess, stream: str) -> None:
    command = [str(script("bascule")), "pub", "--create", "--json", stream, "--server", broker.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            writer.stdin.write(b"line\n")
            writer.stdin.flush()
            assert writer.stdout.readline()
            writer.send_signal(signal.SIGINT)
            assert writer.wait(TIMEOUT_S) == 130
            assert writer.stderr is not None
            assert writer.stderr.read().startswith(b"interrupted: 1 messages are confirmed")
        finally:
            writer.kill()


def test_lines_are_published_as_they_come(broker: BrokerProcess, stream: str) -> None:
    command = [str(script("bascule")), "pub", "--create", "--json", stream, "--server", broker.address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        try:
            for number in range(3):
                writer.stdin.write(b"line\n")
                writer.stdin.flush()
                assert json.loads(writer.stdout.readline())["offset"] == number
            writer.stdin.close()
            assert writer.wait(TIMEOUT_S) == 0
        finally:
            writer.kill()


def test_a_missing_stream_is_one_line_with_the_next_step(broker: BrokerProcess, stream: str) -> None:
    error = bascule(broker, "pub", stream, "x", code=1).stderr.decode()
    assert error == f"error: no such stream: {stream}; `--create` creates it\n"
    error = bascule(broker, "sub", stream, code=1).stderr.decode()
    assert error == f"error: no such stream: {stream}; `bascule pub --create {stream} hello` makes one\n"


def test_no_broker_is_one_line_with_the_next_step() -> None:
    error = bascule(None, "sub", "s", "--server", f"127.0.0.1:{free_port()}", code=1).stderr.decode()
    assert len(error.splitlines()) == 1
    assert "connection refused" in error
    assert error.count("127.0.0.1") == 1
    assert "`bascule up` starts one" in error


def test_a_time_after_the_newest_message_is_no_error(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, "x")
    done = bascule(broker, "sub", stream, "--from", "2099-01-01T00:00:00")
    assert done.stdout == b""
    assert b"has nothing there yet" in done.stderr


def test_a_refused_message_says_what_became_of_the_others(broker: BrokerProcess, stream: str) -> None:
    lines = b"before\n" + b"x" * 1_100_000 + b"\nafter\n"
    error = bascule(broker, "pub", "--create", stream, stdin=lines, code=1).stderr.decode()
    confirmed = int(error.split("(")[1].split()[0])
    assert error.startswith("error: message 1 was refused")
    assert confirmed == 2 or "may be stored or not" in error


def test_without_acks_nothing_is_called_published(broker: BrokerProcess, stream: str) -> None:
    bascule(broker, "pub", "--create", stream, "x")
    assert b"nothing is confirmed" in bascule(broker, "pub", stream, "--ack", "none", "y").stderr


def test_a_name_that_is_no_subject_is_explained(broker: BrokerProcess) -> None:
    assert b"cannot contain blanks" in bascule(broker, "pub", "--create", "two words", "x", code=1).stderr


def test_a_header_without_a_value_is_wrong_usage(broker: BrokerProcess, stream: str) -> None:
    assert b"NAME=VALUE" in bascule(broker, "pub", stream, "x", "--header", "a", code=2).stderr


@pytest.mark.parametrize("command", ["pub", "sub", "up"])
def test_help_has_an_example(command: str) -> None:
    assert f"bascule {command} " in bascule(None, command, "--help").stdout.decode().partition("Examples:")[2] + " "


def test_up_runs_nats_and_a_broker_and_keeps_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    ports = ["--port", str(free_port()), "--nats-port", str(free_port())]
    command = [str(script("bascule")), "up", "--json", "--data-dir", str(data), *ports]
    for expected in (b"hello\n", b"hello\nhello\n"):
        with running(command) as up:
            assert up.stdout is not None
            info = json.loads(up.stdout.readline())
            assert info["address"] == f"127.0.0.1:{ports[1]}"
            assert urllib.parse.urlsplit(info["nats_url"]).port == int(ports[3])
            assert info["data_dir"] == str(data)
            bascule(None, "pub", "--create", "s", "hello", "--server", info["address"])
            assert bascule(None, "sub", "s", "--server", info["address"]).stdout == expected


def test_up_tells_people_what_to_try_next(tmp_path: Path) -> None:
    port = str(free_port())
    command = [str(script("bascule")), "up", "-d", str(tmp_path / "d"), "-p", port, "--nats-port", str(free_port())]
    with running(command) as up:
        assert up.stderr is not None
        lines = [up.stderr.readline().decode() for _ in range(7)]
        assert f"Data in {tmp_path / 'd'}" in lines[0]
        assert f"bascule pub --server 127.0.0.1:{port} --create hello 'first message'" in lines[4]


def test_up_ends_with_its_terminal_unless_nohup_keeps_it(tmp_path: Path) -> None:
    """SIGHUP was ignored: NATS and the broker ran on, unseen, with the ports and the folder."""
    ports = ["--port", str(free_port()), "--nats-port", str(free_port())]
    command = [str(script("bascule")), "up", "--json", "--data-dir", str(tmp_path / "data"), *ports]
    with running(["nohup", *command]) as up:
        assert up.stdout is not None
        up.stdout.readline()
        up.send_signal(signal.SIGHUP)
        time.sleep(1.0)
        assert up.poll() is None
    with running(command) as up:
        assert up.stdout is not None
        up.stdout.readline()
        up.send_signal(signal.SIGHUP)
        assert up.wait(TIMEOUT_S) == 0
    assert (tmp_path / "data" / "clean-shutdown").exists()
