"""What a failed call means for its caller, and how long to try again.

A gRPC status becomes the error class of the same name, so that callers catch `NotFound` and not a number. Two kinds of
failure are transient and are tried again until the deadline: a broker that cannot be reached, and a cluster that has no
leader yet. A refused certificate is final: it is an error at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bascule import errors, limits
from bascule.errors import BasculeError, RpcError, Status
from bascule.wire.pb import api_pb2 as pb
from bascule.wire.producers import REFUSALS, REMADE_STREAM

T = TypeVar("T")
OnWait = Callable[[BasculeError, float], None]
"""Takes the reason why a request is tried again, and for how many seconds it has been tried."""

_BY_STATUS: dict[Status, type[BasculeError]] = {
    Status.CANCELLED: errors.Cancelled,
    Status.UNKNOWN: errors.UnknownOutcome,
    Status.INVALID_ARGUMENT: errors.InvalidArgument,
    Status.DEADLINE_EXCEEDED: errors.TimedOut,
    Status.NOT_FOUND: errors.NotFound,
    Status.ALREADY_EXISTS: errors.AlreadyExists,
    Status.PERMISSION_DENIED: errors.PermissionDenied,
    Status.RESOURCE_EXHAUSTED: errors.ResourceExhausted,
    Status.FAILED_PRECONDITION: errors.FailedPrecondition,
    Status.OUT_OF_RANGE: errors.OutOfRange,
    Status.UNIMPLEMENTED: errors.Unimplemented,
    Status.INTERNAL: errors.Internal,
    Status.UNAVAILABLE: errors.Unavailable,
    Status.DATA_LOSS: errors.CorruptError,
}

_BY_PUBLISH_CODE: dict[int, type[BasculeError]] = {
    pb.PublishAsyncError.BAD_REQUEST: errors.InvalidArgument,
    pb.PublishAsyncError.NOT_FOUND: errors.NotFound,
    pb.PublishAsyncError.INTERNAL: errors.Internal,
    pb.PublishAsyncError.READONLY: errors.FailedPrecondition,
    pb.PublishAsyncError.INCORRECT_OFFSET: errors.IncorrectOffset,
    pb.PublishAsyncError.ENCRYPTION_FAILED: errors.Internal,
    pb.PublishAsyncError.PERMISSION_DENIED: errors.PermissionDenied,
    errors.AckError.FENCED: errors.FailedPrecondition,
}

_NOT_SENT = "failed to publish to NATS: "
_OVER_MAX_PAYLOAD = f"{_NOT_SENT}nats: maximum payload exceeded"

NO_METADATA_LEADER = "no known metadata leader"


class Forgotten(errors.Unconfirmed):
    """The partition does not know what this producer stored before, and did not store this message."""


class MadeAgain(errors.FailedPrecondition):
    """The message has a number of a producer of an earlier stream of this name, and was not sent."""


class Paused(errors.FailedPrecondition):
    """A partition that is asked for, or read."""

    def __init__(self, stream: str, partition: int) -> None:
        super().__init__(
            f"partition {partition} of stream {stream} is paused: a reader with `resume_paused=True` resumes it, as a "
            f"publish to it does, or `bascule stream resume {stream}`"
        )


def from_status(error: RpcError) -> BasculeError:
    kind = _BY_STATUS.get(error.code)
    if str(error) == REMADE_STREAM:
        kind = MadeAgain
    return error if kind is None else kind(str(error))


def from_publish_code(code: int, message: str) -> BasculeError:
    if message == _OVER_MAX_PAYLOAD:
        return errors.InvalidArgument(
            "it is larger than the NATS server takes, and was not sent: send it in parts, or raise max_payload there, "
            "which is 1 MiB unless set"
        )
    if message.startswith(_NOT_SENT):
        return errors.NotSent(message)
    if code == pb.PublishAsyncError.UNKNOWN:
        return errors.Unconfirmed(f"{message}: the message may be stored or not, read before you send it again")
    if code in (errors.AckError.SEQUENCE_GAP, errors.AckError.UNKNOWN_PRODUCER):
        kind = Forgotten if message == REFUSALS[errors.AckError.UNKNOWN_PRODUCER] else errors.Unconfirmed
        return kind(f"{message}: they were lost on their way, or the partition has lost them")
    if message == REMADE_STREAM:
        return MadeAgain(message)
    return _BY_PUBLISH_CODE.get(code, errors.UnknownOutcome)(message)


def passes_by_itself(error: BasculeError) -> bool:
    if isinstance(error, errors.Internal):
        return str(error) == NO_METADATA_LEADER
    return isinstance(error, errors.Unavailable)


class Deadline:
    """A moment on the running loop's clock."""

    def __init__(self, seconds: float, began: float | None = None) -> None:
        """Seconds from now on, or from another moment."""
        self.seconds = seconds
        self._end = (asyncio.get_running_loop().time() if began is None else began) + seconds

    def remaining(self) -> float:
        """Never below a millisecond: so a call that starts late still fails with its own error."""
        return max(0.001, self._end - asyncio.get_running_loop().time())


async def persist(
    attempt: Callable[[], Awaitable[T]],
    deadline: Deadline,
    again: Callable[[BasculeError], bool] = passes_by_itself,
    on_wait: OnWait = lambda error, seconds: None,
) -> T:
    """Try until it works, the error is final, or the deadline leaves no room for another try. The deadline ends a try
    that is under way, too, whatever it waits for."""
    delay, began = limits.CLIENT_RETRY_MIN_S, asyncio.get_running_loop().time()
    hung_up = 0
    reason: BasculeError | None = None
    while True:
        limit = asyncio.timeout(deadline.remaining())
        try:
            async with limit:
                return await attempt()
        except RpcError as rpc:
            error: BasculeError = from_status(rpc)
        except BasculeError as local:
            error = local
        except TimeoutError:
            if not limit.expired():
                raise
            error = errors.TimedOut(f"no answer within {deadline.seconds:g} s")
        if isinstance(error, errors.DeadlineExceeded) and reason is not None:
            # The deadline ended the last try: the error of an earlier try is what the caller needs to know.
            raise errors.TimedOut(f"{reason} ({error})")
        hung_up = hung_up + 1 if isinstance(error, errors.HungUp) else 0
        if hung_up >= limits.CLIENT_HUNG_UP_TRIES:
            raise errors.TlsRefused(f"{error} It did so {hung_up} times: to try again changes nothing")
        if not again(error) or deadline.remaining() <= delay:
            raise error
        reason = error
        on_wait(error, asyncio.get_running_loop().time() - began)
        await asyncio.sleep(delay)
        delay = min(2 * delay, limits.CLIENT_RETRY_MAX_S)
