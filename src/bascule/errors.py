"""Everything that can go wrong, in one tree with two branches: the caller's fault and the cluster's fault.

Each class carries the gRPC status a client sees, the ack code a publisher sees, and whether trying again may
help. A message says what happened, why, and what to do next. Where PROTOCOL texts are exact, callers pass them
verbatim: clients match on them.
"""

from enum import IntEnum
from typing import ClassVar


class Status(IntEnum):
    """The gRPC status codes."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class AckError(IntEnum):
    """`Ack.Error` on the wire."""

    OK = 0
    UNKNOWN = 1
    INCORRECT_OFFSET = 2
    TOO_LARGE = 3
    ENCRYPTION = 4
    SEQUENCE_GAP = 100  # ours, from here on: told to idempotent producers only
    UNKNOWN_PRODUCER = 101
    FENCED = 102
    DUPLICATE = 103
    OVERLAP = 104
    EMPTY_BATCH = 105  # and to who publishes atomic batches
    BENT_BATCH = 106
    LONG_BATCH = 107


class BasculeError(Exception):
    """The root. `status` is what a gRPC client sees."""

    status: ClassVar[Status] = Status.UNKNOWN
    retryable: bool = False
    """Whether the same request may succeed if it is made again a moment later, and nothing is stored twice by that."""


# --- the caller's fault -----------------------------------------------------------------------------------


class CallerError(BasculeError):
    """What was asked cannot be done as asked."""


class InvalidArgument(CallerError):
    status = Status.INVALID_ARGUMENT


class NotFound(CallerError):
    status = Status.NOT_FOUND


class AlreadyExists(CallerError):
    status = Status.ALREADY_EXISTS


class FailedPrecondition(CallerError):
    status = Status.FAILED_PRECONDITION


class IncorrectOffset(FailedPrecondition):
    """Optimistic concurrency: someone else wrote first. Read on, then decide again."""


class PermissionDenied(CallerError):
    status = Status.PERMISSION_DENIED


class ResourceExhausted(CallerError):
    """Also how Liftbridge says that a subscription has delivered all it was asked for."""

    status = Status.RESOURCE_EXHAUSTED
    retryable = True


class OutOfRange(CallerError):
    """Offsets that were removed, by retention or by an administrator."""

    status = Status.OUT_OF_RANGE


class Unimplemented(CallerError):
    status = Status.UNIMPLEMENTED


class DeadlineExceeded(CallerError):
    status = Status.DEADLINE_EXCEEDED
    retryable = True


class TimedOut(DeadlineExceeded, TimeoutError):
    """A request of the Python client got no answer in time."""


class ClientClosed(CallerError, RuntimeError):
    """The client was closed: it makes no more requests."""

    status = Status.CANCELLED


class Cancelled(CallerError):
    status = Status.CANCELLED


class UnknownOutcome(CallerError):
    """Status UNKNOWN with an exact text, where the protocol answers so."""

    status = Status.UNKNOWN


class ConfigError(CallerError):
    """The configuration cannot be used. The message names the key and the fix."""

    status = Status.INVALID_ARGUMENT


class StartError(CallerError):
    """The broker cannot start here: port in use, folder locked or not writable, no NATS."""

    status = Status.FAILED_PRECONDITION


class PackageMissing(StartError, ImportError):
    """A package of an extra is not installed."""


# --- the cluster's fault, or the peer's -------------------------------------------------------------------


class ClusterError(BasculeError):
    """Something on our side, or between us, failed."""

    status = Status.INTERNAL


class Internal(ClusterError):
    status = Status.INTERNAL


class Unavailable(ClusterError):
    status = Status.UNAVAILABLE
    retryable = True


class BusUnavailable(Unavailable):
    """There is no connection to NATS right now."""


class NotSent(ClusterError):
    """A message that was not sent, and so is stored nowhere: to send it again is safe. A broker raises it when there is
    no connection to NATS, or NATS takes none of its size, and clients see UNKNOWN, as the protocol has it; the Python
    client when no broker took the message in time."""

    status = Status.UNKNOWN
    retryable = True


class SendTimeout(NotSent, TimeoutError):
    """No broker took the message in time: it was not sent."""


class HungUp(Unavailable):
    """A server ended the connection right after the TLS handshake: it stops, or it requires a client certificate."""


class TlsRefused(ClusterError):
    """One side did not accept the other's certificate. Trying again changes nothing."""

    status = Status.UNAVAILABLE


class WrongServer(ClusterError):
    """Something else than a gRPC server answers at the address. Trying again changes nothing."""

    status = Status.UNAVAILABLE


class Outdated(ClusterError):
    """The request was made with outdated metadata: the caller reads the metadata again, and repeats it."""

    status = Status.ABORTED
    retryable = True


class LogError(ClusterError):
    """A partition's log cannot be written. Reads go on; nothing unsynced was acked."""


class CorruptError(ClusterError):
    """Stored bytes are not what was written."""

    status = Status.DATA_LOSS


class PeerError(ClusterError):
    """The other end of a connection broke its protocol; the connection ends."""


class PeerLacks(PeerError):
    """Another replica answers that its own log is damaged in the requested range."""


class PeerNotCleared(PeerError):
    """Another replica may have records that this one must not get: the tombstones of their keys may be gone."""


class NatsProtocolError(PeerError):
    """Bytes from the NATS server that are not the NATS protocol."""


class Http2Error(PeerError):
    """An HTTP/2 connection error, with the code GOAWAY carries."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Unconfirmed(ClusterError):
    """Sent, and no answer came: the messages may be stored or not; sending again may store them twice.

    `acked` messages of the same call were confirmed before.
    """

    status = Status.DEADLINE_EXCEEDED

    def __init__(self, message: str, acked: int = 0) -> None:
        super().__init__(message)
        self.acked = acked


class AckTimeout(Unconfirmed, TimeoutError):
    """Sent, and no ack came in time: stored or not is unknown."""


class Interrupted(Unavailable):
    """Some messages of a call were sent, and the others were not. With acks the `acked` ones are those that were sent,
    and are safe; without acks some may be lost. To repeat the whole call would store messages twice."""

    retryable = False

    def __init__(self, message: str, acked: int = 0) -> None:
        super().__init__(message)
        self.acked = acked


class PublishError(BasculeError):
    """One message of many was refused; its `__cause__` says why. `index` counts from 0 in the order given."""

    def __init__(self, message: str, index: int, acked: int) -> None:
        super().__init__(message)
        self.index = index
        self.acked = acked
        self.refusals: dict[int, BasculeError] = {}
        """Of all that were refused, by their index, why: those that were sent with it may be, too."""


class RpcError(BasculeError):
    """A gRPC call ended with this status, as seen by the calling side."""

    def __init__(self, code: Status, message: str) -> None:
        super().__init__(message)
        self.code = code


def by_status(status: Status, message: str) -> BasculeError:
    """The error another broker answered with, as one of ours."""
    kinds = (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        FailedPrecondition,
        ResourceExhausted,
        OutOfRange,
        Unimplemented,
        DeadlineExceeded,
        Internal,
        Unavailable,
        Outdated,
    )
    kind = next((each for each in kinds if each.status is status), UnknownOutcome)
    return kind(message)
