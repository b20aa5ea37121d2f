"""How a cluster is founded: by one broker, alone, and only one in a namespace. The others join it.

A broker that is in no cluster announces that on `<namespace>.raft.metadata.bootstrap`, again and again, and every
broker that is in one answers. So a broker that lost its data folder comes back to its cluster instead of founding
another, if one of the others runs.

A *seed* founds a cluster if no broker answers; two seeds at once are refused.

With a *list of peers* one of them founds, once a majority of the list, itself included, has voted for it by a stored
promise. A peer promises only while it is in no cluster, to one founder, and stores the promise before it announces it.
Two majorities of one list share a peer, so two founders cannot both have a majority while no disk is lost.

A peer promises the smallest id among the announced brokers that may found, once a majority of the list is present. A
founder that learns of a smaller id withdraws for good by promising that one; whoever promised the withdrawn one may
promise anew. A promise to a founder that has lost its disk since (it has another incarnation) may be changed only if
every peer of the list is present and in no cluster: the founder may have founded a cluster before, and a missing peer
may have joined it.

A cluster that could not answer because of a network partition is noticed later: see `node.controller.otherclusters`.

Known to be imperfect: the peer that two majorities share loses its promise with its disk. If its disk is wiped while
all brokers of the cluster are down, and the peers that never joined it form a majority with it, they found a second
cluster.
"""

import asyncio
import logging
from dataclasses import dataclass

from bascule.errors import PeerError, StartError
from bascule.log.checkpoint import is_damaged, read_checkpoint, write_checkpoint
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import FOUNDING
from bascule.node.membership.waiting import Waiting
from bascule.ports import Clock, Disk
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_id

logger = logging.getLogger(__name__)

ASK_S = 0.5
ASK_EVERY_S = 0.1
ANNOUNCED_S = 1.0
"""A broker counts as present for this long after its last announcement."""
PROMISE_FILE = "raft/promise"
"""In the folder of Raft: a broker whose folder is emptied has another incarnation, and no promise."""

ServerId = tuple[str, str]
"""A broker and its incarnation."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a broker that is in no cluster announces of itself."""

    server_id: ServerId
    seed: bool = False
    promise: ServerId | None = None
    withdrawn: bool = False

    @property
    def may_found(self) -> bool:
        return not self.withdrawn and self.promise in (None, self.server_id)


@dataclass(frozen=True, slots=True)
class Founder:
    """The configuration that says who founds a cluster."""

    broker_id: str
    incarnation: str
    seed: bool
    peers: tuple[str, ...]

    @property
    def server_id(self) -> ServerId:
        return (self.broker_id, self.incarnation)

    @property
    def listed(self) -> tuple[str, ...]:
        """The peers, this broker included, in the same order on each of them."""
        return tuple(sorted({*self.peers, self.broker_id})) if self.peers else ()


def choose(own: Announcement, present: dict[str, Announcement], listed: tuple[str, ...]) -> ServerId | None:
    """The broker that this one promises now; None if its promise does not change, or it promises nothing yet. `present`
    are the other peers of the list that are up and in no cluster."""
    if 2 * (len(present) + 1) <= len(listed):
        return None
    candidates = [announcement.server_id for announcement in (own, *present.values()) if announcement.may_found]
    chosen = min(candidates, default=None)
    if own.promise is None or own.promise == own.server_id:
        return chosen if chosen != own.promise else None
    founder = present.get(own.promise[0])
    if founder is None:
        return None
    withdrew = founder.server_id == own.promise and not founder.may_found
    lost = founder.server_id != own.promise and len(present) + 1 == len(listed)
    return chosen if withdrew or lost else None


def is_promised(own: Announcement, present: dict[str, Announcement], listed: tuple[str, ...]) -> bool:
    """Whether a majority of the list, this broker included, has promised this broker."""
    votes = sum(announcement.promise == own.server_id for announcement in (own, *present.values()))
    return own.promise == own.server_id and 2 * votes > len(listed)


class Bootstrap:
    def __init__(self, calls: Calls, founder: Founder, disk: Disk, clock: Clock) -> None:
        self._calls = calls
        self._subjects = calls.subjects
        self._founder = founder
        self._disk = disk
        self._clock = clock
        self._own = Announcement(founder.server_id, founder.seed)
        self._announced: dict[str, tuple[Announcement, float]] = {}
        self._cluster = ""
        """The cluster of a broker that answered."""
        self._seed = ""
        """Another broker that was started as a seed, in a cluster or not."""
        self.waiting: Waiting | None = None
        """Set until it is known whether this broker founds a cluster."""
        self._loop = asyncio.get_running_loop()
        self._asked = False
        """By brokers that are in no cluster; they wait for the answer."""

    @property
    def may_found(self) -> bool:
        """Whether the configuration lets this broker found a cluster, if there is none yet."""
        return self._founder.seed or bool(self._founder.peers)

    async def found(self) -> bool:
        """True if this broker is to found a cluster, False if there is one to join. StartError if there is another
        seed."""
        self._own = await self._load()
        subscriptions = [
            self._calls.subscribe(self._subjects.founding, self._on_batch),
            self._calls.subscribe(self._subjects.founded, self._on_batch),
        ]
        waiting = self.waiting = Waiting(self._clock, "waiting to found a cluster")
        began = self._loop.time()
        try:
            while not self._cluster:
                self._say(self._subjects.founding, self._own)
                await asyncio.sleep(ASK_EVERY_S)
                if self._loop.time() - began >= ASK_S and not self._cluster and await self._is_due(waiting):
                    return True
        finally:
            self.waiting = None
            for subscription in subscriptions:
                subscription.unsubscribe()
        self._refuse_other_seeds()
        level = logging.INFO if self._founder.peers else logging.WARNING  # a seed is configured to found one
        logger.log(level, "there is a cluster in namespace %s: joining it, not founding one", self._subjects.namespace)
        return False

    def answer(self) -> None:
        """This broker is in a cluster: from now on it answers brokers that are in none."""
        self._calls.subscribe(self._subjects.founding, self._on_asked)

    def _on_asked(self, batch: bytes, count: int) -> None:
        """All who ask in one turn of the event loop have one answer."""
        for message in self._calls.received(batch, FOUNDING):
            with message as payload:
                FOUNDING.decode(payload)
                if not self._asked:
                    self._asked = True
                    self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        self._asked = False
        self._say(self._subjects.founded, self._own)

    async def _is_due(self, waiting: Waiting) -> bool:
        """Whether this broker founds a cluster now."""
        listed = self._founder.listed
        if len(listed) < 2:
            self._refuse_other_seeds()
            return True
        present = self._present(listed)
        if is_promised(self._own, present, listed):
            return True
        if promised := choose(self._own, present, listed):
            await self._promise(promised)
        else:
            waiting.say(self._missing(present, listed))
        return False

    def _present(self, listed: tuple[str, ...]) -> dict[str, Announcement]:
        """The other peers of the list that are up, by id."""
        oldest = self._loop.time() - ANNOUNCED_S
        return {
            name: announcement
            for name, (announcement, at) in sorted(self._announced.items())
            if name in listed and at >= oldest
        }

    def _missing(self, present: dict[str, Announcement], listed: tuple[str, ...]) -> str:
        own = self._own
        absent = ", ".join(name for name in listed if name not in present and name != own.server_id[0])
        if own.promise is not None and own.promise != own.server_id:
            founder, incarnation = own.promise
            if founder not in present:
                return (
                    f"{founder}, which this broker promised to let found it, does not answer: start it. If it is lost "
                    "for good and you know that there is no cluster, empty the data folders of the brokers that "
                    "promised, and restart them"
                )
            if present[founder].server_id[1] != incarnation and absent:
                return (
                    f"{founder} lost its disk after this broker had promised to let it found the cluster, and may have "
                    f"founded it before; start {absent}, which may be in it. If you know that there is no cluster, "
                    "empty the data folder of this broker"
                )
        if 2 * (len(present) + 1) <= len(listed):
            return (
                f"more than half of the peers {', '.join(listed)} must be up, and these do not answer: {absent}; "
                "start them"
            )
        return f"{len(present) + 1} of the peers {', '.join(listed)} agree who founds it"

    def _refuse_other_seeds(self) -> None:
        if self._founder.seed and not self._founder.peers and self._seed:
            raise StartError(
                f"two seeds in namespace {self._subjects.namespace}: broker {self._seed} was started with "
                "--raft-bootstrap-seed too; start this one without it, and it joins that one's cluster"
            )

    # --- what is stored ------------------------------------------------------------------------------------------

    async def _load(self) -> Announcement:
        server_id, seed = self._founder.server_id, self._founder.seed
        if await is_damaged(self._disk, PROMISE_FILE):
            # An older promise, or none, may lead to a different vote: two brokers could found a cluster.
            raise StartError(
                f"{PROMISE_FILE} is damaged, which says which broker this one lets found the cluster: empty the data "
                "folder of this broker, which is in no cluster yet, and restart it"
            )
        data = await read_checkpoint(self._disk, PROMISE_FILE)
        if data is None:
            return Announcement(server_id, seed)
        stored = pb.Promise.FromString(data)
        return Announcement(server_id, seed, (stored.founder, stored.incarnation), stored.withdrawn)

    async def _promise(self, founder: ServerId) -> None:
        """Store a promise before it is announced. A broker that promises another one never founds a cluster itself."""
        own = self._own
        withdrawn = own.withdrawn or founder != own.server_id
        stored = pb.Promise(founder=founder[0], incarnation=founder[1], withdrawn=withdrawn)
        await write_checkpoint(self._disk, PROMISE_FILE, stored.SerializeToString())
        self._own = Announcement(own.server_id, own.seed, founder, withdrawn)
        if founder != own.server_id:
            logger.info("waiting for %s to found the cluster", founder[0])

    # --- announcements -------------------------------------------------------------------------------------------

    def _say(self, subject: bytes, announcement: Announcement) -> None:
        message = pb.Bootstrap(
            id=announcement.server_id[0],
            incarnation=announcement.server_id[1],
            seed=announcement.seed,
            cluster=self._subjects.cluster,
        )
        if announcement.promise is not None:
            message.promise.founder, message.promise.incarnation = announcement.promise
            message.promise.withdrawn = announcement.withdrawn
        self._calls.tell(subject, FOUNDING, message)

    def _on_batch(self, batch: bytes, count: int) -> None:
        for message in self._calls.received(batch, FOUNDING):
            with message as payload:
                self._on_founding(FOUNDING.decode(payload))

    def _on_founding(self, said: pb.Bootstrap) -> None:
        if not usable_id(said.id):
            raise PeerError(f"{said.id[:64]!r} is not a valid broker id")
        if said.id == self._founder.broker_id:
            return
        if said.seed:
            self._seed = said.id
        if said.cluster:
            self._cluster = said.cluster
            return
        promise = (said.promise.founder, said.promise.incarnation) if said.HasField("promise") else None
        announcement = Announcement((said.id, said.incarnation), said.seed, promise, said.promise.withdrawn)
        if said.id in self._founder.listed or len(self._announced) < len(self._founder.listed) + 16:
            self._announced[said.id] = (announcement, self._loop.time())
