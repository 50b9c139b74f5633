"""A training engine for reinforcement learning: pipelines of middleware and a bus of events."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.context import Context, OfflineContext, OnlineContext
    from engine.errors import EngineError
    from engine.pipeline import branch, parallel, repeat, serial
    from engine.recipes.experiment import load_policy
    from engine.runs.script import overrides, run_folder
    from engine.task import Task

__version__ = "0.1.0"

__all__ = [  # literal: type checkers read it as it stands
    "Context",
    "EngineError",
    "OfflineContext",
    "OnlineContext",
    "Task",
    "__version__",
    "branch",
    "load_policy",
    "overrides",
    "parallel",
    "repeat",
    "run_folder",
    "serial",
]

_HOME = {
    "Context": "engine.context",
    "EngineError": "engine.errors",
    "OfflineContext": "engine.context",
    "OnlineContext": "engine.context",
    "Task": "engine.task",
    "branch": "engine.pipeline",
    "load_policy": "engine.recipes.experiment",
    "overrides": "engine.runs.script",
    "parallel": "engine.pipeline",
    "repeat": "engine.pipeline",
    "run_folder": "engine.runs.script",
    "serial": "engine.pipeline",
}


def _load(name: str) -> Any:
    """Load a public name when it is first asked for, so that `import engine` stays quick."""
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    from engine.errors import did_you_mean

    raise AttributeError(f"module 'engine' has no name {name!r}{did_you_mean(name, _HOME)}")


if not TYPE_CHECKING:  # else every misspelt name would have the type Any
    __getattr__ = _load


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
