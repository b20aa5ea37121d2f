"""A whole cluster on one machine: a NATS server and several brokers, real processes of this one.

For trying replication and fail-over, not for production: one machine is one power supply and one disk. Each broker is
a `bascule server` with a folder and a log file of its own below one folder. They end with this process, however it
ends. A broker that was killed or stopped is started again after a while, as a service manager would; one that gave up
by itself (a port in use, say) is not, and its last log line is shown. A start goes on without brokers that
`bascule cluster remove` took out of the cluster and whose folders are still there.

The brokers are a list of peers (`raft.bootstrap.peers`), one of which founds the cluster: a broker that lost its disk
joins the others.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import string
import sys
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bascule import limits
from bascule.client import Client
from bascule.errors import BasculeError, StartError
from bascule.net.embedded import EmbeddedNats, OnDeath, dying_with_us
from bascule.net.supervised import SupervisedNats

LOOPBACK = "127.0.0.1"
POLL_S = 0.05
ASK_S = 1.0

WAS_REMOVED = "was removed from"
"""What the last log line of a broker has after its id if it was removed from the cluster."""

Say = Callable[[str], None]


@dataclass
class LocalBroker:
    id: str
    port: int
    folder: Path
    process: asyncio.subprocess.Process | None = None
    given_up: bool = field(default=False, init=False)
    """It ended by itself with an error."""

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.id}.log")

    @property
    def pid(self) -> int:
        assert self.process is not None, "it was started"
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def last_line(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - limits.LOCAL_LAST_LINE_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return lines[-1].removeprefix("error: ") if lines else "no output"


class LocalCluster:
    """`start` it once in an event loop; it ends at `stop`, or with this process."""

    def __init__(
        self,
        folder: Path,
        brokers: int,
        *,
        ports: Callable[[int], int],
        nats_port: int,
        config: str | None = None,
        environment: Mapping[str, str] | None = None,
        restart_after_s: float = limits.LOCAL_RESTART_S,
        say: Say = lambda text: None,
    ) -> None:
        """`ports` gives the port of each broker by its number; `nats_port` 0 is a free one. `config` is a file of
        further settings for every broker."""
        self.folder = folder
        self.brokers = [
            LocalBroker(name, ports(number), folder / name)
            for number, name in enumerate(string.ascii_lowercase[:brokers])
        ]
        self.left_out: list[LocalBroker] = []
        """Removed from the cluster by an administrator, and therefore not running."""
        self._nats_port = nats_port
        self._config = config
        self._environment = dict(environment or {})
        self._restart_after_s = restart_after_s
        self._say = say
        self._nats = SupervisedNats(self._make_nats)
        self._stack = AsyncExitStack()
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def nats_url(self) -> str:
        return self._nats.url

    @property
    def servers(self) -> str:
        """As `--server` and `Client.connect` take it."""
        return ",".join(broker.address for broker in self.brokers)

    # --- start and stop -----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Returns when every broker is alive, an odd number of them votes, and all take clients. Raises StartError,
        with nothing left behind."""
        made = [path for path in (self.folder, *(broker.folder for broker in self.brokers)) if not path.exists()]
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._stack.push_async_callback(self._nats.stop)
            await self._nats.start()
            self._stack.push_async_callback(self._end_brokers)
            for broker in self.brokers:
                broker.log.write_bytes(b"")
                await self._launch(broker)
            async with asyncio.timeout(limits.LOCAL_START_TIMEOUT_S):
                await self._wait_ready()
        except TimeoutError:
            await self.stop()
            self._leave_nothing(made, logs=False)
            raise StartError(
                f"the cluster was not complete within {limits.LOCAL_START_TIMEOUT_S:g} s; see the logs in {self.folder}"
            ) from None
        except BaseException:
            await self.stop()
            self._leave_nothing(made, logs=True)
            raise
        self._keepers = [asyncio.create_task(self._keep(broker)) for broker in self.brokers]

    def _leave_nothing(self, made: list[Path], *, logs: bool) -> None:
        """After a failed start: remove the folders that it made and that hold no stream, so that the next start does
        not take them for another cluster."""
        for broker in self.brokers:
            if broker.folder in made and not (broker.folder / "streams").exists():
                shutil.rmtree(broker.folder, ignore_errors=True)
                if logs:
                    broker.log.unlink(missing_ok=True)
        if self.folder in made and self.folder.is_dir() and not any(self.folder.iterdir()):
            self.folder.rmdir()

    async def stop(self) -> None:
        """Stop every broker cleanly, then NATS."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        await self._stack.aclose()

    def _make_nats(self, port: int | None, on_death: OnDeath) -> EmbeddedNats:
        return EmbeddedNats(port=self._nats_port if port is None else port, on_death=on_death)

    async def _launch(self, broker: LocalBroker) -> None:
        command = [sys.executable, "-m", "bascule.cli.main", "server", "--server-id", broker.id]
        command += ["--data-dir", str(broker.folder), "--port", str(broker.port), "--nats-servers", self.nats_url]
        command += ["--config", os.path.abspath(self._config)] if self._config else []
        command += ["--no-raft-bootstrap-seed", "--raft-bootstrap-peers", ",".join(each.id for each in self.brokers)]
        environment = {
            **os.environ,
            **self._environment,
            "LIFTBRIDGE_LISTEN": broker.address,
            "LIFTBRIDGE_HOST": LOOPBACK,
            "LIFTBRIDGE_NATS_EMBEDDED": "false",
        }
        with broker.log.open("ab") as log:
            broker.process = await asyncio.create_subprocess_exec(
                *dying_with_us(command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                process_group=0,  # Ctrl-C goes to this process only: NATS must outlive the brokers
            )

    async def _wait_ready(self) -> None:
        while not await self._complete():
            for broker in [each for each in self.brokers if not each.running]:
                line = broker.last_line()
                if f"{broker.id} {WAS_REMOVED}" not in line or len(self.brokers) == 1:
                    raise StartError(f"broker {broker.id} did not start: {line}")
                self.brokers.remove(broker)
                self.left_out.append(broker)
                self._say(_removed(broker))
            await asyncio.sleep(POLL_S)

    async def _complete(self) -> bool:
        """Asked of each broker, so that each is known to answer."""
        wanted = {broker.id for broker in self.brokers}
        for broker in self.brokers:
            try:
                async with await Client.connect(broker.address, timeout=ASK_S) as client:
                    status = await client.admin.cluster_status(ASK_S)
            except BasculeError:
                return False
            alive = [member for member in status.members if member.alive and member.id in wanted]
            voters = sum(member.voter for member in alive)
            if len(alive) < len(wanted) or voters < len(wanted) - 1 + len(wanted) % 2:  # an odd number of them vote
                return False
        return True

    async def _end_brokers(self) -> None:
        alive = [broker.process for broker in self.brokers if broker.process is not None and broker.running]
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in alive:
                if process.returncode is None:
                    process.send_signal(number)
            try:
                async with asyncio.timeout(limits.LOCAL_STOP_TIMEOUT_S):
                    await asyncio.gather(*(process.wait() for process in alive))
                return
            except TimeoutError:
                continue

    # --- brokers that end -----------------------------------------------------------------------------------------

    async def _keep(self, broker: LocalBroker) -> None:
        while not broker.given_up:
            assert broker.process is not None, "it was started"
            code = await broker.process.wait()
            if code > 0:
                broker.given_up = True
                self._say(f"broker {broker.id} ended with an error, and is not started again: {broker.last_line()}")
                return
            how = f"was ended by {signal.Signals(-code).name}" if code else "has stopped"
            self._say(f"broker {broker.id} {how}; it is started again in {self._restart_after_s:g} s")
            await asyncio.sleep(self._restart_after_s)
            await self._launch(broker)
            self._say(f"broker {broker.id} is started again, as process {broker.pid}")


def _removed(broker: LocalBroker) -> str:
    return (
        f"broker {broker.id} is not started: it was removed from this cluster with `bascule cluster remove`, and "
        f"{broker.folder} holds what it had before. The other brokers have replicas of that. Delete this folder: then "
        f"the next start has {broker.id} join as a new member, or goes without it where fewer --brokers are asked for"
    )
