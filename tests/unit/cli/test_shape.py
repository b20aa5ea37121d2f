"""Which folders `bascule up` opens, and what it says of the others."""

import shutil
from pathlib import Path

import pytest

from bascule.cli.output import CommandFailed
from bascule.cli.shape import check_shape


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
