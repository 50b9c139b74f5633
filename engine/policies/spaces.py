"""Between gymnasium's values and the arrays that nets read and policies write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from engine.envs.spaces import LARGEST
from engine.errors import ConfigError, EnvError, UsageError
from engine.types import Arrays

Space = gymnasium.Space[Any]


def to_arrays(obs: Any, space: Space) -> tuple[Arrays, bool]:
    """Return an observation of `space` as a batch of named arrays, and whether it was a single one.

    Accepts one observation as `env.reset()` gives it, or a batch with one more dimension
    at the front; dicts for Dict, tuples or dicts with item_0.. for Tuple.  Raises
    `ValueError` for a shape that is neither, and for numbers that are not finite in float32, in which
    policies compute; `EnvError` for a space that has no arrays.
    """
    arrays, single = _leaf_arrays(obs, space, "obs")
    return (_batched(arrays) if single else arrays), single


def _batched(arrays: Arrays) -> Arrays:
    if isinstance(arrays, dict):
        return {name: _batched(leaf) for name, leaf in arrays.items()}
    return arrays[None]


def parts_of(space: Space) -> Mapping[str, Space] | None:
    """Return the named parts of a Dict or Tuple space (item_0, item_1, ...), None for a leaf."""
    if isinstance(space, spaces.Dict):
        return space.spaces
    if isinstance(space, spaces.Tuple):
        return {f"item_{i}": part for i, part in enumerate(space.spaces)}
    return None


def _leaf_arrays(obs: Any, space: Space, name: str) -> tuple[Arrays, bool]:
    parts = parts_of(space)
    if parts is None:
        if space.shape is None:
            raise EnvError(f"{name} has the space {space}, whose values are no arrays")
        array = np.asarray(obs)
        if array.dtype.kind == "f":
            fits = np.abs(array) <= LARGEST
            if np.count_nonzero(fits) != array.size:
                wrong = array.ravel()[np.argmin(fits)]
                raise UsageError(
                    f"{name} holds {wrong:g}; a policy acts on finite numbers of float32, up to 3.4e38"
                )
        array = array.astype(space.dtype, copy=False)
        extra = array.ndim - len(space.shape)
        if extra not in (0, 1) or array.shape[extra:] != space.shape:
            raise ValueError(
                f"{name} has shape {array.shape}; expected {space.shape}, or (B, ...) of it for a batch"
            )
        return array, extra == 0
    if isinstance(obs, tuple):
        obs = {f"item_{i}": part for i, part in enumerate(obs)}
    if not isinstance(obs, Mapping) or obs.keys() != parts.keys():
        given = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
        raise ValueError(f"{name} should hold {sorted(parts)}, not {given}")
    arrays: dict[str, Any] = {}
    singles = set()
    for key, part in parts.items():
        arrays[key], single = _leaf_arrays(obs[key], part, f"{name}.{key}")
        singles.add(single)
    if len(singles) > 1:
        raise ValueError(f"some parts of {name} are single observations and some are batches")
    return arrays, singles.pop()


def env_action(action: Any, space: Space) -> Any:
    """Return recorded actions (B, ...) as an environment takes them.

    Discrete and MultiDiscrete count from the space's `start`; Box is clipped to the bounds and
    has the space's dtype.
    """
    if isinstance(space, spaces.Discrete):
        return action + space.start if space.start else action
    if isinstance(space, spaces.MultiDiscrete):
        return (action + space.start).astype(space.dtype)
    if isinstance(space, spaces.MultiBinary):
        return action.astype(space.dtype)
    assert isinstance(space, spaces.Box)
    return np.clip(action, space.low, space.high).astype(space.dtype)


def discrete_actions(space: Space) -> int:
    """Return how many actions there are to choose from; raises `EnvError` unless the space is Discrete."""
    if not isinstance(space, spaces.Discrete):
        raise EnvError(f"DQN chooses among Discrete actions; {space} needs another algorithm, such as PPO")
    return int(space.n)


def describe(space: Space) -> dict[str, Any]:
    """Return a space as plain JSON data that `rebuild` reads; raises `EnvError` for one it cannot."""
    if isinstance(space, spaces.Box):
        low, high = (_numbers(bound) for bound in (space.low, space.high))
        return {
            "type": "Box",
            "shape": list(space.shape),
            "dtype": str(space.dtype),
            "low": low,
            "high": high,
        }
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": sizes, "start": starts, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        size = [int(n) for n in space.n] if isinstance(space.n, tuple) else int(space.n)
        return {"type": "MultiBinary", "n": size}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe(part) for part in space.spaces]}
    raise EnvError(f"the space {space} cannot be written to a file")


def rebuild(data: Mapping[str, Any]) -> Space:
    """Return the space that `describe` wrote."""
    kind = data["type"]
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (_bound(data[name], shape, dtype) for name in ("low", "high"))
        return spaces.Box(low, high, shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type, start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({key: rebuild(part) for key, part in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([rebuild(part) for part in data["spaces"]])
    raise ConfigError(f"unknown kind of space {kind!r}")


def _numbers(bound: Any) -> Any:
    """A bound as one number where all are equal; infinities as words, which JSON lacks numbers for."""
    flat = bound.ravel()
    if flat.size and (flat == flat[0]).all():
        return _number(flat[0].item())
    return [_number(value.item()) for value in flat]


def _number(value: float | int) -> float | int | str:
    return value if np.isfinite(value) else ("inf" if value > 0 else "-inf")


def _bound(data: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
    if isinstance(data, list):
        return np.array([_value(x, dtype) for x in data], dtype).reshape(shape)
    return np.full(shape, _value(data, dtype), dtype)


def _value(x: float | int | str, dtype: np.dtype[Any]) -> float | int:
    return float(x) if isinstance(x, str) or dtype.kind == "f" else x
