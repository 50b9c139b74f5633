"""Scripts: the same file with and without the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from engine.runs.folder import Run
from engine.runs.script import Handover, handing_over, overrides, run_folder


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
    handover = Handover(run, lambda config: config(seed=5))
    with handing_over(handover):
        assert not handover.configured
        assert run_folder() is run
        assert overrides(Settings).seed == 5
        assert handover.configured
    assert overrides(Settings).seed == 0


TERMINATED = """import os
with engine.Task() as task:
    task.use(lambda ctx: os.kill(os.getpid(), 15)).run()
"""


@pytest.mark.parametrize(
    ("last_line", "state"),
    [
        ("", "finished"),
        ("raise ValueError('boom')", "failed"),
        ("run.finish('interrupted')", "interrupted"),
        (TERMINATED, "interrupted"),
    ],
)
def test_a_script_under_plain_python_says_how_it_ended(tmp_path: Path, last_line: str, state: str) -> None:
    script = tmp_path / "mine.py"
    script.write_text(f"import engine\nrun = engine.run_folder()\n{last_line}\n")
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "ENGINE_RUNS": str(tmp_path / "runs")}
    subprocess.run([sys.executable, str(script)], env=env, cwd=tmp_path, capture_output=True, timeout=60)
    run = Run.open("latest", root=tmp_path / "runs")
    assert run.state == state
    assert ("boom" in str(run.info["stop_reason"])) == (state == "failed")
    rows = [json.loads(line) for line in (run.path / "logs" / "main-0.jsonl").read_text().splitlines()]
    told = [] if last_line.startswith("run.finish") else [state]
    assert [row["message"].split(":")[0] for row in rows] == [str(script), *told]
    assert ("boom" in str(rows[-1].get("traceback"))) == (state == "failed")
    assert (run.info["stop_reason"] == "sigterm") == (last_line == TERMINATED)
