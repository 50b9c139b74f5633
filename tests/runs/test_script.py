"""Scripts: the same file with and without the command."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from engine.runs.folder import Run
from engine.runs.script import handing_over, overrides, run_folder


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    seed: int = 0


def test_under_plain_python_the_folder_is_fresh_and_the_config_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = run_folder(algo="mine"), run_folder(algo="mine")
    assert first.path != second.path
    assert first.path.name.startswith("mine-s0-")
    assert overrides(Settings) == Settings()


def test_what_the_command_left_is_handed_over_for_its_time_only(tmp_path: Path) -> None:
    run = Run.create(env="e", algo="a", seed=5, run_dir=tmp_path / "run")
    with handing_over(run, lambda config: config(seed=5)) as handover:
        assert not handover.configured
        assert run_folder() is run
        assert overrides(Settings).seed == 5
        assert handover.configured
    assert overrides(Settings).seed == 0
