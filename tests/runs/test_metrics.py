"""metrics.jsonl: valid lines, whatever happens."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import EngineError
from engine.runs.metrics import MetricsWriter, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def test_numbers_of_every_library_become_json_numbers(path: Path) -> None:
    values = {
        "a": 1,
        "b": 0.5,
        "c": np.float32(0.25),
        "d": torch.tensor(2.0),
        "e": np.int64(3),
        "f": np.ones(1),
        "g": True,
    }
    with MetricsWriter(path) as writer:
        writer.write(np.int64(7), values)  # type: ignore[arg-type]
    row = json.loads(path.read_text())
    del row["time"]
    assert row == {"env_step": 7, "a": 1, "b": 0.5, "c": 0.25, "d": 2.0, "e": 3, "f": 1.0, "g": 1}


def test_nan_and_infinity_are_null_in_the_file_and_nan_when_read(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.write(1, {"a": math.nan, "b": math.inf})
        writer.write(2, {"a": 1.0})
    assert json.loads(path.read_text().splitlines()[0])["b"] is None
    metrics = read_metrics(path)
    assert math.isnan(metrics.series("a")[1][0])
    assert (metrics.last("a"), metrics.best("a"), metrics.last("b")) == (1.0, 1.0, None)


@pytest.mark.parametrize("value", ["text", None, np.ones(2), [1]])
def test_what_is_no_number_is_named(path: Path, value: object) -> None:
    with MetricsWriter(path) as writer, pytest.raises(EngineError, match="'train/loss' must be one number"):
        writer.write(1, {"train/loss": value})


def test_a_killed_process_loses_no_finished_line(path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from engine.runs.metrics import MetricsWriter\n"
        "w = MetricsWriter(Path(sys.argv[1]))\n"
        "for i in range(50): w.write(i, {'a': i})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_metrics(path).series("a")[1] == list(range(50))


def test_a_torn_last_line_is_skipped_and_the_next_writer_starts_a_new_one(path: Path) -> None:
    path.write_bytes(b'{"env_step":1,"a":1}\n{"env_step":2,"a"')
    assert (len(read_metrics(path)), read_metrics(path).damaged) == (1, 1)
    with MetricsWriter(path) as writer:
        writer.write(3, {"a": 3})
    assert read_metrics(path).series("a") == ([1.0, 3.0], [1.0, 3.0])


def test_garbage_lines_are_counted_and_the_rest_is_read(path: Path) -> None:
    path.write_bytes(b'\xff\xfe\n[1]\n\n{"env_step":1}\n')
    assert (read_metrics(path).rows, read_metrics(path).damaged) == ([{"env_step": 1}], 2)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_raises_what_the_system_says() -> None:
    writer = MetricsWriter(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        writer.write(1, {})


def test_time_runs_from_the_start_of_the_run(path: Path) -> None:
    now = iter([100.0, 102.5])
    with MetricsWriter(path, start=10.0, clock=lambda: next(now)) as writer:
        writer.write(1, {})
    assert read_metrics(path).rows[0]["time"] == 12.5


def test_an_unknown_key_is_named_with_the_nearest(path: Path) -> None:
    with MetricsWriter(path) as writer:
        writer.write(1, {"train/loss_policy": 1.0})
    with pytest.raises(EngineError, match="did you mean 'train/loss_policy'"):
        read_metrics(path).series("train/los_policy")


def test_a_missing_file_is_empty(path: Path) -> None:
    assert len(read_metrics(path)) == 0
