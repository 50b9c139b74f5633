"""Progress: cheap, right about the time to go, harmless."""

from __future__ import annotations

import io
import json
import math
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.errors import UsageError
from engine.executor import StationTime
from engine.runs.progress import Progress, choose_mode, short, wishing
from engine.runs.throughput import Throughput, duration


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stepping:
    """A run of a known speed: 1000 steps/s, 128 steps an iteration, a pause of 2 s every 5000 steps."""

    def __init__(self, total: int) -> None:
        self.clock, self.total, self.env_step = FakeClock(), total, 0

    def advance(self) -> None:
        before = self.env_step // 5000
        self.env_step += 128
        self.clock.now += 0.128 + 2.0 * (self.env_step // 5000 - before)


def test_time_to_go_is_right_with_evaluation_pauses_included() -> None:
    oracle = Stepping(200_000)
    while oracle.env_step < oracle.total:
        oracle.advance()
    end = oracle.clock.now
    run = Stepping(200_000)
    progress = Progress("plain", run.total, clock=run.clock, file=io.StringIO())
    worst = 0.0
    while run.env_step < run.total:
        run.advance()
        progress.update(run.env_step)
        left = progress.snapshot().remaining
        if 0.2 < run.env_step / run.total < 0.9:
            assert left is not None
            worst = max(worst, abs(left - (end - run.clock.now)) / (end - run.clock.now))
    assert worst < 0.1


def test_a_slow_start_is_forgotten() -> None:
    throughput = Throughput(0.0)
    for second in range(1, 31):
        throughput.add(second, second)
    for second in range(31, 121):
        throughput.add(second, 30 + (second - 30) * 1000)
    assert throughput.rate() == pytest.approx(1000, rel=0.01)


def test_samples_stay_few_in_a_long_run() -> None:
    throughput = Throughput(0.0)
    for tick in range(1, 20_000):
        throughput.add(tick / 5, tick * 10)
    assert len(throughput._samples) <= 513
    assert throughput.rate() == pytest.approx(50, rel=0.01)


def test_nobody_knows_the_time_to_go_without_a_total_or_progress() -> None:
    throughput = Throughput(0.0)
    assert throughput.remaining(100) is None
    throughput.add(0.5, 1)
    assert throughput.remaining(100) is None  # one look holds little but the start
    throughput.add(1.0, 50)
    assert throughput.remaining(None) is None
    assert throughput.remaining(100) == 1.0
    assert throughput.remaining(10) == 0.0


def test_a_resumed_run_counts_from_where_it_starts() -> None:
    clock = FakeClock()
    progress = Progress("plain", 2000, start=1000, clock=clock, file=io.StringIO())
    clock.now = 10.0
    progress.update(1100)
    assert progress.snapshot().rate == 10.0


def test_plain_lines_come_first_every_ten_seconds_and_last() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("plain", 1000, clock=clock, file=out) as progress:
        for second in range(1, 26):
            clock.now = float(second)
            progress.update(second * 10, {"collect/return_mean": 9.5} if second < 5 else None)
    lines = out.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines] == ["[0:01", "[0:11", "[0:21", "[0:25"]
    assert lines[-1] == "[0:25] 250/1,000 (25%) env steps  10/s  return 9.5  1:15 left"


def test_what_comes_after_the_run_does_not_slow_its_last_line_down() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("plain", 1000, clock=clock, file=out) as progress:
        progress.update(0)
        clock.now = 5.0
        progress.update(1000)
        progress.settle()
        clock.now = 60.0
    assert out.getvalue().splitlines()[1:] == ["[0:05] 1,000/1,000 (100%) env steps  200/s  0:00 left"]


def test_a_line_says_that_it_evaluates_after_two_seconds_and_while_it_does() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("plain", 1000, clock=clock, file=out) as progress:
        progress.update(500)
        for second in range(1, 14):
            clock.now = float(second)
            progress.playing("evaluating", second // 5, 3, second * 1000)
        metrics = {"eval/return_mean": -7.5, "eval/episodes": 3, "eval/cut": 1}
        progress.update(600, metrics)
    said = [line.partition("env steps")[2].strip() for line in out.getvalue().splitlines()]
    assert said == [
        "",
        "evaluating: 0 of 3 episodes, 3,000 steps",
        "evaluating: 2 of 3 episodes, 13,000 steps",
        "46/s  eval -7.5 (1 of 3 cut)  0:09 left",
    ]


def test_what_is_played_after_the_run_is_shown_and_no_part_of_its_speed() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("json", 1000, clock=clock, file=out) as progress:
        progress.update(0)
        clock.now = 5.0
        progress.update(1000)
        progress.settle()
        for second in range(6, 10):
            clock.now = float(second)
            progress.playing("closing examination", 1, 20, 70)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    doing = [row.get("doing") for row in rows]
    assert doing == [None, None, *["closing examination: 1 of 20 episodes, 70 steps"] * 2, None]
    assert [row["steps_per_second"] for row in rows[1:]] == [200.0] * 4


def test_the_best_so_far_is_of_the_evaluations_with_the_fewest_cuts() -> None:
    progress = Progress("off")
    found = []
    for cut, value in [(1, 90.0), (0, 5.0), (1, 95.0), (0, 6.0), (0, 4.0)]:
        progress.update(1, {"eval/return_mean": value, "eval/cut": cut})
        found.append(progress.snapshot().best)
    assert found == [90.0, 5.0, 5.0, 6.0, 6.0]


def test_json_lines_are_objects_without_nan() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("json", 10, clock=clock, file=out) as progress:
        progress.update(5, {"a": math.nan, "b": 1})
        progress.message("half way")
        progress.update(10)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [row["event"] for row in rows] == ["progress", "message", "progress"]
    assert rows[0]["metrics"] == {"a": None, "b": 1.0}
    assert (rows[-1]["env_step"], rows[-1]["total"]) == (10, 10)


STATIONS = [StationTime("collect", 6.1234567, 3.9), StationTime("learn", 9.7, 0.3)]


def test_a_plain_line_says_how_busy_stations_are_the_busiest_first() -> None:
    clock, out = FakeClock(), io.StringIO()
    with Progress("plain", None, clock=clock, file=out) as progress:
        progress.update(0, stations=[StationTime("collect", 1.0, 0.0), StationTime("learn", 0.0, 1.0)])
        clock.now = 10.0
        progress.update(250, stations=STATIONS)
    lines = out.getvalue().splitlines()
    assert lines[0] == "[0:00] 0 env steps", "a line that is not filled yet tells nothing"
    assert lines[1] == "[0:10] 250 env steps  25/s  learn 97% busy, collect 61%"


def test_json_lines_tell_of_stations_where_there_are_any() -> None:
    out = io.StringIO()
    with Progress("json", 10, clock=FakeClock(), file=out) as progress:
        progress.update(0)
        progress.update(5, stations=STATIONS)
    in_order, overlapped = [json.loads(line) for line in out.getvalue().splitlines()]
    assert "stations" not in in_order
    assert overlapped["stations"] == [
        {"name": "collect", "busy": 6.123, "waiting": 3.9, "bounds": False},
        {"name": "learn", "busy": 9.7, "waiting": 0.3, "bounds": True},
    ]


def test_off_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with Progress("off", 10) as progress:
        progress.update(5)
        progress.message("hello")
    assert capfd.readouterr() == ("", "")


def test_a_stderr_that_went_away_does_not_stop_the_run() -> None:
    out = io.StringIO()
    progress = Progress("plain", 10, file=out)
    out.close()
    progress.update(5)
    progress.message("x")
    progress.close()


def test_an_unknown_mode_is_named_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="did you mean 'plain'"):
        Progress("plian")  # type: ignore[arg-type]


def test_auto_is_plain_where_there_is_no_terminal() -> None:
    assert Progress("auto", file=io.StringIO()).mode == "plain"


def test_an_update_that_draws_nothing_takes_less_than_two_microseconds() -> None:
    progress = Progress("plain", 10, file=io.StringIO())
    metrics = {f"train/{i}": 1.0 for i in range(12)}
    progress.update(1, metrics)
    fastest = math.inf
    for _ in range(5):
        start = time.perf_counter()
        for step in range(2000):
            progress.update(step, metrics, metrics)
        fastest = min(fastest, (time.perf_counter() - start) / 2000)
    assert fastest < 2e-6


PAINT = """
import sys, time
from engine.runs.progress import Progress
with Progress("auto", 100, "ppo") as progress:
    for step in range(0, 101, 20):
        metrics = {"collect/return_mean": step, "train/loss_policy": 0.5}
        progress.update(step, metrics, {"collector": 2.0, "learner": 1.0})
        progress._due = progress._draw_at = 0.0
    print("a print from user code")
    progress.message("[saved] policy")
print("result")
"""


def test_on_a_terminal_the_panel_is_live_and_prints_scroll_above_it(tmp_path: Path) -> None:
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    process = subprocess.Popen([sys.executable, "-c", PAINT], stdout=subprocess.PIPE, stderr=slave, env=env)
    os.close(slave)
    shown = b""
    while select.select([master], [], [], 20)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    out, _ = process.communicate(timeout=20)
    os.close(master)
    screen = shown.decode()
    assert out == b"a print from user code\nresult\n", "a piped stdout carries results only"
    for word in ("ppo", "100/100 (100%) env steps", "collector", "loss policy", "[saved] policy"):
        assert word in screen
    assert screen.count("\x1b[?25l") == screen.count("\x1b[?25h") == 1, "the cursor comes back"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0:00"),
        (59.6, "1:00"),
        (3723, "1:02:03"),
        (90061, "1 day 1:01:01"),
        (180000, "2 days 2:00:00"),
    ],
)
def test_durations_are_read_at_a_glance(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (234.56, "234.6"), (0.0123456, "0.01235"), (3e-4, "3.00e-04"), (math.nan, "nan")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert short(value) == text


def test_a_run_that_ends_by_time_shows_the_time_that_is_left() -> None:
    clock, out = FakeClock(), io.StringIO()
    progress = Progress("json", None, clock=clock, file=out)
    clock.now = 5.0
    assert progress.snapshot().remaining is None, "the run has not begun"
    progress.end_in(60)
    clock.now = 25.0
    progress.update(1_000)
    assert (progress.snapshot().remaining, progress.snapshot().time_left) == (40, 40)
    row = json.loads(out.getvalue().splitlines()[-1])
    assert (row["total"], row["remaining"], row["limit"], row["time_left"]) == (None, 40, 60, 40)
    clock.now = 99.0
    assert progress.snapshot().remaining == 0


def test_the_nearer_of_two_ends_is_the_time_to_go() -> None:
    run = Stepping(200_000)
    progress = Progress("plain", run.total, clock=run.clock, file=io.StringIO())
    progress.end_in(50)
    assert progress.snapshot().remaining is None, "the env steps may be done long before"
    while run.env_step < 20_000:
        run.advance()
        progress.update(run.env_step)
    assert progress.snapshot().remaining == pytest.approx(50 - run.clock.now)
    progress.end_in(10_000)
    assert progress.snapshot().remaining == pytest.approx(progress._throughput.remaining(run.total))


def test_a_script_can_be_told_how_to_show_progress_where_it_leaves_that_open() -> None:
    with wishing("json"):
        assert choose_mode("auto", io.StringIO()) == "json"
        assert choose_mode("plain", io.StringIO()) == "plain"
        with wishing("auto"):
            assert choose_mode("auto", io.StringIO()) == "plain"
    assert choose_mode("auto", io.StringIO()) == "plain"


def test_what_is_said_and_evaluated_is_kept_too() -> None:
    kept: list[str] = []
    progress = Progress("off", 1000, keep=kept.append)
    progress.message("hello")
    progress.update(100, {"collect/return_mean": 1.0})
    progress.update(200, {"eval/return_mean": 475.25})
    assert kept == ["hello", "200 env steps: eval 475.2"]
