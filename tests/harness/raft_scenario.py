"""A small cluster driven by text: commands, and below each what it should give.

A scenario is a text file of blocks: comment lines (`# ...`), one command, `----`, the expected output, a blank line.
Everything is deterministic: server N waits N - 1 ticks longer than the shortest election timeout, messages arrive in
the order they were sent. Each server persists, sends and applies at once after every input. The commands are the
methods of `Scenario` named `do_...`.
"""

from bascule.core.raft.machine import Raft, RaftConfig, Role
from bascule.errors import BasculeError
from bascule.wire.raft_messages import (
    AppendReply,
    AppendRequest,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Membership,
    Message,
    Snapshot,
    SnapshotReply,
    SnapshotRequest,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from tests.harness.raft_cluster import Server
from tests.harness.scenario_text import CommandRunner

MAX_ROUNDS = 200


def entry_text(entry: Entry) -> str:
    content = {EntryKind.COMMAND: entry.data.decode(), EntryKind.NOOP: "-"}.get(entry.kind, entry.kind.name.lower())
    return f"{entry.index}/{entry.term} {content}"


def message_text(message: Message) -> str:
    head = f"{message.source}->{message.target} term={message.term} "
    match message:
        case VoteRequest():
            kind = "pre-vote?" if message.pre else "vote?"
            incarnation = f" incarnation={message.incarnation}" if message.incarnation else ""
            return (
                f"{head}{kind} log={message.last_index}/{message.last_term}{incarnation}"
                + " transfer" * message.transfer
            )
        case VoteReply():
            return f"{head}{'pre-vote' if message.pre else 'vote'} {'yes' if message.granted else 'no'}"
        case AppendRequest():
            entries = ", ".join(map(entry_text, message.entries))
            follows = f"{message.prev_index}/{message.prev_term}"
            return f"{head}append after {follows} commit={message.commit} [{entries}]"
        case AppendReply() if message.rejected:
            return f"{head}rejected after {message.prev_index} hint={message.match}/{message.hint_term}"
        case AppendReply():
            return f"{head}has {message.match}"
        case Heartbeat():
            return f"{head}heartbeat commit={message.commit}/{message.commit_term} round={message.round}"
        case HeartbeatReply():
            return f"{head}heard round={message.round}"
        case SnapshotRequest():
            part = message.snapshot
            end = message.offset + len(part.data)
            return f"{head}snapshot {part.index}/{part.term} bytes {message.offset}-{end} of {message.total}"
        case SnapshotReply():
            return f"{head}snapshot {message.index} has {message.received}"
        case TimeoutNow():
            return f"{head}campaign now"
    raise AssertionError(message)


class RaftScenario(CommandRunner):
    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[str, Server] = {}
        self.network: list[Message] = []
        self.dropped: list[tuple[str, str]] = []
        self.shows_messages = True
        self._roles: dict[str, tuple[Role, int]] = {}

    def run(self, line: str) -> str:
        try:
            return super().run(line)
        except BasculeError as error:
            return "\n".join([*self.output, f"refused: {error}"])

    # --- the cluster --------------------------------------------------------------------------------------------

    def do_add_nodes(self, count: str) -> None:
        """Found a cluster of servers 1 to `count`."""
        membership = Membership(tuple(str(number) for number in range(1, int(count) + 1)))
        for name in membership.voters:
            self.servers[name] = Server(name, HardState(), Snapshot(0, 0, membership))
            self._start(name)

    def do_add_spare(self, name: str) -> None:
        """A server without any state, and not a member yet."""
        self.servers[name] = Server(name, HardState(incarnation="first"), Snapshot(0, 0, Membership()))
        self._start(name)

    def do_crash(self, *names: str) -> None:
        for name in names:
            self.servers[name].raft = None

    def do_restart(self, *names: str) -> None:
        for name in names:
            self._start(name)

    def do_wipe(self, name: str) -> None:
        """It comes back without its state, in a new incarnation."""
        self.servers[name] = Server(name, HardState(incarnation="second"), Snapshot(0, 0, Membership()))
        self._start(name)

    def do_drop(self, *ways: str) -> None:
        """`1->2` one way, `1` every way to and from it."""
        for way in ways:
            source, _, target = way.partition("->")
            others = [name for name in self.servers if name != source]
            both = [(source, other) for other in others] + [(other, source) for other in others]
            self.dropped += [(source, target)] if target else both

    def do_heal(self) -> None:
        self.dropped = []

    def do_quiet(self) -> None:
        """Messages are no longer shown."""
        self.shows_messages = False

    def do_loud(self) -> None:
        self.shows_messages = True

    # --- inputs -------------------------------------------------------------------------------------------------

    def do_campaign(self, name: str) -> None:
        self._raft(name).campaign()
        self._pump(name)

    def do_tick(self, name: str, count: str) -> None:
        for _ in range(int(count)):
            self._raft(name).tick()
            self._pump(name)

    def do_tick_all(self, count: str) -> None:
        """With every message delivered between the ticks."""
        for _ in range(int(count)):
            for name in self._running():
                self._raft(name).tick()
                self._pump(name)
            self._settle()

    def do_propose(self, name: str, *commands: str) -> None:
        index = self._raft(name).propose_many([command.encode() for command in commands])
        self.output.append(f"index {index}")
        self._pump(name)

    def do_read(self, name: str, context: str) -> None:
        self._raft(name).read(int(context))
        self._pump(name)

    def do_transfer(self, name: str, target: str) -> None:
        self._raft(name).transfer(target)
        self._pump(name)

    def do_membership(self, name: str, change: str, server: str) -> None:
        """`learner`, `voter` or `remove`, proposed to `name`; `voters` for several at once, with commas."""
        raft = self._raft(name)
        if change == "voters":
            several = raft.membership
            for each in server.split(","):
                several = several.with_voter(each)
            raft.propose_membership(several)
            self._pump(name)
            return
        incarnation = self.servers[server].hard_state.incarnation
        match change:
            case "learner":
                membership = raft.membership.with_learner(server, incarnation)
            case "voter":
                membership = raft.membership.with_voter(server, incarnation)
            case _:
                membership = raft.membership.without(server)
        raft.propose_membership(membership)
        self._pump(name)

    def do_compact(self, name: str) -> None:
        server, raft = self.servers[name], self._raft(name)
        snapshot = raft.compact(server.applied_index, b",".join(server.applied))
        server.compact(snapshot)
        raft.compacted(snapshot)
        self.output.append(f"{name} compacted to {snapshot.index}/{snapshot.term}, {len(snapshot.data)} bytes")

    def do_forge(self, name: str, entry_term: str, term: str) -> None:
        """After a crash: entry 2 of that term is the last in the log of `name`. A history made up."""
        entry = Entry(2, int(entry_term), EntryKind.COMMAND, f"of-term-{entry_term}".encode())
        server = self.servers[name]
        server.entries = [*server.entries[:1], entry]
        server.hard_state = HardState(int(term), "", 1)

    # --- the network --------------------------------------------------------------------------------------------

    def do_deliver(self, *ways: str) -> None:
        """Everything under way now, or only what goes these ways; not what follows from it."""
        chosen = [message for message in self.network if not ways or f"{message.source}->{message.target}" in ways]
        self.network = [message for message in self.network if message not in chosen]
        for message in chosen:
            self._deliver(message)

    def do_lose(self, *ways: str) -> None:
        """What is under way these ways, or at all, is lost."""
        retained = [message for message in self.network if ways and f"{message.source}->{message.target}" not in ways]
        self.output.append(f"{len(self.network) - len(retained)} lost")
        self.network = retained

    def do_double(self) -> None:
        """Everything under way arrives twice, the second time after everything else."""
        self.network += self.network

    def do_pending(self) -> None:
        self.output += map(message_text, self.network)

    def do_stabilize(self) -> None:
        """Deliver until nothing is under way."""
        self._settle()

    # --- questions ----------------------------------------------------------------------------------------------

    def do_status(self, *names: str) -> None:
        for name in names or self.servers:
            raft = self.servers[name].raft
            if raft is None:
                self.output.append(f"{name}: down")
                continue
            log = raft.log
            leader = f" leader={raft.leader}" if raft.leader else ""
            vote = f" vote={raft.hard_state.vote}" if raft.hard_state.vote else ""
            self.output.append(
                f"{name}: {raft.role.value} term={raft.term}{vote}{leader} "
                f"log={log.last_index}/{log.last_term} commit={log.commit} {raft.membership}"
            )

    def do_progress(self, name: str) -> None:
        for server, progress in self._raft(name).progress.items():
            self.output.append(f"{server}: {progress}{' active' if progress.active else ''}")

    def do_log(self, *names: str) -> None:
        for name in names or self.servers:
            log = self._raft(name).log
            entries = ", ".join(map(entry_text, log.slice(log.base_index + 1, log.last_index + 1)))
            self.output.append(f"{name}: {log.base_index} [{entries}]")

    def do_state(self, *names: str) -> None:
        """What was applied."""
        for name in names or self.servers:
            self.output.append(f"{name}: {b' '.join(self.servers[name].applied).decode()}")

    def do_caught_up(self, name: str, server: str) -> None:
        self.output.append("yes" if self._raft(name).caught_up(server) else "no")

    # --- inside -------------------------------------------------------------------------------------------------

    def _running(self) -> list[str]:
        return [name for name, server in self.servers.items() if server.raft is not None]

    def _raft(self, name: str) -> Raft:
        raft = self.servers[name].raft
        assert raft is not None, f"{name} is down"
        return raft

    def _start(self, name: str) -> None:
        server = self.servers[name]
        server.applied = server.snapshot.data.split(b",") if server.snapshot.data else []
        server.applied_index = server.snapshot.index
        config = RaftConfig(name, snapshot_chunk_bytes=8, max_append_bytes=40, trailing_entries=0)
        number = int(name)
        server.raft = Raft(
            config,
            server.hard_state,
            server.snapshot,
            server.entries,
            lambda low, high: low + (number - 1) % (high - low),
        )
        self._roles[name] = (server.raft.role, server.raft.term)

    def _pump(self, name: str) -> None:
        server, raft = self.servers[name], self._raft(name)
        self._show_role(name, raft)
        while ready := raft.ready():
            server.persist(ready)
            self.network += ready.messages
            if ready.snapshot:
                server.applied = ready.snapshot.data.split(b",")
                server.applied_index = ready.snapshot.index
                self.output.append(f"{name} installs snapshot {ready.snapshot.index}/{ready.snapshot.term}")
            for entry in ready.committed:
                server.applied_index = entry.index
                if entry.kind is EntryKind.COMMAND:
                    server.applied.append(entry.data)
            if ready.committed:
                self.output.append(f"{name} applies {', '.join(map(entry_text, ready.committed))}")
            self.output += [f"{name} may read {context} at {index}" for context, index in ready.reads]
            self.output += [f"{name} lost read {context}" for context in ready.lost_reads]
            raft.advance(ready)
            self._show_role(name, raft)

    def _show_role(self, name: str, raft: Raft) -> None:
        now = (raft.role, raft.term)
        if now != self._roles[name]:
            self._roles[name] = now
            self.output.append(f"{name} is {raft.role.value} in term {raft.term}")

    def _deliver(self, message: Message) -> None:
        dropped = (message.source, message.target) in self.dropped or self.servers[message.target].raft is None
        if self.shows_messages:
            self.output.append(f"{message_text(message)}{' (dropped)' if dropped else ''}")
        if not dropped:
            self._raft(message.target).step(message)
            self._pump(message.target)

    def _settle(self) -> None:
        for _ in range(MAX_ROUNDS):
            if not self.network:
                return
            waiting, self.network = self.network, []
            for message in waiting:
                self._deliver(message)
        raise AssertionError(f"messages go round and round, the last are {self.network[:4]}")
