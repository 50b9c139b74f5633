"""Check the first reset and the first step of an environment against gymnasium's contract.

A breach is told with the class, what was expected and what came, before numpy stumbles over it.  Only what
the outermost wrapper hands on must be right, as a wrapper may mend what it stands on; if that is wrong, or a
wrapper fails, the innermost class that broke the contract in the same way is named.

The methods are watched on the instances and left as they were after the first step, which costs nothing more.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces

from engine.envs.find import DEPENDENCY, missing
from engine.errors import EngineError, EnvError

_STEP = "(observation, reward, terminated, truncated, info)"


class _Breach(NamedTuple):
    """What is wrong with what a method returned."""

    kind: str
    text: str


def watch_first_calls(env: Any, name: str) -> None:
    """Let the first reset and step of `env` raise `EnvError` if they break the contract; once is enough."""
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    if any(isinstance(getattr(vars(layer).get("step"), "__self__", None), Watched) for layer in layers):
        return
    watch = _Watch(name)
    watch.layers = [Watched(layer, watch, outermost=layer is env) for layer in layers]


class _Watch:
    """What the watched layers of one environment share; copies of them are not watched."""

    def __init__(self, name: str, *, over: bool = False) -> None:
        self.name = name
        self.over = over
        self.breach: _Breach | None = None
        self.layers: list[Watched] = []

    def end(self) -> None:
        self.over = True
        for layer in self.layers:
            layer.let_go()
        self.layers.clear()

    def __reduce__(self) -> Any:
        return _unwatched, ()


def _unwatched() -> _Watch:
    return _Watch("", over=True)


class Watched:
    """Stands in for `reset` and `step` of one layer until the first step has been right."""

    def __init__(self, env: Any, watch: _Watch, *, outermost: bool) -> None:
        self._env, self._watch, self._outermost = env, watch, outermost
        self._before = {key: vars(env)[key] for key in ("reset", "step") if key in vars(env)}
        self._reset, self._step = env.reset, env.step
        vars(env).update(reset=self.reset, step=self.step)

    def let_go(self) -> None:
        """Give the methods back, unless they are watched by something else by now."""
        for key in ("reset", "step"):
            if getattr(vars(self._env).get(key), "__self__", None) is self:
                del vars(self._env)[key]
                vars(self._env).update({key: self._before[key]} if key in self._before else {})

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._reset, _breach_of_reset, args, kwargs)

    def step(self, *args: Any, **kwargs: Any) -> Any:
        result = self._call(self._step, _breach_of_step, args, kwargs)
        if self._outermost and not self._watch.over:
            self._watch.end()
        return result

    def _call(
        self, method: Callable[..., Any], judge: Callable[[Any, Any], _Breach | None], args: Any, kwargs: Any
    ) -> Any:
        watch = self._watch
        if watch.over:
            return method(*args, **kwargs)
        if self._outermost:
            watch.breach = None
        try:
            result = method(*args, **kwargs)
        except EngineError:
            raise
        except DEPENDENCY as error:  # imported only now
            extra = missing(error, f"environment {watch.name!r}") if self._outermost else None
            if extra is None:
                raise
            raise extra from error
        except Exception as error:
            if watch.breach is None and isinstance(error, TypeError):
                watch.breach = self._hinted(_breach_of_call(self._env, method, args, kwargs))
            if self._outermost and watch.breach is not None:
                raise EnvError(self._told(watch.breach)) from error
            raise
        breach = self._hinted(judge(self._env, result))
        if breach is not None:
            if watch.breach is None or (self._outermost and watch.breach.kind != breach.kind):
                watch.breach = breach
            if self._outermost:
                raise EnvError(self._told(watch.breach))
        return result

    def _told(self, breach: _Breach) -> str:
        return f"{self._watch.name}: {breach.text}"

    def _hinted(self, breach: _Breach | None) -> _Breach | None:
        """Add what checks the rest; of an environment only, as doctor puts no wrappers around it."""
        name = self._watch.name
        if breach is None or isinstance(self._env, gymnasium.Wrapper):
            return breach
        if ":" not in name and name not in gymnasium.registry:
            return breach
        return breach._replace(text=f"{breach.text}; `engine doctor --env {name}` checks the rest")


def _breach_of_call(env: Any, method: Callable[..., Any], args: Any, kwargs: Any) -> _Breach | None:
    """What is wrong with the arguments that a method takes; None if its error came from within."""
    try:
        signature = inspect.signature(method)
    except ValueError:  # written in C
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        name = method.__name__
        takes = "(*, seed=None, options=None)" if name == "reset" else "(action)"
        return _Breach("call", f"{name} of {type(env).__name__} must take {takes}, and takes {signature}")
    return None


def _breach_of_reset(env: Any, result: Any) -> _Breach | None:
    if not isinstance(result, tuple) or len(result) != 2:
        return _breach(env, "reset", "tuple", "must return (observation, info), and returned", result)
    obs, info = result
    return _breach_of_info(env, "reset", info) or _breach_of_obs(env, "reset", env.observation_space, obs, "")


def _breach_of_step(env: Any, result: Any) -> _Breach | None:
    if not isinstance(result, tuple) or len(result) != 5:
        hint = ""
        if isinstance(result, tuple) and len(result) == 4:
            hint = " (the old interface had one `done` for terminated and truncated)"
        return _breach(env, "step", "tuple", f"must return {_STEP}{hint}, and returned", result)
    obs, reward, terminated, truncated, info = result
    if np.ndim(reward) or not hasattr(reward, "__float__"):
        return _breach(env, "step", "reward", "must return one number as the reward, and returned", reward)
    for name, value in (("terminated", terminated), ("truncated", truncated)):
        if np.ndim(value) or np.asarray(value).dtype.kind not in "biu":
            return _breach(env, "step", name, f"must return True or False as {name}, and returned", value)
    return _breach_of_info(env, "step", info) or _breach_of_obs(env, "step", env.observation_space, obs, "")


def _breach_of_info(env: Any, method: str, info: Any) -> _Breach | None:
    if isinstance(info, dict):
        return None
    return _breach(env, method, "info", "must return a dict as the info, and returned", info)


def _breach_of_obs(env: Any, method: str, space: Any, obs: Any, path: str) -> _Breach | None:
    """What is wrong with an observation, or the part of it at `path`, of `space`."""
    what = f"observation {path}".rstrip()
    expected = f"must return an {what} of its space {_short(space)}, and returned"
    if isinstance(space, spaces.Dict):
        if not isinstance(obs, Mapping):
            return _breach(env, method, "obs", expected, obs)
        missing = [key for key in space.spaces if key not in obs]
        if missing:
            words = f"must return an {what} with the key {missing[0]!r}, and returned one with {sorted(obs)}"
            return _Breach("obs", f"{method}() of {type(env).__name__} {words}")
        parts = [(key, inner, obs[key]) for key, inner in space.spaces.items()]
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, (tuple, list)) or len(obs) != len(space.spaces):
            return _breach(env, method, "obs", expected, obs)
        parts = [(str(index), *pair) for index, pair in enumerate(zip(space.spaces, obs, strict=True))]
    else:
        return None if _fits(space, obs) else _breach(env, method, "obs", expected, obs)
    for key, inner, part in parts:
        breach = _breach_of_obs(env, method, inner, part, f"{path}.{key}".lstrip("."))
        if breach is not None:
            return breach
    return None


def _fits(space: Any, obs: Any) -> bool:
    """Whether a leaf has the shape of its space, and a dtype that numpy turns into that of the space."""
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return True  # no policy sees it: such spaces are refused if a wrapper does not turn them into others
    try:
        array = np.asarray(obs)
    except (TypeError, ValueError):
        return False
    if array.shape != space.shape or not np.can_cast(array.dtype, space.dtype, casting="same_kind"):
        return False
    return isinstance(space, spaces.Box) or bool(space.contains(array.astype(space.dtype)))


def _breach(env: Any, method: str, kind: str, expected: str, came: Any) -> _Breach:
    return _Breach(kind, f"{method}() of {type(env).__name__} {expected} {_what(came)}")


def _what(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, tuple):
        return f"{len(value)} values" if len(value) != 1 else "a tuple of one value"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} of shape {value.shape}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, (str, bool, int, float, np.generic)) or value is None:
        return f"{value!r:.60}" + ("" if value is None else f", a {type(value).__name__}")
    return f"a {type(value).__name__}"


def _short(space: Any) -> str:
    if isinstance(space, spaces.Box):
        return f"Box of {space.dtype} of shape {space.shape}"
    return type(space).__name__ if isinstance(space, (spaces.Dict, spaces.Tuple)) else str(space)
