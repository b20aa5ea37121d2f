"""The real clock and the real dice: the only place that asks the operating system for either."""

import random
import string
import time

_ALPHABET = string.ascii_letters + string.digits


class SystemClock:
    def time_ns(self) -> int:
        return time.time_ns()

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


class SystemRandom:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def token(self, length: int = 22) -> str:
        return "".join(self._random.choices(_ALPHABET, k=length))

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)
