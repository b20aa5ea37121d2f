"""`ports.Bus` over a real NATS server: a connection that reconnects for ever.

A `Connection` owns what outlives a TCP connection: the list of servers, the subscriptions, the state. One `Link` at
a time is the TCP connection. When it ends, a single task makes another: at once with a little jitter, then with pauses
that double up to two seconds, over all servers in turn, those the cluster announced included. The subscriptions are
sent again before anything else.

At start these failures are errors: wrong credentials, TLS settings that do not match, no server in ten seconds. Later
the same failures are logged and tried again, because a running broker still serves what it stored.

NATS stores nothing for a client that is disconnected. A message published meanwhile without an ack is lost for us; one
that was acked had been stored before. The log says so when it happens.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Self

import bascule
from bascule.errors import BusUnavailable, ConfigError, StartError
from bascule.limits import (
    NATS_CLOSE_TIMEOUT_S,
    NATS_CONNECT_TIMEOUT_S,
    NATS_MAX_RETRY_S,
    NATS_MAX_SERVERS,
    NATS_PING_INTERVAL_S,
    NATS_START_TIMEOUT_S,
)
from bascule.net.nats_link import Link, Refused, WrongCredentials, reason_of
from bascule.ports import OnBatch
from bascule.wire.nats import Credentials, Info, ServerAddress, connect, sub, unsub

logger = logging.getLogger(__name__)

FIRST_RETRY_S = 0.05
SHOWN_FAILURES = 4

Failures = list[tuple[ServerAddress, Exception]]


@dataclass(frozen=True, slots=True)
class NatsOptions:
    """How to reach NATS. Credentials in a server's URL go before `user`, `password` and `token`."""

    servers: tuple[str, ...]
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """If given, TLS is required of every server; otherwise it is used with servers that require it."""
    discover: bool = True
    """Also use the servers that a server announces."""
    connect_timeout_s: float = NATS_CONNECT_TIMEOUT_S
    start_timeout_s: float = NATS_START_TIMEOUT_S
    ping_interval_s: float = NATS_PING_INTERVAL_S


class _Subscription:
    """`ports.Subscription`: in its connection's table until it is unsubscribed."""

    def __init__(self, connection: "Connection", sid: int, command: bytes, on_batch: OnBatch) -> None:
        self._connection = connection
        self._sid = sid
        self.command = command
        self.on_batch = on_batch

    def unsubscribe(self) -> None:
        self._connection.drop_subscription(self._sid)


class Connection:
    """Made by `connect`; used from one event loop."""

    def __init__(self, options: NatsOptions, name: str) -> None:
        if not options.servers:
            raise ConfigError("nats.servers is empty; name at least one server, like nats://127.0.0.1:4222")
        self.name = name
        self._options = options
        self._reading_paused = False
        self._servers = [ServerAddress.parse(url) for url in options.servers]
        self._server = self._servers[0]
        self._link: Link | None = None
        self._info = Info()
        self._reason = "not connected to NATS yet"
        self._subscriptions: dict[int, _Subscription] = {}
        self._next_sid = 1
        self._lost = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._delay = FIRST_RETRY_S
        self._adopted_at = 0.0

    @classmethod
    async def connect(cls, options: NatsOptions, name: str) -> Self:
        """Raises StartError with one line to act on: credentials or TLS refused, or no server in time."""
        connection = cls(options, name)
        await connection._start()
        return connection

    # --- ports.Bus -------------------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._link is not None

    @property
    def max_payload(self) -> int:
        return self._info.max_payload

    @property
    def unavailable_reason(self) -> str:
        return "" if self.connected else self._reason

    def subscribe(self, subject: bytes, on_batch: OnBatch, queue: bytes = b"") -> _Subscription:
        sid = self._next_sid
        subscription = _Subscription(self, sid, sub(subject, sid, queue), on_batch)
        self._next_sid += 1
        self._subscriptions[sid] = subscription
        if self._link is not None:
            self._link.subscribe(subscription.command)
        return subscription

    def drop_subscription(self, sid: int) -> None:
        if self._subscriptions.pop(sid, None) is not None and self._link is not None:
            self._link.subscribe(unsub(sid))

    def send(self, commands: bytes) -> None:
        if self._link is None:
            raise BusUnavailable(self._reason)
        self._link.write(commands)

    def send_now(self, commands: bytes) -> None:
        if self._link is None:
            raise BusUnavailable(self._reason)
        self._link.write_now(commands)

    def push(self) -> None:
        if self._link is not None:
            self._link.push()

    def pause_reading(self, paused: bool) -> None:
        self._reading_paused = paused
        if self._link is not None:
            self._link.pause_reading(paused)

    def drained(self) -> Awaitable[None]:
        if self._link is not None:
            return self._link.drained()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    async def flush(self) -> None:
        if self._link is None:
            raise BusUnavailable(self._reason)
        await self._link.ping()

    async def close(self) -> None:
        """Write what is queued and disconnect. Nothing arrives any more."""
        self._reason = "the connection to NATS was closed"
        self._subscriptions.clear()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        link, self._link = self._link, None
        if link is not None:
            await link.close(NATS_CLOSE_TIMEOUT_S)

    # --- getting and staying connected -----------------------------------------------------------------------

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.start_timeout_s
        delay = FIRST_RETRY_S
        said = False
        while True:
            failures = await self._try_servers(deadline)
            if not failures:
                break
            for server, error in failures:
                if isinstance(error, Refused):
                    raise StartError(self._explain(server, error))
            if loop.time() + delay >= deadline:
                raise StartError(
                    f"no NATS server within {self._options.start_timeout_s:g} s ({_summary(failures)}); "
                    "start one, correct nats.servers, or run one inside with --embedded-nats"
                )
            if not said:
                said = True
                logger.info(
                    "no NATS server yet (%s): trying for %g s", _summary(failures), self._options.start_timeout_s
                )
            await asyncio.sleep(delay)
            delay = min(2 * delay, NATS_MAX_RETRY_S)
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"nats {self.name}")

    def _explain(self, server: ServerAddress, error: Refused) -> str:
        if not isinstance(error, WrongCredentials):
            advice = "check nats.tls.ca, nats.tls.cert and nats.tls.key"
        elif self._credentials(server):
            advice = "check nats.user and nats.password, or the credentials in nats.servers"
        else:
            advice = "it wants credentials; set nats.user and nats.password"
        return f"NATS at {server}: {error}; {advice}"

    async def _keep_connected(self) -> None:
        while True:
            await self._lost.wait()
            self._lost.clear()
            try:
                await self._reconnect()
            except AssertionError:
                logger.exception(
                    "%s: a failed assertion is never retried, and NATS stays away: start this broker again, and report "
                    "this",
                    self.name,
                )
                return
            except Exception:  # this task is the only one that reconnects
                logger.exception("%s: an unexpected error while connecting to NATS; trying again", self.name)
                await asyncio.sleep(NATS_MAX_RETRY_S)
                self._lost.set()

    async def _reconnect(self) -> None:
        """A link that ended soon counts as one more failed try: with a server that accepts connections and ends them
        at once, the pauses must grow too."""
        loop = asyncio.get_running_loop()
        since, said = loop.time(), ""
        if since - self._adopted_at > NATS_MAX_RETRY_S:
            self._delay = FIRST_RETRY_S
        while self._link is None:
            await asyncio.sleep(self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, NATS_MAX_RETRY_S)
            failures = await self._try_servers(None)
            if failures:
                reasons = _summary(failures)
                self._reason = f"no connection to NATS ({reasons})"
                if reasons != said:
                    said = reasons
                    logger.warning("%s: still no connection to NATS (%s); trying again", self.name, reasons)
        logger.info("%s: connected to NATS again after %.2f s", self.name, loop.time() - since)

    async def _try_servers(self, deadline: float | None) -> Failures:
        """One round. No failures means connected. A server that failed goes to the end of the list."""
        failures: Failures = []
        for server in list(self._servers):
            timeout_s = self._options.connect_timeout_s
            if deadline is not None:
                timeout_s = max(0.01, min(timeout_s, deadline - asyncio.get_running_loop().time()))
            try:
                self._adopt(server, await self._dial(server, timeout_s))
                return []
            except (OSError, BusUnavailable, UnicodeError) as error:  # UnicodeError: an impossible host name
                failures.append((server, error))
                self._servers.remove(server)
                self._servers.append(server)
        return failures

    async def _dial(self, server: ServerAddress, timeout_s: float) -> Link:
        """A link that the server has accepted. Raises OSError, BusUnavailable or Refused."""
        loop = asyncio.get_running_loop()
        link = Link(self._subscriptions, self._options.ping_interval_s, self._learn, self._on_lost)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(lambda: link, server.host, server.port)
                info = await link.first_info()
                tls = await self._secure(link, server, info)
                link.write(connect(self.name, bascule.__version__, self._credentials(server), tls))
                await link.ping()
        except ssl.SSLError as error:
            link.end(BusUnavailable("the TLS handshake failed"))
            raise Refused(f"the TLS handshake failed: {reason_of(error)}") from None
        except BaseException:
            link.end(BusUnavailable("the attempt to connect was given up"))
            raise
        return link

    async def _secure(self, link: Link, server: ServerAddress, info: Info) -> bool:
        """TLS if either side requires it. Never falls back to plain if TLS is configured."""
        wanted = server.tls or self._options.tls is not None
        if not (wanted or info.tls_required):
            return False
        if not (info.tls_required or info.tls_available):
            raise Refused("the NATS server does not offer TLS, which this configuration requires")
        context = self._options.tls or ssl.create_default_context()
        await link.upgrade(context, server.tls_name or server.host)
        return True

    def _credentials(self, server: ServerAddress) -> Credentials:
        if server.credentials:
            return server.credentials
        return Credentials(self._options.user, self._options.password, self._options.token)

    def _adopt(self, server: ServerAddress, link: Link) -> None:
        """There is no await in here: a subscription is sent either by this function or by `subscribe`, never by
        both."""
        if link.lost is not None:
            raise link.lost
        self._link = link
        self._server = server
        self._adopted_at = asyncio.get_running_loop().time()
        self._learn(link.info)
        commands = b"".join(subscription.command for subscription in self._subscriptions.values())
        if commands:
            link.subscribe(commands)
        link.pause_reading(self._reading_paused)
        link.keep_alive()

    def _learn(self, info: Info) -> None:
        """Update the list of servers: those that are no longer announced are removed, the configured ones never."""
        self._info = info
        if not self._options.discover or self._link is None:
            return
        announced = [self._server.announced(url) for url in info.connect_urls[:NATS_MAX_SERVERS]]
        current = {(server.host, server.port) for server in announced if server is not None}
        self._servers = [
            server
            for server in self._servers
            if not server.tls_name or server is self._server or (server.host, server.port) in current
        ]
        known = {(server.host, server.port) for server in self._servers}
        self._servers += [
            server for server in announced if server is not None and (server.host, server.port) not in known
        ]

    def _on_lost(self, link: Link) -> None:
        if link is not self._link:
            return
        self._link = None
        self._reason = str(link.lost)
        self._lost.set()
        logger.warning(
            "%s: lost NATS at %s: %s. Plain messages published until it is back may be gone for the streams here; "
            "acked ones are safe. Reconnecting.",
            self.name,
            self._server,
            self._reason,
        )


def _summary(failures: Failures) -> str:
    shown = [f"{server}: {reason_of(error)}" for server, error in failures[:SHOWN_FAILURES]]
    if len(failures) > SHOWN_FAILURES:
        shown.append(f"and {len(failures) - SHOWN_FAILURES} more")
    return "; ".join(shown)
