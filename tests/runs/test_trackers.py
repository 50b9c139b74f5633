"""Trackers: readable by TensorBoard itself, and harmless when they fail."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.runs.trackers import TensorBoard, Trackers, _masked_crc


def test_tensorboards_own_reader_gets_every_scalar_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path / "tb", flush_seconds=0.0)
    for step in range(20):
        board.log(step * 100, {"train/loss": step / 4, "collect/return_mean": float(step)})
    board.close()
    board.close()
    accumulator = EventAccumulator(str(tmp_path / "tb"))
    accumulator.Reload()
    assert sorted(accumulator.Tags()["scalars"]) == ["collect/return_mean", "train/loss"]
    events = accumulator.Scalars("train/loss")
    assert [(event.step, event.value) for event in events] == [(step * 100, step / 4) for step in range(20)]


def test_checksums_equal_tensorboards_own() -> None:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    for data in (b"", b"a", bytes(range(256)) * 3):
        assert _masked_crc(data) == masked_crc32c(data)


def test_nothing_is_imported_before_the_first_flush(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from engine.runs.trackers import TensorBoard\n"
        "board = TensorBoard(Path(sys.argv[1])); board.log(1, {'a': 1.0})\n"
        "print('tensorboard' in sys.modules); board.close()\n"
        "print('google.protobuf' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\nTrue False\n"


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def log(self, env_step: int, scalars: Mapping[str, float]) -> None:
        self.calls += 1
        raise ConnectionError("no server")

    def close(self) -> None:
        raise AssertionError("a tracker that is off is not closed")


class Listing:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def log(self, env_step: int, scalars: Mapping[str, float]) -> None:
        self.steps.append(env_step)

    def close(self) -> None:
        self.steps.append(-1)


def test_a_failing_tracker_is_said_once_and_switched_off(caplog: pytest.LogCaptureFixture) -> None:
    broken, listing = Broken(), Listing()
    trackers = Trackers([broken, listing])
    for step in range(3):
        trackers.log(step, {})
    trackers.close()
    assert broken.calls == 1
    assert listing.steps == [0, 1, 2, -1]
    assert [record.getMessage() for record in caplog.records] == [
        "Broken is switched off: ConnectionError: no server"
    ]


def test_a_folder_that_cannot_be_made_switches_tensorboard_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tb").write_text("a file is in the way")
    trackers = Trackers([TensorBoard(tmp_path / "tb", flush_seconds=0.0)])
    trackers.log(1, {"a": 1.0})
    trackers.log(2, {"a": 1.0})
    assert len(caplog.records) == 1
