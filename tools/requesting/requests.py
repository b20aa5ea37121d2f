"""Random requests, valid and invalid, made from the descriptors of their messages.

What a field may have follows from its name and its type: names of streams, groups, cursors and brokers are few, so that
requests meet each other and what a broker has to know stays bounded; numbers are small, or at an edge. What answers
have said (epochs, coordinators, offsets) is used in later requests. The stream of the load is in no request that could
change it, or write to it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tools.fuzzing.chance import Chance, bent
from tools.requesting.methods import Method

STREAMS = tuple(f"r{number}" for number in range(5))
OWN_STREAMS = ("__cursors", "__activity")
GROUPS = ("g0", "g1", "g2")
PARTITIONS = 4
MOST_PARTITIONS = 100
"""Of a stream that is created. Up to 10,000 are valid; a broker that grows to that has more memory than before, and the
question here is whether it needs ever more for the same."""

_SUBJECTS = (*(f"r.{number}" for number in range(4)), "r.*", "r.>", "r.0.1", "r.é")
_NAMES: dict[str, Sequence[str]] = {
    "stream": STREAMS,
    "streams": STREAMS,
    "name": STREAMS,
    "subject": _SUBJECTS,
    "group": ("", "", "balanced"),
    "groups": GROUPS,
    "groupid": GROUPS,
    "consumerid": ("c0", "c1", "c2", "c3"),
    "cursorid": ("k0", "k1", "k2", "k3"),
    "ackinbox": ("", "", "r.inbox"),
    "correlationid": ("", "mine"),
    "service": ("", "proto.API", "bascule.v1.Admin"),
}
_BROKERS = ("broker", "replica", "insync", "eligible", "coordinator")
_ODD_TEXTS = (
    "", " ", "*", ">.", ".", "..", "a b", "a..b", "../../x", "\x00", "\r\nPUB orders 0\r\n", "é" * 120, "\u202e",
    "x" * 201, "x" * 5_000, "nobody", "__", "-",
)  # fmt: skip
_LEARNED = ("epoch", "coordinator", "offset", "creation", "end", "start")
_WRAPPERS = ("NullableInt64", "NullableInt32", "NullableBool")
_HARMFUL = {("RemoveBroker", "broker"), ("DrainBroker", "stop"), ("RemoveBroker", "force")}
"""What takes a broker away for good; those stay unknown names, and false."""


class Requests:
    """Of one seed. `brokers` are the ids that exist, `load` the stream that nothing may change."""

    def __init__(self, chance: Chance, brokers: Sequence[str], load: str) -> None:
        self._chance = chance
        self._brokers = brokers
        self._load = load
        self._learned: dict[str, deque[Any]] = {name: deque(maxlen=12) for name in _LEARNED}

    def learn(self, answer: Message) -> None:
        """Take what an answer has for the fields of later requests."""
        for field, value in answer.ListFields():
            if field.type == field.TYPE_MESSAGE:
                if not _is_map(field):
                    for item in (value if field.is_repeated else [value])[:4]:
                        self.learn(item)
            elif (key := _learned_key(field.name)) and not field.is_repeated:
                self._learned[key].append(value)

    def make(self, method: Method) -> bytes:
        chance = self._chance
        kind = chance.randrange(20)
        if kind == 0:
            return chance.blob(80)
        message = method.request()
        self._fill(message, method, odd_one_in=0 if kind < 11 else chance.choice((3, 8)))
        data = message.SerializeToString()
        return bent(chance, data) if kind == 1 and not self._names_load(data) else data

    def _names_load(self, data: bytes) -> bool:
        return self._load.encode() in data

    def _fill(self, message: Message, method: Method, odd_one_in: int) -> None:
        for each in message.DESCRIPTOR.fields:
            field = cast(FieldDescriptor, each)
            if (method.name, field.name) in _HARMFUL:
                if field.type == field.TYPE_STRING:
                    setattr(message, field.name, self._chance.choice(_ODD_TEXTS))
            elif _is_map(field):
                self._fill_map(getattr(message, field.name))
            elif field.type == field.TYPE_MESSAGE:
                if not field.is_repeated and self._chance.one_in(8 if _is_wrapper(field) else 2):
                    inner = getattr(message, field.name)
                    inner.SetInParent()
                    self._fill(inner, method, odd_one_in)
                for _ in range(self._count(odd_one_in) if field.is_repeated else 0):
                    self._fill(getattr(message, field.name).add(), method, odd_one_in)
            elif field.is_repeated:
                values = [self._value(field, method, odd_one_in) for _ in range(self._count(odd_one_in))]
                getattr(message, field.name).extend(values)
            elif not self._chance.one_in(6):
                setattr(message, field.name, self._value(field, method, odd_one_in))

    def _count(self, odd_one_in: int) -> int:
        if odd_one_in and self._chance.one_in(20):
            return self._chance.choice((50, 2_000))
        return self._chance.choice((0, 0, 1, 1, 2))

    def _fill_map(self, entries: Any) -> None:
        for number in range(self._chance.choice((0, 0, 0, 1, 2))):
            entries[self._chance.choice(("subject", "h", "é", f"h{number}"))] = self._chance.blob(20)

    # --- one value ---------------------------------------------------------------------------------------------

    def _value(self, field: FieldDescriptor, method: Method, odd_one_in: int) -> Any:
        odd = bool(odd_one_in) and self._chance.one_in(odd_one_in)
        match field.type:
            case FieldDescriptor.TYPE_STRING:
                return self._text(field.name.lower(), method, odd)
            case FieldDescriptor.TYPE_BYTES:
                return bytes(self._chance.choice((100_000, 1_100_000))) if odd else self._chance.blob(200)
            case FieldDescriptor.TYPE_BOOL:
                return self._chance.one_in(2)
            case FieldDescriptor.TYPE_ENUM:
                return self._chance.choice((-1, 99, 1 << 30)) if odd else self._chance.choice(_numbers(field.enum_type))
            case _:
                return self._number(field, method, odd)

    def _text(self, name: str, method: Method, odd: bool) -> str:
        chance = self._chance
        if odd:
            return chance.choice(_ODD_TEXTS)
        if name in _BROKERS:
            known = self._learned["coordinator"]
            return str(chance.choice(known)) if known and chance.one_in(2) else chance.choice(self._brokers)
        if name in ("stream", "streams", "name") and chance.one_in(12):
            return self._load if method.reads_only else chance.choice(OWN_STREAMS)
        return chance.choice(_NAMES.get(name, ("", "x", "text")))

    def _number(self, field: FieldDescriptor, method: Method, odd: bool) -> int:
        chance, name = self._chance, field.name.lower()
        creates = not field.is_repeated and name == "partitions"
        if odd:
            value = _fitting(field, chance.number())
            return -value if creates and value > MOST_PARTITIONS else value
        if name in ("partition", "partitions"):
            return chance.choice((1, 1, 2, PARTITIONS, MOST_PARTITIONS if chance.one_in(40) else 3)) if creates else (
                chance.randrange(PARTITIONS)
            )  # fmt: skip
        if name == "replicationfactor":
            return chance.choice((-1, 1, 1, len(self._brokers)))
        if "timestamp" in name:
            return time.time_ns() + chance.choice((0, -(10**9), -60 * 10**9, 10**9))
        if (key := _learned_key(name)) and (known := self._learned[key]) and chance.one_in(2):
            value = chance.choice(known)
            return _fitting(field, value) if isinstance(value, int) else 0
        if field.containing_type is not None and field.containing_type.name in _WRAPPERS:
            return _fitting(field, chance.choice((0, 1, 2, 1_000, 10**6, 10**9, 60 * 10**9)))
        return _fitting(field, chance.choice((0, 0, 1, 2, 10, 100, -1)))


def _learned_key(name: str) -> str:
    """Which of the learned values a field may have; "" if none."""
    return next((key for key in _LEARNED if name.lower().endswith(key)), "")


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_wrapper(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.name in _WRAPPERS


def _numbers(enum: Any) -> list[int]:
    return [value.number for value in enum.values]


_BITS = {
    FieldDescriptor.TYPE_INT32: (31, True),
    FieldDescriptor.TYPE_UINT32: (32, False),
    FieldDescriptor.TYPE_INT64: (63, True),
    FieldDescriptor.TYPE_UINT64: (64, False),
}


def _fitting(field: FieldDescriptor, value: int) -> int:
    """The nearest number that the field can have."""
    bits, signed = _BITS[field.type]
    return min(max(value, -(1 << bits) if signed else 0), (1 << bits) - 1)
