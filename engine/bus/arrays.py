"""Arrays of numpy and torch as plain bytes with a form that says how to read them.

A form is what msgpack can hold: the name of a dtype ("<f4"), for structured dtypes a list of it,
and a shape.  Nothing here trusts a form: whatever it holds, either an array comes out that lies
within the bytes it was given, or an exception of the `REFUSED` kinds.
"""

from __future__ import annotations

import math
import re
import sys
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Form: TypeAlias = "str | list[Any]"
NDArray: TypeAlias = "np.ndarray[Any, Any]"

ALIGNMENT = 64
"""Every array in an arena begins at a multiple of it: a cache line, and enough for every dtype."""

REFUSED = (TypeError, ValueError, OverflowError, RuntimeError, RecursionError)
"""What numpy and torch raise for data and forms that they cannot take (NotImplementedError among them)."""

# Dates without a unit are left out: numpy can hold them and not print them.
_UNIT = r"\[\d{0,9}(?:Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\]"
_NAME = re.compile(rf"[<>|](?:[biufc]\d{{1,2}}|m8(?:{_UNIT})?|M8{_UNIT})")
_MAX_DIMENSIONS = 64
_MAX_NESTING = 8

# Numbers that torch has and numpy has not travel as integers of the same size.
_CARRIERS = {
    "bfloat16": "int16",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}


@lru_cache(maxsize=256)
def form_of(dtype: np.dtype[Any], depth: int = 0) -> Form:
    """Return the form of a dtype; raises TypeError for objects, strings and dtypes of other packages."""
    if dtype.kind in "biufcmM":
        text = dtype.str
        if _NAME.fullmatch(text):
            return text
    elif dtype.itemsize and depth < _MAX_NESTING:
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return ["of", form_of(base, depth + 1), list(shape)]
        if dtype.names and dtype.fields is not None:
            fields = [dtype.fields[name] for name in dtype.names]
            forms = [form_of(field[0], depth + 1) for field in fields]
            return ["with", list(dtype.names), forms, [field[1] for field in fields], dtype.itemsize]
    raise TypeError("only numbers, booleans, dates with a unit and structures of them can be sent")


@lru_cache(maxsize=256)
def _named(text: str) -> np.dtype[Any]:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:40]!r} names no dtype that can be sent")
    return np.dtype(text)


def dtype_of(form: Any, depth: int = 0) -> np.dtype[Any]:
    """Return the dtype of a form, or raise one of `REFUSED`."""
    if type(form) is str:
        return _named(form)
    if depth >= _MAX_NESTING:
        raise ValueError("a dtype of too many levels")
    parts: Any
    match form:
        case ["of", base, [*shape]]:
            parts = (dtype_of(base, depth + 1), checked_shape(shape))
        case ["with", [*names], [*forms], [*offsets], int(itemsize)] if names:
            formats = [dtype_of(part, depth + 1) for part in forms]
            parts = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
        case _:
            raise ValueError("what should say a dtype does not")
    dtype: np.dtype[Any] = np.dtype(parts)
    if not dtype.itemsize:
        raise ValueError("a dtype of no size")
    return dtype


def checked_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple, or raise ValueError where it is none."""
    if type(shape) is list and len(shape) <= _MAX_DIMENSIONS:
        for length in shape:
            if type(length) is not int or not 0 <= length <= sys.maxsize:
                break
        else:
            return tuple(shape)
    raise ValueError("what should be a shape is none")


def size_of(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Return the number of bytes, exactly; raises ValueError for empty arrays of absurd length."""
    count = math.prod(shape)
    # Nothing backs the length of an empty array, and a loop over it must end all the same.
    if not count and max(shape) > 1 << 32:
        raise ValueError(f"an empty array of shape {shape}")
    return count * dtype.itemsize


def bytes_of(array: NDArray) -> memoryview:
    """Return the bytes of an array in C order: a view of it where it lies in that order."""
    # The buffer protocol knows neither dates nor big-endian numbers, so numpy takes the type off first.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def read(dtype: np.dtype[Any], shape: tuple[int, ...], source: Any, offset: int) -> NDArray:
    """Return an array over `source`, whose size was checked; refuses booleans that are neither 0 nor 1."""
    array: NDArray = np.ndarray(shape, dtype, source, offset)
    if dtype.kind in "bV":
        _check_booleans(array)
    return array


def _check_booleans(array: NDArray) -> None:
    """Raise ValueError for booleans of other bytes than 0 and 1: numpy counts with these bytes."""
    if array.dtype.names:
        for name in array.dtype.names:
            _check_booleans(array[name])
    elif array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError("an array of booleans holds other bytes than 0 and 1")


def aligned(size: int) -> NDArray:
    """Return `size` bytes of new memory that begin at a multiple of `ALIGNMENT`."""
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -address(memory) % ALIGNMENT
    return memory[start : start + size]


def address(array: NDArray) -> int:
    """Return where the memory of an array begins."""
    return int(array.__array_interface__["data"][0])


def is_tensor(kind: type) -> bool:
    """Whether a type is torch's tensor or a kind of it; does not import torch."""
    return any(base.__name__ == "Tensor" and base.__module__ == "torch" for base in kind.__mro__)


def array_of(tensor: Any) -> tuple[NDArray, str | None]:
    """Return a tensor as an array, and the name of its dtype where numpy has none.

    The array shares the tensor's memory where that lies in the CPU's.  Raises one of `REFUSED` for
    sparse, quantized and nested tensors and for those without data.
    """
    import torch

    name = str(tensor.dtype).removeprefix("torch.")
    carrier = _CARRIERS.get(name)
    if carrier is None:
        array: NDArray = tensor.numpy(force=True)
        return array, None
    bits = tensor.detach().cpu().resolve_conj().resolve_neg().view(getattr(torch, carrier))
    return bits.numpy(), name


def tensor_of(array: NDArray, name: str | None) -> Any:
    """Return a tensor over a writable array, read as the dtype `name` where one is given."""
    import torch

    tensor = torch.from_numpy(array)
    if name is None:
        return tensor
    if _CARRIERS.get(name) != str(tensor.dtype).removeprefix("torch."):
        raise ValueError(f"{name[:40]!r} names no dtype of a tensor of {tensor.dtype}")
    return tensor.view(getattr(torch, name))
