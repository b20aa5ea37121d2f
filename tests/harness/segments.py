"""Files of commit logs, as bytes."""

import random

from bascule.testing.disk import MemoryDisk


def last_segment(disk: MemoryDisk) -> str:
    return [path for path in disk.paths() if path.startswith("streams/") and path.endswith(".log")][-1]


def harm_anywhere(disk: MemoryDisk, path: str, chance: random.Random) -> None:
    """A flipped bit, a truncation, or zeros."""
    data = disk.content(path)
    position = chance.randrange(len(data) or 1)
    match chance.randrange(4):
        case 0 | 1 if data:
            disk.flip(path, position, chance.randrange(8))
        case 2:
            disk.put(path, data[:position])
        case _:
            disk.put(path, data[:position] + bytes(min(len(data) - position, 600)) + data[position + 600 :])
