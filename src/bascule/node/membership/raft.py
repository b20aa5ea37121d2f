"""Raft on this broker: the machine of `core.raft` joined to its storage, to NATS and to the clock.

One task carries out what the machine is ready for: persist, then send, then apply. Messages of peers and ticks may
arrive meanwhile; the next round handles them. A proposal is answered when its entry has been applied here, or when
another entry has taken its index.

When the machine or this driver fails, above all with an assertion, the process ends: the state in memory is not trusted
any more. Messages and proposals that arrive meanwhile are neither handled nor answered.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bascule.core.raft.machine import NotLeaderError, Raft
from bascule.core.raft.ready import Ready
from bascule.errors import BusUnavailable, InvalidArgument, LogError, PeerError, Unavailable
from bascule.limits import APPLY_SLICE
from bascule.log.raftlog import RaftStorage
from bascule.node.calls.calls import Calls
from bascule.node.calls.messages import RAFT
from bascule.node.membership.metadata import MetadataStore, in_slices
from bascule.wire.raft import decode_message, encode_message
from bascule.wire.raft_messages import Membership, Message, Snapshot

logger = logging.getLogger(__name__)

TICK_S = 0.1
ALONE_TICK_S = 1.0
"""For a leader without followers: it saves processor time."""
ELECTION_TICKS = 5
HEARTBEAT_TICKS = 2
RETRY_PERSIST_S = 1.0
SNAPSHOT_TRIES = 8
"""Of a snapshot that cannot be stored, while as many changes are made as there are between two."""
RAFT_FAILED = "Raft has failed on this broker, which ends; ask another broker"


class RaftDriver:
    def __init__(
        self,
        raft: Raft,
        storage: RaftStorage,
        calls: Calls,
        store: MetadataStore,
        snapshot_threshold: int,
        on_fatal: Callable[[str], None],
    ) -> None:
        self.raft = raft
        self._on_role: Callable[[], None]
        self._on_fatal = on_fatal
        self.storage = storage
        self.trouble = ""
        """Why the metadata log cannot be written; empty if it can."""
        self._calls = calls
        self._store = store
        self._snapshot_threshold = snapshot_threshold
        self._no_snapshot_before = 0
        """The last one could not be stored: the next try is for this index."""
        self._wake = asyncio.Event()
        self._proposals: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._next_read = 0
        self._known_leader: tuple[str, bool] = ("", False)
        self._round_since: float | None = None
        """When the round began that is carried out now."""
        self._task: asyncio.Task[None] | None = None
        self._ticker: asyncio.TimerHandle | None = None
        self._applied = asyncio.Event()
        self._ended = False

    async def found(self, membership: Membership) -> None:
        """Found a cluster with this membership, before `start`. Raises OSError or LogError: then there is none."""
        assert self._task is None, "Raft has started"
        await self.storage.save(self.raft.hard_state, [], Snapshot(0, 0, membership))
        self.raft.found(membership)

    def start(self, on_role: Callable[[], None]) -> None:
        """`on_role` is called when this broker becomes or ceases to be the leader, or learns of another leader."""
        self._on_role = on_role
        self._calls.subscribe(self._calls.subjects.raft(self.raft.id), self._on_messages)
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._tick()

    async def stop(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # --- requests --------------------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether this broker leads, and an entry of its own term is committed."""
        return self.raft.is_leader and self.raft.committed_in_own_term

    @property
    def membership(self) -> Membership:
        return self.raft.membership

    def stalled(self, limit_s: float) -> bool:
        """Whether one round has taken longer than this: the disk stores nothing, so this broker learns of nothing."""
        return self._round_since is not None and asyncio.get_running_loop().time() - self._round_since > limit_s

    @property
    def alone(self) -> bool:
        """This server is the only voter."""
        return self.raft.membership.voters == (self.raft.id,)

    async def propose(self, command: bytes) -> int:
        """Returns the index at which the command was applied here. Raises NotLeaderError if it was not, or cannot
        be."""
        with self._working():
            self.raft.bound_messages(self._calls.max_payload)
            index = self.raft.propose(command)
        if index in self._proposals:
            self._fail(index)  # a proposal of an earlier term of ours, whose entry was replaced
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proposals[index] = (self.raft.term, done)
        self._wake.set()
        await done
        return index

    def propose_membership(self, membership: Membership) -> None:
        with self._working():
            self.raft.propose_membership(membership)
        self._wake.set()

    def transfer(self, target: str) -> None:
        with self._working():
            self.raft.transfer(target)
        self._wake.set()

    async def current(self) -> int:
        """A linearizable read: the commit index at the call, once it is applied here. Works on the leader only."""
        self._next_read += 1
        context = self._next_read
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reads[context] = done
        try:
            with self._working():
                self.raft.read(context)
            self._wake.set()
            index = await done
        finally:
            self._reads.pop(context, None)
        await self.applied(index)
        return index

    async def applied(self, index: int) -> None:
        while self.raft.log.applied < index:
            self._applied.clear()
            await self._applied.wait()

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Around calls of the machine: after a failure they raise Unavailable."""
        if self._ended:
            raise Unavailable(RAFT_FAILED)
        try:
            yield
        except AssertionError as error:
            self._end(error)
            raise Unavailable(RAFT_FAILED) from error

    # --- the loop --------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self._ended:
            return
        try:
            self.raft.tick()
            self._notice_loss()
        except Exception as error:
            self._end(error)
            return
        self._wake.set()
        alone = self.raft.is_leader and self.raft.membership.everyone == (self.raft.id,)
        self._ticker = asyncio.get_running_loop().call_later(ALONE_TICK_S if alone else TICK_S, self._tick)

    def _on_messages(self, batch: bytes, count: int) -> None:
        for received in self._calls.received(batch, RAFT):
            with received as payload:
                self._on_message(decode_message(bytes(payload)))

    def _on_message(self, message: Message) -> None:
        if self._ended:
            return
        try:
            self.raft.step(message)
            self._notice_loss()
        except PeerError:
            raise  # the message is invalid
        except Exception as error:
            self._end(error)
        self._wake.set()

    async def _run(self) -> None:
        try:
            await self._carry_out()
        except Exception as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        """End the process, and log why: a broker without Raft, or whose Raft does not tick, would go on with metadata
        that is out of date."""
        logger.error("Raft failed, and this broker ends: restart it, and report this", exc_info=error)
        if self._ended:
            return
        self._ended = True
        if self._ticker is not None:
            self._ticker.cancel()
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._on_fatal(f"Raft ended unexpectedly: {error!r}; start the broker again, and report this")

    async def _carry_out(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.raft.bound_messages(self._calls.max_payload)
            while ready := self.raft.ready():
                self._round_since = asyncio.get_running_loop().time()
                await self._persist(ready)
                self._send(ready)
                await self._apply(ready)
                self.raft.advance(ready)
                self._answer(ready)
                self._applied.set()
                await self._compact()
                self._round_since = None
            self._notice_role()

    async def _apply(self, ready: Ready) -> None:
        """Apply committed entries in slices: a broker that restarts may join a thousand ISRs, with one command each.
        Between two slices the metadata has some of the commands applied, and no proposal of them is answered yet."""
        weight = await self._store.restore(ready.snapshot) if ready.snapshot is not None else 0
        for entry in ready.committed:
            if weight >= APPLY_SLICE:
                weight = 0
                await asyncio.sleep(0)
            weight += await self._store.apply(entry)
        if weight >= APPLY_SLICE:
            await asyncio.sleep(0)  # the next Ready may have as many, and await nothing else

    async def _persist(self, ready: Ready) -> None:
        while ready.must_persist:
            try:
                await self.storage.save(ready.hard_state, ready.entries, ready.snapshot)
                self.trouble = ""
                return
            except (OSError, LogError) as error:
                self.trouble = f"the metadata log of the controller cannot be written: {error}"
                logger.error(
                    "the metadata log cannot be written; this broker takes no part in decisions until it can: %s", error
                )
                await self._reopen_storage()

    async def _reopen_storage(self) -> None:
        """A failed save may be stored or not: opening the storage finds out, and repeating the save is harmless."""
        while True:
            await asyncio.sleep(RETRY_PERSIST_S)
            try:
                await self.storage.open()
                return
            except (OSError, LogError) as error:
                logger.debug("the metadata log still cannot be opened: %s", error)

    async def _compact(self) -> None:
        log = self.raft.log
        if log.applied < max(log.snapshot.index + self._snapshot_threshold, self._no_snapshot_before):
            return
        index, data = log.applied, await in_slices(self._store.metadata.snapshotting())
        if log.snapshot.index >= index or log.pending_snapshot is not None:
            return  # the leader sent a newer one meanwhile
        snapshot = self.raft.compact(index, data)
        try:
            await self.storage.compact(snapshot)
        except (OSError, LogError) as error:
            patience = self._snapshot_threshold // SNAPSHOT_TRIES + 1
            self._no_snapshot_before = log.applied + patience
            logger.warning(
                "the metadata snapshot failed, and the log is not compacted before %d more changes: %s", patience, error
            )
            return
        self.raft.compacted(snapshot)

    def _send(self, ready: Ready) -> None:
        for message in ready.messages:
            try:
                subject = self._calls.subjects.raft(message.target)
                self._calls.send_encoded(subject, RAFT, encode_message(message))
            except BusUnavailable:
                return  # peers retry
            except InvalidArgument as error:
                logger.warning("nothing can be sent to server %r: %s", message.target, error)

    def _answer(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            for index in [index for index in self._proposals if index <= ready.snapshot.index]:
                self._fail(index)
        for entry in ready.committed:
            term, done = self._proposals.pop(entry.index, (0, None))
            if done is None or done.done():
                continue
            if term == entry.term:
                done.set_result(None)
            else:
                done.set_exception(NotLeaderError("another leader took over; the change was not made"))
        for context, index in ready.reads:
            if (read := self._reads.get(context)) and not read.done():
                read.set_result(index)
        for context in ready.lost_reads:
            if (read := self._reads.get(context)) and not read.done():
                read.set_exception(NotLeaderError("this server is no longer the leader"))

    def _fail(self, index: int) -> None:
        _, done = self._proposals.pop(index)
        if not done.done():
            done.set_exception(Unavailable("another leader took over; whether the change was made is not known"))

    def _notice_loss(self) -> None:
        """A deposed leader stops answering at once, also while its disk blocks the next round. A new leader begins only
        after everything committed has been applied."""
        if self._known_leader[1] and not self.is_leader:
            self._notice_role()

    def _notice_role(self) -> None:
        now = (self.raft.leader, self.is_leader)
        if now != self._known_leader:
            self._known_leader = now
            if not self.raft.is_leader:
                # They may still be committed, or never: their callers must not wait for that, nor block later ones.
                for index in list(self._proposals):
                    self._fail(index)
            self._on_role()
