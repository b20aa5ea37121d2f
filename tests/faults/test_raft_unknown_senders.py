"""Whoever can publish to NATS can send to a broker's Raft. Messages of unknown senders must not end it."""

import asyncio
from pathlib import Path

import nats
import pytest

from bascule.testing.probe import call
from bascule.testing.processes import HOST, BrokerProcess, start_broker
from bascule.wire.envelope import MsgType, decode_checked, encode
from bascule.wire.pb import api_pb2 as api
from bascule.wire.pb import internal_pb2 as internal
from bascule.wire.raft import encode_message
from bascule.wire.raft_messages import Heartbeat, Membership, VoteRequest

NO_NAMES = ["x y", "*", "a.b", ">", "x\r\nPING", "", "z" * 5000]
RAFT = "liftbridge-default.raft.metadata"


async def speak(broker: BrokerProcess) -> None:
    """Each asks for an answer to a name that no subject can hold."""
    connection = await nats.connect(broker.nats_url)
    heartbeats = await connection.subscribe(f"{RAFT}.info")
    heartbeat = decode_checked((await heartbeats.next_msg(10.0)).data, MsgType.SERVER_INFO_RESPONSE)
    assert heartbeat is not None
    cluster = internal.ServerInfoResponse.FromString(bytes(heartbeat)).cluster
    server = f"liftbridge-default.{cluster}.raft.metadata.b0"
    for name in NO_NAMES:
        join = internal.RaftJoinRequest(nodeID=name, incarnation="i").SerializeToString()
        await connection.publish(f"{RAFT}.join", encode(MsgType.RAFT_JOIN_REQUEST, join, crc=True), reply="unknown")
        await connection.publish(server, encode_message(Heartbeat(name, "b0", 0, 0, 0, 1)))
        await connection.publish(server, encode_message(VoteRequest(name, "b0", 0, 9, 9, "i", True, False)))
        await connection.flush()
    await connection.close()


def create(broker: BrokerProcess, name: str) -> int:
    request = api.CreateStreamRequest(name=name, subject=name).SerializeToString()
    return call(HOST, broker.port, "/proto.API/CreateStream", request).status


def test_names_no_subject_can_hold_do_not_end_raft(tmp_path: Path) -> None:
    with start_broker(tmp_path, config={"clustering.server.id": "b0"}) as broker:
        asyncio.run(speak(broker))
        assert create(broker, "after") == 0
        assert broker.terminate() == 0
        broker.start().wait_ready()
        assert create(broker, "after-a-restart") == 0


@pytest.mark.parametrize("name", NO_NAMES)
def test_no_membership_holds_such_a_name(name: str) -> None:
    assert Membership(("b0",), ("b1",)).well_formed
    assert not Membership(("b0",), (name,)).well_formed
    assert not Membership(("b0", name)).well_formed
