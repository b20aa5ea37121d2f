"""Whose heartbeats arrive, and what a broker does about another one under its own id."""

import itertools

from bascule.limits import RAFT_MAX_SERVERS
from bascule.node.calls.calls import Calls
from bascule.node.calls.subjects import Subjects
from bascule.node.membership.activeclock import ActiveClock
from bascule.node.membership.peers import DOUBLES, HEARTBEAT_S, SESSION_S, Peer, Peers
from bascule.node.runtime.jobs import Jobs
from bascule.node.runtime.metrics import Metrics
from bascule.sim.host import SeededRandom
from bascule.testing.bus import MemoryNats
from bascule.wire.pb import internal_pb2 as pb
from tests.harness.clocks import Now


def make(now: Now) -> tuple[Peers, list[str]]:
    reasons: list[str] = []

    def describe(stopping: bool) -> Peer:
        return Peer("b0", "here", 1, "own-boot", 0, 0, stopping)

    bus = MemoryNats().connect("control")  # nothing arrives over it: the tests call the peers directly
    calls = Calls("b0", Subjects("ns"), bus, SeededRandom("b0"), Metrics())
    peers = Peers(calls, ActiveClock(now), describe, reasons.append, Jobs(reasons.append, Metrics()))
    peers._on_peer = lambda peer: None
    peers._started_at = now.ns
    return peers, reasons


beats = itertools.count(1)


def hear(peers: Peers, name: str, boot: str = "other-boot", beat: int = 0, hears: str = "own-boot") -> None:
    """A heartbeat, the next one if it has no number."""
    info = pb.ServerInfoResponse(id=name, host="there", port=2, boot=boot, beat=beat or next(beats), hears=hears)
    peers._on_heartbeat(info)


def beats_until_sure(peers: Peers, reasons: list[str], now: Now) -> int:
    for beat in range(1, 10 * DOUBLES):
        hear(peers, "b0")
        if reasons:
            return beat
        now.pass_s(HEARTBEAT_S)
    raise AssertionError("never sure")


def test_of_two_brokers_with_one_id_the_one_that_came_later_is_sure_first() -> None:
    now = Now()
    copy, copy_reasons = make(now)
    later = beats_until_sure(copy, copy_reasons, now)
    now = Now()
    original, original_reasons = make(now)
    now.pass_s(2 * SESSION_S)
    assert beats_until_sure(original, original_reasons, now) >= later + DOUBLES


def test_doubles_of_long_ago_do_not_count() -> None:
    now = Now()
    original, reasons = make(now)
    now.pass_s(2 * SESSION_S)
    for _ in range(4 * DOUBLES):
        hear(original, "b0")
        now.pass_s(2 * SESSION_S)
    assert reasons == []


def test_invented_brokers_are_forgotten_first() -> None:
    now = Now()
    peers, _ = make(now)
    for number in range(3 * RAFT_MAX_SERVERS):
        hear(peers, f"invented-{number}")
        if number % 100 == 0:
            hear(peers, "b1")
    assert len(peers._latest) == RAFT_MAX_SERVERS
    assert "b1" in [peer.id for peer in peers.alive()]


def test_late_heartbeats_of_an_earlier_boot_end_nobody() -> None:
    now = Now()
    peers, reasons = make(now)
    now.pass_s(2 * SESSION_S)
    for _ in range(10 * DOUBLES):
        hear(peers, "b0", "earlier-boot", hears="")
        now.pass_s(HEARTBEAT_S)
    assert reasons == []


def test_what_a_dead_broker_said_does_not_keep_it_alive() -> None:
    now = Now()
    peers, _ = make(now)
    for beat in range(1, 9):
        hear(peers, "b1", beat=beat)
    now.pass_s(2 * SESSION_S)
    for beat in range(1, 9):
        hear(peers, "b1", beat=beat)
    assert peers.alive() == []


def test_a_boot_that_another_one_followed_counts_again_only_if_it_sends_more_heartbeats() -> None:
    """It does if the other one was a copy that has ended."""
    now = Now()
    peers, _ = make(now)
    received: list[tuple[str, int]] = []
    peers._on_peer = lambda peer: received.append((peer.boot, peer.beat))
    for boot, beat in (("first", 7), ("second", 1), ("first", 6), ("first", 7), ("second", 2), ("first", 8)):
        hear(peers, "b1", boot, beat)
    assert received == [("first", 7), ("second", 1), ("second", 2), ("first", 8)]


def test_words_that_do_not_count_leave_nothing_behind() -> None:
    """Heartbeats are numbered from 1: who says 0, under ever new names, is nobody that would be forgotten one day."""
    peers, _ = make(Now())
    for number in range(3 * RAFT_MAX_SERVERS):
        info = pb.ServerInfoResponse(id=f"x{number}", host="there", port=2, boot="boot", beat=0)
        peers._on_heartbeat(info)
    assert peers.alive() == []
    assert len(peers._past) <= RAFT_MAX_SERVERS
