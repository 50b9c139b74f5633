"""The libraries that formulas are tested with: each test that takes `convert` runs once with every one."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import array_api_strict
import numpy as np
import pytest
import torch

LIBRARIES: dict[str, Callable[[Any], Any]] = {
    "numpy": np.asarray,
    "torch": torch.as_tensor,
    "array_api_strict": lambda x: array_api_strict.asarray(np.asarray(x)),
}
if importlib.util.find_spec("jax"):
    import jax

    jax.config.update("jax_enable_x64", True)
    LIBRARIES["jax"] = lambda x: jax.numpy.asarray(np.asarray(x))


@pytest.fixture(params=LIBRARIES)
def convert(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Return what makes an array of one library out of a numpy array or a tensor."""
    return LIBRARIES[request.param]
