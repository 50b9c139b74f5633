"""What waits have yet to return: the occurrences of one event, kept in order and within bounds.

A station's waits return the occurrences one after the other, delivered to handlers or not.  Overlapped,
an occurrence has a place in time: the slot, the station and the iteration that emitted it.  A wait sees
what an earlier station emitted up to its own iteration, and what a later one emitted before its slot
began; so it does not depend on how quick another station is.  What handlers, second halves, other
threads and other processes emit has no iteration and is seen as soon as it is there.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import islice
from typing import Protocol, TypeAlias

log = logging.getLogger(__name__)

Origin: TypeAlias = tuple[int, int, int]
"""When an event was emitted: the slot; the place among what ran in it, negative for stations, the oldest
iteration first; and which iteration of the line it was, counted as they entered it, -1 for none."""

Asker: TypeAlias = tuple[str, Origin]
"""The station that waits, and its place in time."""

MOST_WAITING, MOST_WAITING_BYTES = 100_000, 64 << 20
"""So many occurrences that were delivered are kept for the next waits of a station or thread that waited."""

MOST_RECENT, MOST_RECENT_BYTES = 1_000, 16 << 20
"""So many are kept for stations that may wait for the first time; about so many bytes."""

_MOST_BETWEEN = 15  # letters that are not weighed, between two that are
_MOST_WEIGHED = 64  # parts of one letter
_SMALL = frozenset({int, float, bool, complex, type(None)})


class Line(Protocol):
    """What tells when something was emitted, and which station waits: an executor."""

    def origin(self) -> Origin:
        """Return the place in time of what the asking thread emits."""
        ...

    def station(self) -> Asker | None:
        """Return the station that asks; None outside of every station."""
        ...

    def oldest(self) -> int:
        """Return the oldest iteration that is under way, or the next one to enter."""
        ...

    def abandoned(self, entry: int) -> bool:
        """Whether that iteration ended because the line stopped."""
        ...


class NoLine:
    """A bus without a task: nothing has a place in time."""

    def origin(self) -> Origin:
        """The origin of what has none: it goes first."""
        return 0, 0, -1

    def station(self) -> Asker | None:
        """No station asks."""
        return None

    def oldest(self) -> int:
        """No iteration is under way."""
        return 0

    def abandoned(self, entry: int) -> bool:
        """No iteration was abandoned."""
        return False


class Occurrence(Protocol):
    """What a backlog needs of a letter."""

    number: int
    origin: Origin

    @property
    def weight(self) -> int:
        """About how many bytes it keeps alive."""
        ...


class Backlog:
    """What the waits of one station, or of one thread outside of all, have yet to return of one event."""

    def __init__(self, event: str, waiter: str, *, in_time: bool) -> None:
        self._event, self._waiter, self._in_time = event, waiter, in_time
        self._plain: deque[Occurrence] = deque()  # without an iteration, as they came
        self._past: list[tuple[int, int, int, Occurrence]] = []  # a heap, as in order they would have come
        self._fresh: list[Occurrence] = []  # with an iteration, not looked at yet
        self._held: list[Occurrence] = []  # of other stations in the slot under way
        self._told = False

    def __len__(self) -> int:
        return len(self._plain) + len(self._past) + len(self._fresh) + len(self._held)

    def add(self, letter: Occurrence) -> None:
        """Take in what was emitted."""
        if self._in_time and letter.origin[2] >= 0:
            self._fresh.append(letter)
        else:
            self._plain.append(letter)

    def take(self, now: Origin, line: Line) -> Occurrence | None:
        """Return the oldest occurrence that a wait at this place in time may see, and forget it."""
        if self._fresh or self._held:
            self._age(now)
        past, plain = self._past, self._plain
        while past and line.abandoned(past[0][0]):
            heappop(past)
        if past and past[0][0] <= now[2] and (not plain or past[0][2] < plain[0].number):
            return heappop(past)[-1]
        return plain.popleft() if plain else None

    def trim(self, most: int, oldest: int) -> None:
        """Forget the oldest occurrences beyond the bounds, but nothing of an iteration under way."""
        if len(self) <= most:
            return
        self._age((sys.maxsize, 0, 0))
        past, plain = self._past, self._plain
        while len(self) > most:
            if past and past[0][0] < oldest and (not plain or past[0][2] < plain[0].number):
                heappop(past)
            elif plain:
                plain.popleft()
            else:
                return
            if not self._told:
                self._told = True
                log.warning(
                    "%s waits for %r less often than it is emitted: the latest %d are kept for it, older "
                    "ones are forgotten; declare %r a state if only the latest one counts",
                    self._waiter, self._event, most, self._event,
                )  # fmt: skip

    def _age(self, now: Origin) -> None:
        """Sort in what was emitted before this slot, or in it by the station that asks."""
        if self._held and self._held[0].origin[0] < now[0]:
            self._fresh, self._held = self._held + self._fresh, []
        for letter in self._fresh:
            slot, place, entry = letter.origin
            if slot < now[0] or place == now[1]:
                heappush(self._past, (entry, -place, letter.number, letter))
            else:
                self._held.append(letter)
        self._fresh.clear()


class Occurrences:
    """All that is kept of one event: for those that wait for it, and for stations that may begin to."""

    def __init__(self) -> None:
        self.recent: deque[Occurrence] = deque()
        self._readers: list[weakref.ref[Backlog]] = []
        self._left = self._between = self._heaviest = 0  # letters until, and between, looks at the bounds

    def add(self, backlog: Backlog) -> None:
        """Hand over from now on what comes, as long as the backlog is used."""
        self._readers.append(weakref.ref(backlog))

    def post(self, letter: Occurrence) -> None:
        """Hand over what was emitted."""
        if self._readers:
            for backlog in self._living():
                backlog.add(letter)

    def delivered(self, letter: Occurrence, line: Line) -> None:
        """Keep what a boundary has delivered, within about the bounds."""
        self.recent.append(letter)
        self._left -= 1
        if self._left < 0:
            self._bound(letter, line)

    def _bound(self, letter: Occurrence, line: Line) -> None:
        """Forget what is beyond the bounds; one letter, weighed, stands for all."""
        weight, oldest, recent = letter.weight, line.oldest(), self.recent
        most = max(1, min(MOST_RECENT, MOST_RECENT_BYTES // weight))
        while len(recent) > most and recent[0].origin[2] < oldest:
            recent.popleft()
        for backlog in self._living():
            backlog.trim(max(1, min(MOST_WAITING, MOST_WAITING_BYTES // weight)), oldest)
        self._between = min(2 * self._between + 1, _MOST_BETWEEN) if weight <= self._heaviest else 0
        self._heaviest = max(weight, self._heaviest)
        self._left = self._between

    def _living(self) -> list[Backlog]:
        living = [backlog for reader in self._readers if (backlog := reader()) is not None]
        if len(living) < len(self._readers):
            self._readers = [reader for reader in self._readers if reader() is not None]
        return living


class Waiter:
    """A station, or a thread outside of all: what its waits have returned, and have yet to."""

    def __init__(self, name: str, *, in_time: bool) -> None:
        self.name, self.in_time = name, in_time
        self.backlogs: dict[str, Backlog] = {}
        self.last: dict[str, int] = {}
        """By state: the number of the letter that its last wait returned."""


def weigh(value: object) -> int:
    """Return about how many bytes a value keeps alive; of a large structure it looks at a part."""
    if value.__class__ in _SMALL:
        return 32
    total = seen = unseen = 0
    left: deque[object] = deque([value])
    while left:
        one = left.popleft()
        seen += 1
        if one.__class__ in _SMALL:
            total += 32
        elif hasattr(type(one), "__dlpack__"):  # an array of any library
            total += getattr(one, "nbytes", 0)
        else:
            total += sys.getsizeof(one, 64)
            inside, count = _inside(one)
            room = max(0, min(count, _MOST_WEIGHED - seen - len(left)))
            left.extend(islice(inside, room))
            unseen += count - room
    return int(total + unseen * total // seen)


def _inside(value: object) -> tuple[Iterable[object], int]:
    if isinstance(value, dict):
        return value.values(), len(value)
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return value, len(value)
    held = list(getattr(value, "__dict__", {}).values())
    names = getattr(type(value), "__slots__", ())
    held += [getattr(value, name) for name in names if isinstance(name, str) and hasattr(value, name)]
    return held, len(held)
