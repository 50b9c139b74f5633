"""`engine doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.cli import doctor
from engine.cli.main import call


def test_this_machine_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    marks = {check["name"]: check["mark"] for check in report["checks"]}
    assert report["ok"] is True
    for name in (
        "python",
        "torch",
        "numpy",
        "gymnasium",
        "treetensor",
        "device",
        "environment",
        "film",
        "runs",
    ):
        assert marks[name] == "ok"
    assert all(check["fix"] for check in report["checks"] if check["mark"] == "warn")


def test_a_folder_that_cannot_be_written_fails_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGINE_RUNS", "/proc")
    monkeypatch.setattr(doctor, "CHECKS", (doctor._writing,))
    assert call(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "fail  runs" in shown
    assert "--run-dir or ENGINE_RUNS" in shown


def test_a_check_that_breaks_is_a_finding() -> None:
    def _broken() -> Iterator[doctor.Finding]:
        yield doctor.Finding("first", "ok", "")
        raise OSError("odd")

    assert [(f.name, f.mark) for f in doctor._safely(_broken)] == [("first", "ok"), ("broken", "fail")]
