"""A change of the metadata, from whoever wants it to the controller, wherever that is by then.

Carried out here if this broker is the controller, else asked for over NATS, again and again until there is an answer
or no time left: a request, or its answer, may be lost with the controller that had it. The next controller is asked
the same operation, and makes the change if the last one did not (`core.metadata.operations`). Asked twice of the same
one, the second waits for the outcome of the first, or gets it.

What changes roles and has no record of that kind (a drain, a removal, a hand-over) is guarded here: a late copy would
do it again, perhaps days later. A controller knows what it carried out itself, and refuses what was asked before it
began; who still waits then asks anew, behind a late copy nobody waits.

A client that gives up stops waiting, not the change: half a stream must never be left behind.
"""

import asyncio
from collections.abc import Callable, Coroutine

from google.protobuf.message import DecodeError

from bascule.errors import DeadlineExceeded, Internal, Outdated, Status, Unavailable, by_status
from bascule.limits import CHANGES_AT_ONCE, KEPT_OPERATIONS
from bascule.node.membership.metadata import MetadataStore
from bascule.node.membership.raft import RaftDriver
from bascule.node.membership.requests import Requests
from bascule.node.membership.subjects import Subjects
from bascule.node.runtime.jobs import Jobs
from bascule.wire.envelope import MsgType
from bascule.wire.pb import internal_pb2 as pb

NO_LEADER = "no known metadata leader"
UNDECIDED = "the cluster did not decide in time; whether the change was made is not known"
DEFAULT_TIMEOUT_S = 5.0
NOTHING_CHANGED = "nothing was changed"
ASK_EVERY_S = 0.5
POLL_S = 0.02
REPEATABLE = (
    pb.BARRIER,
    pb.CREATE_STREAM,
    pb.DELETE_STREAM,
    pb.SHRINK_ISR,
    pb.EXPAND_ISR,
    pb.CHANGE_LEADER,
    pb.GIVE_WAY,
)
"""They change nothing, or name the one state they fit."""

ASKED_BY_CLIENTS = (pb.CREATE_STREAM, pb.DELETE_STREAM)

Execute = Callable[[pb.PropagatedRequest], Coroutine[object, object, int]]


class Changes:
    def __init__(
        self,
        own: str,
        subjects: Subjects,
        raft: RaftDriver,
        store: MetadataStore,
        requests: Requests,
        execute: Execute,
        jobs: Jobs,
    ) -> None:
        self._own = own
        self._subjects = subjects
        self._raft = raft
        self._store = store
        self._requests = requests
        self._execute = execute
        self._tasks = jobs.tasks("a change of the metadata", CHANGES_AT_ONCE, answered=True)
        self._under_way: dict[str, asyncio.Task[int]] = {}
        self._done: dict[str, int] = {}
        """By id, what this broker has carried out in its present term."""
        self._term = self._oldest = 0

    async def make(self, request: pb.PropagatedRequest, timeout_s: float | None, patience_s: float = 0.0) -> int:
        """The index of the command that made it. Without a controller: the reason at once, or at the deadline. Asked
        once more after that, the same request is the same operation. `patience_s` is how long the controller may take
        beyond the usual."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (DEFAULT_TIMEOUT_S + patience_s if timeout_s is None else timeout_s)
        if not request.operation.id:
            request.operation.id = self._requests.new_id()
            request.operation.since = self._store.metadata.index
        asked = False
        while True:
            leader = self._raft.raft.leader
            if not leader and not asked and timeout_s is None:
                raise Internal(NO_LEADER)
            if leader:
                asked = True
                try:
                    return await self._try(request, min(deadline - loop.time(), ASK_EVERY_S))
                except Outdated:
                    request.operation.since = self._store.metadata.index
                except (Unavailable, DeadlineExceeded):
                    pass
            if loop.time() >= deadline - POLL_S:
                raise Internal(UNDECIDED if self._raft.raft.leader else NO_LEADER)
            await asyncio.sleep(POLL_S)

    async def _try(self, request: pb.PropagatedRequest, timeout_s: float) -> int:
        if not self._raft.is_leader:
            return await self._ask(request, timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                return await self.carry_out(request)
        except TimeoutError:
            raise DeadlineExceeded(UNDECIDED) from None

    async def carry_out(self, request: pb.PropagatedRequest) -> int:
        """As the controller. The same operation is under way once, however often it is asked for."""
        id = request.operation.id or self._requests.new_id()
        task = self._under_way.get(id)
        if self._raft.trouble and request.op in ASKED_BY_CLIENTS:
            # It waits for the disk, perhaps for days: whoever asked is told, and not left to their deadline.
            raise Internal(f"{NOTHING_CHANGED if task is None else UNDECIDED}: {self._raft.trouble}")
        if task is None:
            if request.op not in REPEATABLE and (made := self._made(id, request.operation.since)):
                return made
            if self._tasks.full:
                raise Unavailable("the controller carries out too many changes already; ask again")
            task = self._under_way[id] = self._tasks.start(self._execute(request))
            task.add_done_callback(lambda done: self._ended(id, request.op, done))
        return await asyncio.shield(task)

    def _made(self, id: str, since: int) -> int:
        """The index at which it was, if it was. Outdated if that cannot be told."""
        if self._term != self._raft.raft.term:
            self._term, self._oldest, self._done = self._raft.raft.term, self._store.metadata.index, {}
        if made := self._done.get(id, 0):
            return made
        if since < self._oldest:
            raise Outdated("this was asked before the present controller began; ask again")
        return 0

    def _ended(self, id: str, op: pb.Op, task: "asyncio.Task[int]") -> None:
        del self._under_way[id]
        if task.cancelled() or task.exception() is not None or op in REPEATABLE:
            return  # whoever still waits has the reason
        self._done[id] = task.result()
        if len(self._done) > KEPT_OPERATIONS:
            del self._done[next(iter(self._done))]
            self._oldest = self._store.metadata.index

    async def _ask(self, request: pb.PropagatedRequest, timeout_s: float) -> int:
        if self._raft.raft.leader == self._own:
            raise Unavailable("this broker is about to be the controller")
        data = await self._requests.ask(
            self._subjects.within("raft.metadata.propagate"),
            MsgType.PROPAGATED_REQUEST,
            request.SerializeToString(),
            MsgType.PROPAGATED_RESPONSE,
            max(timeout_s, POLL_S),
        )
        try:
            response = pb.PropagatedResponse.FromString(data)
        except DecodeError as error:
            raise Unavailable(f"the answer of the controller cannot be read: {error}") from error
        if not response.HasField("error"):
            return response.index
        # Whoever is refused sees why: what was decided before is known here by then, an earlier try of this too.
        await self._seen(response.index, timeout_s)
        raise by_status(Status(response.error.code), response.error.msg)

    async def _seen(self, index: int, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._raft.applied(index)
        except TimeoutError:
            raise DeadlineExceeded(UNDECIDED) from None
