"""What is seen while a run is going: a live panel, plain lines, JSON lines, or nothing; always on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Protocol, TextIO

from engine.errors import UsageError, did_you_mean
from engine.runs.stations import StationTime, bounding, percents
from engine.runs.throughput import Throughput, duration
from engine.types import Clock

Mode = Literal["auto", "rich", "plain", "json", "off"]
MODES = ("auto", "rich", "plain", "json", "off")
_TICK = 0.25  # seconds between two looks at the speed
_PATIENCE = 2.0  # seconds that an evaluation may take before a line says so
_SHARE = 50  # a picture is drawn at most every 50 times as long as drawing took: 2 % of the run


@dataclass
class Snapshot:
    """All that a display may show about a moment of the run."""

    title: str
    env_step: int = 0
    total: int | None = None
    elapsed: float = 0.0
    rate: float | None = None
    """Env steps a second, recently, pauses included."""
    remaining: float | None = None
    """Seconds to go; None where nobody can know."""
    limit: float | None = None
    """Seconds after which the run ends; None: its time has no end."""
    time_left: float | None = None
    """Seconds of them that are left."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest value of every scalar."""
    best: float | None = None
    """The best `eval/return_mean` so far, of those with the fewest episodes cut."""
    doing: str = ""
    """What it does just now, if that is not training."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds spent in each middleware so far."""
    stations: Sequence[StationTime] = ()
    """What each station of an overlapped run has done so far; empty in order."""


class Display(Protocol):
    """Shows snapshots in one manner."""

    every: float

    def draw(self, snapshot: Snapshot) -> None: ...

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


class Progress:
    """Show how far a run is. `update` may be called every iteration: it draws only when it is time to.

    `total` is the env step at which the stop condition ends the run (None: nobody knows), `start` the one it
    begins at. A stderr that goes away switches the display off and never stops the run. `keep` gets what is
    said and how each evaluation went, to write into a log.
    """

    def __init__(
        self,
        mode: Mode = "auto",
        total: int | None = None,
        title: str = "",
        *,
        start: int = 0,
        keep: Callable[[str], None] | None = None,
        clock: Clock = time.monotonic,
        file: TextIO | None = None,
    ) -> None:
        self._keep = keep
        file = file or sys.stderr
        self.mode = choose_mode(mode, file)
        now = clock()
        self._clock = clock
        self._begin = now
        self._throughput = Throughput(now, start)
        self._now = Snapshot(title=title, env_step=start, total=total)
        self._metrics = self._now.metrics
        self._drawn: tuple[int, bool] | None = None
        self._fewest_cut = math.inf
        self._playing: tuple[str, int, int, int] | None = None
        self._patient_until = now
        self._end: float | None = None
        self._display = _make_display(self.mode, file)
        self._draw_at = now
        self._due = now if self._display else math.inf

    @property
    def total(self) -> int | None:
        """The env step at which the run ends; may be set when the stop condition learns more."""
        return self._now.total

    @total.setter
    def total(self, total: int | None) -> None:
        self._now.total = total

    def end_in(self, seconds: float | None) -> None:
        """Note that the run ends `seconds` from now at the latest; None: its time has no end."""
        self._now.limit = seconds
        self._end = None if seconds is None else self._clock() + seconds

    def update(
        self,
        env_step: int,
        metrics: Mapping[str, float] | None = None,
        timings: Mapping[str, float] | None = None,
        stations: Sequence[StationTime] | None = None,
    ) -> None:
        """Note what an iteration brought: its scalars, and so far, what middleware and stations took."""
        self._now.env_step = env_step
        self._playing = None
        if metrics:
            self._metrics.update(metrics)
            if "eval/return_mean" in metrics:
                self._note_best(metrics["eval/return_mean"], metrics.get("eval/cut", 0))
                if self._keep is not None:
                    self._keep(f"{env_step:,} env steps: eval {short(metrics['eval/return_mean'])}")
        if timings is not None:
            self._now.timings = timings
        if stations is not None:
            self._now.stations = stations
        if self._clock() >= self._due:
            self._tick()

    def playing(self, what: str, played: int, episodes: int, steps: int) -> None:
        """Note how far an evaluation or the like is; shown until the next `update`, or `played_all`."""
        now = self._clock()
        if self._playing is None:
            self._patient_until = now + _PATIENCE
        self._playing = what, played, episodes, steps
        first = self._drawn is None or not self._drawn[1]
        if self._display and now >= (self._patient_until if first else self._draw_at):
            self._draw()

    def played_all(self) -> None:
        """Note that what was played is over."""
        self._playing = None

    def message(self, text: str) -> None:
        """Say something that stays: above the panel, or as a line."""
        if self._keep is not None:
            self._keep(text)
        self._guard(lambda display: display.message(text))

    def snapshot(self) -> Snapshot:
        """The state of this moment, with speed and time to go."""
        now = self._now
        now.elapsed = self._clock() - self._begin
        now.rate = self._throughput.rate()
        now.remaining = self._throughput.remaining(now.total)
        if self._end is not None:
            now.time_left = max(0.0, self._end - self._clock())
            if now.total is None:
                now.remaining = now.time_left
            elif now.remaining is not None:
                now.remaining = min(now.remaining, now.time_left)
        now.doing = ""
        if self._playing is not None:
            what, played, episodes, steps = self._playing
            now.doing = f"{what}: {played} of {episodes} episodes, {steps:,} steps"
        return now

    def settle(self) -> None:
        """Show the last state now: what comes after it, such as a film, is not the run's speed."""
        if self._drawn is not None and self._drawn != (self._now.env_step, self._playing is not None):
            if self._drawn[0] != self._now.env_step:
                self._throughput.add(self._clock(), self._now.env_step)
            self._draw()

    def close(self) -> None:
        """Show the last state, and give the terminal back; more than once does no harm."""
        self.played_all()
        self.settle()
        self._guard(lambda display: display.close())
        self._display, self._due = None, math.inf

    def _note_best(self, value: float, cut: float) -> None:
        best = self._now.best
        if best is None or cut < self._fewest_cut:
            self._now.best, self._fewest_cut = value, cut
        elif cut == self._fewest_cut:
            self._now.best = max(best, value)

    def _tick(self) -> None:
        now = self._clock()
        self._throughput.add(now, self._now.env_step)
        if now >= self._draw_at:
            self._draw()
        if self._display:
            self._due = min(self._draw_at, now + _TICK)

    def _draw(self) -> None:
        start = self._clock()
        self._guard(lambda display: display.draw(self.snapshot()))
        self._drawn = self._now.env_step, self._playing is not None
        if self._display:
            end = self._clock()
            self._draw_at = end + max(self._display.every, _SHARE * (end - start))

    def _guard(self, show: Any) -> None:
        if self._display is None:
            return
        try:
            show(self._display)
        except (OSError, ValueError):  # stderr was closed, or its reader went away
            self._display, self._due = None, math.inf

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


_wished: ContextVar[str] = ContextVar("wished", default="auto")


@contextmanager
def wishing(mode: str) -> Iterator[None]:
    """Let ``auto`` mean `mode` until the block ends, for a script that leaves it open."""
    token = _wished.set(mode)
    try:
        yield
    finally:
        _wished.reset(token)


def choose_mode(mode: str, file: TextIO | None) -> Mode:
    """Turn ``auto`` into what was wished for, else ``rich`` on a terminal and ``plain`` anywhere else.

    It is ``off`` without a file: stderr is closed.  Raises UsageError for an unknown mode.
    """
    mode = _wished.get() if mode == "auto" else mode
    if mode not in MODES:
        raise UsageError(
            f"no progress mode {mode!r}; it is one of {', '.join(MODES)}{did_you_mean(mode, MODES)}"
        )
    if file is None:
        return "off"
    if mode != "auto":
        return mode  # type: ignore[return-value]
    return "rich" if file.isatty() and os.environ.get("TERM", "") not in ("dumb", "") else "plain"


def _make_display(mode: Mode, file: TextIO) -> Display | None:
    if mode == "off":
        return None
    if mode == "rich":
        from engine.runs.panel import Panel

        return Panel(file)
    return Lines(file) if mode == "plain" else JsonLines(file)


class Lines:
    """One plain line every ten seconds, the first and the last included."""

    every = 10.0

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, snapshot: Snapshot) -> None:
        """Print where the run is."""
        parts = [f"[{duration(snapshot.elapsed)}] {steps(snapshot)} env steps"]
        if snapshot.rate is not None:
            parts.append(f"{snapshot.rate:,.0f}/s")
        for label, key in (("return", "collect/return_mean"), ("eval", "eval/return_mean")):
            if key in snapshot.metrics:
                cut = cut_of(snapshot.metrics) if label == "eval" else ""
                parts.append(f"{label} {short(snapshot.metrics[key])}{cut and f' ({cut})'}")
        if bounding(snapshot.stations) is not None:
            parts.append(_busy(snapshot.stations))
        if snapshot.remaining is not None:
            parts.append(f"{duration(snapshot.remaining)} left")
        if snapshot.doing:
            parts.append(snapshot.doing)
        self.message("  ".join(parts))

    def message(self, text: str) -> None:
        """Print a line."""
        print(text, file=self._file, flush=True)

    def close(self) -> None:
        """Nothing is held."""


class JsonLines:
    """One JSON object a second, the first and the last moment included; NaN and infinity become null.

    Only an overlapped run has ``stations``: name, seconds busy and waiting, and which one bounds the line;
    only a run that evaluates has ``doing``.
    """

    every = 1.0

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def draw(self, snapshot: Snapshot) -> None:
        """Print where the run is."""
        row = {
            "event": "progress",
            "env_step": snapshot.env_step,
            "total": snapshot.total,
            "time": round(snapshot.elapsed, 3),
            "steps_per_second": _finite(snapshot.rate),
            "remaining": _finite(snapshot.remaining),
            "limit": _finite(snapshot.limit),
            "time_left": _finite(snapshot.time_left),
            "metrics": {name: _finite(value) for name, value in snapshot.metrics.items()},
        }
        if snapshot.doing:
            row["doing"] = snapshot.doing
        if snapshot.stations:
            slowest = bounding(snapshot.stations)
            row["stations"] = [
                {
                    "name": station.name,
                    "busy": round(station.busy, 3),
                    "waiting": round(station.waiting, 3),
                    "bounds": station.name == slowest,
                }
                for station in snapshot.stations
            ]
        self._print(row)

    def message(self, text: str) -> None:
        """Print the words as an object."""
        self._print({"event": "message", "text": text})

    def close(self) -> None:
        """Nothing is held."""

    def _print(self, row: dict[str, Any]) -> None:
        print(json.dumps(row), file=self._file, flush=True)


def steps(snapshot: Snapshot) -> str:
    """``45,056/100,000 (45%)``, or the number alone where the end is not known."""
    if not snapshot.total:
        return f"{snapshot.env_step:,}"
    percent = min(100, int(100 * snapshot.env_step / snapshot.total))
    return f"{snapshot.env_step:,}/{snapshot.total:,} ({percent}%)"


def cut_of(metrics: Mapping[str, float]) -> str:
    """``2 of 10 cut`` for the last evaluation; empty if none of its episodes was."""
    cut = metrics.get("eval/cut", 0)
    return f"{cut:.0f} of {metrics.get('eval/episodes', cut):.0f} cut" if cut else ""


def _busy(stations: Sequence[StationTime]) -> str:
    """``learn 97% busy, collect 61%``: the one that bounds the line first."""
    ranked = sorted(stations, key=lambda station: -station.busy)
    words = [f"{station.name} {percents(station)[0]}%" for station in ranked]
    return ", ".join([f"{words[0]} busy", *words[1:]])


def short(value: float) -> str:
    """A number in about six characters."""
    number = float(value)
    if number == 0 or 1e-3 <= abs(number) < 1e6:
        return f"{number:,.1f}" if abs(number) >= 100 else f"{number:.4g}"
    return f"{number:.2e}"


def _finite(value: Any) -> float | None:
    number = None if value is None else float(value)
    return number if number is not None and math.isfinite(number) else None
