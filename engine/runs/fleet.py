"""What is seen of a run of many processes: a live panel with a row each, plain lines, JSON, or nothing."""

from __future__ import annotations

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from engine.runs.progress import Lines, Snapshot, choose_mode
from engine.runs.throughput import duration
from engine.types import Clock

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN_LEVELS = ("warning", "error", "critical")
_COLUMNS = (
    ("seat", "seat"),
    ("state", "state"),
    ("pid", "pid"),
    ("host", "host"),
    ("env_steps_per_second", "env steps/s"),
    ("env_step", "env steps"),
    ("weight_lag", "weight lag"),
    ("queue", "queue"),
    ("restarts", "restarts"),
)


class Fleet:
    """Shows the status of a run, and what its processes print, on stderr.

    `keep` gets (seat, row) for every line, as a record with time, level and message, to write into a log.
    A stderr that goes away switches the display off and never stops the run.
    """

    def __init__(
        self,
        mode: str = "auto",
        title: str = "",
        *,
        keep: Callable[[str, dict[str, Any]], None] | None = None,
        clock: Clock = time.monotonic,
        file: TextIO | None = None,
    ) -> None:
        self._file = file or sys.stderr
        self.mode = choose_mode(mode, self._file)
        self._title = title
        self._keep = keep
        self._clock = clock
        self._due = -math.inf
        self._last: str | None = None
        self._live: Any = None
        self._off = self.mode == "off"
        if self.mode == "rich":
            from engine.runs.area import Area, Screen

            self._console = Screen(file=self._file)
            self._live = Area(self._console)

    def line(self, seat: str, text: str) -> dict[str, Any] | None:
        """Take a line that a process printed; return the row of progress that it is, if it is one.

        Records of its log are kept, and shown from warnings on; everything else is shown and kept.
        """
        row = _row(text)
        if row is not None and row.get("event") == "progress":
            return row
        if row is not None and row.get("event") == "message":
            row = {"time": _now(), "level": "info", "logger": "engine", "message": str(row.get("text"))}
        elif row is None or not {"time", "level", "message"} <= set(row):
            row = {"time": _now(), "level": "output", "logger": "output", "message": text}
        if self._keep is not None:
            self._keep(seat, row)
        if row["level"] == "output":
            self._say(seat, text)
        elif row["level"] in _SHOWN_LEVELS:
            self._say(seat, f"{row['level']}: {row['message']}")
        return None

    def message(self, text: str, *, level: str = "info", traceback: str = "") -> None:
        """Say something about the run as a whole; the traceback is only kept."""
        if self._keep is not None:
            record = {"time": _now(), "level": level, "logger": "engine.launch", "message": text}
            self._keep("launcher", record | ({"traceback": traceback} if traceback else {}))
        self._guard(lambda: self._print({"event": "message", "text": text}, text))

    def update_soon(self, status: Callable[[], Mapping[str, Any]]) -> None:
        """Show a status, if it is time to."""
        if not self._off and self._clock() >= self._due:
            self.update(status())

    def update(self, status: Mapping[str, Any]) -> None:
        """Show a status now, unless nothing has changed since the last one."""
        self._due = self._clock() + {"rich": 0.25, "json": 1.0}.get(self.mode, 10.0)
        self._guard(lambda: self._show(status))

    def close(self) -> None:
        """Leave the last picture and give the terminal back."""
        if self._live is not None and self._live.is_started:
            self._guard(self._live.stop)

    def _show(self, status: Mapping[str, Any]) -> None:
        if self.mode == "json":
            self._print({"event": "status", **status}, "")
        elif self.mode == "rich":
            self._live.show(picture(status, self._title, self._console.width - 2))
        else:
            text = sentence(status)
            if text != self._last:
                self._last = text
                self._print({}, text)

    def _say(self, seat: str, text: str) -> None:
        self._guard(
            lambda: self._print({"event": "output", "seat": seat, "text": text}, f"{seat:<11} | {text}")
        )

    def _print(self, row: Mapping[str, Any], text: str) -> None:
        if self.mode == "json":
            text = json.dumps(row, default=str)
        if self._live is not None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._file, flush=True)

    def _guard(self, show: Callable[[], None]) -> None:
        if self._off:
            return
        try:
            show()
        except (OSError, ValueError):  # stderr was closed, or its reader went away
            self._off = True


def snapshot(status: Mapping[str, Any], title: str = "") -> Snapshot:
    """Return what the process that records the run said last, as a display of one process shows it."""
    row = status.get("progress") or {}
    metrics = {name: value for name, value in (row.get("metrics") or {}).items() if value is not None}
    return Snapshot(
        title=title,
        env_step=int(row.get("env_step") or 0),
        total=row.get("total"),
        elapsed=float(status.get("seconds") or 0.0),
        rate=row.get("steps_per_second"),
        remaining=row.get("remaining"),
        limit=row.get("limit"),
        time_left=row.get("time_left"),
        metrics=metrics,
        doing=str(row.get("doing") or ""),
    )


def sentence(status: Mapping[str, Any]) -> str:
    """One line: how far the run is, and who is there."""
    parts = []
    if status.get("progress"):
        collected: list[str] = []
        Lines(_Into(collected)).draw(snapshot(status))  # type: ignore[arg-type]
        parts.append("".join(collected).strip())
    else:
        parts.append(f"[{duration(status.get('seconds'))}]")
    if status.get("stage") == "running":
        # What came from elsewhere and is gone had no place of its own that could be empty now.
        seats = [row for row in status["seats"] if not row.get("attached") or row["state"] == "running"]
        roles = Counter(row["role"] for row in seats)
        there = Counter(row["role"] for row in status["seats"] if row["state"] == "running")
        parts.append(", ".join(f"{role} {there[role]}/{number}" for role, number in roles.items()))
    else:
        parts.append(_stage(status))
    return "  ".join(parts)


def cells(status: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """The table of processes as text, its head first; columns that tell nothing are left out."""
    rows = status["seats"]
    filled = {key for row in rows for key, value in row.items() if value not in (None, 0)}
    if len({row.get("host") for row in rows}) < 2:
        filled.discard("host")
    columns = [pair for pair in _COLUMNS if pair[0] in filled | {"seat", "state", "pid"}]
    head = tuple(label for _, label in columns)
    return [head, *(tuple(_cell(row.get(key), key) for key, _ in columns) for row in rows)]


def picture(status: Mapping[str, Any], title: str, width: int) -> Any:
    """Lay a status out for a terminal of `width` columns."""
    from rich.console import Group
    from rich.text import Text

    from engine.runs.panel import render

    parts: list[Any] = [render(snapshot(status, title), width)] if status.get("progress") else []
    parts.append(_table(status))
    if status.get("stage") != "running":
        parts.append(Text(_stage(status), style="yellow"))
    return Group(*parts)


def _stage(status: Mapping[str, Any]) -> str:
    return ": ".join(str(part) for part in (status["stage"], status.get("reason")) if part)


def _table(status: Mapping[str, Any]) -> Table:
    from rich.table import Table

    head, *rows = cells(status)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for label in head:
        table.add_column(
            label, justify="left" if label in ("seat", "state", "host") else "right", no_wrap=True
        )
    styles = {"lost": "red", "waiting": "yellow", "starting": "dim", "finished": "dim"}
    for cell, row in zip(rows, status["seats"], strict=True):
        table.add_row(*cell, style=styles.get(row["state"]))
    return table


def _cell(value: Any, key: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float) or key == "pid":
        return str(value)
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def _row(text: str) -> dict[str, Any] | None:
    """The JSON object that a line is; None for any other line."""
    if not text.startswith('{"'):
        return None
    try:
        row = json.loads(text)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def _now() -> str:
    from datetime import UTC, datetime

    return datetime.now(UTC).isoformat(timespec="milliseconds")


class _Into:
    """A file that collects what is written to it."""

    def __init__(self, parts: list[str]) -> None:
        self._parts = parts

    def write(self, text: str) -> int:
        self._parts.append(text)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""
