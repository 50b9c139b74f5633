"""The benchmark script's own arithmetic, and that every section it names exists."""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(autouse=True)
def _import_from_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def bench() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPTS / "bench"))


def test_ratios_are_taken_within_a_round() -> None:
    measure = importlib.import_module("benchmarks.measure")
    sides = measure.Sides("s", {"a": [1.0, 10.0, 4.0], "b": [2.0, 5.0, 4.0]})
    assert sides.ratio("a", "b").rounds == [0.5, 2.0, 1.0]
    assert sides.ratio("a", "b").median == 1.0


def test_every_other_round_turns_the_order_round() -> None:
    measure = importlib.import_module("benchmarks.measure")
    order: list[str] = []

    def side(name: str) -> Any:
        return lambda number: order.append(f"{name}{number}") or 1.0

    measure.take_turns({"a": side("a"), "b": side("b")}, 3, "s")
    assert order == ["a0", "b0", "b1", "a1", "a2", "b2"]


def test_goals_know_their_direction() -> None:
    measure = importlib.import_module("benchmarks.measure")
    figure = measure.Ratio([0.9, 1.0, 1.1])
    assert measure.Goal("speed", figure, 0.95, at_least=True).kept is True
    assert measure.Goal("cost", figure, 0.95).kept is False
    assert measure.Goal("for information", figure).kept is None


def test_every_section_names_a_function() -> None:
    for target in bench()["SECTIONS"].values():
        module, _, function = target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_an_unknown_section_is_refused_with_the_known_ones() -> None:
    call = [sys.executable, str(SCRIPTS / "bench"), "ppoo"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "no section ppoo; there are middleware, ppo" in done.stderr


def test_a_commit_may_follow_the_section_earlier() -> None:
    call = [sys.executable, str(SCRIPTS / "bench"), "earlier", "no-such-commit"]
    done = subprocess.run(call, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "'no-such-commit' is neither a commit of this repository nor a section" in done.stderr


@pytest.mark.timeout(300)
def test_a_tree_with_another_layout_is_compared(tmp_path: Path) -> None:
    earlier, measure = (
        importlib.import_module("benchmarks.earlier"),
        importlib.import_module("benchmarks.measure"),
    )
    root = SCRIPTS.parent
    for folder in ("engine", "configs"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "engine" / "recipes").rename(tmp_path / "engine" / "experiments")
    for file in [*tmp_path.rglob("*.py"), *tmp_path.rglob("*.yaml")]:
        file.write_text(file.read_text().replace("engine.recipes", "engine.experiments"))
    section = earlier.compare(
        tmp_path, root, rounds=1, turns=2, what="another layout", cases={"PPO": ("ppo/cartpole", (), 2, 1)}
    )
    (goal,) = section.goals
    assert isinstance(goal.figure, measure.Ratio)
    assert goal.figure.median > 0
    assert section.notes == ["PPO: the rounds of both sides ended with the same weights, bit for bit."]


def test_the_report_marks_what_was_missed() -> None:
    measure, report = (
        importlib.import_module("benchmarks.measure"),
        importlib.import_module("benchmarks.report"),
    )
    section = measure.Section("Title", "Setting.", [measure.Sides("s", {"a": [1.0]})])
    section.goals = [measure.Goal("slow", measure.Ratio([2.0]), 1.5)]
    assert "| slow | 2.00 (2.00 to 2.00) | <= 1.5 | **missed** |" in report.table(section)


def test_events_that_are_lost_or_come_twice_or_late_are_counted() -> None:
    losses = importlib.import_module("benchmarks.bus_losses")
    assert losses._amiss([0, 1, 2, 3], 4) == (0, 0, 0)
    assert losses._amiss([0, 2, 1, 1], 4) == (1, 1, 1)


def test_the_pace_of_a_run_leaves_out_its_start_and_other_rows(tmp_path: Path) -> None:
    distributed = importlib.import_module("benchmarks.distributed")
    rows = [
        {"env_step": 10, "time": 9.0, "time/sps": 1.0},
        {"env_step": 50, "time": 10.0, "time/sps": 1.0},
        {"env_step": 100, "time": 12.0, "time/sps": 1.0},
        {"env_step": 100, "time": 60.0, "eval/return_mean": 1.0},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert distributed.pace(tmp_path, 0.5) == 25.0
    with pytest.raises(RuntimeError, match="too little"):
        distributed.pace(tmp_path, 0.0)


def test_a_call_is_told_by_its_median_and_its_slowest_hundredth() -> None:
    calls = importlib.import_module("benchmarks.bus_calls")
    p50, p99 = calls.spread(lambda: None, 200)
    assert 0 <= p50 <= p99


def test_a_proxy_passes_on_until_it_breaks_what_is_open() -> None:
    breaking = importlib.import_module("benchmarks.breaking")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30)
        proxy = breaking.Proxy(f"tcp://127.0.0.1:{server.getsockname()[1]}")
        port = int(proxy.address.partition("#")[0].rpartition(":")[2])
        for _ in range(2):  # whoever comes after a reset is let in
            with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
                one.sendall(b"hello")
                other, _address = server.accept()
                with other:
                    other.settimeout(30)
                    assert other.recv(5) == b"hello"
                    proxy.reset()
                    with contextlib.suppress(ConnectionResetError):
                        assert one.recv(1) == b""
        assert proxy.resets == 2
        proxy.close()


@pytest.mark.slow
@pytest.mark.timeout(330)
@pytest.mark.parametrize(
    "part", ["bus_calls:calls", "bus_values:events", "bus_values:items", "bus_losses:breaks"]
)
def test_parts_of_the_bus_are_measured_end_to_end(part: str) -> None:
    module, _, name = part.partition(":")
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "if __name__ == '__main__':\n"
        f"    from benchmarks.{module} import {name}\n"
        f"    part = {name}(True)\n"
        "    print(len(part.goals), all(goal.figure.rounds for goal in part.goals))\n"
    )
    call = [sys.executable, "-c", code, str(SCRIPTS.parent), str(SCRIPTS)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    count, _, measured = done.stdout.strip().partition(" ")
    assert int(count) >= 2
    assert measured == "True"
