"""What a broker is given from outside: its ports, and the process it runs in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bascule.ports import Bus, Clock, Disk, Random


class Address(Protocol):
    """Where clients reach this broker; the port is known only once it listens."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Ports:
    """There are four connections to NATS: if NATS closes one as a slow consumer, heartbeats go on."""

    disk: Disk
    clock: Clock
    random: Random
    address: Address
    control: Bus
    """Between brokers: Raft, heartbeats, requests."""
    streams: Bus
    """Delivers messages of publishers; NATS may close it as a slow consumer, so it carries nothing else."""
    publishes: Bus
    """Carries publishes of gRPC clients, acks, and the ack inboxes."""
    replication: Bus


@dataclass(frozen=True, slots=True)
class Process:
    """Callbacks of a broker to the process it runs in."""

    on_fatal: Callable[[str], None]
    """This broker cannot go on; with the reason."""
    on_stop: Callable[[], None] | None
    """An administrator asks for a clean shutdown; None if the process cannot be ended from here."""
    on_grown: Callable[[], None]
    """Called after some number of new replicas and roles, whose objects are long-lived."""
    on_files: Callable[[str], None]
    """The data folder or the metadata was removed, with the reason; or, with an empty text, it is back."""
    on_role: Callable[[int, bool], None]
    """The term of Raft, and whether this broker leads it: called when either, or the leader, has changed."""
