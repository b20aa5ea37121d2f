"""The Python client: async in `Client`, blocking in `BlockingClient`."""

from bascule.client.admin import Admin
from bascule.client.blocking import BlockingClient
from bascule.client.bulk import BulkRead, LogBounds, LogRange
from bascule.client.client import Client
from bascule.client.settings import StreamOverrides
from bascule.client.subscription import Subscription
from bascule.client.values import (
    Ack,
    AckPolicy,
    Broker,
    Message,
    Metadata,
    Outgoing,
    Partition,
    StartAt,
    StopAt,
    Stream,
)

__all__ = [
    "Ack",
    "AckPolicy",
    "Admin",
    "BlockingClient",
    "Broker",
    "BulkRead",
    "Client",
    "LogBounds",
    "LogRange",
    "Message",
    "Metadata",
    "Outgoing",
    "Partition",
    "StartAt",
    "StopAt",
    "Stream",
    "StreamOverrides",
    "Subscription",
]
