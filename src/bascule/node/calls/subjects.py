"""All NATS subjects of messages between brokers. Subjects for the members of one cluster contain its id, so that two
clusters in one namespace never receive each other's messages: Raft, replication, repair, changes of the metadata,
requests of administrators. Only the subjects by which brokers find each other (founding, joining, heartbeats) are
shared, and those whose last token only their sender knows (answers, acks).
"""


def succeeding(cluster: str, token: str) -> str:
    """The id of a cluster that is recovered from another: it contains the id of that one."""
    return f"{token}-{cluster.partition('-')[0]}"


def succeeds(cluster: str, other: str) -> bool:
    """Whether the first cluster was recovered from the other."""
    return bool(other) and cluster.partition("-")[2] == other.partition("-")[0]


def own_stream(namespace: str, name: str) -> str:
    """The subject of a stream of the cluster itself."""
    return f"{namespace}.{name}"


def own_prefix(namespace: str) -> bytes:
    """Subjects with this prefix belong to the cluster: only its own streams store what is sent there."""
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
        """For all brokers in the namespace."""
        return f"{self.namespace}.{words}".encode()

    # --- to find each other --------------------------------------------------------------------------------------

    @property
    def founding(self) -> bytes:
        """Announcements of brokers that are in no cluster."""
        return self.shared("raft.metadata.bootstrap")

    @property
    def founded(self) -> bytes:
        """Answers to them by brokers that are in a cluster."""
        return self.shared("raft.metadata.bootstrap.reply")

    @property
    def join(self) -> bytes:
        return self.shared("raft.metadata.join")

    @property
    def heartbeats(self) -> bytes:
        return self.shared("raft.metadata.info")

    def heartbeats_to(self, broker: str) -> bytes:
        """Where a broker whose NATS connection may not receive sends its heartbeats, to itself."""
        return self.shared(f"raft.metadata.info.{broker}")

    # --- members -------------------------------------------------------------------------------------------------

    def raft(self, server: str) -> bytes:
        return self.within(f"raft.metadata.{server}")

    @property
    def changes(self) -> bytes:
        """The controller listens here for changes of the metadata."""
        return self.within("raft.metadata.propagate")

    def status(self, broker: str) -> bytes:
        """Whether a broker leads its partitions of a stream, or has applied its deletion."""
        return self.within(f"raft.metadata.status.{broker}")

    def administration(self, broker: str) -> bytes:
        return self.within(f"raft.metadata.admin.{broker}")

    def fetch_requests(self, leader: str) -> bytes:
        return self.within(f"replicate.{leader}")

    def fetch_responses(self, follower: str, leader: str) -> bytes:
        return self.within(f"replicated.{follower}.{leader}")

    def repair(self, broker: str) -> bytes:
        return self.within(f"repair.{broker}")

    # --- subjects with a token -----------------------------------------------------------------------------------

    def answers(self, broker: str, purpose: str = "") -> bytes:
        """The prefix of the subjects for answers to a broker; the last token names its request."""
        return self.shared(f"reply.{broker}.{purpose}." if purpose else f"reply.{broker}.")

    def acks(self, broker: str) -> bytes:
        """The prefix of the ack inboxes of a broker; the last token names the gRPC call."""
        return self.shared(f"ack.{broker}.")

    @property
    def every_ack(self) -> bytes:
        """The prefix of the ack inboxes of all brokers."""
        return self.shared("ack.")

    @property
    def ended_calls(self) -> bytes:
        """gRPC calls that ended before their acks arrived. Ack inboxes have one token more."""
        return self.shared("ack.gone")
