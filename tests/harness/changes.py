"""What a store of the metadata tells of its changes, without a broker."""

from bascule.core.metadata.state import Change


class NoChanges:
    """Nobody carries them out."""

    def enqueue(self, changes: list[Change]) -> None:
        pass
