"""A clock that a test sets."""


class Now:
    def __init__(self) -> None:
        self.ns = 10**12

    def monotonic_ns(self) -> int:
        return self.ns

    def time_ns(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.ns += int(seconds * 1e9)
