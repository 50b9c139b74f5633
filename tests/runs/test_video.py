"""Films: readable, padded, whole or absent."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from imageio_ffmpeg import get_ffmpeg_exe

from engine.errors import EngineError
from engine.runs.video import check_encoder, write_video


def frames(count: int, height: int = 40, width: int = 61) -> list[np.ndarray]:
    return [np.full((height, width, 3), 10 * i, np.uint8) for i in range(count)]


def test_a_film_has_all_frames_padded_to_blocks_of_sixteen(tmp_path: Path) -> None:
    path = write_video(tmp_path / "videos" / "episode.mp4", frames(20), fps=25)
    decode = [get_ffmpeg_exe(), "-v", "error", "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    pixels = subprocess.run(decode, capture_output=True, check=True).stdout
    shades = np.frombuffer(pixels, np.uint8).reshape(-1, 48, 64, 3)[:, 20, 30, 0]
    assert shades.astype(int) == pytest.approx(np.arange(20) * 10, abs=4)


def test_no_frame_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="there was no frame"):
        write_video(tmp_path / "x.mp4", [])
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> Iterator[np.ndarray]:
        yield frames(1)[0]
        raise KeyError("in the environment")

    with pytest.raises(KeyError):
        write_video(tmp_path / "x.mp4", broken())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "frame",
    [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((4, 4, 4), np.uint8), None],
)
def test_what_is_no_picture_is_refused(tmp_path: Path, frame: object) -> None:
    with pytest.raises(EngineError, match="a frame must be"):
        write_video(tmp_path / "x.mp4", [frame])


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="one size"):
        write_video(tmp_path / "x.mp4", [*frames(1), *frames(1, height=80)])


def test_the_encoder_of_this_machine_works() -> None:
    check_encoder()
