"""What is sent to executors is enough to read and write streams: an interpreter that has nothing else imports it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bascule.errors import StartError
from bascule.spark import ship


def test_what_is_shipped_is_all_that_is_imported(tmp_path: Path) -> None:
    count = ship.pack(tmp_path / "shipped.zip")
    with zipfile.ZipFile(tmp_path / "shipped.zip") as archive:
        assert len(archive.namelist()) == count
        assert not [name for name in archive.namelist() if name.endswith((".pyx", ".pyc", ".c"))]
        archive.extractall(tmp_path / "shipped")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import bascule.client, bascule.cli.pipeline; "
        "from bascule.wire.kernels import TWIN; print(bascule.__file__, TWIN)"
    )
    command = [sys.executable, "-I", "-S", "-c", program, str(tmp_path / "shipped")]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.split()) == (0, [str(tmp_path / "shipped/bascule/__init__.py"), "compiled"])


def test_slow_kernels_are_not_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "TWIN", "pure")
    with pytest.raises(StartError, match="kernels are not compiled here"):
        ship.pack(tmp_path / "shipped.zip")
    assert not (tmp_path / "shipped.zip").exists()
