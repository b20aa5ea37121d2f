"""The brokers of a query, reached as its options say."""

from __future__ import annotations

import logging
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from bascule import limits
from bascule.client import BlockingClient, Client
from bascule.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bascule.spark.optionvalues import Tls


logger = logging.getLogger(__name__)


class Reached(Protocol):
    @property
    def servers(self) -> tuple[str, ...]: ...

    @property
    def tls(self) -> Tls | None: ...


async def connect(options: Reached, for_s: float = limits.CLIENT_CONNECT_TIMEOUT_S) -> Client:
    """`for_s`: how long it is tried, which is told once if it is longer than usual."""
    return await Client.connect(options.servers, tls=_context(options.tls), timeout=for_s, on_wait=_told(for_s))


@contextmanager
def connected(options: Reached, for_s: float = limits.CLIENT_CONNECT_TIMEOUT_S) -> Iterator[BlockingClient]:
    with BlockingClient(options.servers, tls=_context(options.tls), timeout=for_s, on_wait=_told(for_s)) as client:
        yield client


def _told(for_s: float) -> Callable[[Exception, float], None]:
    told = for_s <= limits.CLIENT_CONNECT_TIMEOUT_S

    def on_wait(error: Exception, seconds: float) -> None:
        nonlocal told
        if not told and seconds >= limits.CLIENT_CONNECT_TIMEOUT_S:
            told = True
            logger.warning("%s. It is tried again until a broker answers, for up to %g s", error, for_s)

    return on_wait


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
