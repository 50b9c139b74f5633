"""One table from array type to the library's own functions, so that formulas are written once.

`namespace(x)` costs one dict lookup.  It gives the functions of `NAMES` under array-API names
and with the array-API's meaning, whatever the library::

    xp = namespace(log_prob)
    ratio = xp.exp(log_prob - old_log_prob)
    loss = -xp.mean(xp.minimum(ratio * advantage, xp.clip(ratio, 0.8, 1.2) * advantage))

Operators, `.shape` and indexing need no namespace; the standard wants an index for every axis, so
write ``x[t, ...]``, not ``x[t]``.  `axis=` and `keepdims=` are accepted by every reduction; what a
caller must know beyond the standard:

- `minimum`, `maximum` and `logaddexp` take two arrays; against a number, use `clip`.
- `var` and `std` divide by n (`correction=0`), for torch too; `max` and `min` give values only.
- `take_along_axis`, `flip`, `roll`, `concat`, `stack`, `expand_dims` take `axis=`; `clip(x, low, high)`
  takes None for no bound; `astype(x, dtype)` takes a dtype of the namespace (`xp.float32`).
- beyond the standard: `logsumexp`, `softmax`, `log_softmax` with `axis=`, all safe from overflow.

Functions keep the library's own speed: for torch they are torch's builtins wherever those
accept the same arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from engine.errors import TreeError
from engine.types import Array

_SAME = (
    # elementwise
    "abs exp expm1 log log1p sqrt square sign floor round tanh sin cos isfinite isnan "
    "minimum maximum logaddexp where clip logical_and logical_or logical_not "
    # reductions
    "sum mean prod any all argmax argmin "
    # shapes and products
    "concat stack expand_dims squeeze reshape broadcast_to matmul "
    # creation
    "asarray arange zeros ones full zeros_like ones_like full_like "
    # dtypes
    "float32 float64 int32 int64 bool"
)
_DIFFERENT = (
    "max min var std cumulative_sum flip roll take_along_axis permute_dims astype "
    "logsumexp softmax log_softmax"
)

NAMES = frozenset(_SAME.split()) | frozenset(_DIFFERENT.split())
"""What every namespace holds."""


class Namespace:
    """The functions of one library; attributes are the names of `NAMES`."""

    def __init__(self, library: str, functions: dict[str, Any]) -> None:
        self.library = library
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"no function {name!r} in the namespace of {self.library}; see engine.ops.arrays.NAMES"
        )

    def __repr__(self) -> str:
        return f"<namespace of {self.library}>"


def namespace(x: Array) -> Any:
    """Return the functions for arrays like `x`; raises `TreeError` when `x` is no array."""
    try:
        return _TABLE[type(x)]
    except KeyError:
        return _learn(x)


def is_chosen(action: Array, ones: Array) -> Array:
    """Return which column each row chose, (B, A) bool, for actions (B,) from 0 and any `ones` (A,)."""
    return action[:, None] == namespace(ones).arange(ones.shape[0], device=ones.device)


def _composed(xp: Any) -> dict[str, Callable[..., Any]]:
    """What the standard lacks, made of what it has."""

    def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
        top = xp.max(x, axis=axis, keepdims=True)
        top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
        out = xp.log(xp.sum(xp.exp(x - top), axis=axis, keepdims=True)) + top
        return out if keepdims else xp.squeeze(out, axis=axis)

    def log_softmax(x: Array, axis: int = -1) -> Array:
        return x - logsumexp(x, axis=axis, keepdims=True)

    def softmax(x: Array, axis: int = -1) -> Array:
        raised = xp.exp(x - xp.max(x, axis=axis, keepdims=True))
        return raised / xp.sum(raised, axis=axis, keepdims=True)

    return {"logsumexp": logsumexp, "log_softmax": log_softmax, "softmax": softmax}


def _numpy() -> Namespace:
    def astype(x: Array, dtype: Any) -> Array:
        return x.astype(dtype, copy=False)

    def logsumexp(x: Array, axis: int = -1, keepdims: bool = False) -> Array:
        # log(0) is the right answer where every entry is -inf; numpy would warn about it.
        with np.errstate(divide="ignore"):
            return composed["logsumexp"](x, axis=axis, keepdims=keepdims)

    composed = _composed(np)
    functions = {name: getattr(np, name) for name in _SAME.split() if hasattr(np, name)}
    # numpy 1 knows some names of the standard under its own.
    functions |= {"concat": np.concatenate, "bool": np.bool_, "permute_dims": np.transpose}
    functions |= {"max": np.max, "min": np.min, "var": np.var, "std": np.std, "cumulative_sum": np.cumsum}
    functions |= {"flip": np.flip, "roll": np.roll, "take_along_axis": np.take_along_axis}
    functions |= composed | {"astype": astype, "logsumexp": logsumexp}
    return Namespace("numpy", functions)


def _torch(torch: Any) -> Namespace:
    def flip(x: Array, axis: int) -> Array:
        return torch.flip(x, (axis,))

    def roll(x: Array, shift: int, axis: int) -> Array:
        return torch.roll(x, shift, axis)

    def var(x: Array, axis: Any = None, correction: int = 0, keepdims: bool = False) -> Array:
        return torch.var(x, axis, correction=correction, keepdim=keepdims)

    def std(x: Array, axis: Any = None, correction: int = 0, keepdims: bool = False) -> Array:
        return torch.std(x, axis, correction=correction, keepdim=keepdims)

    def astype(x: Array, dtype: Any) -> Array:
        return x.to(dtype)

    functions = {name: getattr(torch, name) for name in _SAME.split() if hasattr(torch, name)}
    functions |= {
        "expand_dims": torch.unsqueeze,
        "max": torch.amax,
        "min": torch.amin,
        "var": var,
        "std": std,
    }
    functions |= {"cumulative_sum": torch.cumsum, "flip": flip, "roll": roll, "permute_dims": torch.permute}
    functions |= {"take_along_axis": torch.take_along_dim, "astype": astype, "logsumexp": torch.logsumexp}
    functions |= {"softmax": torch.softmax, "log_softmax": torch.log_softmax}
    return Namespace("torch", functions)


def _standard(x: Array) -> Namespace:
    """A namespace for any library of the array-API standard, JAX among them."""
    import array_api_compat

    try:
        xp = array_api_compat.array_namespace(x)
    except TypeError:
        raise TreeError(
            f"{type(x).__name__} is no array: expected numpy, torch, JAX or another array-API type"
        ) from None
    functions = {name: getattr(xp, name) for name in NAMES if hasattr(xp, name)}
    return Namespace(xp.__name__, _composed(xp) | functions)


_NUMPY = _numpy()
_TABLE: dict[type, Namespace] = {np.ndarray: _NUMPY}


def _learn(x: Array) -> Namespace:
    """Find the namespace of a type seen for the first time and remember it."""
    # Who holds a tensor has imported torch; asking sys.modules keeps ops free of that import.
    torch = sys.modules.get("torch")
    if isinstance(x, (np.ndarray, np.generic)):
        found = _NUMPY
    elif torch is not None and isinstance(x, torch.Tensor):
        found = _TABLE.get(torch.Tensor) or _torch(torch)
        _TABLE[torch.Tensor] = found
    else:
        found = _standard(x)
    _TABLE[type(x)] = found
    return found
