"""A training engine for reinforcement learning: pipelines of middleware and a bus of events."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

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

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for, so that `import engine` stays quick."""
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    from engine.errors import did_you_mean

    raise AttributeError(f"module 'engine' has no name {name!r}{did_you_mean(name, _HOME)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
