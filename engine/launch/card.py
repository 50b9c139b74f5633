"""The file by which others find a run that is going on: ``launch.json`` in its folder, for its user only."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import UsageError
from engine.runs.files import replacing
from engine.runs.folder import Run

NAME, KEYS = "launch.json", "run.key"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """Where the launcher of a run is, or, once `address` is None, how its processes ended."""

    run: str
    pid: int
    host: str
    program: str
    address: str | None
    status: dict[str, Any] = {}

    def write(self, folder: Path) -> None:
        """Put the card into a run's folder, in place of the one before."""
        with replacing(folder / NAME) as temporary:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def read_card(run: Run) -> Card | None:
    """Return the card of a run; None for a run in one process.  Raises UsageError for a damaged one."""
    path = run.path / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Card)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"cannot read {path}: {error}") from None


def is_here(card: Card) -> bool:
    """Whether the launcher ran on this machine."""
    return card.host == socket.gethostname()
