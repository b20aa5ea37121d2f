"""A NATS client of one socket that sends exactly the bytes it is given: for what no well-behaved client would send."""

import socket
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Received:
    subject: bytes
    payload: bytes


class RawNats:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT_S)
        self._file = self._socket.makefile("rb")
        self._received: list[Received] = []
        assert self._file.readline().startswith(b"INFO ")
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":false}\r\n')
        self.flush()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def publish(self, subject: bytes, payload: bytes, reply: bytes = b"") -> None:
        self.send(b"PUB %b %b%d\r\n%b\r\n" % (subject, reply + b" " if reply else b"", len(payload), payload))

    def publish_with_headers(self, subject: bytes, headers: bytes, payload: bytes) -> None:
        total = len(headers) + len(payload)
        self.send(b"HPUB %b %d %d\r\n%b%b\r\n" % (subject, len(headers), total, headers, payload))

    def subscribe(self, subject: bytes, sid: int = 1) -> None:
        self.send(b"SUB %b %d\r\n" % (subject, sid))
        self.flush()

    def flush(self) -> None:
        """Returns when the server has taken everything sent before, and we all it had sent before that."""
        self.send(b"PING\r\n")
        while (line := self._line()) != b"PONG\r\n":
            self._take(line)

    def messages(self, count: int) -> list[Received]:
        """The next so many messages; raises TimeoutError if there are fewer."""
        while len(self._received) < count:
            self._take(self._line())
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def pending(self) -> list[Received]:
        """What has arrived by now, and was not taken yet."""
        self.flush()
        taken, self._received = self._received, []
        return taken

    def _line(self) -> bytes:
        line = self._file.readline()
        assert line, "the NATS server closed the connection"
        return line

    def _take(self, line: bytes) -> None:
        verb, *arguments = line.split()
        if verb == b"MSG":
            size = int(arguments[-1])
            self._received.append(Received(arguments[0], self._file.read(size + 2)[:size]))
        elif verb == b"PING":
            self.send(b"PONG\r\n")
        else:
            assert verb in (b"INFO", b"PONG"), line

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
