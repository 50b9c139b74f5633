"""Single steps in, n-step transitions out, before anything is stored."""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.data.columns import Array, Columns, map_leaves
from engine.errors import StateError, TreeError, UsageError
from engine.types import Arrays

_FROM_THE_END = ("reward", "next_obs", "terminated", "truncated", "valid")


class NStep:
    """Join up to `n` consecutive steps of each of `num_envs` environments into one transition.

    A transition that starts at step t has::

        reward    r[t] + discount * r[t+1] + ... + discount^(k-1) * r[t+k-1]
        next_obs  of step t+k-1
        discount  discount^k, or 0 where step t+k-1 terminated
        terminated  of step t+k-1

    and every other column (obs, action, ...) of step t, so that the target is
    ``reward + discount * value(next_obs)``.  k is n; where an episode ends earlier, terminated or
    truncated, each of its waiting steps gives a transition of the steps that are left, so that
    every step starts exactly one.  The last n-1 steps of running episodes wait for their rest.

    Sutton, "Learning to predict by the methods of temporal differences", 1988; with replay as in
    Hessel et al., "Rainbow", 2018 (https://arxiv.org/abs/1710.02298).
    """

    def __init__(self, n: int, discount: float, num_envs: int) -> None:
        if n < 1 or num_envs < 1:
            raise UsageError(f"NStep: n is {n} and num_envs {num_envs}, expected at least 1 each")
        if not 0.0 <= discount <= 1.0:
            raise UsageError(f"NStep: discount is {discount}, expected 0 to 1")
        self.n = n
        self.discount = discount
        self.num_envs = num_envs
        self._columns: Columns | None = None
        # Rings over the last n rows; one slot for all environments, as every push advances each.
        self._slot = 0
        self._reward = np.zeros((n, num_envs), np.float32)
        self._weight = np.zeros((n, num_envs), np.float32)
        # How many rows of each environment have not become a transition yet.
        self._waiting = np.zeros(num_envs, np.int64)

    def push(self, rows: dict[str, Any]) -> dict[str, Arrays]:
        """Take one step of every environment (B, ...) and return the transitions (M, ...) it completed.

        Needs reward, next_obs, terminated and truncated; rows where `valid` is False are skipped.
        M may be 0.  Arrays may share memory with `rows`, never with what is kept here.
        Raises `TreeError` for columns that are missing or differ from the first push, and
        `UsageError` when a row inside an episode is not valid.
        """
        for name in ("reward", "next_obs", "terminated", "truncated"):
            if name not in rows:
                raise TreeError(f"column {name!r} is missing: n-step returns need it")
        terminated, ended, valid = self._flags(rows)
        begun = {name: column for name, column in rows.items() if name not in _FROM_THE_END}
        if self.n == 1:
            return self._single(rows, begun, valid)
        if self._columns is None:
            self._columns = Columns(begun, (self.n,), batched=False)
            # Rows not written yet are saved too, and equal runs must save equal bytes.
            self._columns.write(slice(None), [np.zeros_like(leaf) for leaf in self._columns.leaves])
        values = self._columns.checked(begun)
        self._check_reward(rows["reward"])
        if valid is not None and (self._waiting[~valid] > 0).any():
            env = int(np.flatnonzero(~valid & (self._waiting > 0))[0])
            raise UsageError(f"environment {env} gave a row that is not valid before its episode ended")

        slot = self._slot
        self._slot = (slot + 1) % self.n
        self._columns.write(slot, values)
        self._reward += self._weight * rows["reward"]
        self._weight *= self.discount
        self._reward[slot] = rows["reward"]
        self._weight[slot] = self.discount
        self._waiting += 1 if valid is None else valid
        return self._complete(rows, terminated, ended)

    def reset(self) -> None:
        """Forget the steps that wait, as when the environments were reset from outside."""
        self._waiting[:] = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the steps that wait, as copies."""
        rows = None if self._columns is None else map_leaves(np.copy, self._columns.arrays)
        return {
            "columns": rows,
            "slot": self._slot,
            "reward": self._reward.copy(),
            "weight": self._weight.copy(),
            "waiting": self._waiting.copy(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a `state_dict`; raises `StateError` when `n` or `num_envs` differ."""
        if state_dict["reward"].shape != self._reward.shape:
            n, num_envs = state_dict["reward"].shape
            raise StateError(
                f"saved with n={n}, num_envs={num_envs}; loaded with n={self.n}, num_envs={self.num_envs}"
            )
        rows = state_dict["columns"]
        self._columns = None
        if rows is not None:
            self._columns = Columns.restored(rows, (self.n,), slice(None), batched=False)
        self._slot = state_dict["slot"]
        self._reward = state_dict["reward"].copy()
        self._weight = state_dict["weight"].copy()
        self._waiting = state_dict["waiting"].copy()

    def _flags(self, rows: dict[str, Any]) -> tuple[Array, Array, Array | None]:
        """Which rows terminated, which ended their episode, and which are real (None: all)."""
        terminated, valid = rows["terminated"], rows.get("valid")
        ended = terminated | rows["truncated"]
        if ended.shape != (self.num_envs,):
            raise TreeError(f"column 'terminated' has shape {ended.shape}, expected ({self.num_envs},)")
        if valid is None or valid.all():
            return terminated, ended, None
        return terminated, ended & valid, valid

    def _check_reward(self, reward: Array) -> None:
        if reward.shape != (self.num_envs,):
            raise TreeError(f"column 'reward' has shape {reward.shape}, expected ({self.num_envs},)")

    def _single(self, rows: dict[str, Any], begun: dict[str, Any], valid: Array | None) -> dict[str, Arrays]:
        """The transitions of n=1: what came in, with a discount."""
        self._check_reward(rows["reward"])
        discount = np.where(rows["terminated"], np.float32(0), np.float32(self.discount))
        names = ("reward", "next_obs", "terminated")
        out = {**begun, **{name: rows[name] for name in names}, "discount": discount}
        return out if valid is None else map_leaves(lambda column: column[valid], out)

    def _complete(self, rows: dict[str, Any], terminated: Array, ended: Array) -> dict[str, Arrays]:
        """Hand out the rows that have their n steps, and all waiting rows of episodes that ended."""
        assert self._columns is not None
        waiting = self._waiting
        if not ended.any():
            oldest = self._slot
            envs: Any = np.flatnonzero(waiting == self.n)
            if len(envs) == self.num_envs:
                envs = slice(None)
            begun = map_leaves(lambda column: column[oldest, envs].copy(), self._columns.arrays)
            reward, discount = self._reward[oldest, envs].copy(), self._weight[oldest, envs].copy()
            waiting[envs] -= waiting[envs] == self.n
        else:
            # age 0 is the row just written; oldest first, so that an episode's rows leave in order.
            ages = np.arange(self.n - 1, -1, -1)[:, None]
            leaves = (ages < waiting) & (ended | (ages == self.n - 1))
            which, envs = leaves.nonzero()
            slots = (self._slot + which) % self.n
            begun = map_leaves(lambda column: column[slots, envs], self._columns.arrays)
            reward = self._reward[slots, envs]
            discount = np.where(terminated[envs], np.float32(0), self._weight[slots, envs])
            waiting -= np.count_nonzero(leaves, axis=0)
        now = map_leaves(
            lambda column: column[envs], {name: rows[name] for name in ("next_obs", "terminated")}
        )
        return {**begun, "reward": reward, **now, "discount": discount}
