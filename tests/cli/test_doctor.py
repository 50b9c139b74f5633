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


def marks_of(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    checks = json.loads(capsys.readouterr().out)["checks"]
    return {check["name"]: check["mark"] for check in checks}


def test_a_sound_environment_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "--env", "engine.envs.toy:TupleEnv", "--json"]) == 0
    assert marks_of(capsys) == {"observation": "ok", "action": "ok", "gymnasium": "ok", "steps": "ok"}


def test_an_environment_that_breaks_its_contract_fails_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "old_interface.py").write_text(
        "from engine.envs.toy import ConstantRewardEnv\n"
        "class Old(ConstantRewardEnv):\n"
        "    def step(self, action):\n"
        "        obs, reward, terminated, truncated, info = super().step(action)\n"
        "        return obs, reward, terminated or truncated, info\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert call(["doctor", "--env", "old_interface:Old"]) == 1
    shown = capsys.readouterr().out
    assert "step() of Old must return (observation, reward, terminated, truncated, info)" in shown
    assert "returned 4 values" in shown


def test_an_environment_that_cannot_be_made_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["doctor", "--env", "CartPol-v1", "--json"]) == 1
    assert marks_of(capsys) == {"spaces": "fail"}
