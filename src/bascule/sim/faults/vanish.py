"""Files that another program removes under a running broker: a segment, or the folder of a partition.

Within the contract: on one broker at a time, and only what another replica in sync has on its disk. Until the broker
notices, records that it stores go to files that are gone when its process ends.
"""

import asyncio

from bascule.sim.faults.damage import part_of
from bascule.sim.faults.kinds import Family, fault
from bascule.sim.faults.strikes import Faults
from bascule.sim.host import Host
from bascule.wire.kernels import decode_records, scan_records
from bascule.wire.record import Record

MAX_UNNOTICED_S = 1.5
VANISH = Family("vanish", likely=0.12, drawn_apart=True)


@fault(VANISH, weight=12, several=True, needs_copies=True)
async def vanish(faults: Faults, host: Host) -> None:
    """The broker goes on, or ends while it may not have noticed yet."""
    if not await faults.claimed(host):
        return
    chance = faults.chance
    if _remove(faults, host) and chance.random() < 0.5:
        await asyncio.sleep(chance.uniform(0, MAX_UNNOTICED_S))
        if faults.world.scenario.sync.relaxed or chance.random() < 0.5:
            faults.kill(host)
        else:
            faults.cut_power(host)
        await faults.come_back(host)
    await faults.recovered()


def _remove(faults: Faults, host: Host) -> bool:
    """False if there is nothing that others have."""
    disk, chance = host.disk, faults.chance
    logs = [path for path in disk.paths() if path.startswith("streams/") and path.endswith(".log")]
    chance.shuffle(logs)
    for path in logs:
        folder = path.rpartition("/")[0]
        whole = chance.random() < 0.5
        paths = [each for each in logs if each.startswith(f"{folder}/")] if whole else [path]
        offsets = [offset for each in paths for offset in _offsets(faults, host, each)]
        if not host.running or not offsets or not faults.world.omniscience.was_exposed(folder, min(offsets)):
            continue
        if not all(faults.world.omniscience.others_have(host, folder, offset) for offset in offsets):
            continue
        removed = folder if whole else path
        faults.note("vanish", f"{removed} of {host.name} is removed, offsets {min(offsets)} to {max(offsets)}")
        faults.world.omniscience.vanished(host, folder, offsets)
        disk.vanish(removed)
        return True
    return False


def removable(faults: Faults, host: Host) -> tuple[str, list[int]] | None:
    """The folder of a partition and its offsets, all of which others have."""
    logs = [path for path in host.disk.paths() if path.startswith("streams/") and path.endswith(".log")]
    folders = list(dict.fromkeys(path.rpartition("/")[0] for path in logs))
    faults.chance.shuffle(folders)
    omniscience = faults.world.omniscience
    for folder in folders:
        files = [path for path in logs if path.startswith(f"{folder}/")]
        offsets = [offset for path in files for offset in _offsets(faults, host, path)]
        exposed = bool(offsets) and omniscience.was_exposed(folder, min(offsets))
        if exposed and all(omniscience.others_have(host, folder, offset) for offset in offsets):
            return folder, offsets
    return None


def _offsets(faults: Faults, host: Host, path: str) -> list[int]:
    """Of the records in a file; none if they are not of a replicated stream of clients."""
    data = host.disk.content(path)
    good = scan_records(data, 0, len(data), 0)[0]
    records = [Record._make(entry) for entry in decode_records(data, 0, good, 1 << 30)[1]]
    part = part_of(faults, records[0]) if records else None
    if part is None or good < len(data) or faults.world.history.streams[part.stream].min_isr < 2:
        return []
    return [record.offset for record in records]
