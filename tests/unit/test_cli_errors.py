"""What a command says when it fails: one line, and what to do."""

import pytest
from click.testing import CliRunner

from bascule.cli.cluster import _accepting
from bascule.cli.output import CommandFailed, reported
from bascule.cli.up import up
from bascule.client.failures import NO_METADATA_LEADER
from bascule.errors import Internal, NotFound
from bascule.wire.pb import admin_pb2 as admin


def test_texts_of_the_go_server_get_a_hint() -> None:
    for text in (NO_METADATA_LEADER, "context deadline exceeded"):
        with pytest.raises(CommandFailed, match=f"^{text}: .*`bascule cluster status`"), reported():
            raise Internal(text)
    with pytest.raises(CommandFailed, match=r"^no such stream$"), reported():
        raise NotFound("no such stream")


def test_the_command_that_accepts_a_loss_names_nobody_where_nobody_is_in_sync() -> None:
    """`--in-sync` without a name would take the next flag for one."""
    lost = admin.ElectLeaderResponse(leader="c")
    assert _accepting("s", 2, lost) == "bascule cluster elect s 2 --replica c --accept-loss"
    known = admin.ElectLeaderResponse(leader="c", inSync=["a", "b"], eligible=["d"])
    expected = "bascule cluster elect s 2 --replica c --in-sync a,b --eligible d --accept-loss"
    assert _accepting("s", 2, known) == expected


def test_ports_behind_the_last_one_are_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(up, ["--brokers", "3", "--port", "65534", "--data-dir", "unused"])
    assert result.exit_code == 1
    assert "3 brokers need the ports from 65534 on, and 65535 is the last one" in result.output
