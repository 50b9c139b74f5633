"""The display of many processes."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from engine.runs.fleet import Fleet, cells, picture, sentence
from engine.testing import FakeClock

PROGRESS = {
    "event": "progress",
    "env_step": 450,
    "total": 1000,
    "time": 1.5,
    "steps_per_second": 300.0,
    "remaining": 2.0,
    "metrics": {"collect/return_mean": 20.5, "train/loss": None},
}


def status(**changes: Any) -> dict[str, Any]:
    seats = [
        {
            "seat": "collector_0",
            "role": "collector",
            "state": "running",
            "pid": 7,
            "restarts": 1,
            "weight_lag": 2,
        },
        {"seat": "collector_1", "role": "collector", "state": "lost", "pid": 8, "restarts": 0},
        {"seat": "learner_0", "role": "learner", "state": "running", "pid": 9, "restarts": 0},
    ]
    return {
        "seconds": 61.0,
        "stage": "running",
        "reason": None,
        "progress": PROGRESS,
        "seats": seats,
        **changes,
    }


def test_a_sentence_says_how_far_the_run_is_and_who_is_there() -> None:
    text = sentence(status())
    assert (
        text == "[1:01] 450/1,000 (45%) env steps  300/s  return 20.5  0:02 left  collector 1/2, learner 1/1"
    )
    assert sentence(status(progress={}, stage="failed", reason="no")) == ("[1:01]  failed: no")


def test_a_stage_without_a_reason_stands_alone() -> None:
    assert sentence(status(stage="failed", reason="")).endswith("  failed")
    assert "failed: disk" in sentence(status(stage="failed", reason="disk"))


def test_columns_that_nobody_fills_are_left_out() -> None:
    head, first, *_ = cells(status())
    assert head == ("seat", "state", "pid", "weight lag", "restarts")
    assert first == ("collector_0", "running", "7", "2", "1")


def test_lines_of_processes_are_told_apart_and_kept() -> None:
    kept: list[tuple[str, str, str]] = []
    file = io.StringIO()
    display = Fleet(
        "plain", keep=lambda seat, row: kept.append((seat, row["level"], row["message"])), file=file
    )
    record = {"time": "2030-01-01", "level": "info", "logger": "x", "message": "quiet"}
    assert display.line("collector_0", "a print") is None
    assert display.line("collector_0", json.dumps(record)) is None
    assert display.line("learner_0", json.dumps({**record, "level": "warning", "message": "look"})) is None
    assert display.line("learner_0", json.dumps({"event": "message", "text": "torch threads: 1"})) is None
    assert display.line("learner_0", '{"half') is None
    assert display.line("learner_0", json.dumps(PROGRESS)) == PROGRESS
    assert file.getvalue().splitlines() == [
        "collector_0 | a print",
        "learner_0   | warning: look",
        'learner_0   | {"half',
    ]
    assert kept == [
        ("collector_0", "output", "a print"),
        ("collector_0", "info", "quiet"),
        ("learner_0", "warning", "look"),
        ("learner_0", "info", "torch threads: 1"),
        ("learner_0", "output", '{"half'),
    ]


def test_a_status_is_shown_when_it_is_time_and_only_when_it_is_news() -> None:
    clock, file = FakeClock(), io.StringIO()
    display = Fleet("plain", clock=clock, file=file)
    display.update_soon(status)
    display.update_soon(lambda: pytest.fail("it is not time yet"))
    clock.advance(11)
    display.update_soon(status)
    assert len(file.getvalue().splitlines()) == 1


def test_json_is_one_object_a_line() -> None:
    file = io.StringIO()
    display = Fleet("json", file=file)
    display.update(status())
    display.line("learner_0", "hello")
    display.message("words")
    rows = [json.loads(line) for line in file.getvalue().splitlines()]
    assert [row["event"] for row in rows] == ["status", "output", "message"]
    assert rows[0]["seats"][1]["state"] == "lost"


def test_a_display_without_a_reader_stops_nothing() -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    display = Fleet("plain", file=Gone())
    display.message("into the void")
    display.update(status())
    display.close()


def test_the_panel_has_a_row_for_each_process() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=100, record=True)
    console.print(picture(status(stage="finishing", reason="done"), "title", 98))
    text = console.export_text()
    for words in ("title", "450/1,000", "collector_1", "lost", "weight lag", "finishing: done"):
        assert words in text


def test_a_worker_that_has_left_is_not_counted() -> None:
    told = status()
    assert "collector 1/2, learner 1/1" in sentence(told)  # one started here leaves its place empty
    for state, shown in (("running", "2/3"), ("finished", "1/2"), ("lost", "1/2")):
        worker = {"seat": "collector_2", "role": "collector", "state": state, "pid": 3, "attached": True}
        assert f"collector {shown}" in sentence({**told, "seats": [*told["seats"], worker]})
