"""`engine new`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.main import call

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_new_middleware_comes_with_a_test_that_passes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["new", "middleware", "count_steps"]) == 0
    assert capsys.readouterr().out.split() == ["count_steps.py", "test_count_steps.py"]
    words = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert "2 passed" in done.stdout, done.stdout


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    Path("test_mine.py").write_text("precious")
    assert call(["new", "middleware", "mine"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["test_mine.py"]
    assert Path("test_mine.py").read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("ClipReward", "did you mean 'clip_reward'?"),
        ("clip-reward", "did you mean 'clip_reward'?"),
        ("class", "a word of Python"),
        ("json", "would hide the module 'json'"),
        ("engine", "would hide the module 'engine'"),
        ("../up", "did you mean 'up'?"),
        ("1", "is no name"),
        ("", "is no name"),
    ],
)
def test_a_name_that_cannot_be_a_module_is_refused(
    name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["new", "middleware", name]) == 2
    assert sentence in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_another_folder_is_made_where_needed() -> None:
    assert call(["new", "middleware", "mine", "--folder", "a/b"]) == 0
    assert Path("a/b/mine.py").is_file()
