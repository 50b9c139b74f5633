"""What a program prints on stdout, line by line, so that it can be kept, or told in another form."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class Lines:
    """Stands for a stream: hands each whole line to `tell`, and with `through` all text to the stream too."""

    def __init__(self, stream: TextIO, tell: Callable[[str], None], *, through: bool) -> None:
        self._stream = stream
        self._tell = tell
        self._through = through
        self._part = ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """Take text, as a stream does."""
        if self._through:
            self._stream.write(text)
        with self._lock:
            *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._tell(line)
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Take several texts."""
        for line in lines:
            self.write(line)

    def end(self) -> None:
        """Hand on what is left without an end of line."""
        with self._lock:
            part, self._part = self._part, ""
        if part:
            self._tell(part)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def telling(tell: Callable[[str], None], *, through: bool = True) -> Iterator[None]:
    """Hand every line that Python code prints on stdout to `tell` until the block ends."""
    before = sys.stdout
    lines = Lines(before, tell, through=through)
    sys.stdout = lines
    try:
        yield
    finally:
        sys.stdout = before
        lines.end()


@contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Yield stdout as a stream that only its holder writes to; what others write there goes to stderr.

    Others are C code and child processes: they know the file descriptor, not `sys.stdout`.
    """
    stream = sys.stdout
    try:
        number, other = stream.fileno(), sys.stderr.fileno()
    except (OSError, ValueError, AttributeError):  # it is no file, as in a test or a notebook
        yield stream
        return
    stream.flush()
    kept = os.dup(number)
    try:
        os.dup2(other, number)
        with os.fdopen(kept, "w", encoding=stream.encoding, errors=stream.errors, closefd=False) as own:
            yield own
    finally:
        stream.flush()
        ctypes.CDLL(None).fflush(None)  # what C code has printed and not written yet
        os.dup2(kept, number)
        os.close(kept)
