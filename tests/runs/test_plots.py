"""Pictures: drawn from metrics, in the format that the name asks for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.errors import EngineError, UsageError
from engine.executor import StationTime
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
    grid, mean, deviation = plots._band([([0, 10], [0, 10]), ([2, 8], [4, 16])])
    assert (grid[0], grid[-1]) == (2, 8)
    assert mean == pytest.approx((grid + 2 * grid) / 2)
    assert deviation == pytest.approx(grid / 2)


def test_svg_keeps_axis_labels_units_and_legend(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        runs = {"ppo": [measured(), measured(2.0)], "dqn": [measured(0.5)]}
        text = plots.learning_curve(runs, tmp_path / "x.svg", x="time", title="T & T").read_text()
    for words in (
        "time (min)",
        "return (mean of episodes)",
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
