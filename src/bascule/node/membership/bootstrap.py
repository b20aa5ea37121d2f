"""How a cluster is founded: by one broker, alone, and only one in a namespace. The others join it.

Whoever is in no cluster says so on `<namespace>.raft.metadata.bootstrap`, again and again, and every broker that is in
one answers. So a broker that lost its folder comes back to its cluster instead of founding another, if one of the
others runs.

A *seed* founds if nobody answered; two seeds at once are refused.

Of a *list of peers* one founds, once a majority of the list, itself counted, has promised it. A peer promises only
while it is in no cluster, to one founder, and stores that before it says so. Peers that are in a cluster never promise.
Two majorities of one list share a peer, so that two founders cannot both be promised while no disk is lost; and after
one was, those who promised or joined found no second cluster behind the back of the others.

Whom it promises: the smallest id it hears of those who may found, once a majority of the list is there. A founder that
hears a smaller one withdraws by promising that one, for good: whoever promised the withdrawn one is free again. A
promise to a founder whose disk was lost since (it runs in another incarnation) is free only if every peer of the list
is there and in no cluster: the lost one may have founded, and the missing one may have joined it.

A cluster that nobody answered for, because it was cut off, shows later: see `Controller.heard_unknown_broker`.

Known to be imperfect: the peer that two majorities share forgets its promise with its disk. If it is wiped while all
that are in the cluster are away, and peers that never heard of it make a majority with it, they found another one.
"""

import asyncio
import logging
from dataclasses import dataclass

from bascule.errors import PeerError, StartError
from bascule.log.checkpoint import is_damaged, read_checkpoint, write_checkpoint
from bascule.node.calls.calls import Calls, Handler
from bascule.node.calls.messages import FOUNDING
from bascule.node.membership.waiting import Waiting
from bascule.ports import Clock, Disk
from bascule.wire.nats import NatsMessage
from bascule.wire.pb import internal_pb2 as pb
from bascule.wire.subjects import usable_id

logger = logging.getLogger(__name__)

ASK_S = 0.5
ASK_EVERY_S = 0.1
HEARD_S = 1.0
"""What a broker said counts for so long."""
PROMISE_FILE = "raft/promise"
"""Beside what Raft stores: whoever empties that folder has another incarnation, and no promise."""

ServerId = tuple[str, str]
"""A broker and its incarnation."""


@dataclass(frozen=True, slots=True)
class Word:
    """What a broker that is in no cluster says of itself."""

    server_id: ServerId
    seed: bool = False
    promise: ServerId | None = None
    withdrawn: bool = False

    @property
    def may_found(self) -> bool:
        return not self.withdrawn and self.promise in (None, self.server_id)


@dataclass(frozen=True, slots=True)
class Founder:
    """What of the configuration says who founds."""

    broker_id: str
    incarnation: str
    seed: bool
    peers: tuple[str, ...]

    @property
    def server_id(self) -> ServerId:
        return (self.broker_id, self.incarnation)

    @property
    def listed(self) -> tuple[str, ...]:
        """The peers, itself among them; every one of them must come to the same answer."""
        return tuple(sorted({*self.peers, self.broker_id})) if self.peers else ()


def choose(own: Word, heard: dict[str, Word], listed: tuple[str, ...]) -> ServerId | None:
    """Whom this broker promises now; None if what it has promised stands, or nothing is to be promised yet. `heard` are
    the others of the list that are there and in no cluster."""
    if 2 * (len(heard) + 1) <= len(listed):
        return None
    candidates = [word.server_id for word in (own, *heard.values()) if word.may_found]
    chosen = min(candidates, default=None)
    if own.promise is None or own.promise == own.server_id:
        return chosen if chosen != own.promise else None
    founder = heard.get(own.promise[0])
    if founder is None:
        return None
    withdrew = founder.server_id == own.promise and not founder.may_found
    lost = founder.server_id != own.promise and len(heard) + 1 == len(listed)
    return chosen if withdrew or lost else None


def is_promised(own: Word, heard: dict[str, Word], listed: tuple[str, ...]) -> bool:
    """Whether a majority of the list lets this broker found the cluster, itself counted."""
    votes = sum(word.promise == own.server_id for word in (own, *heard.values()))
    return own.promise == own.server_id and 2 * votes > len(listed)


class Bootstrap:
    def __init__(self, calls: Calls, founder: Founder, disk: Disk, clock: Clock) -> None:
        self._calls = calls
        self._subjects = calls.subjects
        self._founder = founder
        self._disk = disk
        self._clock = clock
        self._own = Word(founder.server_id, founder.seed)
        self._heard: dict[str, tuple[Word, float]] = {}
        self._cluster = ""
        """One that somebody is in."""
        self._seed = ""
        """Another broker that was started as a seed, in a cluster or not."""
        self.waiting: Waiting | None = None
        """What for, until it is known whether this broker founds a cluster."""
        self._loop = asyncio.get_running_loop()

    @property
    def may_found(self) -> bool:
        """The configuration says so, if there is no cluster yet."""
        return self._founder.seed or bool(self._founder.peers)

    async def found(self) -> bool:
        """True if this broker is to found a cluster, False if there is one to join. StartError if there is another
        seed."""
        self._own = await self._load()
        subscriptions = [
            self._calls.handle(self._subjects.founding, Handler(FOUNDING, self._on_founding)),
            self._calls.handle(self._subjects.founded, Handler(FOUNDING, self._on_founding)),
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
        level = logging.INFO if self._founder.peers else logging.WARNING  # a seed was told to found one
        logger.log(level, "there is a cluster in namespace %s: joining it, not founding one", self._subjects.namespace)
        return False

    def answer(self) -> None:
        """This broker is in a cluster: who asks is told so, from now on."""
        asked = False

        def note(said: pb.Bootstrap, message: NatsMessage) -> None:
            nonlocal asked
            asked = True

        def answer() -> None:
            nonlocal asked
            if asked:
                asked = False
                self._say(self._subjects.founded, self._own)

        self._calls.handle(self._subjects.founding, Handler(FOUNDING, note), after=answer)

    async def _is_due(self, waiting: Waiting) -> bool:
        """Whether a cluster is founded now."""
        listed = self._founder.listed
        if len(listed) < 2:
            self._refuse_other_seeds()
            return True
        heard = self._present(listed)
        if is_promised(self._own, heard, listed):
            return True
        if promised := choose(self._own, heard, listed):
            await self._promise(promised)
        else:
            waiting.say(self._missing(heard, listed))
        return False

    def _present(self, listed: tuple[str, ...]) -> dict[str, Word]:
        """The other peers of the list that are there, by id."""
        oldest = self._loop.time() - HEARD_S
        return {name: word for name, (word, at) in sorted(self._heard.items()) if name in listed and at >= oldest}

    def _missing(self, heard: dict[str, Word], listed: tuple[str, ...]) -> str:
        own = self._own
        absent = ", ".join(name for name in listed if name not in heard and name != own.server_id[0])
        if own.promise is not None and own.promise != own.server_id:
            founder, incarnation = own.promise
            if founder not in heard:
                return (
                    f"{founder}, which this broker promised to let found it, is not heard of: start it. If it is lost "
                    "for good and you know that there is no cluster, empty the data folders of the brokers that "
                    "promised, and start them again"
                )
            if heard[founder].server_id[1] != incarnation and absent:
                return (
                    f"{founder} lost its disk after this broker had promised to let it found the cluster, and may have "
                    f"founded it before; start {absent}, which would know. If you know that there is no cluster, empty "
                    "the data folder of this broker"
                )
        if 2 * (len(heard) + 1) <= len(listed):
            return (
                f"more than half of the peers {', '.join(listed)} must be there, and these are not heard of: {absent}; "
                "start them"
            )
        return f"{len(heard) + 1} of the peers {', '.join(listed)} agree who founds it"

    def _refuse_other_seeds(self) -> None:
        if self._founder.seed and not self._founder.peers and self._seed:
            raise StartError(
                f"two seeds in namespace {self._subjects.namespace}: broker {self._seed} was started with "
                "--raft-bootstrap-seed too; start this one without it, and it joins that one's cluster"
            )

    # --- what is stored ------------------------------------------------------------------------------------------

    async def _load(self) -> Word:
        server_id, seed = self._founder.server_id, self._founder.seed
        if await is_damaged(self._disk, PROMISE_FILE):
            # An older one, or none, may be another promise: two could found.
            raise StartError(
                f"{PROMISE_FILE} is damaged, and with it which broker this one lets found the cluster: empty the data "
                "folder of this broker, which is in no cluster yet, and start it again"
            )
        data = await read_checkpoint(self._disk, PROMISE_FILE)
        if data is None:
            return Word(server_id, seed)
        stored = pb.Promise.FromString(data)
        return Word(server_id, seed, (stored.founder, stored.incarnation), stored.withdrawn)

    async def _promise(self, founder: ServerId) -> None:
        """Stored before it is said. Who has promised itself and promises another never founds."""
        own = self._own
        withdrawn = own.withdrawn or founder != own.server_id
        stored = pb.Promise(founder=founder[0], incarnation=founder[1], withdrawn=withdrawn)
        await write_checkpoint(self._disk, PROMISE_FILE, stored.SerializeToString())
        self._own = Word(own.server_id, own.seed, founder, withdrawn)
        if founder != own.server_id:
            logger.info("this broker lets %s found the cluster", founder[0])

    # --- what is said --------------------------------------------------------------------------------------------

    def _say(self, subject: bytes, word: Word) -> None:
        message = pb.Bootstrap(
            id=word.server_id[0], incarnation=word.server_id[1], seed=word.seed, cluster=self._subjects.cluster
        )
        if word.promise is not None:
            message.promise.founder, message.promise.incarnation = word.promise
            message.promise.withdrawn = word.withdrawn
        self._calls.tell(subject, FOUNDING, message)

    def _on_founding(self, said: pb.Bootstrap, message: NatsMessage) -> None:
        if not usable_id(said.id):
            raise PeerError(f"{said.id[:64]!r} is no id of a broker")
        if said.id == self._founder.broker_id:
            return
        if said.seed:
            self._seed = said.id
        if said.cluster:
            self._cluster = said.cluster
            return
        promise = (said.promise.founder, said.promise.incarnation) if said.HasField("promise") else None
        word = Word((said.id, said.incarnation), said.seed, promise, said.promise.withdrawn)
        if said.id in self._founder.listed or len(self._heard) < len(self._founder.listed) + 16:
            self._heard[said.id] = (word, self._loop.time())
