"""What a command says when it fails: one line, and what to do."""

import pytest
from click.testing import CliRunner

from bascule.cli.output import CommandFailed, reported
from bascule.cli.up import up
from bascule.client.failures import NO_METADATA_LEADER
from bascule.errors import Internal, NotFound


def test_texts_of_the_go_server_get_a_hint() -> None:
    for text in (NO_METADATA_LEADER, "context deadline exceeded"):
        with pytest.raises(CommandFailed, match=f"^{text}: .*`bascule cluster status`"), reported():
            raise Internal(text)
    with pytest.raises(CommandFailed, match=r"^no such stream$"), reported():
        raise NotFound("no such stream")


def test_ports_behind_the_last_one_are_refused_before_anything_starts() -> None:
    result = CliRunner().invoke(up, ["--brokers", "3", "--port", "65534", "--data-dir", "unused"])
    assert result.exit_code == 1
    assert "3 brokers need the ports from 65534 on, and 65535 is the last one" in result.output
