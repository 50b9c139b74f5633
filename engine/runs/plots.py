"""Pictures of runs: learning curves with eval points and seed bands, losses, time per middleware.

matplotlib (0.6 s) is imported by the functions, without pyplot and its global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import EngineError, UsageError, did_you_mean
from engine.runs.files import replacing
from engine.runs.metrics import Metrics
from engine.runs.stations import StationTime, bounding, percents

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TRAINING, EVALUATION = "collect/return_mean", "eval/return_mean"
_LENGTH = "collect/length_mean"  # written by what writes TRAINING as a mean over its window of episodes
_VERSION = "train/version"
WINDOW = 100
"""Episodes of which the return while training is the mean; a test holds it against the collector's."""
_ROUNDING = 1e-9  # of a mean of equal numbers
FORMATS = (".png", ".svg", ".pdf")
PICTURES = ("learning_curve.png", "losses.png", "timing.png")
"""What a run draws at its end."""
_COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#5B5B5B",
)  # told apart by everyone
_INK, _GRID, _IDLE = "#333333", "#E4E4E4", "#C9C9C9"
_AXES = {"env_step": "env steps", "train_iter": "updates", "time": "time"}


def learning_curve(
    runs: Mapping[str, Sequence[Metrics]],
    path: Path,
    *,
    x: str = "env_step",
    y: str | None = None,
    title: str = "",
    threshold: float | None = None,
) -> Path:
    """Draw one curve for each label; several seeds of a label become their mean and a band of one deviation.

    Without `y` the curve is the return while training, with evaluations as points (the best is marked if
    there is one run only) or, of several seeds, as a mean and a band too.  `x` is ``env_step``, ``time``,
    ``train_iter`` or any key.  `threshold` is drawn as a dashed line.  The format follows the suffix.  Raises
    EngineError if no run holds the wanted key.
    """
    figure = _figure(7.6, 4.4)
    axes = figure.subplots()
    unit = _time_unit(runs) if x == "time" else ("", 1.0)
    drawn = False
    for index, (label, seeds) in enumerate(runs.items()):
        color = _COLORS[index % len(_COLORS)]
        lines = [_series(metrics, y or TRAINING, x, unit[1]) for metrics in seeds]
        points = [_series(metrics, EVALUATION, x, unit[1]) for metrics in seeds] if y is None else []
        one = len(runs) == len(seeds) == 1
        spread = f", mean ± std of {len(seeds)} runs" if len(seeds) > 1 else ""
        what = f"{label}, training" if y is None else label
        drawn |= _draw_lines(axes, lines, color, f"{what}{spread}")
        shade = _COLORS[1] if len(runs) == 1 else color
        drawn |= _draw_points(axes, points, shade, f"{label}, evaluation{spread}", mark_best=one)
    if not drawn:
        known = sorted({key for seeds in runs.values() for metrics in seeds for key in metrics.names()})
        wanted = y or f"{TRAINING} or {EVALUATION}"
        for word in (x, y):
            if known and word and word not in known:
                hint = did_you_mean(word, known) or f"; they hold {', '.join(known)}"
                raise UsageError(f"nothing to draw: no run holds {word!r}{hint}")
        raise EngineError(
            f"nothing to draw: no run holds {wanted} over {x}; they hold {', '.join(known) or 'nothing'}"
        )
    if threshold is not None:
        axes.axhline(
            threshold, color=_INK, linewidth=1, linestyle=(0, (4, 3)), label=f"solved at {threshold:g}"
        )
    axes.set_xlabel(f"time ({unit[0]})" if x == "time" else _AXES.get(x, x))
    axes.set_ylabel(_return_label(runs) if y is None else y)
    _finish(axes, title)
    axes.legend(frameon=False, fontsize=9, loc="best")
    return _save(figure, path)


def losses(metrics: Metrics, path: Path, *, title: str = "") -> Path:
    """Draw every ``train/`` scalar that changes over env steps, each in a small plot of its own.

    The version of the weights, which only counts the updates, is left out.
    """
    found = [key for key in metrics.names() if key.startswith("train/")]
    if not found:
        raise EngineError("nothing to draw: the run holds no train/ scalars")
    keys = [key for key in found if key != _VERSION and _changes(_series(metrics, key, "env_step")[1])]
    if not keys:
        raise EngineError(f"nothing to draw: no train/ scalar of the run changes ({', '.join(found)})")
    keys.sort(key=lambda key: (not key.startswith("train/loss"), key))
    columns = min(3, len(keys))
    rows = math.ceil(len(keys) / columns)
    figure = _figure(3.4 * columns + 0.6, 2.3 * rows + 0.5)
    grid = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, key in zip(grid, keys, strict=False):
        axes.plot(*_series(metrics, key, "env_step"), color=_COLORS[0], linewidth=1.3)
        axes.set_title(key.removeprefix("train/").replace("_", " "), fontsize=10, color=_INK, loc="left")
        _finish(axes, "")
    for axes in grid[len(keys) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(keys) - columns) : len(keys)]:
        axes.set_xlabel("env steps")
    if title:
        figure.suptitle(title, fontsize=12, color=_INK, x=0.01, ha="left")
    return _save(figure, path)


def timing(
    seconds: Mapping[str, float],
    path: Path,
    *,
    stations: Sequence[StationTime] = (),
    title: str = "",
) -> Path:
    """Draw the seconds spent in each middleware as bars, the longest on top.

    Above them, for an overlapped run, how long each station was busy and waiting, in the order of the line.
    """
    total = sum(seconds.values())
    if total <= 0:
        raise EngineError("nothing to draw: no time was measured")
    ranked = sorted(seconds.items(), key=lambda item: item[1])
    widest = ranked[-1][1] * 1.22  # room for the words beside the bars
    line = max((station.busy + station.waiting for station in stations), default=0.0)
    if line > 0:
        widest = max(widest, line * 1.45)
        figure = _figure(7.6, 0.36 * (len(stations) + len(ranked)) + 2.4)
        upper, axes = figure.subplots(2, 1, height_ratios=[len(stations), len(ranked)])
        _draw_stations(upper, stations)
        upper.set_xlabel("time of the line (s)")
        _finish_bars(upper, widest, len(stations), title)
        title = "each middleware"
    else:
        figure = _figure(7.6, 0.36 * len(ranked) + 1.3)
        axes = figure.subplots()
    bars = axes.barh(
        [name for name, _ in ranked], [value for _, value in ranked], color=_COLORS[0], height=0.62
    )
    labels = [f"{value:.3g} s · {100 * value / total:.0f}%" for _, value in ranked]
    axes.bar_label(bars, labels, padding=5, fontsize=9, color=_INK)
    axes.set_xlabel("time spent (s)")
    _finish_bars(axes, widest, len(ranked), title)
    return _save(figure, path)


# ------------------------------------------------------------------ drawing


def _draw_stations(axes: Axes, stations: Sequence[StationTime]) -> None:
    """A bar for each station, the first on top; what bounds the line says so under its name."""
    slowest = bounding(stations)
    shown = [*reversed(stations)]
    rows = range(len(shown))
    busy, waiting = [station.busy for station in shown], [station.waiting for station in shown]
    axes.barh(rows, busy, color=_COLORS[0], height=0.62)
    bars = axes.barh(rows, waiting, left=busy, color=_IDLE, height=0.62)
    labels = ["{}% busy, {}% waiting".format(*percents(station)) for station in shown]
    axes.bar_label(bars, labels, padding=5, fontsize=9, color=_INK)
    axes.set_yticks(
        rows,
        [
            f"{station.name}\n(bounds the line)" if station.name == slowest else station.name
            for station in shown
        ],
    )


def _finish_bars(axes: Axes, widest: float, count: int, title: str) -> None:
    axes.set_xlim(0, widest)
    axes.set_ylim(-0.6, count - 0.4)
    _finish(axes, title)
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _return_label(runs: Mapping[str, Sequence[Metrics]]) -> str:
    """What the return while training is a mean of, if it is the collector's window in every run."""
    known = all(_LENGTH in metrics.names() for seeds in runs.values() for metrics in seeds if metrics.rows)
    return f"return (mean of the last {WINDOW} episodes)" if known else "return"


def _changes(values: Sequence[float]) -> bool:
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return False
    least, most = min(finite), max(finite)
    return most - least > _ROUNDING * max(abs(least), abs(most))


def _draw_lines(axes: Axes, lines: list[tuple[list[float], list[float]]], color: str, label: str) -> bool:
    lines = [line for line in lines if line[0]]
    band = _band(lines) if len(lines) > 1 else None
    if band is None:
        for index, line in enumerate(lines):
            axes.plot(*line, color=color, linewidth=1.7, label="" if index else label)
    else:
        for line in lines:
            axes.plot(*line, color=color, linewidth=0.6, alpha=0.2)
        grid, mean, deviation = band
        axes.fill_between(grid, mean - deviation, mean + deviation, color=color, alpha=0.18, linewidth=0)
        axes.plot(grid, mean, color=color, linewidth=2, label=label)
    return bool(lines)


def _draw_points(
    axes: Axes, lines: list[tuple[list[float], list[float]]], color: str, label: str, *, mark_best: bool
) -> bool:
    lines = [line for line in lines if line[0]]
    band = _band(lines, at=min((xs for xs, _ in lines), key=len)) if len(lines) > 1 else None
    if band is not None:
        grid, mean, deviation = band
        axes.fill_between(grid, mean - deviation, mean + deviation, color=color, alpha=0.12, linewidth=0)
        axes.plot(
            grid, mean, color=color, linewidth=1.2, linestyle=(0, (4, 2)), marker="o", markersize=4.5,
            markerfacecolor="white", markeredgewidth=1.3, zorder=4, label=label,
        )  # fmt: skip
        return True
    if mark_best and lines:
        xs, ys = lines[0]
        best = max(range(len(ys)), key=lambda index: ys[index])
        axes.plot(xs[best], ys[best], marker="o", markersize=5, color=color, zorder=5)
        label = f"{label} (best {ys[best]:.4g})"
    alone = len(lines) == 1
    for index, (xs, ys) in enumerate(lines):
        axes.plot(
            xs, ys, linestyle="", marker="o", markersize=5 if alone else 3.5, markerfacecolor="white",
            markeredgecolor=color, markeredgewidth=1.5 if alone else 0.9, zorder=4,
            label="" if index else label,
        )  # fmt: skip
    return bool(lines)


def _band(
    lines: list[tuple[list[float], list[float]]], at: Sequence[float] | None = None
) -> tuple[Any, Any, Any] | None:
    """Mean and standard deviation of several curves, on the stretch of x that all of them cover.

    Returns None if there is no such stretch.  `at` names the places on it; else there are 200.
    """
    import numpy as np

    first, last = max(xs[0] for xs, _ in lines), min(xs[-1] for xs, _ in lines)
    if first >= last:
        return None
    inside = [x for x in at or () if first < x < last]
    grid = np.linspace(first, last, 200) if at is None else np.array([first, *inside, last])
    values = np.stack([np.interp(grid, xs, ys) for xs, ys in lines])
    return grid, values.mean(0), values.std(0)


def _series(metrics: Metrics, key: str, x: str, unit: float = 1.0) -> tuple[list[float], list[float]]:
    """The finite points of `key` over `x`, in order of x; empty where there are none."""
    rows = [(row[x], row[key]) for row in metrics.rows if row.get(x) is not None and row.get(key) is not None]
    rows.sort(key=lambda point: point[0])
    return [float(value) / unit for value, _ in rows], [float(value) for _, value in rows]


def _time_unit(runs: Mapping[str, Sequence[Metrics]]) -> tuple[str, float]:
    longest = max((metrics.last("time") or 0.0 for seeds in runs.values() for metrics in seeds), default=0.0)
    return ("h", 3600.0) if longest > 3 * 3600 else ("min", 60.0) if longest > 180 else ("s", 1.0)


def _finish(axes: Axes, title: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.grid(True, color=_GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_INK, labelsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _steps(value)))
    axes.xaxis.label.set_color(_INK)
    axes.yaxis.label.set_color(_INK)
    axes.margins(x=0.02)
    if title:
        axes.set_title(title, fontsize=12, color=_INK, loc="left", pad=10)


def _steps(value: float) -> str:
    """``25k``, ``1.5M``: a tick that stays short."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g}{letter}"
    return f"{value:.4g}"


def _save(figure: Figure, path: Path) -> Path:
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"cannot draw {path}: the name must end in one of {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise UsageError(f"cannot write {path}: there is no folder {path.parent}")
    try:
        with replacing(path) as temporary:
            figure.savefig(temporary, facecolor="white")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
    return path
