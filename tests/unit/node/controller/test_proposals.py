"""What the controller adds to the commands it proposes."""

from bascule.core.metadata.codec import decode
from bascule.core.metadata.commands import BrokerDied, Command, HandOver
from bascule.testing.bus import MemoryNats
from bascule.testing.loop import run
from bascule.wire.pb import api_pb2 as api
from bascule.wire.raft_messages import EntryKind
from tests.harness.administration import controller_of
from tests.harness.members import Member, five, until


def proposed(member: Member) -> list[Command]:
    log = member.broker.cluster.raft.raft.log
    entries = log.slice(log.snapshot.index + 1, log.commit + 1)
    return [decode(entry.data) for entry in entries if entry.kind is EntryKind.COMMAND]


def test_commands_that_may_name_a_leader_say_who_is_alive_when_they_are_proposed() -> None:
    """So what one of them leads goes to none that is dead, whether or not that is on record yet."""

    async def main() -> None:
        members = await five(MemoryNats())
        controller = controller_of(members)
        await controller.call("CreateStream", api.CreateStreamRequest(name="s", subject="s", replicationFactor=5))
        first, second, third, fourth = (member for member in members.values() if member is not controller)
        first.kill()
        second.kill()
        await until(lambda: sum(isinstance(each, BrokerDied) for each in proposed(controller)) == 2)
        alive = {controller.name, third.name, fourth.name}
        one, two = (each for each in proposed(controller) if isinstance(each, BrokerDied))
        assert alive <= set(one.alive) <= {*alive, two.broker}, "the other one may have sent heartbeats a little longer"
        assert set(two.alive) == alive
        await third.broker.client.hand_over(5.0)
        (left,) = (each for each in proposed(controller) if isinstance(each, HandOver))
        assert (left.broker, set(left.alive)) == (third.name, alive)

    run(main())
