"""Producers in the metadata: an epoch is the index of its command, a name keeps its id, and names are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bascule.core.metadata.commands import InitProducer
from bascule.core.metadata.operations import Operation
from bascule.core.metadata.producers import NamedProducer, Producers
from bascule.core.metadata.state import Metadata, Rejected, Repeated
from bascule.errors import InvalidArgument, ResourceExhausted
from bascule.limits import MAX_PRODUCER_NAME_BYTES, PRODUCER_EXPIRY_NS

if TYPE_CHECKING:
    from _collections_abc import dict_items


def test_a_name_keeps_its_id_and_gets_a_higher_epoch() -> None:
    metadata = Metadata()
    metadata.apply(5, InitProducer("p", 100))
    metadata.apply(6, InitProducer("", 100))
    metadata.apply(7, InitProducer("q", 100))
    metadata.apply(8, InitProducer("p", 90))
    assert metadata.producers.named == {"p": NamedProducer(5, 8, 100), "q": NamedProducer(7, 7, 100)}
    assert Metadata.restore(metadata.snapshot()).producers.named == metadata.producers.named


def test_the_same_request_is_one_beginning() -> None:
    metadata = Metadata()
    once = InitProducer("p", 100, Operation("op", 1))
    assert metadata.apply(5, once) == []
    assert metadata.apply(6, once) == [Repeated(5)]
    assert metadata.producers.named["p"].epoch == 5


def test_names_are_bounded_and_those_that_were_not_used_for_long_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "most", 2)
    metadata = Metadata()
    metadata.apply(1, InitProducer("old", 100))
    metadata.apply(2, InitProducer("new", 200))
    full = 100 + PRODUCER_EXPIRY_NS
    with pytest.raises(ResourceExhausted, match="at most 2 producers with a name"):
        metadata.check(InitProducer("third", full))
    (refused,) = metadata.apply(3, InitProducer("third", full))
    assert isinstance(refused, Rejected)
    metadata.apply(4, InitProducer("", full))
    metadata.apply(5, InitProducer("old", full))
    assert metadata.producers.named["old"] == NamedProducer(1, 5, full)
    metadata.apply(6, InitProducer("third", 201 + PRODUCER_EXPIRY_NS))
    assert sorted(metadata.producers.named) == ["old", "third"]


class Counted(dict[str, NamedProducer]):
    """Counts how often somebody looks through all of it."""

    looks = 0

    def items(self) -> dict_items[str, NamedProducer]:
        self.looks += 1
        return super().items()


def test_names_are_not_looked_through_for_each_one_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Producers, "most", 100)
    metadata = Metadata()
    for number in range(100):
        metadata.apply(number + 1, InitProducer(f"name-{number}", 1000 - number))
    metadata.apply(200, InitProducer("name-99", 2000))  # it was the oldest one
    metadata.producers.named = counted = Counted(metadata.producers.named)
    for number in range(50):
        with pytest.raises(ResourceExhausted):
            metadata.check(InitProducer(f"another-{number}", 902 + PRODUCER_EXPIRY_NS))
    assert counted.looks <= 1
    metadata.check(InitProducer("another", 903 + PRODUCER_EXPIRY_NS))
    metadata.apply(201, InitProducer("another", 903 + PRODUCER_EXPIRY_NS))
    assert "name-98" not in metadata.producers.named
    assert len(metadata.producers.named) == 100


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        Metadata().check(InitProducer("é" * MAX_PRODUCER_NAME_BYTES))
