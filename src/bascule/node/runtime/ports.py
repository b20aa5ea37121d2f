"""What a broker is given by whoever runs it: its ports, and the process around it."""

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
    """There are four connections to NATS, so that a slow-consumer cut of one never takes the heartbeat with it."""

    disk: Disk
    clock: Clock
    random: Random
    address: Address
    control: Bus
    """Between brokers: Raft, heartbeats, requests."""
    streams: Bus
    """Delivers what publishers send; a slow-consumer cut of it must not take anything else along."""
    publishes: Bus
    """Carries publishes of gRPC clients, acks, and the ack inboxes."""
    replication: Bus


@dataclass(frozen=True, slots=True)
class Process:
    """What a broker tells the process it runs in, and may ask of it."""

    on_fatal: Callable[[str], None]
    """This broker cannot go on, and why."""
    on_stop: Callable[[], None] | None
    """An administrator asks for a clean shutdown; None where the process cannot be ended from here."""
    on_grown: Callable[[], None]
    """Replicas and roles have come, which stay: called now and then."""
    on_files: Callable[[str], None]
    """The data folder or the metadata was taken away, and how; or, with an empty text, it is back."""
    on_role: Callable[[int, bool], None]
    """The term of Raft, and whether this broker leads it: called when either, or the leader, has changed."""
