"""The diagrams of docs/architecture.md show what the code does: no edge that never happens, none missing."""

import importlib
from collections import Counter

import pytest

from bascule.core.metadata import commands
from bascule.core.partition import follower, leader
from bascule.core.partition.roles import MOVES
from bascule.core.raft.state import Role
from bascule.core.replication import feed, fetcher
from tests.harness import machine_walks as walks
from tests.harness.broker_walks import Moment, log_edges, member_edges, role_edges, run_of_a_broker, way_of_a_message
from tests.harness.diagrams import ARCHITECTURE, Edge, Step, edges, headings_with_diagrams, rows, steps
from tests.harness.machine_walks import names_of
from tests.harness.metadata_walks import FIELDS, changed_fields
from tests.harness.replication_walks import feed_edges, fetcher_edges

CHECKED = {
    "The way of a replicated message",
    "The leader of a partition",
    "A follower of a partition",
    "Replication: the leading side",
    "Replication: the following side",
    "The in-sync set",
    "A replica's roles",
    "Raft",
    "Start and stop of a broker",
    "Who is alive",
    "Members",
}


def compare(drawn: list[Edge], happened: set[Edge]) -> None:
    assert {"never happens": set(drawn) - happened, "not drawn": happened - set(drawn)} == {
        "never happens": set(),
        "not drawn": set(),
    }


def test_every_diagram_is_checked_by_a_test_below() -> None:
    assert set(headings_with_diagrams()) == CHECKED | {"Imports"}  # which test_layers.py writes, and checks


def test_raft() -> None:
    drawn = edges("Raft")
    compare(drawn, {tuple(word.replace("-", "_") for word in edge) for edge in walks.raft_edges()})  # type: ignore[misc]
    assert {edge[0] for edge in drawn} == {role.value.replace("-", "_") for role in Role}


def with_silent(seen: set[Edge], events: object) -> set[Edge]:
    """Events that never have an effect are drawn too."""
    return seen | {(event, "", "nothing") for event in names_of(events) - {edge[0] for edge in seen}}


def test_the_leader_of_a_partition() -> None:
    drawn = edges("The leader of a partition")
    compare(drawn, with_silent(walks.leader_walks()[0], leader.Event))
    assert {edge[2] for edge in drawn} - {"nothing"} == names_of(leader.Effect)


def test_a_follower_of_a_partition() -> None:
    drawn = edges("A follower of a partition")
    seen, states = walks.follower_edges()
    compare(drawn, with_silent(seen, follower.Event))
    assert {edge[2] for edge in drawn} - {"nothing"} == names_of(follower.Effect)
    assert states == {("following", "Truncate", "truncating"), ("truncating", "Truncated", "following")}


def test_the_leading_side_of_replication() -> None:
    drawn = edges("Replication: the leading side")
    compare(drawn, with_silent(feed_edges(), feed.Event))
    assert {edge[2] for edge in drawn} - {"nothing"} == names_of(feed.Effect)


def test_the_following_side_of_replication() -> None:
    drawn = edges("Replication: the following side")
    compare(drawn, with_silent(fetcher_edges(), fetcher.Event))
    assert {edge[2] for edge in drawn} - {"nothing"} == names_of(fetcher.Effect)


def test_the_in_sync_set() -> None:
    compare(edges("The in-sync set"), walks.leader_walks()[1])


def test_who_is_alive() -> None:
    compare(edges("Who is alive"), walks.liveness_edges())


def test_metadata_commands() -> None:
    table = {row[0].strip("`"): {field.strip("` ") for field in row[2].split(",")} for row in rows("Metadata")}
    assert set(table) == names_of(commands.Command)
    assert set().union(*table.values()) <= set(FIELDS)
    assert table == changed_fields()


def test_the_roles_of_a_replica() -> None:
    drawn = edges("A replica's roles", 0)
    compare(drawn, role_edges())
    legal = {(source.value, target.value) for source, targets in MOVES.items() for target in targets}
    assert {(source.replace("_", " "), target.replace("_", " ")) for source, _, target in drawn} == legal


def test_the_log_of_a_replica() -> None:
    compare(edges("A replica's roles", 1), log_edges())


def test_members() -> None:
    compare(edges("Members"), member_edges())


def test_start_and_stop_of_a_broker() -> None:
    """Each run is a path through the diagram, from its start to its end, and no edge is left over."""
    drawn = {(source, cause): target for source, cause, target in edges("Start and stop of a broker")}
    walked = set()
    for majority in (True, False):
        place = "[*]"
        for cause in run_of_a_broker(majority=majority):
            assert (place, cause) in drawn, f"{cause} at {place}"
            walked.add((place, cause))
            place = drawn[place, cause]
        assert place == "[*]"
    assert set(drawn) == walked


def moment(step: Step) -> Moment:
    """A step is an event of the machine it leads to, or an effect of the one it comes from."""
    for who, module in (("leader", leader), ("follower", follower)):
        if step.target == who and step.name in names_of(module.Event):
            return who, step.name
        if step.source == who and step.name in names_of(module.Effect):
            return who, step.name
    raise AssertionError(f"{step} is no event and no effect")


@pytest.mark.parametrize("slow", ["the leader's disk", "the followers' disks"])
def test_the_way_of_a_replicated_message(slow: str) -> None:
    drawn = steps("The way of a replicated message")
    (block,) = {step.branch[0] for step in drawn if step.branch[1] >= 0}
    before = [moment(step) for step in drawn if step.branch[0] < block]
    after = [moment(step) for step in drawn if step.branch[0] > block]
    branches = [[moment(step) for step in drawn if step.branch == (block, part)] for part in range(2)]
    ways = way_of_a_message(slow_leader=slow == "the leader's disk")
    assert len(ways) == 2
    for way in ways.values():
        middle = way[len(before) : len(way) - len(after)]
        assert (way[: len(before)], way[len(way) - len(after) :]) == (before, after)
        assert Counter(middle) == Counter(branches[0] + branches[1])
        for branch in branches:
            assert [each for each in middle if each in branch] == branch


def test_timers() -> None:
    for where, value, _ in rows("Timers"):
        file, name = (word.strip("`") for word in where.split())
        module = importlib.import_module(f"bascule.{file.removesuffix('.py').replace('/', '.')}")
        assert getattr(module, name) == float(value), where


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    candidate --> leader: VoteReply", "    candidate --> leader: TimeoutNow"),
        ("    in --> asked_out: AskShrink", "    in --> asked_in: AskShrink"),
        ("    Failed -->|UNKNOWN for every pending ack| SendAcks\n", ""),
        ("| `isr`, `eligible`, `epoch` |", "| `isr`, `epoch` |"),
    ],
    ids=["another cause", "another state", "an edge less", "a field less"],
)
def test_a_wrong_diagram_is_found(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    text = ARCHITECTURE.read_text()
    assert old in text
    monkeypatch.setattr(type(ARCHITECTURE), "read_text", lambda self: text.replace(old, new, 1))
    found = 0
    for check in (test_raft, test_the_in_sync_set, test_the_leader_of_a_partition, test_metadata_commands):
        try:
            check()
        except AssertionError:
            found += 1
    assert found == 1
