"""Between trajectories (T, B, ...) and the rows (N, ...) that learning takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from engine.data.columns import Array, map_leaves
from engine.types import Arrays


def flatten(trajectory: dict[str, Arrays], valid: Array | None = None) -> dict[str, Arrays]:
    """Return the rows (N, ...) of columns (T, B, ...), time first, without those that are not valid.

    Nothing is copied when every row is valid (`valid` is None or all True); N = T * B then.
    """
    rows = map_leaves(lambda column: column.reshape(-1, *column.shape[2:]), trajectory)
    if valid is None or valid.all():
        return rows
    kept = np.flatnonzero(valid)
    return map_leaves(lambda column: column.take(kept, 0), rows)


def joined(parts: Sequence[dict[str, Arrays]], *, axis: int) -> dict[str, Arrays]:
    """Return copies of columns, one part behind the other along `axis`; a single part as it is."""
    if len(parts) == 1:
        return parts[0]

    def join(*arrays: Any) -> Any:
        return np.concatenate(arrays, axis)

    columns: dict[str, Arrays] = _map_together(join, parts)
    return columns


def _map_together(function: Callable[..., Any], parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], dict):
        return {name: _map_together(function, [part[name] for part in parts]) for name in parts[0]}
    return function(*parts)
