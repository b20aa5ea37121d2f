"""The subjects brokers talk on. Those that concern the members of one cluster carry its id, so that what brokers of two
clusters in one namespace say never reaches the others, whatever ids they have: Raft, replication, repair, changes,
inquiries. Shared are only the subjects by which brokers find each other: founding, joining, heartbeats.
"""


def succeeding(cluster: str, token: str) -> str:
    """The id of a cluster that takes the place of another: it names the one before it."""
    return f"{token}-{cluster.partition('-')[0]}"


def succeeds(cluster: str, other: str) -> bool:
    """Whether the first takes the place of the other."""
    return bool(other) and cluster.partition("-")[2] == other.partition("-")[0]


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
