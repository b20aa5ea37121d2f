"""What the simulator reads from the disk of a broker."""

from bascule.sim.omniscience import Copy
from bascule.testing.disk import MemoryDisk
from bascule.testing.records import encode, record_starts

FOLDER = "streams/s@1/0"
RECORDS = encode([b"one", b"two", b"three"])[0]


def read(disk: MemoryDisk) -> Copy:
    copy = Copy()
    copy.refresh(disk.stored(FOLDER, durable=True), durable=True)
    return copy


def test_damage_shows_although_another_file_has_the_record_too() -> None:
    """While segments are merged both files are there, and then the damaged one stays."""
    disk = MemoryDisk()
    disk.put(f"{FOLDER}/merged.log", RECORDS)
    disk.put(f"{FOLDER}/old.log", RECORDS)
    assert not read(disk).damaged
    disk.flip(f"{FOLDER}/merged.log", record_starts(RECORDS)[1] + 20, 3)
    copy = read(disk)
    assert copy.damaged
    assert [*copy.records] == [0, 2, 1]
