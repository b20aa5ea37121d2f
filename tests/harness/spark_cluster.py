"""A standalone cluster of Spark on loopback: a master and workers as processes. Driver and executors run a Python that
has pyarrow and none of this project's packages."""

import os
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import psutil

from bascule.spark.java import find_java
from bascule.testing.processes import HOST, Process, free_port

START_TIMEOUT_S = 120.0
"""On a machine with other work."""
FOR_ARROW = ("numpy", "pyarrow")


class Daemon(Process):
    """Ready when its log says so."""

    def __init__(self, folder: Path, name: str, says: str, *arguments: str) -> None:
        home = spark_home()
        env = {
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": HOST,
            "SPARK_DAEMON_MEMORY": "256m",
        }
        self._says = says
        program = f"org.apache.spark.deploy.{name}"
        super().__init__([str(home / "bin" / "spark-class"), program, *arguments], folder / "daemon.log", env)

    def ready(self) -> bool:
        return self._says in self.logs()


class StandaloneCluster:
    def __init__(self, folder: Path, workers: int = 2) -> None:
        port = free_port()
        self.url = f"spark://{HOST}:{port}"
        ports = ["--webui-port", "0"]
        self._master = Daemon(
            folder / "master", "master.Master", "New state: ALIVE", "--host", HOST, "--port", str(port), *ports
        )
        self._workers = [
            Daemon(
                *(folder / f"worker-{number}", "worker.Worker", "Successfully registered with master"),
                *("--host", HOST, "--port", "0", *ports, "--cores", "1", "--memory", "512m"),
                *("--work-dir", str(folder / f"worker-{number}"), self.url),
            )
            for number in range(workers)
        ]
        self.python = _bare_python(folder / "python")

    def __enter__(self) -> Self:
        try:
            self._master.start().wait_ready(START_TIMEOUT_S)
            for worker in self._workers:
                worker.start()
            for worker in self._workers:
                worker.wait_ready(START_TIMEOUT_S)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        for each in [*self._workers, self._master]:
            each.close()

    def kill_executor(self) -> None:
        """The JVM of one, with SIGKILL; its worker starts another one. The Python of its tasks goes on for a moment."""
        below = (each for worker in self._workers for each in psutil.Process(worker.pid).children(recursive=True))
        executors = [each for each in below if "CoarseGrainedExecutorBackend" in _line(each)]
        assert executors, "an executor runs"
        executors[0].kill()

    def submit(self, log: Path, shipped: Path, program: Path, *arguments: str) -> Process:
        """As docs/spark.md says: the driver has what is shipped unpacked, and Spark sends it to the executors."""
        unpacked = log.parent / "unpacked"
        with zipfile.ZipFile(shipped) as archive:
            archive.extractall(unpacked)
        settings = {
            "spark.driver.host": HOST,
            "spark.ui.enabled": "false",
            "spark.cores.max": str(len(self._workers)),
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executorEnv.PYTHONPATH": "bascule",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        }
        given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        command = [
            *(str(spark_home() / "bin" / "spark-submit"), "--master", self.url, "--archives", f"{shipped}#bascule"),
            *("--driver-memory", "512m", *given, str(program), *arguments),
        ]
        env = {
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(spark_home()),
            "SPARK_LOCAL_IP": HOST,
            "PYSPARK_PYTHON": str(self.python),
            "PYTHONPATH": str(unpacked),
        }
        return Process(command, log, env)


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:  # it has ended
        return ""


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def _bare_python(folder: Path) -> Path:
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in FOR_ARROW:
        found = find_spec(name)
        assert found is not None
        assert found.origin is not None
        there = Path(found.origin).parent
        for path in (there, there.with_name(f"{name}.libs"), *there.parent.glob(f"{name}-*.dist-info")):
            if path.exists():
                os.symlink(path, packages / path.name)
    return folder / "bin" / "python"
