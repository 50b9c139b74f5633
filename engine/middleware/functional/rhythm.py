"""When something is due."""

from __future__ import annotations

from engine.errors import UsageError


class Every:
    """True once for each multiple of `every` that a counter reaches or passes; never at 0.

    A counter that jumps over several multiples is answered once, and the rhythm does not
    drift: with ``every=100`` and counts 64, 128, 192, 256 it is True at 128 and 256.
    """

    def __init__(self, every: int) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UsageError(f"every= is a whole number of at least 1, not {every!r}")
        self.every = every
        self._done = 0

    def __call__(self, count: int) -> bool:
        """Tell a new count; return whether it is time."""
        multiples = count // self.every
        if multiples <= self._done:
            return False
        self._done = multiples
        return True


class Seldomer:
    """True at first for every count, and ever more seldom: about `number` times as a counter doubles.

    For what may run without an end: however far the counter gets, it was True a few thousand times.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._every = Every(1)
        self._before = 0

    def __call__(self, count: int) -> bool:
        """Tell a new count; return whether it is time."""
        if not self._every(count):
            return False
        self._before += 1
        if self._before == 2 * self.number:
            self._before = self.number
            self._every = Every(max(1, count // self.number))
            self._every(count)
        return True
