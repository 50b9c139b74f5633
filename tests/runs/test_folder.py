"""Run folders: exclusive, found again, whole at every moment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.errors import EngineError, FolderError, UsageError
from engine.runs.files import overwrite
from engine.runs.folder import Run, find_runs
from engine.runs.metrics import MetricsWriter


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGINE_RUNS", raising=False)
    return tmp_path


def create(**changes: object) -> Run:
    return Run.create(**{"env": "CartPole-v1", "algo": "ppo", "seed": 3, **changes})  # type: ignore[arg-type]


def test_a_run_folder_names_env_algorithm_seed_and_time() -> None:
    path = create(name="try out").path
    assert path.parent == Path("runs/CartPole-v1")
    assert path.name.startswith("ppo-try-out-s3-20")


def test_an_id_with_slashes_or_colons_stays_one_folder() -> None:
    assert create(env="ALE/Pong-v5").path.parent == Path("runs/ALE-Pong-v5")
    assert create(env="../../my.module:Env").path.parent == Path("runs/my.module-Env")


def test_run_json_says_who_ran_what_and_when() -> None:
    info = json.loads((create(recipe="a:b").path / "run.json").read_text())
    assert (info["state"], info["pid"], info["seed"], info["recipe"]) == ("running", os.getpid(), 3, "a:b")
    assert info["versions"]["python"].split(".")[0] == "3"
    assert info["versions"]["numpy"] == np.__version__
    assert info["argv"] == sys.argv
    assert info["end"] is None


def test_packages_and_uncommitted_changes_are_kept(folder: Path) -> None:
    def git(*words: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *author, *words], check=True, capture_output=True, text=True
        ).stdout.strip()

    git("init", "-q")
    (folder / "x.py").write_text("a\n")
    git("add", "x.py")
    git("commit", "-qm", "m")
    (folder / "x.py").write_text("b\n")
    run = create()
    assert run.info["commit"] == git("rev-parse", "HEAD")
    assert "-a\n+b\n" in (run.path / "source.diff").read_text()
    assert any(line.startswith("numpy==") for line in (run.path / "packages.txt").read_text().splitlines())


def test_outside_a_repository_there_is_no_commit_and_an_empty_diff() -> None:
    run = create()
    assert run.info["commit"] is None
    assert (run.path / "source.diff").read_text() == ""


def test_runs_started_at_the_same_moment_never_share_a_folder() -> None:
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda _: create().path, range(16)))
    assert len(set(paths)) == 16


def test_one_of_many_gets_an_exact_folder_and_the_others_are_refused() -> None:
    def attempt(_: int) -> bool:
        try:
            create(run_dir="exact")
        except UsageError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_a_run_dir_that_holds_something_is_refused() -> None:
    create(run_dir="one")
    with pytest.raises(UsageError, match="already holds a run"):
        create(run_dir="one")
    Path("two").mkdir()
    Path("two/thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="not empty"):
        create(run_dir="two")
    assert [path.name for path in Path("two").iterdir()] == ["thesis.txt"]


def test_a_place_that_cannot_be_written_is_explained() -> None:
    Path("file").write_text("")
    for place in ("file", "file/inside", "/proc/nothing"):
        with pytest.raises(UsageError, match="choose another with --run-dir"):
            create(run_dir=place)
    with pytest.raises(UsageError, match="choose another"):
        create(root="/proc/nothing")


def test_run_json_has_room_for_the_end_of_the_run_on_a_full_disk(tmp_path: Path) -> None:
    for length in (0, 2400, 2900, 3300, 3900, 4600):  # some of them near the end of a block
        run = Run.create(env="e", algo="a", seed=0, run_dir=tmp_path / str(length), more="x" * length)
        file = run.path / "run.json"
        blocks = -(-file.stat().st_size // 4096)
        run.info |= {"state": "failed", "stop_reason": "y" * 600, "end": "2026-01-01T00:00:00.000+00:00"}
        text = msgspec.json.format(msgspec.json.encode(run.info), indent=2).decode()
        assert len(text) <= blocks * 4096
        overwrite(file, text)
        assert json.loads(file.read_text())["stop_reason"] == "y" * 600
        overwrite(file, "{}")
        assert json.loads(file.read_text()) == {}
        with pytest.raises(OSError, match="No space left"):
            overwrite(file, " " * (blocks * 4096 + 100_000))
        assert json.loads(file.read_text()) == {}, "not a part of it"


def test_a_folder_that_is_gone_is_told_and_not_made_again(tmp_path: Path) -> None:
    run = Run.create(env="e", algo="a", seed=0, run_dir=tmp_path / "run")
    shutil.rmtree(run.path)
    for use in (
        run.check,
        lambda: run.write("x", ""),
        lambda: run.file("a/b"),
        lambda: run.finish("finished"),
    ):
        with pytest.raises(FolderError, match="run was deleted or moved while the run was going"):
            use()
    run.end_with(ValueError("other"))
    assert not run.path.exists()


def test_a_folder_that_is_out_of_reach_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run.create(env="e", algo="a", seed=0, run_dir="here")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(
        FolderError, match=r"folder here is not in .*/elsewhere, to which this program changed"
    ):
        run.check()
    shutil.rmtree(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="folder here was deleted or moved"):
        run.check()


def test_a_full_disk_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.runs.folder._FREE_BYTES", 1 << 62)
    with pytest.raises(EngineError, match="MiB are free"):
        create()


def test_a_run_is_found_by_folder_latest_or_part_of_its_name() -> None:
    first, second = create(), create(env="Acrobot-v1", run_dir="elsewhere")
    assert Run.open(first.path).info == first.info
    assert Run.open(first.path / "run.json").path == first.path
    assert Run.open("latest").path.resolve() == second.path.resolve()
    assert Run.open(first.path.name[-4:]).path == first.path
    assert Run.open("CartPole").path == first.path


def test_what_is_no_run_is_told_with_the_nearest(folder: Path) -> None:
    with pytest.raises(UsageError, match="no latest run"):
        Run.open("latest")
    run = create()
    with pytest.raises(UsageError, match=f"did you mean '{run.name}'"):
        Run.open(run.name.replace("CartPole", "CartPloe"))
    with pytest.raises(UsageError, match=r"has no run.json"):
        Run.open(".")
    create()
    with pytest.raises(UsageError, match="fits 2 runs"):
        Run.open("ppo")
    (run.path / "run.json").write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        Run.open(run.path)
    assert len(find_runs()) == 1


def test_finishing_writes_state_reason_and_result() -> None:
    run = create()
    run.finish("finished", "max_step", result={"return": np.float32(2.0), "loss": float("nan")})
    again = Run.open(run.path)
    assert (again.state, again.info["stop_reason"]) == ("finished", "max_step")
    assert again.result == {"return": 2.0, "loss": None}
    assert again.info["end"] >= again.info["start"]
    with pytest.raises(ValueError, match="state must be one of"):
        run.finish("done")


def test_a_run_whose_process_is_gone_has_died() -> None:
    run = create()
    assert run.state == "running"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    run.update(pid=gone.pid)
    assert run.state == "died"


def test_described_files_and_metrics_read_back() -> None:
    run = create()
    run.describe(config="seed: 1\n", overrides=["seed=1"], pipeline="graph LR\n")
    assert (run.path / "overrides.txt").read_text() == "seed=1\n"
    assert (run.path / "pipeline.mmd").read_text() == "graph LR\n"
    assert len(run.metrics()) == 0
    with MetricsWriter(run.path / "metrics.jsonl") as writer:
        writer.write(8, {"a": 1.0})
    assert run.metrics().series("a") == ([8.0], [1.0])
    leftovers = [path for path in run.path.rglob("*") if path.name.startswith(".")]
    assert leftovers == []


def test_a_folder_that_is_withdrawn_leaves_nothing_but_what_was_there_before() -> None:
    run = create()
    run.describe(config="a: 1", overrides=["a=1"])
    run.file("logs/main-0.jsonl").touch()
    assert run.withdraw()
    assert list(Path().iterdir()) == []
    first = create()
    second = create(env="Acrobot-v1")
    assert second.withdraw()
    assert not second.path.parent.exists()
    assert Run.open("latest").path.name == first.path.name, "the newest is the one before again"


def test_a_folder_is_not_withdrawn_from_those_who_use_it() -> None:
    kept = create()
    kept.write("mine.txt", "42")
    assert not kept.withdraw()
    assert (kept.path / "mine.txt").read_text() == "42"
    other = create()
    newest = create()
    assert not Run.open(other.path).withdraw(), "it was not made here"
    assert other.withdraw()
    assert not other.path.exists()
    assert Run.open("latest").path.name == newest.path.name, "a run that began meanwhile stays the newest"
    Path("there").mkdir()
    assert create(run_dir="there").withdraw()
    assert list(Path("there").iterdir()) == []
