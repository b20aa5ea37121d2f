"""The subjects brokers talk on, all of them. Those that concern the members of one cluster carry its id, so that what
brokers of two clusters in one namespace say never reaches the others, whatever ids they have: Raft, replication,
repair, changes of the metadata, questions of administrators. Shared are only the subjects by which brokers find each
other (founding, joining, heartbeats), and those whose last token only their sender knows (answers, acks).
"""


def succeeding(cluster: str, token: str) -> str:
    """The id of a cluster that takes the place of another: it names the one before it."""
    return f"{token}-{cluster.partition('-')[0]}"


def succeeds(cluster: str, other: str) -> bool:
    """Whether the first takes the place of the other."""
    return bool(other) and cluster.partition("-")[2] == other.partition("-")[0]


def own_prefix(namespace: str) -> bytes:
    """Subjects that begin so belong to the cluster: no stream may listen there, and nothing of it is ever stored."""
    return f"{namespace}.".encode()


class Subjects:
    def __init__(self, namespace: str, cluster: str = "") -> None:
        self.namespace = namespace
        self._cluster = cluster

    @property
    def cluster(self) -> str:
        """The id of the cluster this broker is in; empty while it is in none."""
        return self._cluster

    def enter(self, cluster: str) -> None:
        assert cluster, "a cluster has an id"
        assert self._cluster in ("", cluster), f"from cluster {self._cluster} to {cluster}"
        self._cluster = cluster

    def within(self, words: str) -> bytes:
        """For members of this cluster."""
        assert self._cluster, f"{words}: this broker is in no cluster yet"
        return f"{self.namespace}.{self._cluster}.{words}".encode()

    def shared(self, words: str) -> bytes:
        """For all in the namespace."""
        return f"{self.namespace}.{words}".encode()

    # --- to find each other --------------------------------------------------------------------------------------

    @property
    def founding(self) -> bytes:
        """Brokers that are in no cluster say so here."""
        return self.shared("raft.metadata.bootstrap")

    @property
    def founded(self) -> bytes:
        """And those that are in one answer here."""
        return self.shared("raft.metadata.bootstrap.reply")

    @property
    def join(self) -> bytes:
        return self.shared("raft.metadata.join")

    @property
    def heartbeats(self) -> bytes:
        return self.shared("raft.metadata.info")

    def heartbeats_to(self, broker: str) -> bytes:
        """By which a broker finds out whether it hears itself."""
        return self.shared(f"raft.metadata.info.{broker}")

    # --- members -------------------------------------------------------------------------------------------------

    def raft(self, server: str) -> bytes:
        return self.within(f"raft.metadata.{server}")

    @property
    def changes(self) -> bytes:
        """The controller listens here for changes of the metadata."""
        return self.within("raft.metadata.propagate")

    def status(self, broker: str) -> bytes:
        """Whether a broker leads what it should of a stream, or knows that it is gone."""
        return self.within(f"raft.metadata.status.{broker}")

    def administration(self, broker: str) -> bytes:
        return self.within(f"raft.metadata.admin.{broker}")

    def fetch_requests(self, leader: str) -> bytes:
        return self.within(f"replicate.{leader}")

    def fetch_responses(self, follower: str, leader: str) -> bytes:
        return self.within(f"replicated.{follower}.{leader}")

    def repair(self, broker: str) -> bytes:
        return self.within(f"repair.{broker}")

    # --- what carries a token of its own -------------------------------------------------------------------------

    def answers(self, broker: str, purpose: str = "") -> bytes:
        """The first tokens of the subjects on which a broker is answered; the last one names its question."""
        return self.shared(f"reply.{broker}.{purpose}." if purpose else f"reply.{broker}.")

    def acks(self, broker: str) -> bytes:
        """The same for the acks of what was published through it; the last token names the call."""
        return self.shared(f"ack.{broker}.")

    @property
    def every_ack(self) -> bytes:
        """The first tokens of all of them, whichever broker they are for."""
        return self.shared("ack.")

    @property
    def ended_calls(self) -> bytes:
        """Whose acks nobody waits for any more. Ack inboxes have a token more."""
        return self.shared("ack.gone")
