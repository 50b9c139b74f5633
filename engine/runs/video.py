"""Films of episodes, as mp4 files that play everywhere.

torch's and gymnasium's recorders need moviepy (torch's drops the film in silence with moviepy 2), so frames
go straight to the encoder that comes with imageio-ffmpeg.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from engine.errors import EngineError, MissingExtra
from engine.runs.files import replacing

_BLOCK = 16


class Video:
    """Write frames (height, width, 3) of uint8 to an mp4 file, which appears when the block has succeeded.

    Sides are padded to multiples of 16, as encoders want it, instead of being rescaled. Raises EngineError
    for frames of another kind or size, and when there was none; MissingExtra without imageio-ffmpeg.
    """

    def __init__(self, path: Path, *, fps: float = 30.0) -> None:
        self.path = path
        self.frames = 0
        self._fps = max(1.0, float(fps))
        self._shape: tuple[int, ...] = ()
        self._encoder: Any = None
        self._stack = ExitStack()

    def add(self, frame: Any) -> None:
        """Append one frame."""
        image = np.asarray(frame)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise EngineError(
                f"a frame must be (height, width, 3) of uint8, got {image.shape} of {image.dtype}"
            )
        if self._encoder is None:
            self._open(image.shape)
        if image.shape != self._shape:
            raise EngineError(f"frames of one film must have one size: {image.shape} after {self._shape}")
        bottom, right = -image.shape[0] % _BLOCK, -image.shape[1] % _BLOCK
        if bottom or right:
            image = np.pad(image, ((0, bottom), (0, right), (0, 0)), mode="edge")
        self._encoder.send(np.ascontiguousarray(image))
        self.frames += 1

    def _open(self, shape: tuple[int, ...]) -> None:
        try:
            import imageio_ffmpeg  # type: ignore[import-untyped]
        except ImportError:
            raise MissingExtra(
                "films need imageio-ffmpeg: pip install -c constraints.txt 'imageio[ffmpeg]'"
            ) from None
        self._shape = shape
        size = (shape[1] + -shape[1] % _BLOCK, shape[0] + -shape[0] % _BLOCK)
        temporary = self._stack.enter_context(replacing(self.path))
        try:
            self._encoder = imageio_ffmpeg.write_frames(
                str(temporary), size, fps=self._fps, codec="libx264", quality=7, macro_block_size=_BLOCK,
                pix_fmt_out="yuv420p", ffmpeg_log_level="error", output_params=["-movflags", "+faststart"],
            )  # fmt: skip
            self._encoder.send(None)
        except (OSError, RuntimeError) as error:
            raise EngineError(f"the encoder does not start: {error}; `engine doctor` checks it") from None

    def __enter__(self) -> Video:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._encoder is not None:
            self._encoder.close()
        if error is None and not self.frames:
            raise EngineError(f"no film {self.path}: there was no frame (was render_mode='rgb_array' given?)")
        self._stack.__exit__(kind, error, tb)


def write_video(path: Path, frames: Iterable[Any], *, fps: float = 30.0) -> Path:
    """Write all frames as one film; see `Video`."""
    with Video(path, fps=fps) as video:
        for frame in frames:
            video.add(frame)
    return path


def check_encoder() -> None:
    """Raise what `Video` would raise on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        write_video(Path(folder) / "check.mp4", [np.zeros((32, 32, 3), np.uint8)] * 2)
