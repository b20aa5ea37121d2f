"""A real broker, a partition below its minimal in-sync set, and clients that publish there with ack policy ALL and the
longest correlation ids there are: the memory of the broker is bounded while they are there and flat when they are gone.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from bascule.limits import MAX_CORRELATION_ID_BYTES, MIB, PENDING_ACK_BYTES
from bascule.testing.processes import BrokerProcess, poll, start_broker
from bascule.wire.envelope import MsgType, encode
from bascule.wire.pb import api_pb2 as api
from tests.harness.raw_nats import RawNats
from tests.harness.stub import Stub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PARTITIONS = 4
CORRELATION_ID = "c" * MAX_CORRELATION_ID_BYTES


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """With a stream that commits nothing, and one that does."""
    with start_broker(tmp_path) as process:
        with Stub(process.address) as stub:
            stuck = api.CreateStreamRequest(name="stuck", subject="stuck", partitions=PARTITIONS)
            stuck.minIsr.value = 2
            stub.CreateStream(stuck, timeout=10)
            stub.CreateStream(api.CreateStreamRequest(name="fine", subject="fine"), timeout=10)
        yield process
        assert process.running, process.log_tail()
        assert "Traceback" not in process.logs()


def resident(broker: BrokerProcess) -> int:
    """Bytes of memory the broker's process has now."""
    status = Path(f"/proc/{broker.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def newest(stub: Stub, stream: str, partition: int) -> int:
    request = api.FetchPartitionMetadataRequest(stream=stream, partition=partition)
    answer: int = stub.FetchPartitionMetadata(request, timeout=20).metadata.newestOffset
    return answer


def still_works(stub: Stub) -> None:
    request = api.PublishRequest(stream="fine", value=b"v", ackPolicy=api.ALL)
    assert stub.Publish(request, timeout=20).ack.stream == "fine"


def test_clients_that_left_leave_nothing_behind(broker: BrokerProcess) -> None:
    each = 8000

    def publish_and_leave(partition: int) -> None:
        request = api.PublishRequest(
            stream="stuck", partition=partition, value=b"v", correlationId=CORRELATION_ID, ackPolicy=api.ALL
        )
        with Stub(broker.address) as client, Stub(broker.address) as asking:
            before = newest(asking, "stuck", partition)
            finished = False

            def requests() -> Iterator[api.PublishRequest]:
                for _ in range(each):
                    yield request
                assert poll(lambda: finished, 120)

            call = client.PublishAsync(requests())
            assert poll(lambda: newest(asking, "stuck", partition) == before + each, 120)
            finished = True
            call.cancel()
            with pytest.raises(grpc.RpcError):
                next(call)

    with Stub(broker.address) as stub:
        levels = []
        for number in range(5 * PARTITIONS):
            publish_and_leave(number % PARTITIONS)
            levels.append(resident(broker))
        print("MB after each client:", [level // MIB for level in levels])
        assert levels[-1] - levels[PARTITIONS - 1] < 4 * each * MAX_CORRELATION_ID_BYTES
        still_works(stub)


def test_programs_on_nats_that_never_leave_are_bounded(broker: BrokerProcess) -> None:
    """It cannot be known whether they are there. Over the bound acks are dropped, of partitions that stand still."""
    each = 1000
    message = api.Message(value=b"v", ackInbox="in.box", correlationId=CORRELATION_ID, ackPolicy=api.ALL)
    payload = encode(MsgType.PUBLISH, message.SerializeToString())
    with Stub(broker.address) as stub, RawNats(broker.nats_url) as nats:
        before = resident(broker)
        levels = []
        for number in range(60 * PARTITIONS):
            partition = number % PARTITIONS
            subject = b"stuck" if partition == 0 else b"stuck.%d" % partition
            nats.send(each * (b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload)))
            if partition == PARTITIONS - 1:
                nats.flush()
                levels.append(resident(broker))
                still_works(stub)
        print("MB:", before // MIB, [level // MIB for level in levels])
        assert poll(lambda: newest(stub, "stuck", 0) == 60 * each - 1, 60)
        assert 60 * PARTITIONS * each * MAX_CORRELATION_ID_BYTES > 3 * PENDING_ACK_BYTES
        assert max(levels) - before < 2 * PENDING_ACK_BYTES
    said = [line for line in broker.logs().splitlines() if "bytes of them are dropped" in line]
    assert said
    assert all("stuck/" in line for line in said)
