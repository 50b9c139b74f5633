"""One face over gymnasium's vector environments that hides how they reset.

gymnasium resets ended environments in one of three ways (`AutoresetMode`):

- NEXT_STEP: the call after an end ignores the action and returns the first observation;
  that row is no transition, here ``valid`` is False for it.
- SAME_STEP: the call that ends an episode already returns the next first observation; the
  true last one stands in ``info["final_obs"]``.
- DISABLED: the caller resets with a mask.

In all three, the valid rows are the same transitions with the true final observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector import VectorEnv as GymVectorEnv

from engine import seeding
from engine.envs.contract import watch_first_calls
from engine.envs.process import ProcessVectorEnv
from engine.envs.returns import innermost_of
from engine.envs.spaces import (
    LARGEST,
    check_action_space,
    check_observation_space,
    named,
    non_finite_row,
    replace_rows,
    to_arrays,
    write_row,
)
from engine.envs.statistics import refuse_running_statistics
from engine.errors import EnvError
from engine.types import Arrays

_BLAME = "raised by environment "


def blame(error: BaseException, name: str, index: int | None = None) -> None:
    """Note on an error which environment raised it, unless a more precise note is there."""
    if not any(note.startswith(_BLAME) for note in getattr(error, "__notes__", ())):
        error.add_note(f"{_BLAME}{name}" + (f", index {index}" if index is not None else ""))


@dataclass(slots=True, frozen=True)
class Episode:
    """One finished episode."""

    index: int
    """The environment that played it, 0 <= index < num_envs."""
    id: int
    """Its number in order of start over all environments."""
    seed: int | None
    """What its environment was reset with; None where gymnasium resets without one."""
    return_: float
    """Undiscounted sum of the rewards of the innermost environment between its own resets, in float64."""
    length: int
    """Number of transitions."""
    cut: bool = False
    """Whether its player gave it up before it ended."""


@dataclass(slots=True)
class Step:
    """What one action in each of B environments led to; the arrays are the caller's own."""

    obs: Arrays
    """(B, ...) to act on next: where an episode ended, the first of the next one (NEXT_STEP: the last)."""
    reward: np.ndarray[Any, Any]
    """(B,) float32."""
    terminated: np.ndarray[Any, Any]
    """(B,) bool: the episode reached an end of its own, nothing follows."""
    truncated: np.ndarray[Any, Any]
    """(B,) bool: the episode was cut off; False where terminated is True."""
    next_obs: Arrays
    """(B, ...) the true observation after the action; the same object as `obs` when nothing ended."""
    valid: np.ndarray[Any, Any] | None
    """(B,) bool, False for rows that are no transitions; None when all are."""
    episodes: tuple[Episode, ...]
    """Episodes of the innermost environments that ended in this step, by index."""
    wrapped: tuple[Episode, ...]
    """The same as wrappers have it: cut at `terminated` and `truncated`, with the rewards as above.
    Empty if no wrapper changes rewards or ends (`VectorEnv.wrappers`)."""


class VectorEnv:
    """Steps B environments and yields true transitions, whatever vector environment is underneath.

    `env` is any `gymnasium.vector.VectorEnv`; its autoreset mode is read from its metadata.
    Discrete actions are counted from 0 (the `start` of the space is added here), Box actions
    are clipped to the bounds.  Raises `EnvError` for spaces that are not supported, for
    observations and rewards that are not finite, and for actions of a wrong shape.
    """

    def __init__(
        self,
        env: Any,
        *,
        seed: int = 0,
        role: str = "main",
        name: str | None = None,
        time_limited: bool = False,
    ) -> None:
        if not isinstance(env, GymVectorEnv):
            raise EnvError(
                f"expected a gymnasium.vector.VectorEnv, got {type(env).__name__}; "
                "make_env(id_or_class, num_envs=1) makes one"
            )
        self.env: Any = env
        self.name = name or (env.spec.id if env.spec else type(env.unwrapped).__name__)
        self.num_envs: int = env.num_envs
        self.seed = seed
        self.role = role
        self.time_limited = time_limited
        """Whether episodes are known to end after so many steps."""
        self.closed = False
        self._mode = _autoreset_mode(env, self.name)
        refuse_running_statistics(env, self.name)
        if isinstance(env.unwrapped, SyncVectorEnv):
            refuse_running_statistics(env.unwrapped.envs[0], self.name)
            watch_first_calls(env.unwrapped.envs[0], self.name)
        check_observation_space(env.single_observation_space, self.name)
        check_action_space(env.single_action_space, self.name)
        self.single_observation_space: Any = named(env.single_observation_space)
        """The space of one row of observations; Tuple spaces are Dict spaces here."""
        self.single_action_space: Any = env.single_action_space
        self._raw_space: Any = env.single_observation_space
        self._is_leaf = not isinstance(self._raw_space, (spaces.Dict, spaces.Tuple))
        self._seeds_each = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv, ProcessVectorEnv))
        self._seeds_episodes = self._seeds_each and self._mode is AutoresetMode.DISABLED
        self.episodes_seeded = (
            "every episode has a seed of its own: the same episodes whatever num_envs is"
            if self._seeds_episodes
            else f"seeded once, at reset: the same episodes for num_envs={self.num_envs} only"
        )
        self._set_up_actions()
        self._obs: Arrays | None = None
        self._next_episode = 0
        self._ids = [0] * self.num_envs
        self._episode_seeds: list[int | None] = [None] * self.num_envs
        self._returns = np.zeros(self.num_envs, np.float64)
        self._steps = 0
        self._starts = [0] * self.num_envs
        self._dummy: np.ndarray[Any, Any] | None = None
        self._innermost = innermost_of(env)
        counted = self._innermost or []
        self.wrappers: tuple[str, ...] = counted[0].wrappers if counted else ()
        """The wrappers that may change rewards or ends, outermost first; returns are counted below them."""
        self.about_returns = (
            f"collect/return_mean and eval/return_mean sum the rewards of {counted[0].name} itself, between "
            "its own resets; collect/wrapped_return_mean sums what wrappers make of them "
            f"({', '.join(self.wrappers)})"
            if counted
            else None
        )
        """Which return is which, in one sentence; None if no wrapper changes rewards or ends."""
        self._inner_ids = list(self._ids)
        self._inner_seeds = list(self._episode_seeds)
        self._inner_lengths = np.zeros(self.num_envs, np.int64)

    def _set_up_actions(self) -> None:
        space = self.single_action_space
        self._action_shape: tuple[int, ...] = (self.num_envs, *space.shape)
        self._action_dtype = np.dtype(np.int64) if isinstance(space, spaces.Discrete) else space.dtype
        self._bounds: tuple[Any, Any] | None = None
        self._start: Any = None
        if isinstance(space, spaces.Box):
            if np.isfinite(space.low).any() or np.isfinite(space.high).any():
                self._bounds = space.low, space.high
        elif not isinstance(space, spaces.MultiBinary) and np.any(space.start):
            self._start = space.start

    @property
    def obs(self) -> Arrays:
        """(B, ...) observations to act on next; resets when that has not been done."""
        return self.reset() if self._obs is None else self._obs

    def running(self, index: int) -> tuple[float, int]:
        """Return the return so far and the length of the episode that environment `index` plays."""
        if self._innermost is not None:
            return self._innermost[index].so_far, int(self._inner_lengths[index])
        return float(self._returns[index]), max(0, self._steps - self._starts[index])

    def cut(self, index: int) -> Episode:
        """Return the episode that environment `index` plays as it is now; it is played on until a reset."""
        return_, length = self.running(index)
        ids, seeds = self._ids, self._episode_seeds
        if self._innermost is not None:
            ids, seeds = self._inner_ids, self._inner_seeds
        return Episode(index, ids[index], seeds[index], return_, length, cut=True)

    @property
    def render_fps(self) -> int:
        """Frames per second that the environment asks for; 30 where it does not."""
        return int(self.env.metadata.get("render_fps") or 30)

    def reset(self, *, episode: int | None = None) -> Arrays:
        """Start a new episode in every environment and return the first observations (B, ...).

        Running episodes are abandoned.  `episode` numbers the first new one; by default the
        count goes on.  The same number gives the same episodes (see `episodes_seeded`).
        """
        self._check_open()
        if episode is not None:
            self._next_episode = episode
        for index in range(self.num_envs):
            self._start_episode(index)
        first = self._ids[0]
        seeds = [self._seed_of(first + index) for index in range(self.num_envs)]
        self._returns[:] = 0.0
        self._starts = [self._steps] * self.num_envs
        self._dummy = None
        for count in self._innermost or ():
            count.abandon()
        self._inner_ids, self._inner_seeds = list(self._ids), list(self._episode_seeds)
        self._inner_lengths[:] = 0
        try:
            raw, _ = self.env.reset(seed=seeds if self._seeds_each else seeds[0])
        except Exception as error:
            blame(error, self.name)
            raise
        for count in self._innermost or ():
            count.take()  # the resets of just now
        self._obs = self._read(raw)
        if not self._steps:
            self._check_rows("observation", named(self.env.single_observation_space), self._obs)
        return self._obs

    def step(self, action: Any) -> Step:
        """Act in every environment; `action` is (B, ...) of the action space, Discrete counted from 0."""
        if self._obs is None or self.closed:
            self._check_open()
            raise EnvError(f"{self.name} was not reset: call reset() before the first step")
        try:
            raw, reward, terminated, truncated, info = self.env.step(self._to_env(action))
        except Exception as error:
            blame(error, self.name)
            raise
        self._steps += 1
        if self._steps == 1:
            for what, rows in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
                self._check_rows(what, None, rows)
        # Copies throughout: environments may write the next step into the same buffers.
        obs = self._read(raw)
        self._returns += reward
        paid, reward = reward, np.array(reward, np.float32)
        if np.count_nonzero(np.isfinite(reward)) != self.num_envs:
            index = int(np.argmin(np.isfinite(reward)))
            value = float(paid[index])
            raise EnvError(f"{self.name} gave the reward {value:g} in environment {index}{_hint(value)}")
        terminated = np.array(terminated, np.bool_)
        truncated = np.array(truncated, np.bool_)
        if self._dummy is None and not np.count_nonzero(terminated) and not np.count_nonzero(truncated):
            self._obs = obs
            episodes = () if self._innermost is None else self._inner_episodes(None)
            return Step(obs, reward, terminated, truncated, obs, None, episodes, ())
        return self._end(obs, reward, terminated, truncated, info)

    def count_into(self, cell: Any) -> None:
        """Add every env step to ``cell[0]`` as it begins.

        Where single environments stand one after the other in this process each is counted by itself, so
        that the count is right within one if the process is killed; else it is within `num_envs`.
        """
        singles = self.env.envs if isinstance(self.env, SyncVectorEnv) else ()
        if singles and not any("step" in vars(env) for env in singles):
            for env in singles:
                vars(env)["step"] = _counting(env.step, cell)
            return
        step = self.step

        def counted(action: Any) -> Step:
            cell[0] += self.num_envs - (0 if self._dummy is None else int(np.count_nonzero(self._dummy)))
            return step(action)

        vars(self)["step"] = counted

    def render(self) -> list[Any]:
        """Return one frame (height, width, 3) of each environment made with render_mode="rgb_array"."""
        self._check_open()
        if self.env.render_mode is None:
            raise EnvError(f'{self.name} was made without render_mode="rgb_array" and cannot be drawn')
        return list(self.env.render())

    def close(self) -> None:
        """Release what the environments hold; may be called again."""
        if not self.closed:
            self.closed = True
            self.env.close()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"VectorEnv({self.name}, num_envs={self.num_envs}, {type(self.env.unwrapped).__name__})"

    def _check_open(self) -> None:
        if self.closed:
            raise EnvError(f"{self.name} is closed")

    def _check_rows(self, what: str, space: Any, rows: Any) -> None:
        """Raise `EnvError` unless there is one row for each environment, as a vectorised class must give."""
        if isinstance(space, spaces.Dict):
            for key, inner in space.spaces.items():
                self._check_rows(f"{what} {key}", inner, rows[key])
            return
        shape = (self.num_envs, *(() if space is None else space.shape))
        if np.shape(rows) != shape:
            raise EnvError(
                f"{type(self.env.unwrapped).__name__} gave the {what} of {self.num_envs} environments "
                f"in the shape {np.shape(rows)}, expected {shape}"
            )

    def _start_episode(self, index: int) -> None:
        """Number the next episode, which environment `index` plays."""
        self._ids[index] = self._next_episode
        self._next_episode += 1
        if self._seeds_episodes:
            self._episode_seeds[index] = self._seed_of(self._ids[index])

    def _seed_of(self, episode: int) -> int:
        return seeding.integer(self.seed, "episode", episode, role=self.role)

    def _to_env(self, action: Any) -> Any:
        action = np.asarray(action, self._action_dtype)
        if action.shape != self._action_shape:
            raise EnvError(f"{self.name} takes actions of shape {self._action_shape}, got {action.shape}")
        if self._bounds is not None:
            low, high = self._bounds
            return np.minimum(np.maximum(action, low), high)  # twice as quick as np.clip
        return action if self._start is None else action + self._start

    def _read(self, raw: Any) -> Arrays:
        obs = np.array(raw) if self._is_leaf else to_arrays(self._raw_space, raw)
        return self._finite(obs)

    def _finite(self, obs: Arrays) -> Arrays:
        bad = non_finite_row(obs)
        if bad:
            what = f"observation {bad[1]}".rstrip()
            raise EnvError(
                f"{self.name} gave an {what} that is not finite as float32 in environment {bad[0]}: "
                f"it holds {bad[2]:g}{_hint(bad[2])}"
            )
        return obs

    def _end(
        self,
        obs: Arrays,
        reward: np.ndarray[Any, Any],
        terminated: np.ndarray[Any, Any],
        truncated: np.ndarray[Any, Any],
        info: dict[str, Any],
    ) -> Step:
        """The step where an episode ended in this call, or (NEXT_STEP) in the one before."""
        valid = None
        if self._dummy is not None:
            valid = ~self._dummy
            reward[self._dummy] = 0.0
            self._returns[self._dummy] = 0.0
            terminated &= valid
            truncated &= valid
            self._dummy = None
        done = terminated | truncated
        truncated &= ~terminated
        ended = np.flatnonzero(done).tolist()
        next_obs = obs
        if ended and self._mode is AutoresetMode.SAME_STEP:
            next_obs = self._with_final(obs, info, ended)
        episodes = tuple(
            Episode(
                i,
                self._ids[i],
                self._episode_seeds[i],
                float(self._returns[i]),
                self._steps - self._starts[i],
            )
            for i in ended
        )
        for index in ended:
            self._start_episode(index)
            self._returns[index] = 0.0
            self._starts[index] = self._steps + (self._mode is AutoresetMode.NEXT_STEP)
        if ended and self._mode is AutoresetMode.NEXT_STEP:
            self._dummy = done
        if ended and self._mode is AutoresetMode.DISABLED:
            obs = self._reset_rows(obs, done)
        self._obs = obs
        if self._innermost is None:
            return Step(obs, reward, terminated, truncated, next_obs, valid, episodes, ())
        inner = self._inner_episodes(valid)
        return Step(obs, reward, terminated, truncated, next_obs, valid, inner, episodes)

    def _inner_episodes(self, valid: np.ndarray[Any, Any] | None) -> tuple[Episode, ...]:
        """The episodes that resets of innermost environments have ended in this step."""
        assert self._innermost is not None
        self._inner_lengths += 1 if valid is None else valid
        episodes = []
        for index, count in enumerate(self._innermost):
            for return_ in count.take() if count.ended else ():
                length = int(self._inner_lengths[index])
                if return_ is not None and length:  # of length 0: a wrapper played it while it reset
                    id, seed = self._inner_ids[index], self._inner_seeds[index]
                    episodes.append(Episode(index, id, seed, return_, length))
                self._inner_ids[index] = self._ids[index]
                self._inner_seeds[index] = self._episode_seeds[index]
                self._inner_lengths[index] = 0
        return tuple(episodes)

    def _reset_rows(self, obs: Arrays, done: np.ndarray[Any, Any]) -> Arrays:
        seed = list(self._episode_seeds) if self._seeds_episodes else None
        try:
            first, _ = self.env.reset(seed=seed, options={"reset_mask": done.copy()})
        except Exception as error:
            blame(error, self.name)
            raise
        # Only the rows that were reset: a wrapper may have changed the others a second time.
        return replace_rows(obs, done, self._read(first))

    def _with_final(self, obs: Arrays, info: dict[str, Any], ended: list[int]) -> Arrays:
        if "final_obs" not in info:
            raise EnvError(f"{self.name} resets in the same step but gives no info['final_obs']")
        final = info["final_obs"]
        rows = np.zeros(self.num_envs, np.bool_)
        if not (isinstance(final, np.ndarray) and final.dtype.kind == "O"):
            rows[ended] = True  # native classes batch it as they batch observations
            return self._finite(replace_rows(obs, rows, to_arrays(self._raw_space, final)))
        next_obs = replace_rows(obs, rows, obs)
        for index in ended:
            write_row(self._raw_space, next_obs, index, final[index])
        return self._finite(next_obs)


def _hint(value: float) -> str:
    """What to do about a number that is too large; nan has no remedy here."""
    if np.isnan(value):
        return ""
    return f", and policies compute in float32, which ends at {LARGEST:.1e}; scale or clip it with a wrapper"


def _counting(step: Any, cell: Any) -> Any:
    """Return `step` so that it counts its calls first."""

    def counted(action: Any) -> Any:
        cell[0] += 1
        return step(action)

    return counted


def _autoreset_mode(env: Any, name: str) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise EnvError(
            f"{name} does not say how it resets: metadata['autoreset_mode'] is {mode!r}, "
            "expected a gymnasium.vector.AutoresetMode"
        ) from None
