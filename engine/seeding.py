"""Named random streams: every draw of a run comes from (seed, role, purpose, index).

Streams are numpy `SeedSequence` children, so that two purposes never share numbers and
adding a stream does not move another.  Torch's global generator, which module
construction and dropout use, is seeded once per role; nothing here draws from it later.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _word(text: str) -> int:
    """A number for a name that is the same in every process (`hash` is salted)."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "little")


def sequence(seed: int, purpose: str, index: int = 0, *, role: str = "main") -> np.random.SeedSequence:
    """Return the seed sequence named by (seed, role, purpose, index); `seed` and `index` >= 0."""
    return np.random.SeedSequence(seed, spawn_key=(_word(role), _word(purpose), index))


def stream(seed: int, purpose: str, index: int = 0, *, role: str = "main") -> np.random.Generator:
    """Return a generator of its own for (seed, role, purpose, index)."""
    return np.random.Generator(np.random.PCG64(sequence(seed, purpose, index, role=role)))


def integer(seed: int, purpose: str, index: int = 0, *, role: str = "main") -> int:
    """Return a seed below 2**31 for libraries that want one number."""
    return int(sequence(seed, purpose, index, role=role).generate_state(1)[0]) >> 1


def seed_torch(seed: int, *, role: str = "main") -> None:
    """Seed torch's global generator, once per role, before any module is built."""
    import torch

    torch.manual_seed(integer(seed, "torch", role=role))
