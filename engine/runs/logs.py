"""Log records of a run as JSON lines in its folder."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

LOG = "logs/main-0.jsonl"
"""The log of a run in one process, in its folder."""


class JsonFormatter(logging.Formatter):
    """One object a record: time, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        row = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            row["traceback"] = "".join(traceback.format_exception(*record.exc_info))
        return json.dumps(row, default=str)


class _File(logging.FileHandler):
    """Write into a file of the run; a record that cannot be written, as the disk is full, is no error.

    The run itself finds out, and says so once.
    """

    def handleError(self, record: logging.LogRecord) -> None:
        """A record that does not fit is lost."""

    def close(self) -> None:
        """Close the file, whatever of it can be written."""
        with contextlib.suppress(OSError):
            super().close()


class _Stderr(logging.Handler):
    """Print to whatever stderr is at that moment: a live panel replaces it for a while."""

    def __init__(self, level: int, *, as_json: bool) -> None:
        super().__init__(level)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        level, text = record.levelname.lower(), record.getMessage()
        line = json.dumps({"event": "log", "level": level, "text": text})
        try:
            print(line if self._as_json else f"{level}: {text}", file=sys.stderr)
        except (OSError, ValueError):  # stderr is gone; the file still has it
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A lost line on a terminal that is gone is no news."""


def record(path: Path, message: str, *, level: str = "info", error: BaseException | None = None) -> None:
    """Append one record to a log; what cannot be written is not, as whatever is logged goes on."""
    with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
        file.write(_row(message, level, error))


@contextmanager
def recording(path: Path, *, level: str = "info") -> Iterator[Callable[[str], None]]:
    """Yield what appends a record as `record` does, for many of them."""
    with contextlib.ExitStack() as stack:
        file: TextIO | None = None
        with contextlib.suppress(OSError):
            file = stack.enter_context(_closing(path.open("a", encoding="utf-8", buffering=1)))

        def append(message: str) -> None:
            if file is not None:
                with contextlib.suppress(OSError):
                    file.write(_row(message, level, None))

        yield append


@contextmanager
def _closing(file: TextIO) -> Iterator[TextIO]:
    """Close a file, whatever of it can be written."""
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.close()


def _row(message: str, level: str, error: BaseException | None) -> str:
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    row = {"time": now, "level": level, "logger": "engine", "message": message}
    if error is not None:
        row["traceback"] = "".join(traceback.format_exception(error))
    return json.dumps(row) + "\n"


@contextmanager
def logging_to(path: Path, *, as_json: bool = False) -> Iterator[None]:
    """Write records of level info and above to `path`, and warnings to stderr, until the block ends.

    `as_json` has the warnings be JSON lines too.

    Handlers that a program set up itself stay, and then the warnings are theirs to show.
    """
    root, engine = logging.getLogger(), logging.getLogger("engine")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _File(path, encoding="utf-8")
    file.setFormatter(JsonFormatter())
    handlers: list[logging.Handler] = (
        [file] if root.handlers else [file, _Stderr(logging.WARNING, as_json=as_json)]
    )
    before = engine.level
    engine.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        engine.setLevel(before)
