"""The live panel: what it shows, and who may draw it."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest
from rich.console import Console

from engine.executor import StationTime
from engine.runs.panel import Panel, render
from engine.runs.progress import Snapshot

STATIONS = [StationTime("collect", 6.1, 3.9), StationTime("learn", 9.7, 0.3)]


def shown(snapshot: Snapshot, width: int = 100) -> list[str]:
    """The rows of a panel, without frame."""
    out = io.StringIO()
    Console(width=width, file=out).print(render(snapshot, width))
    return [line.strip("│ \n") for line in out.getvalue().splitlines()]


def test_each_station_is_shown_in_the_order_of_the_line_and_the_bounding_one_is_marked() -> None:
    rows = shown(Snapshot("ppo", stations=STATIONS))
    head = next(index for index, row in enumerate(rows) if row.startswith("stations"))
    assert rows[head].split() == ["stations", "busy", "waiting"]
    words = [[word for word in row.split() if "━" not in word] for row in rows[head + 1 : head + 3]]
    assert words == [
        ["collect", "61%", "39%"],
        ["learn", "97%", "3%", "bounds", "the", "line"],
    ]


def test_in_order_there_is_no_word_of_stations() -> None:
    assert "station" not in "\n".join(shown(Snapshot("ppo", timings={"collector": 1.0})))


@pytest.mark.parametrize("width", [40, 60, 100])
def test_the_panel_fits_any_terminal(width: int) -> None:
    snapshot = Snapshot("ppo", 500, 1000, stations=STATIONS, timings={"collect.collector": 1.0})
    out = io.StringIO()
    Console(width=width, file=out).print(render(snapshot, width))
    assert {len(line) for line in out.getvalue().splitlines()} == {width}
    assert "bounds" in out.getvalue()


def test_the_bar_is_of_env_steps_else_of_time_else_it_says_that_the_end_is_not_known() -> None:
    def filled(**more: Any) -> int:
        """How much of the bar there is: what is not done has no sign where there are no colours."""
        return shown(Snapshot("ppo", 25, **more))[1].count("━")

    whole = filled(limit=60.0, time_left=0.0)
    assert whole > 50
    assert filled(limit=60.0, time_left=15.0) == pytest.approx(0.75 * whole, abs=2)
    assert filled(total=100) == filled(total=100, limit=60.0, time_left=15.0)
    assert filled(total=100) == pytest.approx(0.25 * whole, rel=0.3), "its words take some room"
    assert shown(Snapshot("ppo", 25))[1].split("  ")[0] == "when it ends is not known"
    assert "left" in "".join(shown(Snapshot("ppo", 25, limit=60.0, time_left=15.0, remaining=15.0)))


def test_staleness_is_shown_if_there_is_any_and_versions_never() -> None:
    metrics = {"train/staleness_mean": 0.0, "train/staleness_max": 0.0, "train/version": 7.0, "train/kl": 0.0}
    rows = [row.split("  ")[0] for row in shown(Snapshot("ppo", metrics=metrics), 60)]
    assert [row for row in rows if row in ("staleness mean", "staleness max", "version", "kl")] == ["kl"]
    rows = [
        row.split("  ")[0]
        for row in shown(Snapshot("ppo", metrics={**metrics, "train/staleness_max": 1.0}), 60)
    ]
    assert "staleness max" in rows


def test_a_station_draws_the_panel_and_the_main_thread_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the file for a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    before, out = sys.stderr, io.StringIO()
    panel = Panel(out)

    def draw() -> None:
        for step in (100, 200):
            panel.draw(Snapshot("ppo", step, 1000, stations=STATIONS))

    for _ in range(2):
        station = threading.Thread(target=draw)
        station.start()
        station.join()
        panel.message("from the main thread")
    panel.close()
    screen = out.getvalue()
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1, "the cursor comes back"
    assert screen.count("from the main thread") == 2
    assert sys.stderr is before
