"""How far an archive was restored into a stream: beside its ledger, so that it is known for good.

    <table>/_bascule/restored/<name>.json

Brokers know what a producer has stored for a week, and of the latest batch only. The stream is told from another one of
its name, or on another cluster, by the time at which it was made; the archive from a copy that went on by itself by the
folder that its last batch was staged in, which is named at random.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from hashlib import blake2b

from bascule.errors import CorruptError, FailedPrecondition
from bascule.pipelines.durable import make_folder, replace_file
from bascule.pipelines.ledger import Batch, Ledger

logger = logging.getLogger(__name__)

LOOKS = 20
LOOK_AGAIN_S = 0.5
"""A leader that is new may not know yet how far its partition is committed."""
Ends = tuple[int, ...]
"""Of each partition of the stream; none if the server does not tell them."""


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    next: int
    staged: str
    ends: Ends


class Restored:
    """Of one stream of an archive, into one stream. `name` has both, and when the latter was made."""

    def __init__(self, ledger: Ledger, name: str) -> None:
        self._name = name
        self._path = ledger.folder / "restored" / f"{blake2b(name.encode(), digest_size=16).hexdigest()}.json"

    def next(self, batches: Iterable[Batch], ends: Callable[[], Ends]) -> int:
        """The number of the first batch that is not restored yet. FailedPrecondition if the stream has lost messages
        since, or the archive is not the one that was restored."""
        found = self._read()
        if found is None:
            return 0
        last = next((each for each in batches if each.number == found.next - 1), None)
        if last is None or last.staged != found.staged:
            raise FailedPrecondition(
                f"{self._path} says that {found.next} batches of an archive were restored, and this one has others: it "
                "is a copy that went on by itself. Restore it into another stream"
            )
        for _ in range(LOOKS):
            there = ends()
            if all(now >= then for now, then in zip(there, found.ends, strict=False)):
                return found.next
            time.sleep(LOOK_AGAIN_S)
        raise FailedPrecondition(
            f"the stream ends at {list(there)}, and ended at {list(found.ends)} when batch {last.number} was restored "
            f"into it: it has lost messages. Restore into another stream, or remove {self._path}: then everything is "
            "sent again that its brokers do not know"
        )

    def put(self, batch: Batch, ends: Ends) -> None:
        """All rows of the batch are stored."""
        entry = _Entry(self._name, batch.number + 1, batch.staged, ends)
        try:
            make_folder(self._path.parent)
            replace_file(self._path, json.dumps(asdict(entry), indent=1).encode())
        except OSError as error:
            logger.warning(
                "%s cannot be written: %s. A restore that is run again after a week stores its messages twice",
                self._path,
                error,
            )

    def _read(self) -> _Entry | None:
        try:
            found = json.loads(self._path.read_bytes())
            return _Entry(str(found["name"]), int(found["next"]), str(found["staged"]), tuple(map(int, found["ends"])))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptError(
                f"{self._path} is damaged: {error!r}. Remove it if the last restore was less than a week ago, "
                "for so long brokers know what they have stored; else restore into another stream"
            ) from None
