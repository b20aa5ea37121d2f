"""The brokers of a query, reached as its options say."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bascule.client import BlockingClient, Client
from bascule.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bascule.spark.options import ReadOptions, Tls


async def connect(options: ReadOptions) -> Client:
    return await Client.connect(options.servers, tls=_context(options.tls))


@contextmanager
def connected(options: ReadOptions) -> Iterator[BlockingClient]:
    with BlockingClient(options.servers, tls=_context(options.tls)) as client:
        yield client


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert:
            context.load_cert_chain(tls.cert, tls.key)
    except OSError as error:  # also what is no certificate
        raise InvalidArgument(
            f"the certificates of tlsCa, tlsCert and tlsKey cannot be read on this machine: {error}. Every executor "
            "needs these files at the same path"
        ) from None
    context.set_alpn_protocols(["h2"])
    return context
