"""Stations: which one bounds the line, and how many iterations it holds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from engine.executor import StationTime
from engine.runs.stations import bounding, describe, most_in_flight, percents


@dataclass
class Line:
    async_mode: bool = True
    max_lag: int | None = None


def test_the_busiest_station_bounds_the_line() -> None:
    stations = [
        StationTime("collect", 6.0, 4.0),
        StationTime("learn", 9.0, 1.0),
        StationTime("log", 9.0, 1.0),
    ]
    assert bounding(stations) == "learn", "of equals the first"


def test_nothing_bounds_a_line_that_is_not_filled_yet() -> None:
    assert bounding([StationTime("collect", 6.0, 4.0), StationTime("learn", 0.0, 10.0)]) is None
    assert bounding([]) is None


@pytest.mark.parametrize(
    ("busy", "waiting", "shares"),
    [(1.0, 3.0, (25, 75)), (0.0, 0.0, (0, 100)), (2.0, 0.0, (100, 0)), (1.0, 2.0, (33, 67))],
)
def test_the_percents_of_a_station_are_a_hundred_together(
    busy: float, waiting: float, shares: tuple[int, int]
) -> None:
    assert percents(StationTime("learn", busy, waiting)) == shares


@pytest.mark.parametrize(
    ("line", "count"),
    [
        (Line(async_mode=False), None),
        (Line(), 3),
        (Line(max_lag=0), 1),
        (Line(max_lag=1), 2),
        (Line(max_lag=9), 3),
    ],
)
def test_a_line_holds_one_iteration_more_than_its_lag_and_no_more_than_stations(
    line: Line, count: int | None
) -> None:
    assert most_in_flight(line, 3) == count


def test_only_an_overlapped_task_describes_its_mode() -> None:
    assert describe(Line(), 2) == "overlapped: 2 stations, at most 2 iterations in flight"
    assert describe(Line(max_lag=0), 1) == "overlapped: 1 station, at most 1 iteration in flight"
    assert describe(Line(async_mode=False), 2) is None
