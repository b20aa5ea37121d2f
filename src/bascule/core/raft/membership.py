"""A membership as the bytes of a log entry. Server ids are NATS tokens: they hold no blanks."""

from bascule.core.raft.messages import Membership
from bascule.errors import CorruptError


def encode_membership(membership: Membership) -> bytes:
    return f"{' '.join(membership.voters)}\n{' '.join(membership.learners)}".encode()


def decode_membership(data: bytes) -> Membership:
    try:
        voters, learners = data.decode().split("\n")
    except ValueError as error:
        raise CorruptError(f"a membership entry cannot be decoded: {error}") from error
    return Membership(tuple(voters.split()), tuple(learners.split()))
