"""The command `bascule`, as people run it."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bascule.testing.processes import script

TIMEOUT_S = 60.0


def bascule(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """To its end, which is this exit code."""
    command = [str(script("bascule")), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == code, (args, done.stdout, done.stderr)
    return done


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Until an interrupt ends it in good order, if it has not ended by itself. A hangup ends it, too, also where the
    tests themselves are run under nohup."""
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as the child has it
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGHUP, hangup)
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0, err.decode()
    finally:
        process.kill()
        process.communicate()
