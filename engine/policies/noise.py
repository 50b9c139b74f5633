"""Random numbers for acting, drawn in blocks because small draws cost more than they give."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

Draw: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Any]
"""Maps a generator and a shape to an array of that shape."""

_STEPS = 128


def gumbel(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Draw standard Gumbel noise, float32: argmax(logits + noise) is a draw from softmax(logits)."""
    noise = generator.standard_exponential(shape, dtype=np.float32)
    # an exact 0 is possible in float32, and its logarithm is not
    np.maximum(noise, np.finfo(np.float32).tiny, out=noise)
    np.log(noise, out=noise)
    return np.negative(noise, out=noise)


def normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Draw standard normal noise, float32."""
    return generator.standard_normal(shape, dtype=np.float32)


def uniform(generator: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """Draw uniformly from [0, 1), float64."""
    return generator.random(shape)


class Noise:
    """Gives one array (B, size) of noise a call, from blocks of 128.

    Its state is the generator's before the block and the place within it, so that a resumed
    run draws what the uninterrupted one would have.  The generator belongs to it.
    """

    def __init__(self, generator: np.random.Generator, draw: Draw, size: int) -> None:
        self._generator = generator
        self._draw = draw
        self._size = size
        self._rows = 0
        self._before: Any = None
        self._block: Any = ()
        self._next = 0

    def __call__(self, rows: int) -> Any:
        """Return the next noise for `rows` rows; a change of `rows` drops the rest of the block."""
        place = self._next
        if rows != self._rows or place == _STEPS:
            self._fill(rows)
            place = 0
        self._next = place + 1
        return self._block[place]

    def _fill(self, rows: int) -> None:
        self._before = self._generator.bit_generator.state
        self._rows = rows
        self._block = self._draw(self._generator, (_STEPS, rows, self._size))

    def state_dict(self) -> dict[str, Any]:
        state = self._generator.bit_generator.state if self._rows == 0 else self._before
        return {"generator": state, "rows": self._rows, "next": self._next}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._generator.bit_generator.state = state["generator"]
        self._rows, self._block, self._next = 0, (), 0
        if state["rows"]:
            self._fill(int(state["rows"]))
            self._next = int(state["next"])
