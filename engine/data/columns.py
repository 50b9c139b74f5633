"""Preallocated columns: named numpy arrays, nested like the observations they hold.

The first rows decide names, row shapes and dtypes; rows that differ later are refused by name
before anything is written, because numpy would broadcast or cast them without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np

from engine.errors import StateError, TreeError, did_you_mean
from engine.types import Arrays

Array: TypeAlias = np.ndarray[Any, Any]


class Columns:
    """Arrays (*lead, *row shape) for rows like the first ones.

    Rows come one at a time, or `batched` with their number as the first dimension.  Memory that was
    never written costs nothing: the system hands it out page by page.
    Raises `TreeError` for rows that are no numpy arrays of numbers.
    """

    def __init__(self, rows: Mapping[str, Any], lead: tuple[int, ...], *, batched: bool) -> None:
        self._lead = len(lead)
        self._batched = batched
        self.arrays = _allocate(rows, lead, 1 if batched else 0, "")
        self.leaves: list[Array] = []
        each_leaf(self.arrays, self.leaves.append)
        self._pick = _picker(self.arrays)
        self._count = -1
        self._expected: list[tuple[tuple[int, ...], Any]] = []
        self._expect(0)

    @classmethod
    def restored(
        cls, saved: Mapping[str, Any], lead: tuple[int, ...], index: slice, *, batched: bool
    ) -> Columns:
        """Columns like the saved ones (rows, ...), which are written to `index`."""
        try:
            columns = cls(saved, lead, batched=True)
            columns.write(index, columns.checked(saved))
        except (TreeError, ValueError) as error:
            raise StateError(f"saved columns that do not fit: {error}") from None
        columns._batched, columns._count = batched, -1
        columns._expect(0)
        return columns

    def anew(self) -> Columns:
        """Return columns of the same names, shapes and dtypes in fresh arrays."""
        # Taking over what is known of the layout: a rollout of one step is made anew at every step.
        fresh = object.__new__(Columns)
        fresh._lead, fresh._batched, fresh._pick = self._lead, self._batched, self._pick
        fresh._count, fresh._expected = self._count, self._expected
        fresh.arrays = map_leaves(np.empty_like, self.arrays)
        fresh.leaves = []
        each_leaf(fresh.arrays, fresh.leaves.append)
        return fresh

    def checked(self, rows: Mapping[str, Any]) -> Sequence[Array]:
        """Return the leaves of `rows` in the order of `self.leaves`.

        Raises `TreeError` naming the first column that is missing, new, or of another shape or dtype.
        """
        # This runs on every step of an environment: the cost of a column is two comparisons.  As many
        # values as columns were picked, and asking zip to check that again would cost a tenth of a push.
        try:
            values = self._pick(rows)
            if self._batched and len(values[0]) != self._count:
                self._expect(len(values[0]))
            for value, (shape, dtype) in zip(values, self._expected):  # noqa: B905
                if value.shape != shape or (value.dtype is not dtype and value.dtype != dtype):
                    break
            else:
                return values
        except (KeyError, TypeError, AttributeError):
            pass
        if not isinstance(rows, Mapping):
            raise TreeError(f"the rows are {type(rows).__name__}, expected a dict of columns")
        leaves: list[Any] = []
        each_leaf(rows, leaves.append)
        self._expect(next((len(leaf) for leaf in leaves if isinstance(leaf, np.ndarray) and leaf.ndim), 0))
        self._explain(self.arrays, rows, "")
        raise TreeError(f"the rows do not have the columns of the first rows: {', '.join(self.arrays)}")

    def write(self, index: Any, values: Sequence[Array]) -> None:
        """Write leaves from `checked` to the rows of `index`, an index into the first dimension."""
        for column, value in zip(self.leaves, values):  # noqa: B905
            column[index] = value

    def _expect(self, count: int) -> None:
        """Prepare the comparison with rows, of which there are `count` when they come batched."""
        self._count = count
        before = (count,) if self._batched else ()
        self._expected = [(before + leaf.shape[self._lead :], leaf.dtype) for leaf in self.leaves]

    def _explain(self, columns: Mapping[str, Any], rows: Mapping[str, Any], prefix: str) -> None:
        """Raise the `TreeError` for rows that did not compare equal."""
        for name in rows:
            if name not in columns:
                known = f"{', '.join(columns)}{did_you_mean(name, columns)}"
                raise TreeError(f"column {prefix + name!r} was not in the first rows, which had {known}")
        for name, column in columns.items():
            path = prefix + name
            if name not in rows:
                raise TreeError(f"column {path!r} is missing; the first rows had {', '.join(columns)}")
            value = rows[name]
            if isinstance(column, dict):
                if not isinstance(value, dict):
                    raise TreeError(
                        f"column {path!r} is {type(value).__name__}, expected a dict of {sorted(column)}"
                    )
                self._explain(column, value, path + ".")
                continue
            _check_array(path, value, 1 if self._batched else 0)
            shape = column.shape[self._lead :]
            shape = (self._count, *shape) if self._batched else shape
            if value.shape != shape or value.dtype != column.dtype:
                raise TreeError(
                    f"column {path!r} is {value.dtype} {value.shape}, expected {column.dtype} {shape} "
                    "like the first rows and the other columns"
                )


def _allocate(rows: Mapping[str, Any], lead: tuple[int, ...], skip: int, prefix: str) -> dict[str, Arrays]:
    if not rows:
        raise TreeError(f"{prefix.rstrip('.') or 'the rows'}: no columns")
    out: dict[str, Arrays] = {}
    for name, value in rows.items():
        if isinstance(value, dict):
            out[name] = _allocate(value, lead, skip, f"{prefix}{name}.")
        else:
            _check_array(prefix + name, value, skip)
            out[name] = np.empty((*lead, *value.shape[skip:]), value.dtype)
    return out


def _picker(columns: Mapping[str, Any]) -> Callable[[Any], Sequence[Array]]:
    """Return what takes the leaves out of rows, in the order of the columns; `KeyError` where they differ."""
    width = len(columns)
    if any(isinstance(column, dict) for column in columns.values()):
        pickers = {
            name: _picker(column) if isinstance(column, dict) else None for name, column in columns.items()
        }

        def pick(rows: Any) -> Sequence[Array]:
            if len(rows) != width:
                raise KeyError
            out: list[Array] = []
            for name, inner in pickers.items():
                if inner is None:
                    out.append(rows[name])
                else:
                    out.extend(inner(rows[name]))
            return out

        return pick
    if width == 1:
        (only,) = columns

        def pick_one(rows: Any) -> Sequence[Array]:
            if len(rows) != 1:
                raise KeyError
            return (rows[only],)

        return pick_one
    get: Callable[[Any], tuple[Array, ...]] = itemgetter(*columns)

    def pick_flat(rows: Any) -> Sequence[Array]:
        if len(rows) != width:
            raise KeyError
        return get(rows)

    return pick_flat


def each_leaf(columns: Mapping[str, Any], visit: Callable[[Array], object]) -> None:
    """Call `visit` on every array of nested dicts, in their order."""
    for value in columns.values():
        if isinstance(value, dict):
            each_leaf(value, visit)
        else:
            visit(value)


def map_leaves(function: Callable[[Array], Array], columns: Mapping[str, Any]) -> dict[str, Arrays]:
    """Return nested dicts of the same names with `function` applied to every array."""
    return {
        name: map_leaves(function, value) if type(value) is dict else function(value)
        for name, value in columns.items()
    }


def _check_array(path: str, value: Any, dimensions: int) -> None:
    if not isinstance(value, np.ndarray):
        raise TreeError(f"column {path!r} is {type(value).__name__}, expected a numpy array")
    if value.dtype.hasobject:
        raise TreeError(f"column {path!r} holds Python objects, expected numbers")
    if value.ndim < dimensions:
        raise TreeError(
            f"column {path!r} has shape {value.shape}, expected {dimensions} leading dimension(s)"
        )
