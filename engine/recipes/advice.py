"""What is odd about a configuration is said in one line each, before the run is far."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from engine.recipes.dqn import DQNRun
    from engine.recipes.ppo import PPORun

log = logging.getLogger(__name__)

_TREE_BYTES = 8 * (1 + 1 / 31)
"""Of a row's priority, and its share of the sums above it."""
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def advise_replay(config: DQNRun, observation_space: Any) -> None:
    """Warn of a replay buffer that will not fit, or is smaller than a batch, and of a warm-up without end."""
    learn, total = config.train, config.stop.env_step
    size = learn.buffer_size
    if size < learn.batch_size:
        log.warning(
            "train.buffer_size=%d holds fewer transitions than one batch of train.batch_size=%d: "
            "each batch holds some of them twice",
            size,
            learn.batch_size,
        )
    if total is not None:
        together = config.env.num_envs * config.collect.num_steps
        if learn.warm_up >= -(-total // together) * together:
            log.warning(
                "train.warm_up=%d env steps are not over when the run ends at stop.env_step=%d: "
                "nothing is learned",
                learn.warm_up,
                total,
            )
    row = row_bytes(config, observation_space)
    full, memory = size * row, machine_memory()
    if memory is not None and full + _used() > memory:
        part = ""
        if total is not None and total < size:
            part = f"; the {total:,} env steps of this run fill {shown(total * row)} of it"
        log.warning(
            "the replay buffer will not fit: full, it takes %s (train.buffer_size=%d transitions of "
            "%.0f bytes), and this machine has %s of memory%s",
            shown(full),
            size,
            row,
            shown(memory),
            part,
        )


def advise_minibatches(config: PPORun, collectors: int) -> None:
    """Warn of more minibatches than rows to divide among them."""
    rows = config.collect.num_steps * config.env.num_envs * collectors
    if config.policy.minibatches > rows:
        log.warning(
            "policy.minibatches=%d is more than the %d transitions of an iteration (collect.num_steps * "
            "env.num_envs%s): each is a minibatch of its own",
            config.policy.minibatches,
            rows,
            " * collectors" if collectors > 1 else "",
        )


def row_bytes(config: DQNRun, observation_space: Any) -> float:
    """Return what one transition takes in the replay buffer of DQN, its priority included."""
    reward, terminated, action, version, discount = 4, 1, 8, 8, 4
    row: float = 2 * _bytes(observation_space) + reward + terminated + action + version
    row += discount if config.policy.n_step > 1 else 0
    return row + (_TREE_BYTES if config.train.prioritized is not None else 0)


def _bytes(space: Any) -> int:
    parts = getattr(space, "spaces", None)
    if parts is not None:
        return sum(_bytes(part) for part in parts.values())
    return int(np.prod(space.shape, dtype=np.int64)) * int(np.dtype(space.dtype).itemsize)


def machine_memory() -> int | None:
    """Return the bytes of memory that this machine, or the container on it, has; None if it does not tell."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):
        return None  # no such call, or no such name, on this system
    for path in _CGROUPS:
        try:
            limit = path.read_text().strip()
        except OSError:
            continue  # there is no such group here
        if limit.isdigit():
            memory = min(memory, int(limit))
    return memory


def _used() -> int:
    """Return the bytes that this process takes already; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def shown(size: float) -> str:
    """A number of bytes as a person reads it."""
    for unit in ("bytes", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"
