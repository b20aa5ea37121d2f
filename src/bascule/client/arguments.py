"""What a caller gives that cannot be meant: refused with a sentence, before anything is sent."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bascule.client.values import AckPolicy
from bascule.errors import InvalidArgument, OutOfRange


def check_stream(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgument(f"stream={name!r}: the name of a stream is text, as in 'orders'")


def check_streams(names: object) -> None:
    """A single name is iterable, too, letter by letter."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise InvalidArgument(f"streams={names!r}: give a list of names, as in ['orders']")


def check_partitions(partitions: object) -> None:
    if partitions != "all" and (isinstance(partitions, str) or not isinstance(partitions, Iterable)):
        raise InvalidArgument(f"partitions={partitions!r}: use 'all', or a list of numbers, as in [0]")


def check_seconds(**given: object) -> None:
    """By the names of the arguments."""
    for name, seconds in given.items():
        number = seconds if isinstance(seconds, int | float) and not isinstance(seconds, bool) else math.nan
        if math.isnan(number) or number < 0:
            raise InvalidArgument(f"{name}={seconds!r}: it is a number of seconds, 0 or more")


_MOST = 2**63 - 1  # no request can carry more


def check_at_least(least: int, **given: object) -> None:
    for name, number in given.items():
        try:
            fits = not isinstance(number, bool) and least <= operator.index(number) <= _MOST  # type: ignore[arg-type]
        except TypeError:
            fits = False
        if not fits:
            raise InvalidArgument(f"{name}={number!r}: it is a number, {least} or more")


def check_publish(stream: object, ack: object, expected_offset: object, timeout: object, retry_s: object) -> None:
    """What is given with each message: the usual is seen at once."""
    if (
        type(stream) is str
        and stream
        and type(ack) is AckPolicy
        and type(expected_offset) is int
        and type(timeout) is float
        and type(retry_s) is float
        and -1 <= expected_offset <= _MOST
        and timeout >= 0.0
        and retry_s >= 0.0
    ):
        return
    check_stream(stream)
    check_ack(ack)
    check_at_least(-1, expected_offset=expected_offset)  # another negative one would be no expectation either
    check_seconds(timeout=timeout, retry_s=retry_s)


def check_ack(ack: object) -> None:
    if not isinstance(ack, AckPolicy):
        raise InvalidArgument(f"ack={ack!r}: it is AckPolicy.ALL, AckPolicy.LEADER or AckPolicy.NONE")


def check_position(position: Mapping[Any, Any], streams: Sequence[str]) -> None:
    """A position of another shape would be read as one that names nothing: from the first message on."""
    for name, of in position.items():
        partitions = of.items() if isinstance(name, str) and isinstance(of, Mapping) else [(None, None)]
        for number, offset in partitions:
            if not (_is_number(number) and _is_number(offset) and not isinstance(offset, str)):
                raise InvalidArgument(
                    f"start={position!r}: a position is {{stream: {{partition: offset}}}}, as `position` of a reader "
                    f"has it: {{{streams[0]!r}: {{0: 1000}}}}"
                )
    if position and not any(stream in position for stream in streams):
        named = ", ".join(map(str, position))
        raise InvalidArgument(f"the position is of {named}, and {', '.join(streams)} is read: give that of this stream")


def check_named(position: Mapping[str, Mapping[Any, int]], stream: str, partitions: int) -> None:
    """OutOfRange if it names a partition that the stream has not: a stream does not lose any."""
    beyond = [
        int(number) for number, offset in position.get(stream, {}).items() if offset and int(number) >= partitions
    ]
    if beyond:
        raise OutOfRange(
            f"the position names partition {max(beyond)} of stream {stream}, which has {partitions}: it is of a stream "
            "that was deleted and made again, or of another cluster. Begin anew"
        )


def _is_number(value: object) -> bool:
    """From JSON the partitions come as text."""
    if isinstance(value, str):
        return value.isascii() and value.isdigit()
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0  # type: ignore[arg-type]
    except TypeError:
        return False
