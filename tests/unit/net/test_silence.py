"""When a peer counts as silent."""

from bascule.net.silence import Silence


def test_a_peer_that_sends_nothing_is_silent_for_longer_with_each_tick() -> None:
    silence = Silence()
    assert [silence.tick(1.0, 0) for _ in range(4)] == [0, 1, 2, 3]
    assert silence.tick(1.5, 0) == 0, "it has sent something"
    assert silence.tick(1.5, 0) == 1


def test_a_peer_that_takes_bytes_over_a_slow_link_is_not_silent() -> None:
    silence = Silence()
    silence.tick(1.0, 9_000)
    assert [silence.tick(1.0, unwritten) for unwritten in (6_000, 3_000, 0)] == [0, 0, 0]
    assert [silence.tick(1.0, unwritten) for unwritten in (0, 5_000, 5_000)] == [1, 2, 3], "what waits grows by itself"


def test_before_a_call_begins_nothing_is_expected() -> None:
    silence = Silence()
    for _ in range(3):
        silence.tick(1.0, 0)
    silence.begin()
    assert silence.tick(1.0, 0) == 1
