"""Start and stop of a server process: lock the folder, connect to NATS, recover, serve, and stop without losing data.

A stop releases in reverse order what the start acquired. Each step registers its clean-up on a stack, so a start that
fails half-way leaves no process, socket or lock behind.
"""

import asyncio
import logging
import shutil
import signal
import ssl
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bascule.errors import ConfigError, StartError, Status, Unavailable
from bascule.log.disk import FileDisk
from bascule.net.call import Call
from bascule.net.embedded import EmbeddedNats, OnDeath
from bascule.net.grpc import GrpcServer
from bascule.net.health import Health
from bascule.net.listen import check_free
from bascule.net.nats import Connection, NatsOptions
from bascule.net.supervised import SupervisedNats
from bascule.net.tls import NATS_NAMES, client_context, server_context
from bascule.node.config import Address, Config
from bascule.node.config.broker import BrokerSettings
from bascule.node.membership.bootstrap import PROMISE_FILE
from bascule.node.process import identity
from bascule.node.process.allocator import collect_later, freeze_grown, freeze_objects, keep_freed_memory
from bascule.node.process.assemble import assemble
from bascule.node.process.broker import Broker
from bascule.node.process.descriptors import claim
from bascule.node.process.system import SystemClock, SystemRandom
from bascule.node.runtime.ports import Ports, Process
from bascule.wire.kernels import TWIN
from bascule.wire.nats import DEFAULT_PORT

logger = logging.getLogger(__name__)

STOP_GRACE_S = 5.0
HAND_OVER_S = 10.0
THREAD_SWITCH_S = 0.0005
"""A sync thread that has finished waits at most this long for a busy event loop; the default is ten times that."""
SERVICE = "proto.API"


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """The addresses and ids of a server that has started."""

    broker_id: str
    host: str
    port: int
    nats_url: str
    data_dir: str


@dataclass(slots=True)
class _Advertised:
    """The address for clients; the port is set once it is bound."""

    host: str = ""
    port: int = 0

    def set(self, address: Address) -> None:
        self.host, self.port = address.host, address.port


async def run(
    config: Config, *, ready: Callable[[RunningInfo], None] | None = None, ends_on_hangup: bool = False
) -> int:
    """Serve until SIGTERM or SIGINT, and if asked to until SIGHUP, unless it was started with SIGHUP ignored, as by
    nohup. The exit code: 0 after a clean stop."""
    sys.setswitchinterval(THREAD_SWITCH_S)
    keep_freed_memory()
    collect_later()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        def end() -> None:
            stop.set()
            starting.cancel()  # no effect once it has started

        server = Server(config, end)
        starting = loop.create_task(server.start(stack))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        if ends_on_hangup and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, end)
        else:  # There is nothing to read again yet, and whoever sends it must not end the broker.
            loop.add_signal_handler(signal.SIGHUP, logger.info, "SIGHUP is ignored")
        try:
            info = await starting
        except asyncio.CancelledError:
            if server.fatal:
                raise StartError(server.fatal) from None
            if not stop.is_set():
                raise
            logger.info("stopped before it began to serve")
            return 0
        freeze_objects()
        if ready is not None:
            ready(info)
        await stop.wait()
        if server.fatal:
            raise StartError(server.fatal)
        logger.info("stopping: no new calls; what has arrived is synced and acked first")
        await server.stop()
    logger.info("stopped")
    return 0


class Server:
    def __init__(self, config: Config, end: Callable[[], None]) -> None:
        """`end` ends the process as a signal does: `stop` is called if it serves."""
        self._config = config
        self._end = end
        self._health = Health()
        self.fatal = ""
        """Why this server cannot go on."""
        self._serving = self._stopping = False
        self._broker: Broker | None = None
        """Once it is assembled."""
        self._grpc: GrpcServer

    async def start(self, stack: AsyncExitStack) -> RunningInfo:
        """A start that fails leaves no process, socket or lock behind, and no folder that was not there before."""
        folder = Path(self._config.data_dir)
        failed = False

        def leave_no_folder() -> None:
            # A promise to another founder must not be lost, nor the membership of a cluster.
            if failed and folder.exists() and not self._in_cluster and not (folder / PROMISE_FILE).exists():
                shutil.rmtree(folder, ignore_errors=True)

        if not folder.exists():
            stack.callback(leave_no_folder)  # called last: closing the other parts may still write there
        try:
            return await self._start(stack)
        except Exception:
            failed = True
            raise

    @property
    def _in_cluster(self) -> bool:
        return self._broker is not None and bool(self._broker.cluster.subjects.cluster)

    async def _start(self, stack: AsyncExitStack) -> RunningInfo:
        config = self._config
        _refuse_what_is_not_there_yet(config)
        _warn_of_what_has_no_effect(config)
        config.check_files()
        tls = _server_tls(config)
        await check_free(config.bind.host, config.bind.port)
        descriptors = claim()
        disk = FileDisk(config.data_dir, descriptors.files)
        stack.callback(disk.close)
        disk.lock()
        clock, random = SystemClock(), SystemRandom()
        broker_id = await identity.load_or_create(disk, random, config.clustering.server_id)
        nats_servers = await self._nats_servers(stack)
        buses = [
            await self._connect(stack, nats_servers, broker_id, purpose)
            for purpose in ("control", "streams", "publishes", "replication")
        ]
        bind = config.bind
        advertised = _Advertised()
        advertised.set(config.advertised(bind.port))
        _warn_of_relaxed_sync(config)
        ports = Ports(disk, clock, random, advertised, *buses)
        broker = self._broker = await assemble(BrokerSettings.of(config, broker_id), ports, self._process())
        stack.push_async_callback(broker.environment.scheduler.close)
        stack.push_async_callback(broker.close)
        methods = broker.methods
        # Entering a cluster may take without limit: calls meanwhile get the reason that this broker waits for.
        not_yet = dict.fromkeys(methods, partial(self._not_started, broker))
        self._health.set("", serving=False)
        self._health.set(SERVICE, serving=False)
        self._grpc = GrpcServer({**not_yet, **self._health.methods()}, max_connections=descriptors.connections)
        port = await self._grpc.start(bind.host, bind.port, tls)
        stack.push_async_callback(self._grpc.close, Status.UNAVAILABLE, "the broker has stopped", 0.0)
        address = config.advertised(port)
        advertised.set(address)
        await broker.start()
        self._grpc.serve({**methods, **self._health.methods()})
        self._serving = True
        self._on_files(broker.files.gone)
        info = RunningInfo(broker_id, address.host, address.port, nats_servers[0], config.data_dir)
        logger.info(
            "broker %s serves on %s:%d, data in %s, sync %s, kernels %s",
            broker_id,
            bind.host,
            port,
            config.data_dir,
            config.streams.sync,
            TWIN,
        )
        return info

    async def _not_started(self, broker: Broker, call: Call) -> None:
        raise Unavailable(broker.cluster.waits or "this broker is starting, and does not serve yet")

    def _process(self) -> Process:
        return Process(
            on_fatal=self._on_fatal,
            on_stop=self._end,
            on_grown=freeze_grown,
            on_files=self._on_files,
            on_role=lambda term, leads: None,  # the controller logs its role itself
        )

    def _on_fatal(self, reason: str) -> None:
        self.fatal = reason
        asyncio.get_running_loop().call_soon(self._end)  # a start that fails with the same error raises it first

    def _on_files(self, gone: str) -> None:
        """A broker without its data folder reports NOT_SERVING."""
        if self._serving:
            self._health.set_all(serving=not gone and not self._stopping)

    async def stop(self) -> None:
        """Health first, so that no new clients connect; then messages that have arrived are synced and acked; then the
        calls end with UNAVAILABLE, which makes clients resume elsewhere or later."""
        assert self._broker is not None, "a server is stopped after it has started"
        self._stopping = True
        self._health.set_all(serving=False)
        await self._broker.hand_over(HAND_OVER_S)
        self._grpc.drain()
        await self._broker.stop()
        await self._grpc.close(Status.UNAVAILABLE, "the broker is stopping", STOP_GRACE_S)

    async def _nats_servers(self, stack: AsyncExitStack) -> tuple[str, ...]:
        config = self._config.nats
        if not config.embedded:
            return config.servers

        def make(port: int | None, on_death: OnDeath) -> EmbeddedNats:
            return EmbeddedNats(
                port=DEFAULT_PORT if port is None else port,
                config_path=config.embedded_config or None,
                force_port=port is not None,
                log_lines=self._config.logging.nats,
                on_death=on_death,
            )

        embedded = SupervisedNats(make)
        stack.push_async_callback(embedded.stop)
        await embedded.start()
        return (embedded.url,)

    async def _connect(
        self, stack: AsyncExitStack, servers: tuple[str, ...], broker_id: str, purpose: str
    ) -> Connection:
        config = self._config.nats
        tls = None
        if config.tls_ca or config.tls_cert:
            tls = client_context(
                config.tls_ca or None, config.tls_cert or None, config.tls_key or None, names=NATS_NAMES
            )
        options = NatsOptions(
            servers=servers, user=config.user or None, password=config.password or None, token=None, tls=tls
        )
        name = f"LIFT.{self._config.clustering.namespace}.{broker_id}.{purpose}"
        connection = await Connection.connect(options, name=name)
        stack.push_async_callback(connection.close)
        return connection


def _warn_of_relaxed_sync(config: Config) -> None:
    sync = config.streams.sync
    if sync.relaxed:
        logger.warning("relaxed sync (%s): a power loss may lose acked messages; sync mode `group` keeps them", sync)


def _refuse_what_is_not_there_yet(config: Config) -> None:
    """A setting that promises safety this version cannot give is refused, not ignored."""
    if config.streams.encryption:
        raise ConfigError("streams.encryption: this version cannot encrypt yet; remove the setting to store as plain")
    if config.tls.client_authz_enabled:
        raise ConfigError("tls.client.authz.enabled: this version has no authorization yet; remove the setting")


NO_EFFECT = {"streams.compact.max.goroutines": "a broker compacts one partition at a time"}


def _warn_of_what_has_no_effect(config: Config) -> None:
    """Accepted, because configuration files of the Go server must work; logged, because an operator may rely on it."""
    for key in sorted(config.explicit):
        if key in NO_EFFECT:
            logger.warning("%s is set, but has no effect: %s", key, NO_EFFECT[key])


def _server_tls(config: Config) -> ssl.SSLContext | None:
    tls = config.tls
    if not tls.enabled:
        return None
    return server_context(tls.cert, tls.key, tls.client_auth_ca if tls.client_auth_enabled else None)
