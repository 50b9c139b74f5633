"""A disk that fills up and a folder that is deleted, in the midst of a run."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine import OnlineContext, Task
from engine.cli.main import call
from engine.runs.folder import Run


class Harm(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens to the folder in the third iteration."""

    folder: str
    full: bool
    async_mode: bool = False


def harmed(config: Harm, *, watch: Any) -> Task:
    """Records a row an iteration, and would do so for ever."""

    def work(ctx: OnlineContext) -> None:
        ctx.env_step += 1
        ctx.metrics["train/loss"] = 1.0 / ctx.env_step
        if ctx.total_step == 2 and not config.full:
            shutil.rmtree(config.folder)
        if ctx.total_step == 2 and config.full:
            with suppress(OSError), open(Path(config.folder).parent / "fill", "wb", buffering=0) as file:
                while True:
                    file.write(b"x" * 4096)
        if ctx.total_step > 100_000:
            raise RuntimeError("nobody noticed")
        logging.getLogger("engine").info("so that logs are written: %s", "x" * 500)

    task = Task(OnlineContext(), async_mode=config.async_mode)
    return task.use(work, name="work").use(watch(None), name="watch")


def run(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run it by the command; return what it said."""
    target = f"{__name__}:harmed"
    words = (f"folder={folder}", *words, "--run-dir", str(folder), "--progress", "off")
    assert call(["run", target, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    header, *lines = said.err.splitlines()
    assert header == f"run folder: {folder}"
    return "\n".join(line for line in lines if not line.startswith("overlapped:"))


@pytest.mark.parametrize("async_mode", ["false", "true"])
def test_a_folder_that_is_deleted_ends_the_run_in_one_sentence(
    async_mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = run(tmp_path / "run", capsys, "full=false", f"async_mode={async_mode}")
    assert said == (
        f"error: the run's folder {tmp_path / 'run'} was deleted or moved while the run was going, "
        "so that nothing can be saved any more"
    )
    assert not (tmp_path / "run").exists(), "it is not made again"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 36 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=36m", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"mounting a small disk is not allowed here: {done.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_fills_up_ends_the_run_in_one_sentence(
    small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = small_disk / "run"
    said = run(folder, capsys, "full=true")
    assert said == (
        f"error: cannot write to the run's folder {folder} any more: no space left on device; make room and "
        "start again; what was saved until then is kept"
    )
    info = json.loads((folder / "run.json").read_text())
    assert (info["state"], f"error: {info['stop_reason']}") == ("failed", said)
    assert Run.open(folder).state == "failed"
    assert [row["env_step"] for row in Run.open(folder).metrics()][:3] == [1, 2, 3]
