"""What the process-level tests stand on: processes that start, answer and end, and say why when they do not."""

import os
import signal
import socket
import subprocess
import sys
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from bascule.testing.golang import GoMissingError, build_go
from bascule.testing.jsonlines import JsonProgram, ProgramError
from bascule.testing.probe import call
from bascule.testing.processes import Process, ProcessError, free_port, poll, start_nats


def alive(pid: int) -> bool:
    """Whether there is such a process that is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_nats_server_answers_when_started_and_not_when_closed(tmp_path: Path) -> None:
    with start_nats(tmp_path, jetstream=True) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=1) as connection:
            assert connection.recv(4) == b"INFO"
        assert "Starting JetStream" in server.logs()
    assert not server.running
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=1)


def test_a_server_can_be_killed_and_started_again_where_it_was(tmp_path: Path) -> None:
    with start_nats(tmp_path) as server:
        first = server.pid
        server.kill9()
        assert server.exit_code == -signal.SIGKILL
        server.start().wait_ready()
        assert server.running
        assert server.pid != first
        server.terminate()
        assert server.exit_code is not None
        assert "Initiating Shutdown" in server.logs()


def test_what_ends_by_itself_is_reported_with_its_last_output(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('the port is taken'); raise SystemExit(3)"]
    process = Process(command, tmp_path / "log").start()
    assert poll(lambda: not process.running, 10)
    with pytest.raises(ProcessError, match=r"(?s)ended by itself \(3\).*the port is taken"):
        process.wait_ready()
    process.close()


def test_what_never_answers_is_killed_and_reported(tmp_path: Path) -> None:
    class Silent(Process):
        def ready(self) -> bool:
            raise ConnectionRefusedError

    process = Silent([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log").start()
    with pytest.raises(ProcessError, match=r"was not ready in 0\.1 s"):
        process.wait_ready(0.1)
    assert not process.running


def test_children_end_with_what_started_them(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; c = subprocess.Popen(['sleep', '60']); print(c.pid, flush=True); time.sleep(60)"
    )
    with Process([sys.executable, "-c", script], tmp_path / "log").start() as process:
        assert poll(lambda: "\n" in process.logs(), 10)
        child = int(process.logs())
        assert alive(child)
    assert poll(lambda: not alive(child), 5)


def test_processes_end_when_the_program_that_started_them_exits(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from bascule.testing.processes import start_nats;"
        f"print(start_nats(Path({str(tmp_path)!r})).pid)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert not alive(int(ended.stdout))


def test_the_probe_speaks_to_any_grpc_server() -> None:
    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        if request == b"fail":
            context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
        return request * 2

    handler = grpc.method_handlers_generic_handler("test.Echo", {"Say": grpc.unary_unary_rpc_method_handler(echo)})
    server = grpc.server(futures.ThreadPoolExecutor(1), handlers=(handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        answer = call("127.0.0.1", port, "/test.Echo/Say", b"hello")
        assert (answer.status, answer.text, answer.message) == (0, "", b"hellohello")
        answer = call("127.0.0.1", port, "/test.Echo/Say", b"fail")
        assert (answer.status, answer.text, answer.message) == (5, "nothing here", b"")
    finally:
        server.stop(None).wait()
    with pytest.raises(OSError, match="refused"):
        call("127.0.0.1", free_port(), "/test.Echo/Say", b"hello")


def script(body: str) -> JsonProgram:
    return JsonProgram([sys.executable, "-c", f"import sys, json, time\n{body}"], always=1)


def test_a_program_says_lines_of_json_and_gets_its_flags() -> None:
    program = script("print(json.dumps({'event': 'flags', 'got': sys.argv[1:]}))")
    said = program.one("act", two_words="x", yes=True)
    assert said == {"event": "flags", "got": ["act", "-always=1", "-two-words=x", "-yes=true"]}


def test_a_program_is_followed_while_it_runs() -> None:
    program = script('print(\'{"event": "first"}\', flush=True); time.sleep(60)')
    with program.start("act") as running:
        assert running.next("first") == {"event": "first"}
        with pytest.raises(ProgramError, match="printed nothing"):
            running.next("second", 0.05)


def test_a_failing_program_is_an_error_with_its_output() -> None:
    with pytest.raises(ProgramError, match="no such thing"):
        script("sys.exit('no such thing')")("act")


def test_missing_go_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(GoMissingError, match="install Go"):
        build_go(tmp_path, tmp_path / "program")


def test_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", free_port()))


def test_a_paused_process_does_nothing_until_resumed(tmp_path: Path) -> None:
    with start_nats(tmp_path) as server:
        server.pause()
        assert poll(lambda: Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 5)
        server.resume()
        server.wait_ready(5)
    assert os.path.exists(server.log)
