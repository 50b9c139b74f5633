"""Between trajectories (T, B, ...) and the rows (N, ...) that learning takes."""

from __future__ import annotations

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
