"""Pictures: drawn from metrics, in the format that the name asks for."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from engine.errors import EngineError, UsageError
from engine.executor import StationTime
from engine.middleware.functional.collect import EpisodeWindow
from engine.runs import plots
from engine.runs.metrics import Metrics


def measured(slope: float = 1.0, until: int = 10) -> Metrics:
    rows = [
        {
            "env_step": i * 100,
            "time": i * 60.0,
            "train_iter": i,
            "collect/return_mean": slope * i,
            "train/loss_policy": 1 / i,
        }
        for i in range(1, until)
    ]
    rows.append(
        {"env_step": until * 100, "time": until * 60.0, "eval/return_mean": 2.0, "collect/return_mean": None}
    )
    return Metrics(rows)


def picture(path: Path) -> np.ndarray:
    from matplotlib import image

    return np.asarray(image.imread(path))


@pytest.mark.parametrize("x", ["env_step", "time", "train_iter"])
def test_a_curve_is_drawn_over_any_axis(tmp_path: Path, x: str) -> None:
    pixels = picture(plots.learning_curve({"ppo": [measured()]}, tmp_path / "curve.png", x=x, threshold=5.0))
    assert pixels.shape[:2] == (660, 1140)
    assert pixels.std() > 0.05, "something is drawn"


def test_several_seeds_become_their_mean_and_deviation_where_all_have_data() -> None:
    band = plots._band([([0, 10], [0, 10]), ([2, 8], [4, 16])])
    assert band is not None
    grid, mean, deviation = band
    assert (grid[0], grid[-1]) == (2, 8)
    assert mean == pytest.approx((grid + 2 * grid) / 2)
    assert deviation == pytest.approx(grid / 2)


def drawn(tmp_path: Path, runs: dict[str, list[Metrics]]) -> Axes:
    """The axes of a learning curve, as they were saved."""
    axes: list[Axes] = []

    class Figures(Figure):
        def savefig(self, *words: Any, **more: Any) -> None:
            axes.extend(self.axes)
            super().savefig(*words, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("matplotlib.figure.Figure", Figures)
        plots.learning_curve(runs, tmp_path / "drawn.png")
    (found,) = axes
    return found


def evaluated(*points: tuple[int, float]) -> Metrics:
    """A run with these evaluations, (env_step, return)."""
    return Metrics([{"env_step": step, "eval/return_mean": value} for step, value in points])


def test_evaluations_of_several_seeds_become_their_mean_and_a_band_too(tmp_path: Path) -> None:
    seeds = [evaluated((0, 0.0), (10, 10.0), (20, 20.0)), evaluated((0, 4.0), (20, 24.0))]
    axes = drawn(tmp_path, {"ppo": [*seeds, evaluated((2, 5.0), (18, 21.0))]})
    (mean,) = axes.lines
    assert mean.get_label() == "ppo, evaluation, mean ± std of 3 runs"
    assert list(mean.get_xdata()) == [2, 18], "where all have data, at the places of the one with the fewest"
    assert list(mean.get_ydata()) == pytest.approx([(2 + 6 + 5) / 3, (18 + 22 + 21) / 3])
    (band,) = axes.collections
    low, high = band.get_paths()[0].get_extents().get_points()[:, 1]
    spread = np.std([2, 6, 5])
    assert (low, high) == pytest.approx((13 / 3 - spread, 61 / 3 + np.std([18, 22, 21])))


def test_evaluations_without_a_common_stretch_stay_points(tmp_path: Path) -> None:
    axes = drawn(tmp_path, {"ppo": [evaluated((10, 1.0)), evaluated((12, 2.0))]})
    assert [tuple(map(float, line.get_xydata()[0])) for line in axes.lines] == [(10, 1), (12, 2)]
    assert not axes.collections


def test_curves_without_a_common_stretch_are_drawn_one_by_one(tmp_path: Path) -> None:
    early = measured(until=10)
    late = Metrics([{**row, "env_step": row["env_step"] + 10_000} for row in measured().rows])
    axes = drawn(tmp_path, {"ppo": [early, late]})
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [(line.get_xdata()[0], line.get_xdata()[-1]) for line in lines] == [(100, 900), (10_100, 10_900)]


def test_the_axis_says_which_mean_it_is_where_that_is_known(tmp_path: Path) -> None:
    assert EpisodeWindow().size == plots.WINDOW
    windowed = Metrics([{**row, "collect/length_mean": 7.0} for row in measured().rows])
    assert drawn(tmp_path, {"a": [windowed]}).get_ylabel() == "return (mean of the last 100 episodes)"
    assert drawn(tmp_path, {"a": [windowed, measured()]}).get_ylabel() == "return", "a mean of something else"


def panels(tmp_path: Path, rows: list[dict[str, Any]]) -> list[str]:
    """The titles of the small plots of losses."""
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        text = plots.losses(Metrics(rows), tmp_path / "losses.svg").read_text()
    return re.findall(r">([a-z ]+)</text>", text.replace(">env steps<", "><"))


def test_constants_and_versions_have_no_panel(tmp_path: Path) -> None:
    rows = [
        {
            "env_step": i,
            "train/loss_policy": 1 / (i + 1),
            "train/staleness_mean": 0.0,
            "train/staleness_max": 1.0,
            "train/version": float(i),
            "train/learning_rate": math.nextafter(3e-4, i % 2),  # equal but for rounding
            "train/kl": None,
        }
        for i in range(20)
    ]
    assert len({row["train/learning_rate"] for row in rows}) > 1
    assert panels(tmp_path, rows) == ["loss policy"]
    assert panels(tmp_path, [{**row, "train/staleness_mean": row["env_step"] / 9} for row in rows]) == [
        "loss policy",
        "staleness mean",
    ]
    with pytest.raises(EngineError, match=r"no train/ scalar of the run changes \(train/loss_policy\)"):
        plots.losses(Metrics([{"env_step": 1, "train/loss_policy": 2.0}]), tmp_path / "one.svg")
    assert not (tmp_path / "one.svg").exists()


def test_svg_keeps_axis_labels_units_and_legend(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        runs = {"ppo": [measured(), measured(2.0)], "dqn": [measured(0.5)]}
        text = plots.learning_curve(runs, tmp_path / "x.svg", x="time", title="T & T").read_text()
    for words in (
        "time (min)",
        "ppo, training, mean ± std of 2 runs",
        "T &amp; T",
    ):
        assert words in text


def test_losses_and_timing_are_drawn(tmp_path: Path) -> None:
    assert picture(plots.losses(measured(), tmp_path / "losses.png", title="run")).size
    assert picture(plots.timing({"collector": 1.0, "learner": 3.0}, tmp_path / "timing.png")).size


def test_the_timing_of_an_overlapped_run_shows_its_stations_and_which_one_bounds_the_line(
    tmp_path: Path,
) -> None:
    import matplotlib

    stations = [StationTime("collect", 6.1, 3.9), StationTime("learn", 9.7, 0.3)]
    seconds = {"collect.collector": 6.0, "learn.train": 8.0, "learn.evaluator": 1.5}
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        overlapped = plots.timing(seconds, tmp_path / "overlapped.svg", stations=stations).read_text()
        in_order = plots.timing(seconds, tmp_path / "in_order.svg").read_text()
    for words in ("61% busy, 39% waiting", "97% busy, 3% waiting"):
        assert words in overlapped
    assert overlapped.count("(bounds the line)") == 1
    assert overlapped.index(">learn<") < overlapped.index("(bounds the line)"), "it stands under the name"
    assert "learn.train" in overlapped
    assert "waiting" not in in_order
    assert "bounds" not in in_order


def test_stations_that_have_done_nothing_yet_are_left_out(tmp_path: Path) -> None:
    nothing = [StationTime("collect", 0.0, 0.0)]
    without = picture(plots.timing({"collector": 1.0}, tmp_path / "a.png"))
    assert (picture(plots.timing({"collector": 1.0}, tmp_path / "b.png", stations=nothing)) == without).all()


def test_nothing_to_draw_is_said_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no run holds 'nope'; they hold collect/return_mean"):
        plots.learning_curve({"ppo": [measured()]}, tmp_path / "x.png", y="nope")
    with pytest.raises(EngineError, match="they hold nothing"):
        plots.learning_curve({"ppo": [Metrics([])]}, tmp_path / "x.png")
    with pytest.raises(EngineError, match="no train/ scalars"):
        plots.losses(Metrics([]), tmp_path / "x.png")
    with pytest.raises(EngineError, match="no time"):
        plots.timing({}, tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_a_name_without_a_known_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"must end in one of .png, .svg, .pdf"):
        plots.learning_curve({"ppo": [measured()]}, tmp_path / "curve.bmp")


def test_a_place_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*: there is no folder .*nowhere"):
        plots.learning_curve({"ppo": [measured()]}, tmp_path / "nowhere" / "curve.png")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(UsageError, match="cannot write"):
        plots.learning_curve({"ppo": [measured()]}, tmp_path / "file" / "curve.png")


def test_matplotlib_waits_until_something_is_drawn() -> None:
    code = "import sys, engine.runs.plots; print('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
