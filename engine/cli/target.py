"""What a TARGET of a command means: what `engine.recipes.target` knows, or a script."""

from __future__ import annotations

from pathlib import Path

from engine.errors import UsageError, did_you_mean
from engine.recipes.target import Target, find_recipe, is_recipe, load, resolve

__all__ = ["Target", "find_recipe", "is_recipe", "is_script", "load", "resolve"]


def is_script(text: str) -> bool:
    """Whether TARGET is a Python file; raises UsageError for one that does not exist."""
    if not text.endswith(".py"):
        return False
    if not Path(text).is_file():
        nearby = [str(path) for path in Path(text).parent.glob("*.py")] if Path(text).parent.is_dir() else []
        raise UsageError(f"no script {text!r}{did_you_mean(text, nearby)}")
    return True
