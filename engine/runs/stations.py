"""The stations of an overlapped run: how busy each is, and which one bounds the line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class StationTime(Protocol):
    """What `Task.stations` gives of each station; both times together are the time that the line ran."""

    @property
    def name(self) -> str: ...

    @property
    def busy(self) -> float: ...

    @property
    def waiting(self) -> float: ...


class Line(Protocol):
    """What tells how a task runs: in order, or overlapped on as many stations as it has members."""

    @property
    def async_mode(self) -> bool: ...

    @property
    def max_lag(self) -> int | None: ...


def bounding(stations: Sequence[StationTime]) -> str | None:
    """Return the name of the station that worked the longest, or None while the line is not filled yet.

    No line is quicker than its busiest station: making another one quicker gains nothing.
    """
    if not stations or min(station.busy for station in stations) <= 0:
        return None
    return max(stations, key=lambda station: station.busy).name


def percents(station: StationTime) -> tuple[int, int]:
    """Return how much of the line's time a station was busy and waiting, in whole percents: 100 together."""
    total = station.busy + station.waiting
    busy = round(100 * station.busy / total) if total > 0 else 0
    return busy, 100 - busy


def most_in_flight(line: Line, stations: int) -> int | None:
    """Return how many iterations are under way at most; None for a task that runs in order."""
    if not line.async_mode:
        return None
    return stations if line.max_lag is None else min(stations, line.max_lag + 1)


def at_most(count: int) -> str:
    """``at most 2 iterations in flight``"""
    return f"at most {count} iteration{'s' if count != 1 else ''} in flight"


def describe(line: Line, stations: int) -> str | None:
    """Say how an overlapped task runs, in one line; None for one that runs in order."""
    count = most_in_flight(line, stations)
    if count is None:
        return None
    return f"overlapped: {stations} station{'s' if stations != 1 else ''}, {at_most(count)}"
