"""Which spaces can be learned on, and how their values become arrays.

Observations become one array, or a dict of arrays nested as the space is; the items of a
Tuple are named ``item_0``, ``item_1`` and so on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from engine.errors import EnvError
from engine.types import Arrays

_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
LARGEST = float(np.finfo(np.float32).max)
_ACTIONS = "Box, Discrete, MultiDiscrete or MultiBinary"


def check_observation_space(space: Any, env: str, path: str = "") -> None:
    """Raise `EnvError` for observations that are no arrays of fixed shapes, or dicts or tuples of them."""
    if isinstance(space, _LEAVES):
        return
    where = f"observation {path}" if path else "observation"
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        items = _items(space)
        if not items:
            raise EnvError(f"the {where} of {env} is an empty {type(space).__name__} space")
        for key, inner in items:
            if not isinstance(key, str):
                raise EnvError(f"the {where} of {env} has the key {key!r}; keys must be strings")
            check_observation_space(inner, env, f"{path}.{key}" if path else key)
        return
    raise EnvError(
        f"the {where} of {env} is a {type(space).__name__} space, whose values are no arrays of a fixed "
        "shape; add a wrapper that turns it into a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def check_action_space(space: Any, env: str) -> None:
    """Raise `EnvError` unless actions are one array: Box, Discrete, MultiDiscrete or MultiBinary."""
    if not isinstance(space, _LEAVES):
        raise EnvError(
            f"the action of {env} is a {type(space).__name__} space; expected {_ACTIONS}: "
            "add a wrapper that turns actions of such a space into it"
        )
    if isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating):
        raise EnvError(
            f"the action of {env} is a Box of {space.dtype}; expected {_ACTIONS} with Box of floats"
        )


def named(space: Any) -> Any:
    """Return the space of what `to_arrays` gives: every Tuple replaced by a Dict of named items."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        return spaces.Dict({key: named(inner) for key, inner in _items(space)})
    return space


def _items(space: Any) -> list[tuple[Any, Any]]:
    if isinstance(space, spaces.Tuple):
        return [(f"item_{index}", inner) for index, inner in enumerate(space.spaces)]
    return list(space.spaces.items())


def to_arrays(space: Any, value: Any) -> Arrays:
    """Return a copy of a batch of observations (B, ...) that nothing else writes to."""
    if isinstance(space, spaces.Tuple):
        return {f"item_{i}": to_arrays(inner, value[i]) for i, inner in enumerate(space.spaces)}
    if isinstance(space, spaces.Dict):
        return {key: to_arrays(inner, value[key]) for key, inner in space.spaces.items()}
    return np.array(value)


def write_row(space: Any, into: Arrays, row: int, value: Any) -> None:
    """Write one observation, as a single environment gives it, into row `row` of a batch."""
    if isinstance(into, dict):
        keyed = value if isinstance(space, spaces.Dict) else {f"item_{i}": v for i, v in enumerate(value)}
        for key, inner in _items(space):
            write_row(inner, into[key], row, keyed[key])
    else:
        into[row] = value


def replace_rows(arrays: Arrays, rows: np.ndarray[Any, Any], other: Arrays) -> Arrays:
    """Return a copy of `arrays` with the rows named by a mask (B,) taken from `other`."""
    if isinstance(arrays, dict):
        assert isinstance(other, dict)
        return {key: replace_rows(value, rows, other[key]) for key, value in arrays.items()}
    out = arrays.copy()
    out[rows] = other[rows]  # type: ignore[index]
    return out


def non_finite_row(arrays: Arrays) -> tuple[int, str, float] | None:
    """Return the first row that holds a number which is not finite in float32; None if there is none.

    With it come the name of the leaf and the number: nan, infinity, or a float64 beyond float32.
    """
    if isinstance(arrays, dict):
        for key, value in arrays.items():
            found = non_finite_row(value)
            if found:
                return found[0], f"{key}.{found[1]}".rstrip("."), found[2]
        return None
    if arrays.dtype.kind != "f":
        return None
    # Policies compute in float32, so what is wider must fit: infinite is what it would become.
    finite = np.isfinite(arrays) if arrays.dtype.itemsize <= 4 else np.abs(arrays) <= LARGEST
    # Counting is twice as quick as `all()` on the few numbers of a step.
    if np.count_nonzero(finite) == arrays.size:
        return None
    row = int(np.argmin(finite.reshape(len(arrays), -1).all(axis=1)))
    return row, "", float(arrays[row].ravel()[np.argmin(finite[row])])
