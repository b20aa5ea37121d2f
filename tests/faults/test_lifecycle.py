"""Start and stop of a real server process: how it stops, what a start refuses, and what a restart keeps."""

import os
import queue
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from bascule.limits import NATS_START_TIMEOUT_S
from bascule.testing.processes import HOST, BrokerProcess, free_port, poll, script, start_broker, start_nats
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2
from tests.harness.grpc_calls import (
    broker_id,
    create,
    delete,
    publish,
    status_of,
    stored,
    streams,
    values,
    watch_health,
)
from tests.harness.paths import ROOT
from tests.harness.stub import Stub

START_LIMIT_S = 60.0
OUTSTANDING = 50


def refused_start(*args: str, env: dict[str, str] | None = None) -> list[str]:
    """The lines of a start that must fail with exit code 1, without a traceback. The last one is the error."""
    command = [str(script("bascule")), "server", "-l", "error", *args]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=START_LIMIT_S, env={**os.environ, **(env or {})}, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("error: ")
    assert "Traceback" not in done.stderr
    return lines


def the_line(*args: str, env: dict[str, str] | None = None) -> str:
    """The same, if the error is all that it says."""
    (line,) = refused_start(*args, env=env)
    return line


def seeded(folder: Path) -> list[str]:
    """A start that would work, on a NATS server of its own."""
    config = folder / "own-nats.conf"
    config.write_text(f"host: 127.0.0.1\nport: {free_port()}\n")
    return ["-d", str(folder / "data"), "-p", "0", "--raft-bootstrap-seed", "--embedded-nats-config", str(config)]


def refused_again(broker: BrokerProcess) -> list[str]:
    return refused_start(*broker.command[2:])


# --- stopping ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_says_so_acks_what_it_was_given_and_ends_subscribers_with_unavailable(
    tmp_path: Path, number: signal.Signals
) -> None:
    """NATS is held while the messages are on their way, so that all of them are outstanding when the signal comes."""
    with (
        start_nats(tmp_path) as nats,
        start_broker(tmp_path, nats_url=nats.nats_url) as broker,
        Stub(broker.address) as stub,
    ):
        create(stub, "orders")
        subscription = stub.Subscribe(api.SubscribeRequest(stream="orders"), timeout=60)
        assert next(subscription) == api.Message()
        health, whole_server = watch_health(stub), watch_health(stub, "")
        assert next(health).status == next(whole_server).status == health_pb2.HealthCheckResponse.SERVING
        requests: queue.Queue[api.PublishRequest] = queue.Queue()
        responses = stub.PublishAsync(iter(requests.get, None), timeout=60)
        requests.put(api.PublishRequest(stream="orders", value=b"first", ackPolicy=api.ALL))
        assert next(responses).ack.offset == 0

        nats.pause()
        for index in range(OUTSTANDING):
            request = api.PublishRequest(
                stream="orders", value=b"%d" % index, correlationId=str(index), ackPolicy=api.ALL
            )
            requests.put(request)
        # A refusal does not need NATS, and comes after all that was sent before it on the same call.
        requests.put(api.PublishRequest(stream="none", correlationId="last"))
        assert next(responses).correlationId == "last"
        os.kill(broker.pid, number)
        assert next(health).status == next(whole_server).status == health_pb2.HealthCheckResponse.NOT_SERVING
        nats.resume()

        acked = [next(responses).ack for _ in range(OUTSTANDING)]
        assert [(ack.correlationId, ack.offset) for ack in acked] == [(str(i), i + 1) for i in range(OUTSTANDING)]
        assert status_of(lambda: next(responses))[0] is grpc.StatusCode.UNAVAILABLE
        received = [next(subscription).value for _ in range(OUTSTANDING + 1)]
        assert received == [b"first", *(b"%d" % index for index in range(OUTSTANDING))]
        assert status_of(lambda: next(subscription))[0] is grpc.StatusCode.UNAVAILABLE
        assert broker.process is not None
        assert broker.process.wait(30) == 0, broker.log_tail()

        broker.start().wait_ready()
        assert values(stub, "orders") == received


def test_a_stop_does_not_wait_for_a_nats_server_that_is_gone(tmp_path: Path) -> None:
    with start_nats(tmp_path) as nats, start_broker(tmp_path, nats_url=nats.nats_url) as broker:
        nats.kill9()
        assert broker.terminate(timeout_s=30) == 0


def test_a_signal_ends_a_start_that_still_waits_for_nats(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, nats_url=f"nats://{HOST}:{free_port()}") as broker:
        broker.start()
        assert poll((broker.data_dir / "server").exists)
        begin = time.monotonic()
        assert broker.terminate() == 0
        assert time.monotonic() - begin < NATS_START_TIMEOUT_S / 2
        assert "stopped before it began to serve" in broker.logs()


def test_the_embedded_nats_server_ends_with_the_broker(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        for number in (signal.SIGTERM, signal.SIGKILL):
            (child,) = [item for item in psutil.Process(broker.pid).children() if item.name() == "nats-server"]
            os.kill(broker.pid, number)
            assert not psutil.wait_procs([child], timeout=30)[1]
            assert broker.process is not None
            broker.process.wait(30)
            broker.start().wait_ready()


# --- starts that are refused ------------------------------------------------------------------------------------------


def test_a_second_broker_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        line = the_line("-d", str(broker.data_dir), "-p", "0", "-n", broker.nats_url, "--raft-bootstrap-seed")
        assert str(broker.data_dir) in line
        assert f"another broker (process {broker.pid}) uses it" in line
        with Stub(broker.address) as stub:
            create(stub, "still-serving")


def test_a_port_in_use_is_refused_and_leaves_nothing_running(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        args = ["-d", str(tmp_path / "other"), "-p", str(broker.port), "-n", broker.nats_url, "--raft-bootstrap-seed"]
        line = the_line(*args, "--namespace", "another")
        assert f":{broker.port}: another program has the port" in line


@pytest.mark.parametrize("folder", ["/proc/bascule", "/proc/bascule/deeper/still", "/sys/bascule"])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, folder: str) -> None:
    args = seeded(tmp_path)
    args[1] = folder
    line = the_line(*args)
    assert f"data folder {folder}: cannot be written" in line
    assert "data.dir" in line


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o500)
    if os.access(folder, os.W_OK):
        pytest.skip("this user may write everywhere")
    assert "cannot be written" in the_line(*seeded(tmp_path))


@pytest.mark.parametrize("below", ["", "/deeper"])
def test_a_file_in_place_of_the_folder_is_refused_and_stays(tmp_path: Path, below: str) -> None:
    file = tmp_path / "file"
    file.write_text("precious")
    args = seeded(tmp_path)
    args[1] = f"{file}{below}"
    assert "not a folder" in the_line(*args)
    assert file.read_text() == "precious"


def test_no_nats_server_in_time_is_refused(tmp_path: Path) -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    line = the_line("-d", str(tmp_path / "data"), "-p", "0", "-n", url, "--raft-bootstrap-seed")
    assert "no NATS server within 10 s" in line
    assert url.removeprefix("nats://") in line
    assert "--embedded-nats" in line


def test_wrong_nats_credentials_are_refused_at_once_and_never_printed(tmp_path: Path) -> None:
    nats_port = free_port()
    config = tmp_path / "nats.conf"
    config.write_text(f"host: 127.0.0.1\nport: {nats_port}\nauthorization {{ user: broker, password: right }}\n")
    with start_nats(tmp_path, port=nats_port) as nats:
        nats.kill9()
        (tmp_path / "nats" / "nats.conf").write_text(config.read_text())
        nats.start().wait_ready()
        args = ["-d", str(tmp_path / "data"), "-p", "0", "-n", nats.nats_url, "--raft-bootstrap-seed"]
        wrong = {"LIFTBRIDGE_NATS_USER": "broker", "LIFTBRIDGE_NATS_PASSWORD": "sesame"}
        line = the_line(*args, env=wrong)
        assert "refused our credentials" in line
        assert "check nats.user and nats.password" in line
        assert "sesame" not in line
        assert "it wants credentials; set nats.user and nats.password" in the_line(*args)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"port: [", "YAML"),
        (b"\xff\xfe\x00", "text"),
        (b"prot: 9292\n", "port"),
        (b"batch.max.messages: many\n", "batch.max.messages"),
        (b"- a\n- list\n", "settings"),
    ],
)
def test_a_corrupt_configuration_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    config = tmp_path / "bascule.yaml"
    config.write_bytes(content)
    assert told in the_line(*seeded(tmp_path), "-c", str(config))


def test_a_new_folder_without_a_seed_waits_and_says_for_whom(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker", seed=False) as process:
        process.start()
        assert poll(lambda: "no controller answers in namespace liftbridge-default" in process.logs())
        assert process.running
        assert "--raft-bootstrap-seed" not in process.logs(), "there may be a cluster that is away"
        process.terminate()
        assert process.exit_code == 0


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path) as process:
        yield process


@pytest.fixture
def stub(broker: BrokerProcess) -> Iterator[Stub]:
    with Stub(broker.address) as stub:
        yield stub


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b"something else entirely, and rather longer than before"])
def test_a_damaged_id_file_is_refused_and_nothing_is_deleted(broker: BrokerProcess, stub: Stub, damage: bytes) -> None:
    create(stub, "orders")
    publish(stub, "orders")
    name = broker_id(stub)
    broker.terminate()
    good = (broker.data_dir / "server").read_bytes()
    (broker.data_dir / "server").write_bytes(damage)
    before = everything(broker.data_dir)
    line = refused_again(broker)[-1]
    assert "restore it from a copy" in line
    assert "clustering.server.id" in line
    after = everything(broker.data_dir)
    assert {**before, "lock": b""} == {**after, "lock": b""}

    (broker.data_dir / "server").unlink()
    assert "is missing" in refused_again(broker)[-1], "a broker without its id must not take a new one"
    broker.env["LIFTBRIDGE_CLUSTERING_SERVER_ID"] = name  # the way out that the line names
    broker.start().wait_ready()
    assert values(stub, "orders") == [b"v"]
    assert (broker.data_dir / "server").read_bytes() == good


def test_damaged_metadata_is_refused_with_a_way_out_and_nothing_is_deleted(broker: BrokerProcess, stub: Stub) -> None:
    for name in ("first", "second", "third"):
        create(stub, name)
    publish(stub, "second", b"kept")
    broker.terminate()
    (commands,) = (broker.data_dir / "raft").glob("*.commands")
    good = commands.read_bytes()
    damaged = bytearray(good)
    damaged[len(good) // 2] ^= 1
    commands.write_bytes(damaged)
    before = everything(broker.data_dir)
    line = refused_again(broker)[-1]
    assert "restore the folder raft from a copy" in line
    assert {**before, "lock": b""} == {**everything(broker.data_dir), "lock": b""}
    commands.write_bytes(good)
    broker.start().wait_ready()
    assert streams(stub) == ["first", "second", "third"]
    assert values(stub, "second") == [b"kept"]


def test_the_id_is_stored_and_wins_over_the_configuration(broker: BrokerProcess, stub: Stub) -> None:
    create(stub, "orders")
    publish(stub, "orders")
    name = broker_id(stub)
    broker.terminate()
    broker.env["LIFTBRIDGE_CLUSTERING_SERVER_ID"] = "another"
    broker.start().wait_ready()
    assert broker_id(stub) == name
    assert f"clustering.server.id is another, but this data folder belongs to broker {name}" in broker.logs()
    assert values(stub, "orders") == [b"v"]


def test_a_configured_id_is_used_for_a_new_folder_and_no_seed_is_needed_later(tmp_path: Path) -> None:
    with start_broker(tmp_path, config={"clustering.server.id": "chosen"}) as broker, Stub(broker.address) as stub:
        assert broker_id(stub) == "chosen"
        broker.terminate()
        broker.command.remove("--raft-bootstrap-seed")
        broker.start().wait_ready()
        assert broker_id(stub) == "chosen"


def test_a_restart_keeps_streams_and_data_and_goes_on_after_them(broker: BrokerProcess, stub: Stub) -> None:
    create(stub, "orders", partitions=3)
    create(stub, "empty", subject="other.>")
    for partition in range(3):
        assert publish(stub, "orders", b"%d" % partition, partition=partition).offset == 0
    before = [stored(stub, "orders", partition) for partition in range(3)]
    for end in (broker.terminate, broker.kill9):
        end()
        broker.start().wait_ready()
        assert streams(stub) == ["empty", "orders"]
        assert [stored(stub, "orders", partition)[:1] for partition in range(3)] == before
        publish(stub, "orders", b"more")
    assert values(stub, "orders") == [b"0", b"more", b"more"]


def test_what_was_deleted_stays_so_and_what_was_created_again_keeps_its_own_data(
    broker: BrokerProcess, stub: Stub
) -> None:
    for name in ("gone", "again"):
        create(stub, name)
        publish(stub, name, b"old")
        delete(stub, name)
    create(stub, "again")
    publish(stub, "again", b"new")
    for end in (broker.terminate, broker.kill9):
        end()
        broker.start().wait_ready()
        assert streams(stub) == ["again"]
        assert values(stub, "again") == [b"new"]
        (folder,) = (broker.data_dir / "streams").iterdir()
        assert folder.name.startswith("again@")
    assert publish(stub, "again").offset == 1


# --- without compiled kernels -----------------------------------------------------------------------------------------


def test_the_pure_kernels_serve_and_the_start_says_that_they_do(tmp_path: Path) -> None:
    with start_broker(tmp_path, env={"BASCULE_KERNELS": "pure"}) as broker, Stub(broker.address) as stub:
        create(stub, "orders")
        assert publish(stub, "orders", b"pure").offset == 0
        assert values(stub, "orders") == [b"pure"]
        log = broker.logs()
        assert "kernels pure" in log
        assert "the kernels are in plain Python, many times slower" in log


@pytest.mark.parametrize(("required", "optional"), [("0", True), ("1", False)])
def test_a_failed_compiler_stops_a_release_build_only(required: str, optional: bool) -> None:
    """`pip install` falls back to the pure kernels by this flag; `make wheel` must not."""
    program = (
        "import setuptools; setuptools.setup = lambda **given: "
        "print([module.optional for module in given['ext_modules']]); import setup"
    )
    env = {**os.environ, "BASCULE_REQUIRE_KERNELS": required}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"[{optional}]"


def test_the_wheel_is_built_with_required_kernels() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(r"^wheel:.*\n\t.*BASCULE_REQUIRE_KERNELS=1", makefile, re.MULTILINE)
