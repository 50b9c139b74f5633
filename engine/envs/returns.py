"""Count the returns of innermost environments, whatever the wrappers around them make of rewards and ends.

The return of an episode is the sum of the rewards that the innermost environment gives between two of its own
resets.  A wrapper that scales rewards, ends an episode at a lost life, or passes a reset on only now and
then does not change it.  If no wrapper can do such a thing nothing is counted here, and a step costs nothing
more.

The innermost environment keeps its identity: its `step` and `reset` are replaced on the instance.  So
wrappers that reach for its attributes, or step ``env.unwrapped``, find what they expect, and a deep copy
counts for itself.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorWrapper as GymVectorWrapper

from engine.envs.contract import Watched

_HARMLESS = frozenset(
    f"{module}.{name}"
    for module, names in {
        "gymnasium.core": "Wrapper ObservationWrapper ActionWrapper",
        "gymnasium.wrappers.common": "OrderEnforcing PassiveEnvChecker RecordEpisodeStatistics TimeLimit",
        "gymnasium.wrappers.rendering": "RenderCollection RecordVideo HumanRendering",
        "gymnasium.wrappers.array_conversion": "ArrayConversion",
        "gymnasium.wrappers.stateful_observation": (
            "DelayObservation FrameStackObservation MaxAndSkipObservation TimeAwareObservation"
        ),
        "gymnasium.wrappers.stateful_action": "StickyAction RepeatAction",
        "gymnasium.vector.vector_env": "VectorWrapper VectorObservationWrapper VectorActionWrapper",
        "gymnasium.wrappers.vector.stateful_observation": "NormalizeObservation",
        "gymnasium.wrappers.vector.common": "RecordEpisodeStatistics",
        "gymnasium.wrappers.vector.dict_info_to_list": "DictInfoToList",
        "gymnasium.wrappers.vector.vectorize_observation": "VectorizeTransformObservation",
        "gymnasium.wrappers.vector.rendering": "HumanRendering RecordVideo",
        "gymnasium.wrappers.vector.array_conversion": "ArrayConversion",
        "engine.envs.wrappers": "RepeatAction",
        "engine.envs.make": "_Blaming",
        "engine.envs.returns": "Counted",
    }.items()
    for name in names.split()
)
"""Classes whose own `step` and `reset` leave the rewards of an episode, summed, and its end as they are."""


class Innermost:
    """One innermost environment: what it has earned since its own last reset, and the episodes before."""

    def __init__(self, name: str, wrappers: tuple[str, ...]) -> None:
        self.name = name
        self.wrappers = wrappers
        """The wrappers that may change rewards or ends, outermost first."""
        self.so_far = 0.0
        self.ended: list[float | None] = []
        """Returns of the episodes that its resets have ended, until they are taken out; None where a reset
        ended none that is to be reported."""
        self._whole = False
        self._steps = 0

    def earn(self, reward: Any) -> None:
        """Count the reward of one step."""
        try:
            self.so_far += float(reward)
        except TypeError:  # an array, which a wrapper has to make a number of
            self.so_far += float(np.sum(reward))
        self._steps += 1

    def restart(self) -> None:
        """End the running episode, as the environment was reset, and begin the next."""
        self.ended.append(self.so_far if self._whole and self._steps else None)
        self.so_far, self._steps, self._whole = 0.0, 0, True

    def abandon(self) -> None:
        """Never report the running episode, nor its rest if no reset comes now."""
        self.so_far, self._steps, self._whole = 0.0, 0, False
        self.ended.clear()

    def take(self) -> list[float | None]:
        """Return the episodes that have ended, and forget them."""
        ended, self.ended = self.ended, []
        return ended


class Counted(gymnasium.Wrapper):  # type: ignore[misc,type-arg,unused-ignore]
    """Carries the count of an environment's innermost one; the class changes nothing itself."""

    def __init__(self, env: Any, innermost: Innermost) -> None:
        super().__init__(env)
        self.innermost = innermost


def count_innermost(env: Any, made: Any) -> Any:
    """Return `env`, counted if a wrapper may change rewards or ends.

    `made` is the environment before the wrappers that the user asked for; a time limit of its own is a
    part of it.
    """
    own, core = _layers(made)
    layers, inner = _layers(env)
    added = len(layers) - len(own)
    names = [
        type(layer).__name__ for index, layer in enumerate(layers) if _alters(layer, limited=index < added)
    ]
    if inner is not core:  # a wrapper that is no gymnasium.Wrapper hides what it does
        names.append(type(inner).__name__)
    if not names:
        return env
    innermost = Innermost(type(core).__name__, tuple(names))
    _hook_into(core, _Hook(core, innermost))
    return Counted(env, innermost)


def innermost_of(env: Any) -> list[Innermost] | None:
    """Return the count of each environment under a `gymnasium.vector.VectorEnv`; None if none is needed.

    What runs in processes of `AsyncVectorEnv` is out of reach: there the vector environment itself is
    taken as the innermost.
    """
    layers, core = _layers(env)
    outer = tuple(type(layer).__name__ for layer in layers if _alters(layer, limited=True))
    counts: list[Innermost] | None = getattr(core, "innermost", None)  # of a ProcessVectorEnv
    if counts is None and isinstance(core, SyncVectorEnv):
        counts = _of_singles(core, outer)
    elif counts is None and outer:
        name = core.spec.id if isinstance(core, AsyncVectorEnv) and core.spec else type(core).__name__
        counts = [Innermost(name, ()) for _ in range(core.num_envs)]
        _hook_into(core, _VectorHook(core, counts))
    if counts is not None:
        for count in counts:
            count.wrappers = (*outer, *count.wrappers)
    return counts


def _of_singles(core: Any, outer: tuple[str, ...]) -> list[Innermost] | None:
    found = [_count_of(env) for env in core.envs]
    if all(count is None for count in found):
        wrapped = [count_innermost(env, env) for env in core.envs]
        found = [_count_of(env) for env in wrapped]
    if all(count is None for count in found) and not outer:
        return None
    counts = []
    for env, count in zip(core.envs, found, strict=True):
        if count is None:
            inner = _layers(env)[1]
            count = Innermost(type(inner).__name__, ())
            _hook_into(inner, _Hook(inner, count))
        counts.append(count)
    return counts


def _count_of(env: Any) -> Innermost | None:
    return next((layer.innermost for layer in _layers(env)[0] if isinstance(layer, Counted)), None)


def _layers(env: Any) -> tuple[list[Any], Any]:
    """The wrappers of an environment, outermost first, and what they stand around."""
    layers = []
    while isinstance(env, (gymnasium.Wrapper, GymVectorWrapper)):
        layers.append(env)
        env = env.env
    return layers, env


def _alters(layer: Any, *, limited: bool) -> bool:
    """Whether a wrapper may change rewards or ends, as far as its class tells; a time limit if `limited`."""
    for key in ("step", "reset"):
        replaced = vars(layer).get(key)  # on the instance, by the user or to watch it
        if replaced is not None and not isinstance(getattr(replaced, "__self__", None), Watched):
            return True
    for method in (type(layer).step, type(layer).reset):
        if f"{method.__module__}.{method.__qualname__.rpartition('.')[0]}" not in _HARMLESS:
            return True
    return limited and isinstance(layer, gymnasium.wrappers.TimeLimit)


def _hook_into(env: Any, hook: _Hook | _VectorHook) -> None:
    vars(env).update(step=hook.step, reset=hook.reset)


class _Hook:
    """Stands in for `step` and `reset` of one environment; what they do inside is their own affair."""

    def __init__(self, env: Any, innermost: Innermost) -> None:
        self._step, self._reset = env.step, env.reset
        self._innermost = innermost
        self._inside = False

    def step(self, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return self._step(*args, **kwargs)
        self._inside = True
        try:
            result = self._step(*args, **kwargs)
        finally:
            self._inside = False
        self._innermost.earn(result[1])
        return result

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        if self._inside:
            return self._reset(*args, **kwargs)
        self._inside = True
        try:
            result = self._reset(*args, **kwargs)
        finally:
            self._inside = False
        self._innermost.restart()
        return result


class _VectorHook:
    """Stands in for `step` and `reset` of a vectorised class, which resets its rows in its own mode."""

    def __init__(self, env: Any, counts: list[Innermost]) -> None:
        self._step, self._reset = env.step, env.reset
        self._counts = counts
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode"))
        self._over = np.zeros(len(counts), np.bool_)

    def step(self, actions: Any) -> Any:
        result = self._step(actions)
        _, rewards, terminated, truncated, _ = result
        over = np.logical_or(terminated, truncated)
        for index, count in enumerate(self._counts):
            if self._over[index]:  # NEXT_STEP: this call was its reset
                count.restart()
                continue
            count.earn(rewards[index])
            if over[index] and self._mode is AutoresetMode.SAME_STEP:
                count.restart()
        if self._mode is AutoresetMode.NEXT_STEP:
            self._over = over & ~self._over
        return result

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        mask = (options or {}).get("reset_mask")  # read before: the environment may take it out
        mask = np.ones(len(self._counts), np.bool_) if mask is None else mask.copy()
        result = self._reset(seed=seed, options=options)
        for index in np.flatnonzero(mask).tolist():
            self._counts[index].restart()
        self._over &= ~mask
        return result
