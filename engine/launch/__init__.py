"""A program, its roles in processes of their own: planned, started, watched, stopped."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.bus.bus import host, join
    from engine.launch.start import launch

__all__ = ["host", "join", "launch"]

_HOMES = {"host": "engine.bus.bus", "join": "engine.bus.bus", "launch": "engine.launch.start"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
