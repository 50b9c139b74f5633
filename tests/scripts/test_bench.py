"""The benchmark script's own arithmetic, and that every section it names exists."""

from __future__ import annotations

import importlib
import runpy
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


def test_the_report_marks_what_was_missed() -> None:
    measure, report = (
        importlib.import_module("benchmarks.measure"),
        importlib.import_module("benchmarks.report"),
    )
    section = measure.Section("Title", "Setting.", [measure.Sides("s", {"a": [1.0]})])
    section.goals = [measure.Goal("slow", measure.Ratio([2.0]), 1.5)]
    assert "| slow | 2.00 (2.00 to 2.00) | <= 1.5 | **missed** |" in report.table(section)
