"""Where metrics go besides metrics.jsonl; a tracker that fails is switched off and never stops training."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.runs.files import STORAGE
from engine.types import Clock

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes the scalars of a run."""

    def log(self, env_step: int, scalars: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Write event files for TensorBoard.

    Nothing is imported before the first flush: protocol buffers take 50 ms then, where torch's SummaryWriter
    takes 1.5 to 3 s. Scalars wait in memory for at most `flush_seconds`; `close` writes what is left.
    """

    def __init__(self, folder: Path, *, flush_seconds: float = 5.0, clock: Clock = time.monotonic) -> None:
        self.folder = folder
        self._flush_seconds = flush_seconds
        self._clock = clock
        self._due = clock() + flush_seconds
        self._waiting: list[tuple[float, int, dict[str, float]]] = []
        self._file: Any = None

    def log(self, env_step: int, scalars: Mapping[str, float]) -> None:
        """Remember scalars of one env step; write when it is time."""
        self._waiting.append((time.time(), int(env_step), dict(scalars)))
        if self._clock() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write what waits, and hand it to the system."""
        try:
            self._write()
        except OSError:
            self._waiting.clear()
            file, self._file = self._file, None
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
            raise

    def _write(self) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._due = self._clock() + self._flush_seconds
        if self._file is None:
            self.folder.mkdir(exist_ok=True)  # not its parents: a run's folder that was deleted stays so
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}.{id(self):x}"
            self._file = (self.folder / name).open("wb")
            first = self._waiting[0][0] if self._waiting else time.time()
            self._file.write(
                _record(Event(wall_time=first, file_version="brain.Event:2").SerializeToString())
            )
        for wall_time, step, scalars in self._waiting:
            event = Event(wall_time=wall_time, step=step)
            for tag, value in scalars.items():
                event.summary.value.add(tag=tag, simple_value=float(value))
            self._file.write(_record(event.SerializeToString()))
        self._waiting.clear()
        self._file.flush()

    def close(self) -> None:
        """Write what is left and close; more than once does no harm."""
        if self._waiting:
            self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None


class Trackers:
    """Several trackers as one; the first failure of each is said once, and it is not called again."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def log(self, env_step: int, scalars: Mapping[str, float]) -> None:
        """Hand the scalars to every tracker that still works."""
        self._each(lambda tracker: tracker.log(env_step, scalars))

    def close(self) -> None:
        """Close every tracker that still works."""
        self._each(lambda tracker: tracker.close())

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for tracker in list(self._trackers):
            try:
                call(tracker)
            except Exception as error:  # whatever a tracker does wrong, the training is worth more
                self._trackers.remove(tracker)
                # What befalls the run's folder ends the run, which says so itself.
                folder = isinstance(error, OSError) and error.errno in STORAGE
                level = logging.INFO if folder else logging.WARNING
                log.log(
                    level, "%s is switched off: %s: %s", type(tracker).__name__, type(error).__name__, error
                )


# ------------------------------------------------------------------ the record format of event files


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as the TFRecord format asks."""
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))
