"""Which folders `bascule up` opens, and what it says of the others."""

import asyncio
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bascule.cli.output import CommandFailed
from bascule.cli.shape import check_shape
from bascule.cli.up import up


def broker(folder: Path) -> None:
    (folder / "raft").mkdir(parents=True)
    (folder / "raft" / "00000000000000000001.commands").write_bytes(b"x")


def test_a_new_folder_is_for_any_number(tmp_path: Path) -> None:
    for brokers in (1, 3):
        check_shape(tmp_path / "absent", brokers)
        check_shape(tmp_path, brokers)


def test_the_folder_of_one_broker_is_not_opened_as_a_cluster(tmp_path: Path) -> None:
    broker(tmp_path)
    check_shape(tmp_path, 1)
    with pytest.raises(CommandFailed, match=r"holds the data of one broker.*bascule up --data-dir"):
        check_shape(tmp_path, 3)


def test_the_folder_of_a_cluster_is_not_opened_as_one_broker_nor_as_fewer(tmp_path: Path) -> None:
    for name in "abc":
        broker(tmp_path / name)
    check_shape(tmp_path, 3)
    for brokers in (1, 2):
        with pytest.raises(
            CommandFailed, match=r"a cluster of 3 brokers \(a, b, c\).*bascule up --brokers 3 --data-dir"
        ):
            check_shape(tmp_path, brokers)


def test_a_folder_that_a_removed_broker_left_is_to_be_deleted(tmp_path: Path) -> None:
    for name in "abcd":
        broker(tmp_path / name)
    with pytest.raises(CommandFailed, match="`bascule cluster remove` took out leaves its folder behind: delete it"):
        check_shape(tmp_path, 3)
    with pytest.raises(CommandFailed) as refused:
        check_shape(tmp_path, 1)
    assert "delete" not in str(refused.value), "one broker would use none of these folders"
    shutil.rmtree(tmp_path / "d")
    check_shape(tmp_path, 3)


def test_a_cluster_without_one_in_the_middle_is_not_opened_without_its_last(tmp_path: Path) -> None:
    for name in "acd":
        broker(tmp_path / name)
    with pytest.raises(CommandFailed, match=r"a cluster of 3 brokers \(a, c, d\).*bascule up --brokers 4 --data-dir"):
        check_shape(tmp_path, 3)
    check_shape(tmp_path, 4)


def test_lost_disks_of_a_cluster_are_no_other_shape(tmp_path: Path) -> None:
    broker(tmp_path / "b")
    check_shape(tmp_path, 3)
    with pytest.raises(CommandFailed, match="bascule up --brokers 2"):
        check_shape(tmp_path, 1)


def through_the_command(monkeypatch: pytest.MonkeyPatch, *args: str) -> Result:
    """`bascule up`, which must not get as far as starting anything."""

    def started(*args: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(asyncio, "run", started)
    return CliRunner().invoke(up, [*args, "--port", "0"])


@pytest.mark.parametrize(
    ("there", "asked", "opens"),
    [("", "3", "bascule up --data-dir"), ("abc", "1", "bascule up --brokers 3 --data-dir")],
    ids=["one broker, three asked for", "three brokers, one asked for"],
)
def test_the_command_refuses_a_folder_of_another_shape_and_leaves_it_as_it_is(
    there: str, asked: str, opens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in [tmp_path / name for name in there] or [tmp_path]:
        broker(folder)
    before = sorted(tmp_path.rglob("*"))
    refused = through_the_command(monkeypatch, "--brokers", asked, "--data-dir", str(tmp_path))
    assert refused.exit_code == 1, refused.output
    assert "nothing was started" in refused.stderr
    assert f"{opens} {tmp_path}" in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_above_the_folder_of_one_broker_the_command_names_that_folder(tmp_path: Path) -> None:
    broker(tmp_path / "data")
    for brokers in (1, 2):
        with pytest.raises(CommandFailed, match=rf"a folder data with .*bascule up --data-dir {tmp_path}/data;"):
            check_shape(tmp_path, brokers)
