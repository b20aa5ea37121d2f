"""How brokers find each other, as processes on one NATS server: founding, joining, and who is refused and why."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bascule.testing.probe import Answer, call
from bascule.testing.processes import HOST, BrokerProcess, NatsProcess, poll, script, start_broker, start_nats
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import health_pb2

UNAVAILABLE_WITHIN_S = 40.0
HEALTH = "/grpc.health.v1.Health/Check"


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsProcess]:
    with start_nats(tmp_path) as server:
        yield server


def broker(
    folder: Path, nats: NatsProcess, name: str, *, seed: bool = False, config: dict[str, object] | None = None
) -> BrokerProcess:
    """Not started yet."""
    settings = {"clustering.server.id": name, **(config or {})}
    return BrokerProcess(folder / name, nats_url=nats.nats_url, seed=seed, config=settings)


def ended(process: BrokerProcess) -> int | None:
    assert poll(lambda: not process.running, UNAVAILABLE_WITHIN_S), f"it runs still:\n{process.log_tail()}"
    return process.exit_code


def brokers_seen_by(process: BrokerProcess) -> list[str]:
    response = api.FetchMetadataResponse.FromString(call(HOST, process.port, "/proto.API/FetchMetadata", b"").message)
    return sorted(item.id for item in response.brokers)


def create(process: BrokerProcess, name: str, replication_factor: int = 1, timeout_s: float = 10.0) -> Answer:
    request = api.CreateStreamRequest(name=name, subject=name, replicationFactor=replication_factor)
    return call(HOST, process.port, "/proto.API/CreateStream", request.SerializeToString(), timeout_s)


def error_lines(process: BrokerProcess) -> list[str]:
    return [line for line in process.logs().splitlines() if "ERROR" in line or line.startswith(("Error", "bascule:"))]


def test_a_second_seed_is_refused_and_the_first_goes_on(tmp_path: Path, nats: NatsProcess) -> None:
    with start_broker(tmp_path, nats_url=nats.nats_url, name="a", config={"clustering.server.id": "a"}) as first:
        with broker(tmp_path, nats, "b", seed=True) as second:
            second.start()
            assert ended(second) == 1
            assert "two seeds in namespace liftbridge-default: broker a was started with" in second.logs()
            assert "Traceback" not in second.logs()
        assert create(first, "s").status == 0
        with broker(tmp_path, nats, "b") as third:
            third.start().wait_ready()
            assert brokers_seen_by(third) == ["a", "b"]


def test_of_two_seeds_started_together_one_founds_a_cluster_at_most(tmp_path: Path, nats: NatsProcess) -> None:
    with broker(tmp_path, nats, "a", seed=True) as a, broker(tmp_path, nats, "b", seed=True) as b:
        a.start()
        b.start()
        assert poll(lambda: not (a.running and b.running), UNAVAILABLE_WITHIN_S), "both founded a cluster"
        assert 1 in (a.exit_code, b.exit_code)
        assert "two seeds" in a.logs() + b.logs()


def test_a_broker_alone_that_receives_messages_of_another_cluster_stops(tmp_path: Path, nats: NatsProcess) -> None:
    """Founded while partitioned from each other: on one NATS server now."""
    with start_nats(tmp_path, name="elsewhere") as elsewhere, broker(tmp_path, elsewhere, "b", seed=True) as lonely:
        lonely.start().wait_ready()
        lonely.terminate()
    with broker(tmp_path, nats, "a", seed=True) as a, broker(tmp_path, nats, "b", seed=True) as b:
        a.start().wait_ready()
        assert create(a, "s").status == 0
        b.start()
        assert ended(b) == 1
        assert "of another cluster" in b.logs()
        assert "uses namespace liftbridge-default too" in b.logs()


def test_a_server_id_in_use_is_refused_and_its_owner_goes_on(tmp_path: Path, nats: NatsProcess) -> None:
    with start_broker(tmp_path, nats_url=nats.nats_url, name="a", config={"clustering.server.id": "a"}) as a:
        with broker(tmp_path / "other", nats, "a") as double:
            double.start()
            assert ended(double) == 1
            assert "a broker named a is in the cluster and alive" in double.logs()
            assert "clean shutdown could not be recorded" not in double.logs(), (
                "it closed its files before they were removed"
            )
            assert not double.data_dir.exists()
        assert create(a, "s").status == 0


def test_brokers_of_another_namespace_are_ignored(tmp_path: Path, nats: NatsProcess) -> None:
    ours = {"clustering.server.id": "a", "clustering.namespace": "ours"}
    theirs = {"clustering.server.id": "a", "clustering.namespace": "theirs"}
    with (
        start_broker(tmp_path, nats_url=nats.nats_url, name="ours", config=ours) as first,
        start_broker(tmp_path, nats_url=nats.nats_url, name="theirs", config=theirs) as second,
    ):
        assert create(first, "s").status == 0
        assert brokers_seen_by(first) == brokers_seen_by(second) == ["a"]
        assert create(second, "s").status == 0


def test_peers_started_one_after_the_other_found_one_cluster(tmp_path: Path, nats: NatsProcess) -> None:
    peers: dict[str, object] = {"clustering.raft.bootstrap.peers": ["a", "b", "c"]}
    with (
        broker(tmp_path, nats, "a", config=peers) as a,
        broker(tmp_path, nats, "b", config=peers) as b,
        broker(tmp_path, nats, "c", config=peers) as c,
    ):
        a.start()
        assert poll(lambda: "waiting to found a cluster" in a.logs())
        assert not (a.data_dir / "streams").exists()
        missing = "more than half of the peers a, b, c must be up, and these do not answer: b, c; start them"
        asked = call(HOST, a.port, "/proto.API/FetchMetadata", b"")
        assert asked.status == 14
        assert asked.text.startswith("waiting to found a cluster for ")
        assert asked.text.endswith(missing)
        health = health_pb2.HealthCheckResponse.FromString(call(HOST, a.port, HEALTH, b"").message)
        assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
        status = subprocess.run(
            [str(script("bascule")), "cluster", "status", "--server", a.address],
            capture_output=True,
            text=True,
            timeout=60.0,
            check=False,
        )
        assert status.returncode == 1
        waiting, error = status.stderr.splitlines()
        assert waiting.startswith("waiting to found a cluster for ")
        assert missing in error, "it may add how long nobody answered"
        b.start()
        c.start()
        for process in (a, b, c):
            process.wait_ready()
        assert poll(lambda: brokers_seen_by(a) == ["a", "b", "c"])
        assert poll(lambda: create(c, "s", 3).status in (0, 6))
        assert create(b, "s").text == "stream already exists"


def test_a_peer_nobody_knows_is_waited_for_and_a_majority_serves(tmp_path: Path, nats: NatsProcess) -> None:
    peers: dict[str, object] = {"clustering.raft.bootstrap.peers": ["a", "b", "nobody"]}
    with broker(tmp_path, nats, "a", config=peers) as a, broker(tmp_path, nats, "b", config=peers) as b:
        a.start()
        b.start()
        for process in (a, b):
            process.wait_ready()
        assert poll(lambda: create(b, "s", 2).status in (0, 6))


def test_no_more_voters_than_the_quorum_allows(tmp_path: Path, nats: NatsProcess) -> None:
    config: dict[str, object] = {"clustering.raft.max.quorum.size": 1}
    with (
        broker(tmp_path, nats, "a", seed=True, config=config) as a,
        broker(tmp_path, nats, "b", config=config) as b,
    ):
        a.start().wait_ready()
        b.start().wait_ready()
        assert create(b, "s", 2).status == 0
        b.kill9()
        assert create(a, "alone").status == 0, "b has no vote, so a decides without it"
