"""What producers may have stored in a partition, where it knows all of them, and where it forgets some."""

import pytest

from bascule.sim.history import Producer, Sent
from bascule.sim.sequences import Forgotten, Sequences
from bascule.sim.trace import Part

A, B, C = (Producer(name, id, 3) for id, name in enumerate("abc", 1))
PART = Part("numbered", 1, 0)


def wrong(sequences: Sequences, *records: tuple[Producer, int]) -> list[int]:
    """The numbers of the records that should not be there."""
    return [number for number, record in enumerate(records) if sequences.take(*record)]


def test_each_sequence_is_stored_once_in_its_order() -> None:
    assert wrong(Sequences(), (A, 0), (B, 0), (A, 1), (B, 1)) == []
    assert wrong(Sequences(), (A, 0), (A, 2)) == [1]
    assert wrong(Sequences(), (A, 0), (A, 1), (A, 1)) == [2]
    assert wrong(Sequences(), (A, 0), (A, 0)) == [1]


def test_an_epoch_begins_at_0_and_fences_those_before() -> None:
    later = A._replace(epoch=4)
    assert wrong(Sequences(), (A, 0), (later, 0), (later, 1)) == []
    assert wrong(Sequences(), (A, 0), (later, 1)) == [1]
    assert wrong(Sequences(), (A, 0), (later, 0), (A, 1)) == [2]


def test_where_records_are_missing_only_their_order_counts() -> None:
    assert wrong(Sequences(gaps=True), (A, 2), (A, 5)) == []
    assert wrong(Sequences(gaps=True), (A, 2), (A, 1)) == [1]
    assert wrong(Sequences(known=1, gaps=True), (A, 2), (A, 1)) == []


@pytest.mark.parametrize(("others", "may"), [([], False), ([B], False), ([B, B], False), ([B, C], True)])
def test_who_is_forgotten_begins_at_0_again(others: list[Producer], may: bool) -> None:
    """Two others are used before a partition may forget a producer."""
    between = [(each, sequence) for sequence, each in enumerate(others) if each is B]
    between += [(each, 0) for each in others if each is C]
    sequences = Sequences(known=2)
    assert wrong(sequences, (A, 0), (A, 1), *between) == []
    assert bool(sequences.take(A, 0)) != may
    assert not sequences.take(A, 1)


def test_who_is_forgotten_may_be_known_still() -> None:
    assert wrong(Sequences(known=1), (A, 0), (B, 0), (A, 1), (B, 2)) == [3]


def sent(serial: int, producer: Producer, offset: int = -1) -> Sent:
    made = Sent(b"m%d" % serial, b"", PART, "", serial, 0, producer=producer)
    if offset >= 0:
        made.stored[PART] = offset
    return made


def test_only_others_that_may_have_been_used_since_are_a_reason_to_forget() -> None:
    messages = [sent(0, B, 0), sent(1, A, 1), sent(2, B, 2), sent(3, C, 3), sent(4, A, 4), sent(5, C)]
    names = {message.stored[PART]: message for message in messages if message.stored}
    refused = sent(6, A)
    assert Forgotten(refused, acked=1, serial=7).others(names, messages) == 2
    assert Forgotten(refused, acked=4, serial=7).others(names, messages) == 1  # its message may have been truncated
    assert Forgotten(refused, acked=4, serial=5).others(names, messages) == 0  # it was sent later
