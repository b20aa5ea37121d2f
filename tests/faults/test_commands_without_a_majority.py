"""What commands say to people when a majority of three real brokers is down: for whom the cluster waits, not that
streams do not exist or are well."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.harness.cluster_load import Brokers
from tests.harness.command import bascule


def test_nothing_is_called_well_or_missing_while_the_cluster_waits(tmp_path: Path) -> None:
    with Brokers(tmp_path, peers=True) as brokers:
        left = brokers["c"]
        server = ("--server", left.address)
        bascule("stream", "create", "s", "--replication-factor", "3", *server)
        bascule("pub", "s", "kept", *server)
        assert bascule("stream", "info", "s", *server).stdout.splitlines()[2].endswith("  ok")
        for name in "ab":
            brokers[name].kill9()
        state = bascule("stream", "info", "s", *server).stdout.splitlines()[2]
        assert state.endswith("  not known: no controller answers")

        left.kill9()
        left.start().wait_ready()
        commands = (("pub", "s", "x"), ("stream", "info", "s"), ("sub", "s"))
        with ThreadPoolExecutor() as pool:  # each waits a while
            answers = list(pool.map(lambda command: bascule(*command, *server, code=1).stderr, commands))
        for said in answers:
            assert "no such stream" not in said
            assert "2 of the voters a, b, c are needed, and these send no heartbeats: a, b; start more of them" in said

        brokers["a"].start()
        assert "kept" in bascule("sub", "s", *server).stdout
