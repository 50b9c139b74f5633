"""The streams of one process: what it pushed and is not taken, what came and waits to be taken."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from engine.bus.gate import Gate
from engine.bus.router import Arrived
from engine.errors import Overloaded

WhenFull: TypeAlias = Literal["block", "drop_oldest", "error"]

CAPACITY = 8
"""Items that wait, where nothing else was declared."""


@dataclass(eq=False)
class Taken:
    """An item that was taken: its value, who pushed it, and how long it was on its way.

    With ``view=True`` the arrays of ``value`` are looked at where they lie, until `release` (or the
    end of a ``with`` block), which also acknowledges the item.
    """

    value: Any
    sender: str
    seconds: float
    number: int = 0
    _done: Callable[[], None] | None = field(default=None, repr=False)

    def release(self) -> None:
        """Acknowledge the item, and let go of its memory."""
        done, self._done = self._done, None
        if done is not None:
            self.value = None
            done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(eq=False, slots=True)
class Waiting:
    """An item that came and was not taken: a value of this process, or one that arrived."""

    sender: str
    sender_id: str
    number: int
    since: float
    value: Any
    arrived: Arrived | None


@dataclass(eq=False)
class Stream:
    """One stream as this process declared it, and what it knows of it."""

    name: str
    capacity: int = CAPACITY
    when_full: WhenFull = "block"
    declared: bool = False
    consuming: int | None = None
    """How many untaken items of each producer this process holds at most; None: it does not consume."""
    came: deque[Waiting] = field(default_factory=deque)
    outstanding: int = 0
    """Items that this process pushed and nobody took."""
    numbers: int = 0
    taken: int = 0
    dropped: int = 0

    def admit(self, gate: Gate, timeout: float | None, late: Callable[[], str]) -> None:
        """Wait for room for one more item, and count it as outstanding.

        Raises `Overloaded` at once where the stream was declared with ``when_full="error"``.
        """

        def room() -> bool | None:
            if self.when_full != "drop_oldest" and self.outstanding >= self.capacity:
                return None
            self.outstanding += 1
            return True

        if self.when_full == "error":
            with gate.changed:
                if room() is None:
                    raise Overloaded(f"{self.capacity} items of {self.name!r} wait already; {late()}")
            return
        gate.until(room, timeout, late, what=f"room in {self.name!r}", finishing=True)

    def keep(self) -> int | None:
        """How many items may wait at the producer before the oldest is dropped."""
        return self.capacity if self.when_full == "drop_oldest" else None

    def put(self, sender: str, value: Any) -> None:
        """Hand an item to this very process."""
        self.came.append(Waiting(sender, "", self.numbers, time.monotonic(), value, None))
        self.numbers += 1
        while self.when_full == "drop_oldest" and len(self.came) > self.capacity:
            self.came.popleft()
            self.dropped += 1
            self.outstanding -= 1

    def next(self, sender: str | None) -> Waiting | None:
        """Take the oldest item out, of `sender` if one is named."""
        for place, item in enumerate(self.came):
            if sender is None or item.sender == sender:
                del self.came[place]
                return item
        return None
