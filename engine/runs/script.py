"""What a script reads of its command line: `engine run x.py` is `python x.py` with a run folder.

The command hands over a folder and the overriding words for the time in which the script runs; under plain
python nothing is handed over, and both functions answer with something fresh.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from engine.errors import ConfigError
from engine.runs.folder import Run
from engine.runs.logs import LOG, record
from engine.signals import Terminated, last_heeded

S = TypeVar("S", bound=msgspec.Struct)


@dataclass
class Handover:
    """What a command leaves for a script."""

    run: Run
    configure: Callable[[type[Any]], Any]
    """Builds a configuration Struct from the command line; raises ConfigError for words that do not fit."""
    configured: bool = False
    """Whether the script asked for its overrides."""
    refused: bool = False
    """Whether they did not fit."""


_handover: ContextVar[Handover | None] = ContextVar("handover", default=None)


@contextmanager
def handing_over(handover: Handover) -> Iterator[None]:
    """Let `run_folder` and `overrides` answer with what is handed over until the block ends."""
    token = _handover.set(handover)
    try:
        yield
    finally:
        _handover.reset(token)


def run_folder(*, env: str = "script", algo: str | None = None, seed: int = 0) -> Run:
    """Return the folder that `engine run` made for this script; under plain python, make a fresh one.

    `env`, `algo` (default: the script's name) and `seed` name a fresh folder.
    """
    handover = _handover.get()
    if handover is not None:
        return handover.run
    run = Run.create(env=env, algo=algo or Path(sys.argv[0] or "python").stem or "python", seed=seed)
    record(run.file(LOG), f"{sys.argv[0] or 'python'}: process {os.getpid()} on {run.info['host']}")
    atexit.register(_end, run.path, os.getpid())
    return run


def _end(path: Path, pid: int) -> None:
    """Write how a script ended into its run.json, unless that was done, or the folder is gone."""
    if os.getpid() != pid or not (path / "run.json").is_file():
        return
    run = Run.open(path)
    if run.info.get("end") is not None:
        return
    error = getattr(sys, "last_value", None)  # what the interpreter has shown a traceback of
    number = last_heeded()
    if error is None and number in (signal.SIGTERM, signal.SIGHUP):
        run.end_with(Terminated(number))
    elif error is None:
        run.finish("finished")
    else:
        run.end_with(error)
    failed = error if run.info["state"] == "failed" else None
    record(path / LOG, run.ended, level="error" if failed else "info", error=failed)


def overrides(config: type[S]) -> S:
    """Return a `config` with the command line's ``key=value`` words in it; under plain python, its defaults.

    Raises ConfigError for words that do not fit.
    """
    handover = _handover.get()
    if handover is None:
        return config()
    handover.configured = True
    try:
        return cast(S, handover.configure(config))
    except ConfigError:
        handover.refused = True
        raise
