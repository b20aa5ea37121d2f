"""HTTP/2 without I/O: bytes in, events out; intentions in, bytes out. See `connection`."""

from bascule.wire.http2.connection import Connection

__all__ = ["Connection"]
