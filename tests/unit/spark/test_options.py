"""The options of a read: what is wrong is said by name, before anything is read."""

from datetime import UTC, datetime

import pytest

from bascule.errors import InvalidArgument
from bascule.spark.columns import chosen
from bascule.spark.options import OPTIONS, Bound, check_use, read_options
from bascule.spark.optionvalues import Tls

ENOUGH = {"servers": "a:1, b:2", "streams": "orders,orders , other"}


def test_lists_are_split_and_names_are_taken_in_any_case() -> None:
    options = read_options({"SERVERS": "a:1, b:2", "streams": "orders,orders , other", "minpartitions": "7"})
    assert (options.servers, options.streams, options.min_partitions) == (("a:1", "b:2"), ("orders", "other"), 7)
    assert (options.start, options.end, options.fail_on_loss, options.headers) == (None, None, True, False)


def test_headers_come_beside_the_columns_that_are_chosen() -> None:
    assert chosen(("value", "key"), headers=True) == ("value", "key", "headers")
    assert chosen(("headers", "value"), headers=True) == ("headers", "value")
    assert chosen(("value",), headers=False) == ("value",)


def test_positions_are_words_offsets_or_times() -> None:
    def start(**given: str) -> Bound | None:
        return read_options({**ENOUGH, **given}).start

    assert start(startingOffsets="Latest") == Bound("latest")
    assert start(startingOffsets='{"orders": {"0": 17, "1": -2}}') == Bound("offsets", {"orders": {0: 17, 1: -2}})
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00:00Z", "2026-01-31 12:00", "2026-01-31T13:00:00+01:00", "1769860800000"):
        assert start(startingTimestamp=text) == Bound("timestamp", timestamp=noon), text


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("startingOfsets", "3", 'has no option "startingOfsets": did you mean startingOffsets?'),
        ("xyz", "blue", "there are servers, streams"),
        ("startingOffsets", "3", r"is earliest, latest, or JSON such as .* not \'3\'"),
        ("startingOffsets", '{"orders": 3}', "JSON such as"),
        ("startingOffsets", '{"orders": {"0": -3}}', "JSON such as"),
        ("startingOffsets", '{"orders": {"x": 1}}', "JSON such as"),
        ("startingOffsets", '{"orders": {"0": true}}', "JSON such as"),
        ("startingTimestamp", "yesterday", "a time such as 2026-01-31T12:00:00Z"),
        ("startingTimestamp", "9" * 30, "a time such as"),
        ("maxOffsetsPerTrigger", "0", "a number from 1 on, not '0'"),
        ("maxOffsetsPerTrigger", "many", "a number from 1 on"),
        ("maxTriggerDelay", "15m", '"maxTriggerDelay" is for "minOffsetsPerTrigger": give both'),
        ("maxBytesPerTrigger", "64kk", "a number of bytes such as 500000, 64k, 256m or 2g, not '64kk'"),
        ("maxBytesPerTrigger", "0", "a number of bytes such as"),
        ("pausedPartitions", "ignore", "is fail, resume or skip, not 'ignore'"),
        ("quarantine", "s3a://bucket/q", "is a whole path, such as /shared/quarantine, of a disk that all executors"),
        ("quarantine", "file://host/q", "is a whole path"),
        ("quarantine", "folder/q", "is a whole path"),
        ("readFromReplicas", "2", "is true or false, not '2'"),
        ("startingOffsets", '{"ordres": {"0": 1}}', '"startingOffsets" names stream ordres, which "streams" does not'),
        ("failOnDataLoss", "maybe", "is true or false, not 'maybe'"),
        ("tlsCert", "c.pem", 'both options "tlsCert" and "tlsKey"'),
        ("streamPattern", "a.*", 'either the option "streams" or "streamPattern"'),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(name: str, value: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        read_options({**ENOUGH, name: value})


def test_what_is_missing_or_contradicts_is_told() -> None:
    with pytest.raises(InvalidArgument, match=r'"servers" is missing: .option\("servers"'):
        read_options({"streams": "a"})
    with pytest.raises(InvalidArgument, match="either the option"):
        read_options({"servers": "a"})
    with pytest.raises(InvalidArgument, match="no regular expression"):
        read_options({"servers": "a", "streamPattern": "("})
    with pytest.raises(InvalidArgument, match="is a time such as 30s or 15m, not 'soon'"):
        read_options({**ENOUGH, "minOffsetsPerTrigger": "1", "maxTriggerDelay": "soon"})
    with pytest.raises(InvalidArgument, match='"minOffsetsPerTrigger" is 5, more than "maxOffsetsPerTrigger", 4'):
        read_options({**ENOUGH, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"})
    with pytest.raises(InvalidArgument, match='"startingTimestamp" is after "endingTimestamp"'):
        read_options({**ENOUGH, "startingTimestamp": "2", "endingTimestamp": "1"})
    before = {"startingOffsets": '{"orders": {"0": 9}}', "endingOffsets": '{"orders": {"0": 8}}'}
    with pytest.raises(InvalidArgument, match='names offset 9 of orders/0, and "endingOffsets" 8, which is before'):
        read_options({**ENOUGH, **before})
    read_options({**ENOUGH, **before, "endingOffsets": '{"orders": {"0": -1}}'})
    with pytest.raises(InvalidArgument, match='either the option "endingOffsets" or "endingTimestamp"'):
        read_options({**ENOUGH, "endingOffsets": "latest", "endingTimestamp": "0"})


def test_an_option_that_would_not_be_looked_at_is_refused() -> None:
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "cursor"):
        check_use({**ENOUGH, name: "1"}, stream=True)
        with pytest.raises(InvalidArgument, match=f'the option "{name}" is for streams: a batch'):
            check_use({**ENOUGH, name: "1"}, stream=False)
    for name in ("endingOffsets", "endingTimestamp"):
        check_use({**ENOUGH, name: "1"}, stream=False)
        with pytest.raises(InvalidArgument, match=f'the option "{name}" is for batches: a stream has no end'):
            check_use({**ENOUGH, name: "1"}, stream=True)


@pytest.mark.parametrize(("text", "size"), [("500000", 500_000), ("64k", 65_536), ("2 MB", 2 << 20), ("1g", 1 << 30)])
def test_sizes_have_units(text: str, size: int) -> None:
    assert read_options({**ENOUGH, "maxBytesPerTrigger": text}).max_bytes == size


def test_delays_and_tls() -> None:
    delays = {"minOffsetsPerTrigger": "1", "maxTriggerDelay": "1.5m"}
    options = read_options({**ENOUGH, **delays, "tlsCa": "ca", "tlsCert": "c", "tlsKey": "k"})
    assert (options.max_delay_s, options.tls) == (90.0, Tls("ca", "c", "k"))


def test_every_option_says_what_it_means() -> None:
    assert all(text.endswith(".") and len(text) > 20 for text in OPTIONS.values())
