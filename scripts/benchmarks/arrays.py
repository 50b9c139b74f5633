"""(d) Replay and advantages against bare numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
from benchmarks.measure import Goal, Section, take_turns, timed
from reference.gae_scan import gae_loop, gae_scan
from reference.numpy_ring import NumpyRing

from engine.data.replay import ReplayBuffer
from engine.ops.returns import gae


def run_replay(quick: bool) -> Section:
    """Insert 64 and sample 256 transitions of CartPole's shape, capacity 1e6."""
    rounds, times, capacity = (5, 500, 1_000_000) if quick else (15, 2_000, 1_000_000)
    ring = NumpyRing(capacity)
    buffer = ReplayBuffer(capacity, generator=np.random.default_rng(0))
    rows = np.random.default_rng(1).normal(size=(64, 4)).astype(np.float32)
    columns: dict[str, Any] = {
        "obs": rows,
        "action": np.ones(64, np.int64),
        "reward": np.ones(64, np.float32),
        "next_obs": rows + 1,
        "terminated": np.zeros(64, np.bool_),
    }
    for _ in range(capacity // 64 + 1):  # full: every page of memory has been touched on both sides
        ring.push(**columns)
        buffer.push(columns)
    section = Section(
        "Replay",
        "Capacity 1e6 and full; columns obs (4,), action, reward, next_obs (4,), terminated. The ring is "
        "scripts/reference/numpy_ring.py.",
    )
    inserts = take_turns(
        {
            "engine, insert 64": timed(lambda: buffer.push(columns), times),
            "numpy ring, insert 64": timed(lambda: ring.push(**columns), times),
        },
        rounds,
        "µs",
    )
    samples = take_turns(
        {
            "engine, sample 256": timed(lambda: buffer.sample(256), times),
            "numpy ring, sample 256": timed(lambda: ring.sample(256), times),
        },
        rounds,
        "µs",
    )
    section.sides += [inserts, samples]
    for what, measured in (("insert 64", inserts), ("sample 256", samples)):
        figure = measured.ratio(f"engine, {what}", f"numpy ring, {what}")
        section.goals.append(Goal(f"{what}: engine / numpy ring", figure, 1.5))
    return section


def run_gae(quick: bool) -> Section:
    """Advantages of a long and narrow rollout."""
    rounds, times = (5, 20) if quick else (15, 100)
    generator = np.random.default_rng(0)
    shape = (2048, 8)
    reward, value, next_value = (generator.normal(size=shape).astype(np.float32) for _ in range(3))
    terminated, truncated = generator.random(shape) < 0.01, generator.random(shape) < 0.002
    columns = (reward, value, next_value, terminated, truncated, 0.99, 0.95)
    np.testing.assert_allclose(gae(*columns), gae_scan(*columns), atol=1e-3)
    np.testing.assert_allclose(gae_loop(*columns), gae_scan(*columns), atol=1e-3)
    measured = take_turns(
        {
            "engine": timed(lambda: gae(*columns), times),
            "numpy doubling scan": timed(lambda: gae_scan(*columns), times),
            "numpy loop over time": timed(lambda: gae_loop(*columns), max(times // 10, 3)),
        },
        rounds,
        "µs",
    )
    section = Section(
        "Advantages (GAE)", "T = 2048, N = 8, float32 numpy; scripts/reference/gae_scan.py.", [measured]
    )
    section.goals = [
        Goal("engine / doubling scan", measured.ratio("engine", "numpy doubling scan"), 1.3),
        Goal("loop over time / engine", measured.ratio("numpy loop over time", "engine"), 10, True),
    ]
    return section
