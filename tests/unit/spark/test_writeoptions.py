"""The options of a write: what is wrong is said by name, before anything is written."""

import pytest

from bascule.errors import InvalidArgument
from bascule.spark.writeoptions import write_options

ENOUGH = {"servers": "a:1", "stream": "orders"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"producerBatch": "1"}, '"producerId" names them all'),
        ({"producerId": "x", "producerBatch": "-1"}, 'the option "producerBatch" is a number from 0 on'),
        ({"producerId": "x", "producerBatch": str(1 << 63)}, 'the option "producerBatch" is a number from 0 on'),
    ],
)
def test_a_value_that_cannot_be_used_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        write_options(ENOUGH | given)


def test_a_batch_of_many_has_a_number() -> None:
    assert write_options(ENOUGH).producer_batch == 0
    options = write_options(ENOUGH | {"producerId": " load ", "producerBatch": "7"})
    assert (options.producer_id, options.producer_batch) == ("load", 7)


def test_columns_of_an_order_are_listed() -> None:
    assert write_options(ENOUGH).order_by == ()
    assert write_options(ENOUGH | {"orderBy": "id, at"}).order_by == ("id", "at")
