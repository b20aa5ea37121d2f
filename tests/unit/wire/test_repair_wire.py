"""What replicas say about their logs arrives whole or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bascule.errors import PeerError
from bascule.wire.repair import (
    LogAnswer,
    LogEnd,
    Question,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)

u64 = st.integers(0, (1 << 64) - 1)
questions = st.builds(Question, u64, st.integers(0, (1 << 32) - 1), u64, u64, u64, st.text(max_size=20))
answers = st.builds(LogAnswer, st.booleans(), st.booleans(), st.builds(LogEnd, u64, u64), u64, st.binary(max_size=100))


@given(questions, answers)
def test_what_is_encoded_is_what_is_decoded(question: Question, told: LogAnswer) -> None:
    assert decode_question(encode_question(question)) == question
    assert decode_answer(encode_answer(told)) == told


@given(questions, answers, st.integers(0, 1 << 16))
def test_a_flipped_bit_or_a_truncation_is_noticed(question: Question, told: LogAnswer, where: int) -> None:
    for data, decode in ((encode_question(question), decode_question), (encode_answer(told), decode_answer)):
        flipped = bytearray(data)
        flipped[where % len(data)] ^= 1 << where % 8
        for wrong in (bytes(flipped), data[: where % len(data)]):
            with pytest.raises(PeerError):
                decode(wrong)


def test_the_fuller_log_has_the_larger_end() -> None:
    assert LogEnd(2, 5) > LogEnd(1, 9)
    assert LogEnd(2, 6) > LogEnd(2, 5)
