"""The treetensor boundary: the one file that imports it, and only inside functions.

A tree holds one batch: named tensors, nested to any depth, that share their first
dimensions.  Trees are built from treevalue's storage: building one straight from a
dict prints every leaf (milliseconds each, and a device sync on CUDA).

A trap these functions exist for: `len(tree)` counts keys and iterating gives keys, so the
number of rows is `batch_size(tree)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from engine.errors import TreeError


@cache
def _treetensor() -> Any:
    """Import treetensor, quiet about what it imports, and return (module, storage builder)."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*_register_pytree_node.*")
        warnings.filterwarnings("ignore", message=r".*numpy\.core.*")
        import treetensor.torch as treetensor
        from treevalue.tree.common import create_storage
    return treetensor, create_storage


@cache
def _reserved() -> frozenset[str]:
    treetensor, _ = _treetensor()
    return frozenset(name for name in dir(treetensor.Tensor) if not name.startswith("__"))


@cache
def _leaves() -> tuple[Any, Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Return the types of arrays and of tensors, and what makes tensors of arrays and of other things."""
    import numpy as np
    import torch

    # as_tensor takes arrays too, in twice the time, and copies them where torch has a default device.
    return np.ndarray, torch.Tensor, torch.from_numpy, torch.as_tensor


def _leaf(value: Any, path: tuple[str, ...], name: str | None = None) -> Any:
    array, tensor, from_array, from_other = _leaves()
    try:
        if type(value) is array:
            return from_array(value)
        return value if isinstance(value, tensor) else from_other(value)
    except (TypeError, ValueError, RuntimeError) as error:
        where = ".".join(path if name is None else (*path, name)) or "the root"
        raise TreeError(
            f"{where} holds {type(value).__name__}, which is no tensor, array or number: {error}"
        ) from None


def _checked(data: Mapping[Any, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    # Learners that take small steps pay this with every one: paths are for errors only.
    out: dict[str, Any] = {}
    reserved, array = _reserved(), _leaves()[0]
    for name, value in data.items():
        if not isinstance(name, str):
            where = ".".join([*path, str(name)])
            raise TreeError(f"{where} is named by {type(name).__name__}; names in a tree are strings")
        if name in reserved:
            where = ".".join([*path, name])
            raise TreeError(f"{where}: the name {name!r} would hide a method of the tree; rename it")
        if type(value) is not array and isinstance(value, Mapping):
            out[name] = _checked(value, (*path, name))
        else:
            out[name] = _leaf(value, path, name)
    return out


def as_tree(data: Any) -> Any:
    """Return `data` as a TreeTensor (nested mappings) or as a tensor (anything else).

    Leaves are held by reference: torch tensors as they are, numpy arrays through shared
    memory.  Raises `TreeError` for keys that hide methods and leaves that are no numbers.
    """
    if is_tree(data):
        return data
    if not isinstance(data, Mapping):
        return _leaf(data, ())
    treetensor, create_storage = _treetensor()
    return treetensor.Tensor(create_storage(_checked(data)))


def holding(data: Mapping[str, Any], *, arrays: bool) -> Any:
    """Return a tree that holds tensors and arrays as they are: treetensor's of arrays, or its of tensors.

    Raises `TreeError` for names that a tree cannot hold.
    """
    treetensor, create_storage = _treetensor()
    if not arrays:
        return treetensor.Tensor(create_storage(_named(data)))
    return _array_trees()(create_storage(_named(data)))


@cache
def _array_trees() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r".*numpy\.core.*")
        from treetensor.numpy import ndarray
    return ndarray


def _named(data: Mapping[Any, Any]) -> dict[str, Any]:
    for name in data:
        if not isinstance(name, str):
            raise TreeError(f"{name!r} is named by {type(name).__name__}; names in a tree are strings")
    check_names(data)
    return {name: _named(item) if isinstance(item, Mapping) else item for name, item in data.items()}


def check_names(names: Iterable[str]) -> None:
    """Raise `TreeError` for names that a tree cannot hold, before there is any data."""
    for name in names:
        if name in _reserved():
            raise TreeError(f"the name {name!r} would hide a method of the tree; rename it")


def is_tree(data: Any) -> bool:
    """Whether `data` is a TreeTensor."""
    kind: Any = type(data)
    return _is_tree_type(kind)


def is_array_tree(data: Any) -> bool:
    """Whether `data` is a tree of numpy arrays, treetensor's own."""
    kind = type(data)
    return kind.__module__.startswith("treetensor.") and bool(issubclass(kind, _array_trees()))


@lru_cache(maxsize=256)
def _is_tree_type(kind: Any) -> bool:
    # The module is asked by name so that plain tensors never pay for the import.
    return kind.__module__.startswith("treetensor.") and bool(issubclass(kind, _treetensor()[0].Tensor))


def plain(tree: Any) -> Any:
    """Return a tree as nested dicts of tensors (what may be saved); a tensor as it is."""
    return tree.json() if is_tree(tree) else tree


def _first_leaf(data: Any) -> Any:
    while isinstance(data, Mapping):
        if not data:
            raise TreeError("an empty tree has no rows")
        data = next(iter(data.values()))
    return data


def batch_size(data: Any) -> int:
    """Return the number of rows: the length of the first dimension of every leaf."""
    shape = _first_leaf(plain(data)).shape
    if not len(shape):
        raise TreeError("a tree of single numbers has no rows")
    return int(shape[0])


def map(function: Callable[..., Any], data: Any, *more: Any) -> Any:
    """Apply `function` to every leaf of trees, or nested dicts, of one structure.

    Returns what the first one is: a tree for a tree, dicts for dicts, a leaf for a leaf.
    """
    if is_tree(data):
        return as_tree(map(function, plain(data), *(plain(other) for other in more)))
    if isinstance(data, Mapping):
        for other in more:
            if not isinstance(other, Mapping) or other.keys() != data.keys():
                names = sorted(other) if isinstance(other, Mapping) else type(other).__name__
                raise TreeError(f"trees differ: {sorted(data)} against {names}")
        return {key: map(function, value, *(other[key] for other in more)) for key, value in data.items()}
    return function(data, *more)


def stack(items: Sequence[Any]) -> Any:
    """Stack trees, or nested dicts of numpy arrays or tensors, along a new first dimension."""
    if not items:
        raise TreeError("nothing to stack: the sequence is empty")

    def join(*leaves: Any) -> Any:
        import torch

        if isinstance(leaves[0], torch.Tensor):
            return torch.stack(leaves)
        import numpy as np

        return np.stack(leaves)

    return map(join, items[0], *items[1:])


def split(data: Any) -> list[Any]:
    """Return the rows of a tree, or of nested dicts, one by one: the inverse of `stack`."""
    return [map(lambda leaf, row=row: leaf[row], data) for row in range(batch_size(data))]
