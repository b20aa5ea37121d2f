"""The bytes of the file of promised ends."""

from bascule.log.endsfile import (
    Stored,
    decode,
    encode_batch,
    encode_begin,
    encode_drop,
    encode_log,
    whole_batches_end,
)

FIRST = Stored(1, promised=10, exposed=8, suspect=False, stale=False)
SECOND = Stored(2, promised=20, exposed=0, suspect=True, stale=True)
BEGIN = encode_batch([encode_begin(True, 7), encode_log(FIRST, "streams/a@1/0"), encode_log(SECOND, "raft")])


def test_what_was_written_is_read() -> None:
    found = decode(BEGIN)
    assert found.logs == {"streams/a@1/0": FIRST, "raft": SECOND}
    assert (found.generation, found.next_number, found.complete, found.whole) == (7, 3, True, True)


def test_later_entries_win_and_need_the_number_alone() -> None:
    grown = FIRST._replace(promised=11, exposed=11)
    assert decode(BEGIN + encode_batch([encode_log(grown, None)])).logs["streams/a@1/0"] == grown


def test_a_log_that_was_deleted_is_not_on_record_any_more_and_its_number_says_nothing() -> None:
    data = BEGIN + encode_batch([encode_drop(1)]) + encode_batch([encode_log(FIRST, None)])
    assert decode(data).logs == {"raft": SECOND}


def test_a_file_that_never_was_complete_says_so() -> None:
    found = decode(encode_batch([encode_begin(False, 7), encode_log(FIRST, "raft")]))
    assert (found.complete, found.whole, found.logs) == (False, True, {"raft": FIRST})
    assert (decode(b"").complete, decode(b"").whole) == (False, False)


def test_a_last_batch_truncated_anywhere_is_one_that_was_being_written() -> None:
    batch = encode_batch([encode_log(FIRST._replace(promised=99), None)])
    for length in range(1, len(batch)):
        found = decode(BEGIN + batch[:length])
        assert (found.logs["streams/a@1/0"], found.complete, found.whole) == (FIRST, True, False)
        assert whole_batches_end(BEGIN + batch[:length]) == len(BEGIN)


def test_a_bit_that_flipped_before_a_whole_batch_is_damage_and_what_follows_counts() -> None:
    middle = encode_batch([encode_log(FIRST._replace(promised=50), None)])
    last = encode_batch([encode_log(SECOND._replace(promised=60), None)])
    for position in range(len(middle)):
        harmed = bytearray(middle)
        harmed[position] ^= 1
        found = decode(BEGIN + bytes(harmed) + last)
        assert (found.complete, found.whole) == (False, False)
        assert (found.logs["streams/a@1/0"], found.logs["raft"].promised) == (FIRST, 60)
