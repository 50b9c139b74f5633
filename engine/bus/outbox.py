"""The items of one stream that a producer has not been told are taken.  Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bus.meter import Meter


@dataclass(eq=False, slots=True)
class OutgoingItem:
    """One item: where its value lies, and since when it waits."""

    number: int
    body: Any
    since: float
    inline: bool = False  # its arrays were asked for over the socket
    amount: int = 0
    """How much it counts on the meter."""


@dataclass(slots=True)
class Counts:
    """What became of the items of a stream; ``pushed`` is the sum of the rest."""

    pushed: int = 0
    taken: int = 0
    dropped: int = 0
    waiting: int = 0
    under_way: int = 0


@dataclass(eq=False)
class Outbox:
    """Gives each item to one consumer, and to another where that one dies before it took it.

    A consumer has at most as many items that it did not take as it said; the rest waits here.
    """

    send: Callable[[str, OutgoingItem], None]
    keep: int | None = None  # with when_full="drop_oldest": how many wait here at most
    meter: Meter | None = None
    """Where the amounts of its items are counted, if they have any."""
    counts: Counts = field(default_factory=Counts)
    waiting: deque[OutgoingItem] = field(default_factory=deque)
    flying: dict[str, dict[int, OutgoingItem]] = field(default_factory=dict)
    _number: int = 0

    def push(self, body: Any, now: float, amount: int = 0) -> list[OutgoingItem]:
        """Add an item; return those that were dropped for it, the oldest that wait."""
        self.waiting.append(OutgoingItem(self._number, body, now, amount=amount))
        self._number += 1
        self.counts.pushed += 1
        dropped: list[OutgoingItem] = []
        while self.keep is not None and len(self.waiting) > self.keep:
            dropped.append(self.waiting.popleft())
        self.counts.dropped += len(dropped)
        if amount:  # before it is sent: what was taken somewhere must have been pushed here
            self._measure(pushed=amount, dropped=sum(item.amount for item in dropped))
        return dropped

    def pump(self, consumers: Mapping[str, int]) -> None:
        """Send what waits to those with room for it, the one with the most room first."""
        while self.waiting:
            room = {who: most - len(self.flying.get(who, ())) for who, most in consumers.items()}
            best = max(room, key=room.__getitem__, default=None)
            if best is None or room[best] <= 0:
                break
            item = self.waiting.popleft()
            self.flying.setdefault(best, {})[item.number] = item
            self.send(best, item)
        self._count()

    def taken(self, consumer: str, number: int) -> OutgoingItem | None:
        """A consumer has taken an item; None where it did not have it."""
        item = self.flying.get(consumer, {}).pop(number, None)
        if item is not None:
            self.counts.taken += 1
            self._count()
            if item.amount:
                self._measure()
        return item

    def sent_to(self, consumer: str, number: int) -> OutgoingItem | None:
        """Return the item that a consumer has and did not take."""
        return self.flying.get(consumer, {}).get(number)

    def lost(self, consumer: str) -> int:
        """A consumer is gone: what it did not take waits for another, in its old place.  Return how many."""
        items = self.flying.pop(consumer, {})
        self.waiting.extendleft(sorted(items.values(), key=lambda item: -item.number))
        self._count()
        return len(items)

    def _measure(self, *, pushed: int = 0, dropped: int = 0) -> None:
        if self.meter is not None:
            here = [item for items in self.flying.values() for item in items.values()] + [*self.waiting]
            amounts = [(item.number, item.amount) for item in here]
            self.meter.moved(amounts, pushed=pushed, dropped=dropped)

    def _count(self) -> None:
        self.counts.waiting = len(self.waiting)
        self.counts.under_way = sum(map(len, self.flying.values()))
