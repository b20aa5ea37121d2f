"""Without the packages of the extra `spark`, what needs them says in one line what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = "import sys; sys.modules[sys.argv.pop(1)] = None\n"
COMMAND = f"{WITHOUT}from bascule.cli.main import main; main()"
IMPORT = f"""{WITHOUT}
try:
    import bascule.spark
except ImportError as error:
    print(error)
"""


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
@pytest.mark.parametrize("pipeline", ["archive", "ship"])
def test_a_pipeline_says_what_to_install(tmp_path: Path, package: str, pipeline: str) -> None:
    config = tmp_path / "archive.yaml"
    config.write_text("servers: localhost:9292")
    arguments = ["--config", str(config)] if pipeline == "archive" else [str(tmp_path / "out.zip")]
    done = run(COMMAND, package, "pipeline", pipeline, *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"error: Spark and the pipelines need pyspark and pyarrow, and this Python has no {package}: "
        "pip install 'bascule[spark]'\n"
    )


def test_an_import_says_what_to_install() -> None:
    assert run(IMPORT, "pyspark").stdout.endswith("this Python has no pyspark: pip install 'bascule[spark]'\n")


def test_what_spark_submit_runs_says_in_one_line_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "archive.yaml"
    config.write_text("servers: localhost:9292\ntabel: lake\n")
    script = subprocess.run(
        [sys.executable, "-m", "bascule.cli.main", "pipeline", "script"], capture_output=True, text=True, check=True
    ).stdout.strip()
    done = subprocess.run(
        [sys.executable, script, "archive", "--config", str(config)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {config}: the pipeline archive has no key 'tabel': did you mean table?\n"
