"""A Kafka broker of its own, from the jars of Maven Central."""

import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bascule.spark.jars import Jar, fetched, listed
from bascule.spark.java import find_java
from bascule.testing.processes import HOST, Process, free_port

HERE = Path(__file__).parent
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
FORMAT_TIMEOUT_S = 120
START_TIMEOUT_S = 120.0
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
num.partitions={partitions}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""


def jars_of(name: str) -> list[Jar]:
    """`broker` or `source`."""
    return listed((HERE / f"kafka-{name}.jars").read_text())


class KafkaProcess(Process):
    """One broker, which is its own controller, with its defaults. A topic is made when it is first written to."""

    def __init__(self, folder: Path, partitions: int) -> None:
        self._port = free_port()
        self.address = f"{HOST}:{self._port}"
        settings = folder / "server.properties"
        folder.mkdir(parents=True)
        settings.write_text(
            SETTINGS.format(
                host=HOST, port=self._port, controller=free_port(), data=folder / "data", partitions=partitions
            )
        )
        self._java: Sequence[str] = (
            str(find_java() / "bin" / "java"),
            "-Xmx1g",
            "-cp",
            ":".join(map(str, fetched(jars_of("broker")))),
        )
        self._settings = settings
        super().__init__([*self._java, "kafka.Kafka", str(settings)], folder / "kafka.log")

    def formatted(self) -> "KafkaProcess":
        subprocess.run(
            [*self._java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._settings)],
            check=True,
            capture_output=True,
            timeout=FORMAT_TIMEOUT_S,
        )
        return self

    def ready(self) -> bool:
        with socket.create_connection((HOST, self._port), timeout=1.0):
            return True
