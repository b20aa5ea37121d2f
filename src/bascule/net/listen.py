"""Listening sockets: one port on every address a host name stands for."""

import asyncio
import errno
import socket
from collections.abc import Sequence

from bascule.errors import StartError

_ABSENT_FAMILY = {errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT}
_PORT_RACES = 10


async def bind(host: str | None, port: int) -> list[socket.socket]:
    """Bound sockets, all on the same port (a free one if `port` is 0). StartError says what is in the way."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}: the name has no address ({error.strerror or error}); check `listen`"
        ) from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for _ in range(_PORT_RACES):
        sockets, problem = _bind_all(addresses, port)
        if problem is None:
            return sockets
        if port or problem.errno != errno.EADDRINUSE:
            raise _explain(host, port, problem)
    raise StartError("cannot listen: found no port that is free on every address; name one")


async def check_free(host: str | None, port: int) -> None:
    """Raises StartError, before anything else is done, if nobody could listen there now."""
    for sock in await bind(host, port):
        sock.close()


def _bind_all(
    addresses: Sequence[tuple[int, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]], port: int
) -> tuple[list[socket.socket], OSError | None]:
    sockets: list[socket.socket] = []
    absent: OSError | None = None
    for family, address in addresses:
        if port == 0 and sockets:
            address = (address[0], sockets[0].getsockname()[1], *address[2:])
        sock: socket.socket | None = None
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(socket.SOMAXCONN)
        except OSError as error:
            if sock is not None:
                sock.close()
            if error.errno in _ABSENT_FAMILY:
                absent = error
                continue
            for bound in sockets:
                bound.close()
            return [], error
        sock.setblocking(False)
        sockets.append(sock)
    return sockets, None if sockets else absent


def _explain(host: str | None, port: int, error: OSError) -> StartError:
    where = f"{host or 'port'}{':' if host else ' '}{port}"
    if error.errno == errno.EADDRINUSE:
        return StartError(
            f"cannot listen on {where}: another program has the port; stop it (another broker?) or choose another port "
            "with --port"
        )
    if error.errno == errno.EACCES:
        return StartError(
            f"cannot listen on {where}: not permitted; choose a port from 1024 up, or grant CAP_NET_BIND_SERVICE"
        )
    if error.errno in _ABSENT_FAMILY:
        return StartError(f"cannot listen on {where}: this machine does not have that address")
    return StartError(f"cannot listen on {where}: {error.strerror or error}")
