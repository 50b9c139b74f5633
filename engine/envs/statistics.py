"""Refuse wrappers whose running statistics change observations.

Each copy of an environment would keep statistics of its own and none is saved, so one observation would mean
something else in every copy, in evaluation and after loading, and training goes wrong without a word.

gymnasium's `NormalizeObservation` is known by its class (with ``update_running_mean = False`` its statistics
stand still and it is let through).  A wrapper of the user's own is tried out if it has an `observation`
method or attributes that look like statistics: two copies of it stand on stubs, are shown different episodes,
and then the same observation many times over.  If they do not agree about that one, what they saw before
still counts.  A stack of frames forgets it; fixed scaling and noise pass too: both copies draw the same, or
two copies that saw the same differ as well.

Out of reach: what `AsyncVectorEnv` holds, wrappers that write their own `step` and whose attributes tell
nothing, and wrappers that only work on their very environment.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import re
import types
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorWrapper as GymVectorWrapper
from gymnasium.wrappers.vector import NormalizeObservation as VectorNormalizeObservation

from engine.envs.spaces import to_arrays
from engine.errors import EnvError

_HINT = re.compile(
    r"mean|average|avg|std|rms|stats|statistic|norm|running|welford|moment|variance|sigma"
    r"|(?:^|_)(?:mu|var|ema|m2|filter)(?:_|$)",
    re.IGNORECASE,
)
_SHOWN, _REPEATED = 32, 64


def refuse_running_statistics(env: Any, name: str, _seen: frozenset[int] = frozenset()) -> None:
    """Raise `EnvError` if a wrapper of `env`, single or vectorised, changes observations by what it saw.

    Environments that the innermost one holds in its attributes are looked at too.
    """
    while isinstance(env, (gymnasium.Wrapper, GymVectorWrapper)):
        if _has_running_statistics(env):
            raise EnvError(
                f"{type(env).__name__} around {name} changes observations by running statistics, which every "
                "copy of the environment would keep for itself and no policy saves, so training goes wrong "
                "unnoticed; scale by fixed numbers instead (TransformObservation, RescaleObservation), or "
                "normalise in the model; NormalizeReward is allowed"
            )
        env = env.env
    seen = _seen | {id(env)}
    for value in list(vars(env).values()):
        if isinstance(value, gymnasium.Env) and id(value.unwrapped) not in seen:
            refuse_running_statistics(value, name, seen)


def _has_running_statistics(layer: Any) -> bool:
    if isinstance(layer, (gymnasium.wrappers.NormalizeObservation, VectorNormalizeObservation)):
        return bool(layer.update_running_mean)
    if not isinstance(layer, gymnasium.Wrapper):
        return _holds_running_mean(layer)
    if not _is_suspect(layer):
        return False
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # what it prints would be of episodes that are none
            first, second = (_last_of_repeated(layer, seed) for seed in (1, 2))
            if _alike(first, second):
                return False
            again = _last_of_repeated(layer, 1)
    except Exception:  # it does not work on a stub: judge by what it holds
        return _holds_running_mean(layer)
    # Noise that no seed repeats, or a clock, tells nothing about what it saw.
    return _alike(first, again) or _holds_running_mean(layer)


def _is_suspect(layer: Any) -> bool:
    """Whether a wrapper may change observations by code of the user's own and by what it has seen."""
    kind = type(layer)
    for function in (getattr(kind, "observation", None), vars(layer).get("func")):
        if function is not None and not _by_gymnasium(function):
            return True
    if _by_gymnasium(kind.step) and _by_gymnasium(kind.reset):
        return False
    shape = getattr(layer.env.observation_space, "shape", None)
    return any(
        _HINT.search(key)
        or (isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.shape == shape)
        for key, value in (*vars(layer).items(), (kind.__name__, None))
    )


def _by_gymnasium(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("gymnasium", "engine")


def _holds_running_mean(layer: Any) -> bool:
    """Whether an attribute has the mean, variance and update of `RunningMeanStd`, of more than one number."""
    return any(
        callable(getattr(value, "update", None))
        and np.size(getattr(value, "mean", ())) > 0
        and np.ndim(value.mean) > 0
        and (hasattr(value, "var") or hasattr(value, "std"))
        for value in vars(layer).values()
    )


class _Stub(gymnasium.Env):  # type: ignore[misc,type-arg,unused-ignore]
    """Shows observations that are given beforehand, and never ends."""

    def __init__(self, env: Any, script: list[Any]) -> None:
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.render_mode, self.metadata = env.render_mode, env.metadata
        self._script = iter(script)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=0)
        return next(self._script), {}

    def step(self, action: Any) -> Any:
        return next(self._script), 0.0, False, False, {}


def _last_of_repeated(layer: Any, seed: int) -> Any:
    """What a copy of the wrapper makes of one observation after an episode that follows from `seed`."""
    inner = layer.env
    space, actions = copy.deepcopy(inner.observation_space), copy.deepcopy(inner.action_space)
    actions.seed(0)
    space.seed(0)
    repeated = space.sample()
    space.seed(seed)
    script = [space.sample() for _ in range(_SHOWN)] + [copy.deepcopy(repeated) for _ in range(_REPEATED)]
    stub = _Stub(inner, script)
    # Never a shallow copy, even for a moment: it would share what a failure here lets go of.
    probe = object.__new__(type(layer))
    memo = {id(inner): stub, id(inner.unwrapped): stub, id(layer): probe}
    for key, value in vars(layer).items():
        vars(probe)[key] = _copied(value, memo)
    before = np.random.get_state(), random.getstate()
    np.random.seed(0)
    random.seed(0)
    try:
        obs = probe.reset()[0]
        for number in range(1, len(script)):
            obs = (probe.reset() if number == _SHOWN else probe.step(actions.sample()))[0]
    finally:
        np.random.set_state(before[0])
        random.setstate(before[1])
    return _arrays(layer.observation_space, obs)


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; of a function also what it closes over."""
    if isinstance(value, types.FunctionType) and value.__closure__:
        cells = tuple(types.CellType(_copied(cell.cell_contents, memo)) for cell in value.__closure__)
        fresh = types.FunctionType(
            value.__code__, value.__globals__, value.__name__, value.__defaults__, cells
        )
        fresh.__kwdefaults__ = value.__kwdefaults__
        return fresh
    return copy.deepcopy(value, memo)


def _arrays(space: Any, obs: Any) -> Any:
    """One observation as arrays, whatever its space."""
    return to_arrays(space, obs) if isinstance(space, (spaces.Dict, spaces.Tuple)) else np.array(obs)


def _alike(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return all(_alike(first[key], second[key]) for key in first)
    if first.dtype.kind not in "fiub":
        return True
    return bool(np.allclose(first, second, rtol=1e-6, atol=1e-9, equal_nan=True))
