"""What a command says while it trains: words for people, or one JSON object a line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from engine.cli.streams import flush
from engine.errors import EngineError
from engine.runs.logs import recording
from engine.runs.output import Lines, own_stdout, telling


def debugging() -> bool:
    """Whether errors of engine are to be raised, as ``ENGINE_DEBUG=1`` asks."""
    return os.environ.get("ENGINE_DEBUG", "") not in ("", "0")


_NAMES = {"end": "result", "config": "configuration"}


class Voice:
    """Results go to stdout, all else to stderr; in JSON every line of both is an object with an ``event``."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out
        self._keep: Callable[[str], None] | None = None

    @property
    def in_json(self) -> bool:
        """Whether it speaks JSON."""
        return self._out is not None

    def tell(self, text: str, *, event: str = "message", **fields: Any) -> None:
        """Say something beside the results; if stderr was closed, or its reader went away, do nothing."""
        with contextlib.suppress(OSError, ValueError):
            click.echo(
                json.dumps({"event": event, "text": text, **fields}) if self.in_json else text, err=True
            )

    def result(self, text: str, event: str, row: Mapping[str, Any]) -> None:
        """Say a result: the text, or in JSON the row; nothing if its reader, `head` perhaps, has gone.

        Raises EngineError if stdout cannot be written to, as on a full disk.
        """
        try:
            if self._out is None:
                click.echo(text)
            else:
                self._write({"event": event, **row})
        except BrokenPipeError:
            flush()
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise EngineError(f"cannot write the {_NAMES.get(event, event)} to stdout: {why}") from None

    @contextmanager
    def kept_in(self, log: Path) -> Iterator[None]:
        """Write what the program prints into a log, until the block ends."""
        with recording(log, level="output") as self._keep:
            try:
                yield
            finally:
                if isinstance(sys.stdout, Lines):
                    sys.stdout.end()
                self._keep = None

    def heard(self, line: str) -> None:
        """Take a line that the program printed on stdout."""
        if self._keep is not None:
            self._keep(line)
        if self.in_json:
            self._write({"event": "output", "text": line})

    def _write(self, row: Mapping[str, Any]) -> None:
        assert self._out is not None
        self._out.write(msgspec.json.encode(row, enc_hook=str).decode() + "\n")  # NaN becomes null
        self._out.flush()


@contextmanager
def speaking(progress: str) -> Iterator[Voice]:
    """Yield the voice of a command whose ``--progress`` is this; until the block ends it hears all prints.

    In JSON it also tells the error that ends the block, and the command leaves with its exit code.
    """
    with ExitStack() as stack:
        voice = Voice(stack.enter_context(own_stdout()) if progress == "json" else None)
        stack.enter_context(telling(voice.heard, through=not voice.in_json))
        try:
            yield voice
        except EngineError as error:
            if not voice.in_json or debugging():
                raise
            voice.tell(str(error), event="error", notes=list(getattr(error, "__notes__", ())))
            raise click.exceptions.Exit(error.exit_code) from error
