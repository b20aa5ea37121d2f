"""For how long a peer has sent nothing, in ticks of the event loop: a program that blocks its own loop makes no ticks,
and does not take its peer for dead."""


class Silence:
    def __init__(self) -> None:
        self.ticks = 0
        self._heard_at = 0.0
        self._unwritten = 0

    def begin(self) -> None:
        self.ticks = 0

    def tick(self, heard_at: float, unwritten: int) -> int:
        """When something arrived last, and the bytes that are written and not sent yet. Over a slow link much that was
        written before is sent before a PING: a peer that takes bytes is not silent."""
        silent = heard_at <= self._heard_at and unwritten >= self._unwritten
        self.ticks = self.ticks + 1 if silent else 0
        self._heard_at, self._unwritten = heard_at, unwritten
        return self.ticks
