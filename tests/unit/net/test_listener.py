"""A call whose listener takes what arrives where it arrives."""

import asyncio

from bascule.errors import RpcError, Status
from bascule.net.channel import Channel
from bascule.net.grpc import Call, GrpcServer
from bascule.testing.proxy import HOST

SMALL = b"\0\0\0\0\x64" + bytes(100)
MESSAGES = 40_000
"""Several times the windows of a stream and of a connection."""


class Counted:
    def __init__(self) -> None:
        self.nbytes = 0
        self.over = asyncio.Event()

    def on_data(self, data: bytes, now: float) -> None:
        self.nbytes += len(data)

    def on_drained(self) -> None:
        pass

    def on_end(self, error: RpcError | None) -> None:
        self.over.set()


async def answer(call: Call) -> None:
    await call.receive()
    for _ in range(MESSAGES // 100):
        await call.send(SMALL * 100)


def test_the_server_may_send_more_than_its_window_ever_had() -> None:
    async def main() -> None:
        server = GrpcServer({"/s/answer": answer})
        channel = await Channel.connect(HOST, await server.start(HOST, 0))
        counted = Counted()
        call = channel.stream("/s/answer")
        call.listen(counted)
        call.write(bytes(5))
        async with asyncio.timeout(30):
            await counted.over.wait()
        assert counted.nbytes == MESSAGES * len(SMALL)
        await channel.close()
        await server.close(Status.UNAVAILABLE, "stopped", 2.0)

    asyncio.run(main())
