"""Files that are on the disk when a function returns: what is promised on their behalf survives a loss of power."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folders(folders: Iterable[Path]) -> None:
    """The names in them: of what was created, renamed or removed there."""
    for folder in sorted(set(folders)):
        sync_file(folder)


def make_folder(folder: Path) -> None:
    """With the folders above it, and their names in these."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_file(folder.parent)


def replace_file(path: Path, data: bytes) -> None:
    """All of it or none."""
    temporary = path.with_name(f"{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_file(path.parent)
