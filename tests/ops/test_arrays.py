"""Every library answers the same names with the same numbers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from engine.errors import TreeError
from engine.ops.arrays import NAMES, namespace

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
POSITIVE = np.abs(X) + 0.5
INDEX = np.array([[1], [0], [3]])

ELEMENTWISE = "abs exp expm1 sign floor round square tanh sin cos isfinite isnan"
REDUCTIONS = "sum mean max min var std argmax argmin any all logsumexp"
PAIRWISE = "minimum maximum logaddexp"

CALLS = {
    **{name: (lambda xp, x, name=name: getattr(xp, name)(x)) for name in ELEMENTWISE.split()},
    **{
        name: (lambda xp, x, name=name: getattr(xp, name)(xp.abs(x) + 0.5))
        for name in ("log", "log1p", "sqrt")
    },
    **{
        f"{name} {keepdims}": (
            lambda xp, x, name=name, keepdims=keepdims: getattr(xp, name)(x, axis=1, keepdims=keepdims)
        )
        for name in REDUCTIONS.split()
        for keepdims in (True, False)
    },
    **{
        f"{name} of all": (lambda xp, x, name=name: getattr(xp, name)(x))
        for name in ("sum", "mean", "var", "std")
    },
    **{
        name: (lambda xp, x, name=name: getattr(xp, name)(x, xp.flip(x, axis=1))) for name in PAIRWISE.split()
    },
    "logical": lambda xp, x: xp.logical_and(xp.logical_or(x > 1, x < 0), xp.logical_not(x < -1)),
    "prod": lambda xp, x: xp.prod(x, axis=1),
    "max over both axes": lambda xp, x: xp.max(x, axis=(0, 1)),
    "where": lambda xp, x: xp.where(x > 0, x, xp.zeros_like(x)),
    "where number": lambda xp, x: xp.where(x > 0, x, 0.0),
    "clip": lambda xp, x: xp.clip(x, -1.0, 1.0),
    "clip one side": lambda xp, x: xp.clip(x, 0.0, None),
    "concat": lambda xp, x: xp.concat([x, x], axis=1),
    "stack": lambda xp, x: xp.stack([x, x], axis=1),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "squeeze": lambda xp, x: xp.squeeze(x[:, :1], axis=1),
    "reshape": lambda xp, x: xp.reshape(x, (4, 3)),
    "broadcast_to": lambda xp, x: xp.broadcast_to(x[:1, ...], (5, 4)),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (1, 0)),
    "matmul": lambda xp, x: xp.matmul(x, xp.permute_dims(x, (1, 0))),
    "cumulative_sum": lambda xp, x: xp.cumulative_sum(x, axis=1),
    "flip": lambda xp, x: xp.flip(x, axis=0),
    "roll": lambda xp, x: xp.roll(x, 1, axis=0),
    "take_along_axis": lambda xp, x: xp.take_along_axis(x, xp.asarray(INDEX), axis=1),
    "astype": lambda xp, x: xp.astype(x, xp.int64),
    "softmax": lambda xp, x: xp.softmax(x, axis=1),
    "log_softmax": lambda xp, x: xp.log_softmax(x * 1000, axis=1),
    "creation": lambda xp, x: xp.zeros((2,)) + xp.ones((2,)) + xp.full((2,), 3.0) + xp.arange(2.0),
    "likes": lambda xp, x: xp.ones_like(x) + xp.zeros_like(x) + xp.full_like(x, 2.0),
    "dtypes": lambda xp, x: xp.astype(xp.astype(xp.astype(x, xp.bool), xp.int32), xp.float64),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_library_agrees_with_numpy(call: str, convert) -> None:
    expected = CALLS[call](namespace(X), X)
    x = convert(X)
    xp = namespace(x)
    found = CALLS[call](xp, x)
    assert namespace(found) is xp
    assert tuple(found.shape) == expected.shape
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-5, atol=1e-6)


def test_a_namespace_holds_every_name(convert) -> None:
    xp = namespace(convert(X))
    for name in NAMES:
        assert getattr(xp, name) is not None


def test_logsumexp_of_impossible_entries_is_minus_infinity() -> None:
    x = np.full((2, 3), -np.inf)
    assert (namespace(x).logsumexp(x, axis=1) == -np.inf).all()


def test_torch_functions_are_the_librarys_own() -> None:
    xp = namespace(torch.zeros(1))
    assert xp.exp is torch.exp
    assert xp.sum is torch.sum
    assert xp.where is torch.where


def test_parameters_and_numpy_scalars_and_subclasses_are_arrays() -> None:
    class Mine(np.ndarray):
        pass

    assert namespace(torch.nn.Parameter(torch.zeros(1))) is namespace(torch.zeros(1))
    assert namespace(np.float32(1)) is namespace(X)
    assert namespace(X.view(Mine)) is namespace(X)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TreeError, match="list is no array"):
        namespace([1.0])


def test_an_unknown_name_is_an_attribute_error_naming_the_library() -> None:
    with pytest.raises(AttributeError, match="'fft' in the namespace of numpy"):
        namespace(X).fft  # noqa: B018


class Foreign:
    """An array of a library that the table has never heard of."""

    def __array_namespace__(self, api_version: str | None = None) -> type:
        return Library


class Library:
    exp = staticmethod(lambda x: "exp of the library")


def test_an_unknown_type_is_asked_for_its_own_namespace() -> None:
    xp = namespace(Foreign())
    assert xp.exp(None) == "exp of the library"
    assert namespace(Foreign()) is xp
    with pytest.raises(AttributeError, match="'tanh' in the namespace of Library"):
        xp.tanh  # noqa: B018


def test_importing_ops_imports_no_torch() -> None:
    code = "import engine.ops.arrays, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
