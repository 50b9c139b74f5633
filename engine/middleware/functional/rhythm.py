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
