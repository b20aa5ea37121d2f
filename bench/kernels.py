"""The kernels, compiled against pure: nanoseconds a message, and the ratio. `python -m bench.kernels`

Every case is one batch of messages with 128-byte values, as a busy broker has them. A number is the best of several
rounds, the twins taking turns, so that a noisy neighbour slows a round and not a verdict. Two ratios have a bar,
which the exit status reports: encoding records 10x, parsing NATS 4x.
"""

from __future__ import annotations

import struct
import sys
import time
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, NamedTuple

from bascule.wire import _pure
from bascule.wire.pb import api_pb2

MESSAGES = 2000
VALUE = bytes(range(128))
SUBJECT = b"events.orders"
INBOX = "_INBOX.bench.7Q2M"
NOW_NS = 1_700_000_000_000_000_000
MIB = 1 << 20
ROUNDS = 9
ROUND_S = 0.02
BARS = {"encode_records envelopes": 10.0, "encode_records plain": 10.0, "split_nats": 4.0}


class Case(NamedTuple):
    """One call of a kernel, and how many messages it handles."""

    name: str
    kernel: str
    arguments: tuple[Any, ...]
    messages: int


def envelopes(count: int) -> list[bytes]:
    """Publish envelopes as a client sends them: a key, a correlation id, one inbox."""
    header = bytes.fromhex("b90e43b400080000")
    messages = (
        api_pb2.Message(key=b"key-%04d" % n, value=VALUE, ackInbox=INBOX, correlationId=f"c{n:08d}")
        for n in range(count)
    )
    return [header + message.SerializeToString() for message in messages]


def batch_of(payloads: Iterable[bytes], subject: bytes = SUBJECT) -> bytes:
    return b"".join(struct.pack("<HHI", len(subject), 0, len(p)) + subject + p for p in payloads)


def nats_of(payloads: Iterable[bytes], sids: int) -> bytes:
    return b"".join(b"MSG %s %d %d\r\n%s\r\n" % (SUBJECT, n % sids + 1, len(p), p) for n, p in enumerate(payloads))


def framed(messages: Iterable[bytes]) -> bytes:
    return b"".join(b"\0" + struct.pack(">I", len(m)) + m for m in messages)


def requests(count: int, partitions: int) -> bytes:
    return framed(
        api_pb2.PublishRequest(
            stream="orders", partition=n % partitions, value=VALUE, correlationId=f"c{n:08d}", expectedOffset=-1
        ).SerializeToString()
        for n in range(count)
    )


def responses(count: int) -> bytes:
    acks = (
        api_pb2.Ack(
            stream="orders",
            partitionSubject=SUBJECT.decode(),
            msgSubject=SUBJECT.decode(),
            offset=n,
            ackInbox=INBOX,
            correlationId=str(n),
            ackPolicy="ALL",
            receptionTimestamp=NOW_NS,
            commitTimestamp=NOW_NS,
        )
        for n in range(count)
    )
    return framed(api_pb2.PublishResponse(ack=a, correlationId=a.correlationId).SerializeToString() for a in acks)


def data_frames(payloads: Iterable[bytes], streams: int) -> bytes:
    return b"".join(
        struct.pack(">I", len(p))[1:] + b"\0\0" + struct.pack(">I", 2 * (n % streams) + 1) + p
        for n, p in enumerate(payloads)
    )


def cases() -> list[Case]:
    """Every kernel on its usual input; each input is made by the kernel before it."""
    plain, wrapped = [VALUE] * MESSAGES, envelopes(MESSAGES)
    origin = b"\x2a\x06orders"
    tail = _pure.record_tail(origin, SUBJECT, b"")
    settings = (origin, SUBJECT, tail, 1000, 3, NOW_NS, 0, MIB, False, b"_bascule.")
    records, _, _, _, pending, *_ = _pure.encode_records(batch_of(wrapped), *settings)
    prefix = b"\x0a\x06orders\x12" + bytes([len(SUBJECT)]) + SUBJECT
    commands, _ = _pure.encode_acks(pending, prefix, SUBJECT, NOW_NS, b"", MIB)
    acks = [c.split(b"\r\n", 1)[1] for c in commands.split(b"\r\nPUB ")]
    local = INBOX.rpartition(".")[0].encode() + b"."
    routes = {b"orders": [(SUBJECT + b".%d" % n, 0, b"-7", 7) for n in range(32)]}
    one, many, frames = requests(MESSAGES, 1), requests(MESSAGES, 32), data_frames(plain, 3)
    nats, spread = nats_of(wrapped, 1), nats_of(wrapped, 32)
    messages = framed(api_pb2.Message(value=VALUE).SerializeToString() for _ in range(MESSAGES))
    answers = responses(MESSAGES)
    written = (SUBJECT, tail, 1000, 3, NOW_NS, 0, MIB, MESSAGES, False)
    bounds = (0, len(records))
    return [
        Case("crc32c 128 B", "crc32c", (VALUE,), 1),
        Case("crc32c 1 MiB, a KiB", "crc32c", (bytes(MIB),), 1024),
        Case("split_nats", "split_nats", (nats, 0, len(nats), 4096, MIB), MESSAGES),
        Case("split_nats 32 sids", "split_nats", (spread, 0, len(spread), 4096, MIB), MESSAGES),
        Case("record_tail", "record_tail", (origin, SUBJECT, b""), 1),
        Case("encode_records plain", "encode_records", (batch_of(plain), *settings), MESSAGES),
        Case("encode_records envelopes", "encode_records", (batch_of(wrapped), *settings), MESSAGES),
        Case("encode_records other subject", "encode_records", (batch_of(wrapped, b"a.b"), *settings), MESSAGES),
        Case("encode_messages", "encode_messages", (messages, *written), MESSAGES),
        Case("encode_acks", "encode_acks", (pending, prefix, SUBJECT, NOW_NS, b"", MIB), MESSAGES),
        Case("encode_acks local", "encode_acks", (pending, prefix, SUBJECT, NOW_NS, local, MIB), MESSAGES),
        Case("ack_responses", "ack_responses", (batch_of(acks, INBOX.encode()),), MESSAGES),
        Case("route_publishes", "route_publishes", (one, 0, len(one), routes, b"in", MIB, MIB), MESSAGES),
        Case("route_publishes 32", "route_publishes", (many, 0, len(many), routes, b"in", MIB, MIB), MESSAGES),
        Case("scan_records", "scan_records", (records, *bounds, 0), MESSAGES),
        Case("find_record, a byte", "find_record", (b"\0" + VALUE * 512, 0, 65537, 0), 65537),
        Case("seek_record", "seek_record", (records, *bounds, 0, 1 << 60), MESSAGES),
        Case("reverse_records", "reverse_records", (records, *bounds), MESSAGES),
        Case("open_batch", "open_batch", (records, *bounds), MESSAGES),
        Case("index_records", "index_records", (records, 0, 4096, 4096), MESSAGES),
        Case("decode_records", "decode_records", (records, *bounds, MESSAGES), MESSAGES),
        Case("decode_responses", "decode_responses", (answers, 0, len(answers), MIB), MESSAGES),
        Case("record_columns", "record_columns", (records, *bounds, 0, 31), MESSAGES),
        Case("scan_frames", "scan_frames", (frames, 0, len(frames), 16384), MESSAGES),
        Case("frame_data, a KiB", "frame_data", (1, bytes(MIB), 16384, False), 1024),
        Case("split_messages", "split_messages", (one, 0, len(one), MIB), MESSAGES),
    ]


def round_ns(call: Callable[..., object], arguments: tuple[Any, ...], calls: int) -> float:
    begin = time.perf_counter_ns()
    for _ in range(calls):
        call(*arguments)
    return (time.perf_counter_ns() - begin) / calls


def measure(case: Case, twins: tuple[ModuleType, ...]) -> list[float]:
    """Nanoseconds a message, for each twin."""
    kernels = [getattr(twin, case.kernel) for twin in twins]
    calls = [max(1, int(ROUND_S * 1e9 / max(1.0, round_ns(kernel, case.arguments, 1)))) for kernel in kernels]
    best = [float("inf")] * len(twins)
    for _ in range(ROUNDS):
        for n, kernel in enumerate(kernels):
            best[n] = min(best[n], round_ns(kernel, case.arguments, calls[n]))
    return [ns / case.messages for ns in best]


def main(names: list[str]) -> int:
    try:
        from bascule.wire import _kernels
    except ImportError:
        print("the compiled kernels are not built: run `make setup` with a C compiler installed", file=sys.stderr)
        return 1
    missed = 0
    print(f"{'ns a message':30}{'compiled':>10}{'pure':>10}{'ratio':>8}")
    for case in cases():
        if names and case.kernel not in names:
            continue
        compiled, pure = measure(case, (_kernels, _pure))
        bar = BARS.get(case.name)
        verdict = "" if bar is None else f"  bar {bar:.0f}x {'met' if pure >= bar * compiled else 'MISSED'}"
        missed += verdict.endswith("MISSED")
        print(f"{case.name:30}{compiled:10.1f}{pure:10.1f}{pure / compiled:7.1f}x{verdict}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
