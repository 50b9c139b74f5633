"""The live panel of a run on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel as Frame
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from engine.runs.area import Area, Screen
from engine.runs.progress import Snapshot, cut_of, short, steps
from engine.runs.stations import bounding, percents
from engine.runs.throughput import duration

_WIDEST = 100
_MOST_ROWS = 6
_STALENESS = ("train/staleness_mean", "train/staleness_max")  # always 0 in order


class Panel:
    """One live area at the bottom of the terminal; what is printed meanwhile scrolls by above it.

    It has no thread of its own: it is drawn by whichever trains, up to five times a second.
    """

    every = 0.2

    def __init__(self, file: TextIO) -> None:
        self.console = Screen(file=file)
        # A piped stdout carries results and stays what it is.
        self._area = Area(self.console, redirect_stdout=sys.stdout.isatty())

    def draw(self, snapshot: Snapshot) -> None:
        """Show a snapshot in place of the one before."""
        # Room for the ^C that a terminal echoes behind the last line: wrapped, it would shift the picture.
        self._area.show(render(snapshot, self.console.width - 2))

    def message(self, text: str) -> None:
        """Print a line above the panel."""
        self.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the last picture and give the terminal back."""
        if self._area.is_started:
            self._area.stop()


def render(snapshot: Snapshot, width: int) -> RenderableType:
    """Lay a snapshot out for a terminal of `width` columns."""
    width = min(width, _WIDEST)
    columns = [_speed(snapshot), _returns(snapshot), _scalars(snapshot)]
    columns = [column for column in columns if column.row_count]
    if width >= 76:
        side_by_side = Table.grid(expand=True, padding=(0, 3))
        for _ in columns:
            side_by_side.add_column(ratio=1)
        side_by_side.add_row(*columns)
        middle: list[RenderableType] = [side_by_side]
    else:
        middle = list(columns)
    rows: list[RenderableType] = [_bar(snapshot), Text(snapshot.doing, style="dim"), *middle]
    for table in (_stations(snapshot, width), _times(snapshot)):
        if table is not None:
            rows += [Text(), table]
    title = Text(f" {snapshot.title} ", style="bold") if snapshot.title else None
    return Frame(
        Group(*rows), title=title, title_align="left", box=box.ROUNDED, border_style="dim", width=width
    )


def _bar(snapshot: Snapshot) -> Table:
    row = Table.grid(expand=True, padding=(0, 2))
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    row.add_row(_how_far(snapshot), f"{steps(snapshot)} env steps")
    return row


def _how_far(snapshot: Snapshot) -> RenderableType:
    """A bar of the env steps, or of the time if that ends the run; words if its end is not known."""
    if snapshot.total:
        total, completed = float(snapshot.total), float(min(snapshot.env_step, snapshot.total))
    elif snapshot.limit and snapshot.time_left is not None:
        total, completed = snapshot.limit, snapshot.limit - snapshot.time_left
    else:
        return Text("when it ends is not known", style="dim")
    return ProgressBar(total=total, completed=completed, complete_style="green", finished_style="bold green")


def _table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    for index, (label, value) in enumerate(rows):
        if index == 0:
            table.add_row(Text(title, style="bold cyan not dim"), "")
        table.add_row(label, value)
    return table


def _speed(snapshot: Snapshot) -> Table:
    rate = "-" if snapshot.rate is None else f"{snapshot.rate:,.0f}"
    rows = [("env steps/s", rate), ("elapsed", duration(snapshot.elapsed))]
    if snapshot.total is not None or snapshot.limit is not None:
        rows.append(("left", duration(snapshot.remaining)))
    return _table("speed", rows)


def _returns(snapshot: Snapshot) -> Table:
    metrics, rows = snapshot.metrics, []
    for label, key in (("mean", "collect/return_mean"), ("last", "collect/return_last")):
        if key in metrics:
            rows.append((label, short(metrics[key])))
    if "eval/return_mean" in metrics:
        spread = f" ± {short(metrics['eval/return_std'])}" if "eval/return_std" in metrics else ""
        rows.append(("evaluated", f"{short(metrics['eval/return_mean'])}{spread}"))
        if cut_of(metrics):
            rows.append(("episodes", cut_of(metrics)))
    if snapshot.best is not None:
        rows.append(("best", short(snapshot.best)))
    return _table("return", rows)


def _scalars(snapshot: Snapshot) -> Table:
    scalars = [
        (name.partition("/")[2], value)
        for name, value in snapshot.metrics.items()
        if name.startswith("train/") and name != "train/version" and not (name in _STALENESS and value == 0)
    ]
    scalars.sort(key=lambda item: not item[0].startswith("loss"))
    rows = [(name.replace("_", " "), short(value)) for name, value in scalars[:_MOST_ROWS]]
    return _table("update", rows)


def _stations(snapshot: Snapshot, width: int) -> Table | None:
    if not snapshot.stations:
        return None
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column(ratio=1)
    for _ in range(3):
        table.add_column(justify="right", no_wrap=True)
    table.add_row(Text("stations", style="bold cyan not dim"), "", "busy", "waiting", "", style="dim")
    slowest = bounding(snapshot.stations)
    for station in snapshot.stations:
        busy, waiting = percents(station)
        bounds = station.name == slowest
        color = "yellow" if bounds else "blue"
        bar = ProgressBar(total=100, completed=busy, complete_style=color, finished_style=color)
        mark = Text("bounds the line" if width >= 48 else "bounds", style=color) if bounds else ""
        table.add_row(station.name, bar, f"{busy}%", f"{waiting}%", mark)
    return table


def _times(snapshot: Snapshot) -> Table | None:
    total = sum(snapshot.timings.values())
    if total <= 0:
        return None
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True, max_width=28, overflow="ellipsis")
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    table.add_row(Text("time", style="bold cyan not dim"), "", "")
    ranked = sorted(snapshot.timings.items(), key=lambda item: -item[1])
    for name, seconds in ranked[:_MOST_ROWS]:
        bar = ProgressBar(total=total, completed=seconds, complete_style="blue", finished_style="blue")
        table.add_row(name, bar, f"{100 * seconds / total:3.0f}%")
    return table
