"""What a TARGET means: a configuration, a recipe as ``module:function``, a script; all without torch."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from engine import config as configs
from engine.config import Settings
from engine.errors import ConfigError, EngineError, UsageError, did_you_mean
from engine.recipes.config import config_type


@dataclass(frozen=True)
class Target:
    """A recipe and the checked configuration to give it."""

    name: str
    """``module:function``"""
    recipe: Callable[..., Any]
    config: Any
    settings: Settings

    @property
    def algo(self) -> str:
        """The recipe's function name, like ``ppo``."""
        return str(getattr(self.recipe, "__name__", self.name.rpartition(":")[2]))

    def row(self) -> dict[str, Any]:
        """The resolved configuration as plain values."""
        return {"recipe": self.name, "config": msgspec.to_builtins(self.config)}

    def yaml(self) -> str:
        """The resolved configuration, each line marked with where it came from."""
        return configs.to_yaml(self.config, self.settings, recipe=self.name)


def resolve(text: str, words: Sequence[str]) -> Target:
    """Find the recipe of a TARGET and check its configuration, with the overriding `words` in it.

    Raises UsageError for a target that nobody has and ConfigError for a configuration that does not fit.
    """
    settings = load(text, words)
    name = settings.recipe
    if name is None:
        raise ConfigError(f"{text} names no recipe; add a line like `recipe: engine.recipes.ppo:ppo`")
    recipe = find_recipe(name, UsageError if is_recipe(text) else ConfigError)
    return Target(name, recipe, configs.convert(settings, config_type(recipe, name)), settings)


def load(text: str, words: Sequence[str]) -> Settings:
    """Read the settings of a TARGET that is no script, with the overriding `words` laid over them."""
    if is_recipe(text):
        settings = Settings({"recipe": text}, {("recipe",): configs.Source(configs.COMMAND_LINE)})
    elif (Path(text) / "run.json").is_file():
        raise UsageError(f"{text} is a run; to do it once more: engine run {Path(text) / 'config.yaml'}")
    else:
        settings = configs.load(text)
    return configs.override(settings, words)


def is_recipe(text: str) -> bool:
    """Whether TARGET has the form ``module:function``."""
    module, colon, function = text.partition(":")
    return bool(colon) and function.isidentifier() and all(part.isidentifier() for part in module.split("."))


def is_script(text: str) -> bool:
    """Whether TARGET is a Python file; raises UsageError for one that does not exist."""
    if not text.endswith(".py"):
        return False
    if not Path(text).is_file():
        nearby = [str(path) for path in Path(text).parent.glob("*.py")] if Path(text).parent.is_dir() else []
        raise UsageError(f"no script {text!r}{did_you_mean(text, nearby)}")
    return True


def find_recipe(name: str, kind: type[EngineError]) -> Callable[..., Any]:
    """Import ``module:function``; raises `kind` where there is no such thing."""
    module_name, colon, function = name.partition(":")
    if not colon:
        raise kind(f"a recipe is written as module:function, got {name!r}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does, so that users' own modules are found
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module is there, and something that it imports is not
        known = [f"engine.recipes.{name}" for name in ("ppo", "dqn", "impala", "league")]
        raise kind(f"no module {error.name!r} for {name!r}{did_you_mean(module_name, known)}") from None
    found = getattr(module, function, None)
    if not callable(found):
        known = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise kind(f"module {module_name!r} has no recipe {function!r}{did_you_mean(function, known)}")
    return found  # type: ignore[no-any-return]
