"""What starts the processes of a run: the contract that every backend keeps, here or on a cluster.

A backend only places work; the processes meet on the bus, and the launcher decides what a loss means.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from engine.bus.transport import Transport
from engine.signals import REASONS, name_of


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process has to do: where the run is, which seat to take, which program to run, and how."""

    run: str
    address: str
    role: str
    program: str = ""
    """The recipe as ``module:function``; empty: the launcher knows it, and the configuration."""
    config: dict[str, Any] = {}
    seat: str | None = None
    """None: the launcher finds a name."""
    folder: str | None = None
    """The run's folder, where this machine has it."""
    path: list[str] = []
    """Where Python looks for modules."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    """Its exit code; minus the number of the signal that killed it."""
    cause: str
    """In words, like ``killed by SIGKILL``."""
    output: str = ""
    """The last that it printed."""


_HEEDED = {128 + number: number for number in REASONS}
"""Exit codes of processes that left in order when a signal asked them to."""


def cause(code: int) -> str:
    """Say how a process ended, from its exit code."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    if code in _HEEDED:
        return f"left after {name_of(_HEEDED[code])} (exit code {code})"
    return f"left with exit code {code}"


def was_asked(code: int) -> bool:
    """Whether a process ended by a signal that asks for the end, whether it heeded it or died of it."""
    return code in _HEEDED or -code in _HEEDED.values()


class Handle(Protocol):
    """One process that was started."""

    pid: int | None

    def terminate(self) -> None:
        """Ask it to end; it does so in order, if it can."""
        ...

    def kill(self) -> bool:
        """End it and whatever it started, now; False where it had ended by itself."""
        ...


OnEnd: TypeAlias = Callable[[Ended], None]
OnLine: TypeAlias = Callable[[str], None]


class Backend(Protocol):
    """Starts processes."""

    def open(self) -> Transport:
        """Prepare to start processes; return the transport by which the launcher will be reached."""
        ...

    def start(self, order: Order, *, on_end: OnEnd, on_line: OnLine) -> Handle:
        """Start a process.

        From other threads `on_line` gets what it prints, and `on_end`, once, how it ended.
        """
        ...

    def close(self) -> None:
        """End what still runs, and leave nothing behind: no process, no file outside the run's folder."""
        ...
