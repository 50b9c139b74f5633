"""metrics.jsonl: one JSON object a line, the source of truth for every curve.

A line is flat: ``env_step``, ``time`` (seconds since the run began), and one key per scalar, as
``collect/return_mean``. JSON knows no NaN and no infinity, so both are written as null and read back as NaN.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from engine.errors import EngineError, did_you_mean
from engine.types import Clock


class MetricsWriter:
    """Append lines to metrics.jsonl; each is handed to the system whole, so that a kill loses none.

    Raises OSError where the file system refuses: the disk is full, say.
    """

    def __init__(self, path: Path, *, start: float = 0.0, clock: Clock = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._start = clock() - start
        self._descriptor: int | None = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o666)
        size = os.fstat(self._descriptor).st_size
        self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"

    def write(self, env_step: int, scalars: Mapping[str, Any]) -> None:
        """Append one line of Python, numpy or torch numbers; raises EngineError for anything else."""
        if self._descriptor is None:
            raise EngineError(f"{self.path} is closed")
        row: dict[str, Any] = {"env_step": int(env_step), "time": round(self._clock() - self._start, 3)}
        for name, value in scalars.items():
            row[name] = value if type(value) in (int, float) else _number(name, value)
        line = msgspec.json.encode(row) + b"\n"
        if self._torn:
            line = b"\n" + line
        self._torn = os.write(self._descriptor, line) < len(line)

    def close(self) -> None:
        """Force the file to disk and close it; more than once does no harm."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Metrics:
    """The lines of a metrics file, in order."""

    rows: list[dict[str, Any]]
    damaged: int = 0
    """Lines that could not be read, a torn last one included."""

    def names(self) -> list[str]:
        """Every scalar's name, sorted."""
        return sorted({name for row in self.rows for name in row})

    def series(self, key: str, x: str = "env_step") -> tuple[list[float], list[float]]:
        """Return (x, y) of the lines that hold `key`; null is NaN. Raises EngineError for an unknown key."""
        points = [(row[x], row[key]) for row in self.rows if key in row and row.get(x) is not None]
        if not points and key not in self.names():
            raise EngineError(f"no metric {key!r}{did_you_mean(key, self.names())}")
        return [float(x) for x, _ in points], [math.nan if y is None else float(y) for _, y in points]

    def last(self, key: str) -> float | None:
        """The newest finite value of `key`, or None."""
        return next((float(row[key]) for row in reversed(self.rows) if row.get(key) is not None), None)

    def best(self, key: str) -> float | None:
        """The largest value of `key`, or None."""
        return max((float(row[key]) for row in self.rows if row.get(key) is not None), default=None)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


def read_metrics(path: Path) -> Metrics:
    """Read a metrics file, also while it is written; a missing one is empty, torn lines are skipped."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return Metrics([])
    except OSError as error:
        raise EngineError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    rows, damaged = [], 0
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    for line in content.split(b"\n"):
        if line.strip():
            try:
                rows.append(decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError):
                damaged += 1
    return Metrics(rows, damaged)


def _number(name: str, value: Any) -> int | float:
    try:
        number = value.item() if hasattr(value, "item") else value
        return int(number) if isinstance(number, bool | int) else float(number)
    except (TypeError, ValueError, RuntimeError):
        raise EngineError(f"the metric {name!r} must be one number, got {type(value).__name__}") from None
