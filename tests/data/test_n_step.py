"""n-step transitions against lists of episodes, worked through one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.n_step import NStep
from engine.data.replay import ReplayBuffer
from engine.errors import StateError, TreeError, UsageError

GAMMA = 0.9
GOES_ON, TERMINATES, TRUNCATES, BOTH, DUMMY = range(5)


def stream(kinds: np.ndarray) -> list[dict[str, Any]]:
    """Steps (B,) of every column for kinds (T, B); obs and next_obs are unique numbers."""
    T, B = kinds.shape
    number = np.arange(T * B).reshape(T, B)
    return [
        {
            "obs": {"id": number[t]},
            "action": number[t] % 5,
            "reward": (number[t] % 7 - 3).astype(np.float32),
            "terminated": np.isin(kinds[t], (TERMINATES, BOTH)),
            "truncated": np.isin(kinds[t], (TRUNCATES, BOTH)),
            "next_obs": {"id": 10_000 + number[t]},
            "valid": kinds[t] != DUMMY,
        }
        for t in range(T)
    ]


def with_dummies(kinds: np.ndarray) -> np.ndarray:
    """What NEXT_STEP autoreset makes of it: the step after an end is no transition."""
    kinds = kinds.copy()
    for b in range(kinds.shape[1]):
        for t in range(1, len(kinds)):
            if kinds[t - 1, b] in (TERMINATES, TRUNCATES, BOTH):
                kinds[t, b] = DUMMY
    return kinds


def brute(steps: list[dict[str, Any]], n: int) -> dict[int, tuple[Any, ...]]:
    """Per environment cut the steps into episodes, then sum forward from each step."""
    out: dict[int, tuple[Any, ...]] = {}
    for b in range(len(steps[0]["reward"])):
        episodes: list[list[dict[str, Any]]] = [[]]
        for step in steps:
            if not step["valid"][b]:
                continue
            episodes[-1].append(step)
            if step["terminated"][b] or step["truncated"][b]:
                episodes.append([])
        for episode in episodes:
            complete = episode is not episodes[-1]
            for start in range(len(episode)):
                part = episode[start : start + n]
                if len(part) < n and not complete:
                    continue
                last = part[-1]
                out[int(part[0]["obs"]["id"][b])] = (
                    int(part[0]["action"][b]),
                    sum(GAMMA**k * float(step["reward"][b]) for k, step in enumerate(part)),
                    int(last["next_obs"]["id"][b]),
                    bool(last["terminated"][b]),
                    0.0 if last["terminated"][b] else GAMMA ** len(part),
                )
    return out


def table(transitions: list[dict[str, Any]]) -> dict[int, tuple[Any, ...]]:
    """The same form from what NStep returned; a step that starts two transitions is an error."""
    out: dict[int, tuple[Any, ...]] = {}
    for batch in transitions:
        columns = (batch[name] for name in ("action", "reward", "terminated", "discount"))
        for obs, next_obs, action, reward, terminated, discount in zip(
            batch["obs"]["id"], batch["next_obs"]["id"], *columns, strict=True
        ):
            assert int(obs) not in out
            out[int(obs)] = (int(action), float(reward), int(next_obs), bool(terminated), float(discount))
    return out


def assert_same(found: dict[int, tuple[Any, ...]], expected: dict[int, tuple[Any, ...]]) -> None:
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        assert found[key] == pytest.approx(row, abs=1e-5)


kinds = st.tuples(st.integers(1, 30), st.integers(1, 4), st.integers(0, 10_000), st.booleans()).map(
    lambda given: (with_dummies if given[3] else np.copy)(
        np.random.default_rng(given[2]).choice(4, size=given[:2], p=[0.7, 0.12, 0.12, 0.06])
    )
)


@given(kinds, st.integers(1, 6))
@settings(max_examples=120, deadline=None)
def test_every_step_starts_the_transition_of_its_episode(kinds: np.ndarray, n: int) -> None:
    steps = stream(kinds)
    n_step = NStep(n, GAMMA, kinds.shape[1])
    assert_same(table([n_step.push(step) for step in steps]), brute(steps, n))


@given(kinds, st.integers(1, 4), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_transitions_survive_the_ring(kinds: np.ndarray, n: int, capacity: int) -> None:
    steps = stream(kinds)
    n_step = NStep(n, GAMMA, kinds.shape[1])
    replay = ReplayBuffer(capacity, generator=np.random.default_rng(0))
    pushed = [n_step.push(step) for step in steps]
    for transitions in pushed:
        replay.push(transitions)
    if not len(replay):
        return
    expected = brute(steps, n)
    order = [int(obs) for transitions in pushed for obs in transitions["obs"]["id"]]
    assert_same(table([replay.state_dict()["columns"]]), {obs: expected[obs] for obs in order[-capacity:]})


@pytest.mark.parametrize("n", [1, 3])
def test_the_columns_are_those_that_learning_takes(n: int) -> None:
    n_step = NStep(n, GAMMA, 2)
    for step in stream(np.zeros((n, 2), int)):
        out = n_step.push(step)
    assert list(out) == ["obs", "action", "reward", "next_obs", "terminated", "discount"]
    assert out["reward"].dtype == out["discount"].dtype == np.float32
    assert out["terminated"].dtype == bool


def test_one_step_transitions_are_what_came_in() -> None:
    step = stream(np.array([[GOES_ON, TERMINATES, TRUNCATES]]))[0]
    out = NStep(1, GAMMA, 3).push(step)
    assert out["obs"] is step["obs"]
    assert out["reward"] is step["reward"]
    assert out["discount"].tolist() == pytest.approx([GAMMA, 0, GAMMA])


def test_what_was_returned_does_not_change_later() -> None:
    steps = stream(np.zeros((8, 2), int))
    n_step = NStep(3, GAMMA, 2)
    found = [n_step.push(step) for step in steps]
    kept = [batch["obs"]["id"].tolist() for batch in found]
    assert kept == [[], [], *[[2 * t, 2 * t + 1] for t in range(6)]]


def test_further_columns_come_from_the_first_step() -> None:
    n_step = NStep(2, GAMMA, 1)
    for version, step in enumerate(stream(np.zeros((2, 1), int))):
        out = n_step.push({**step, "version": np.array([version])})
    assert out["version"].tolist() == [0]


def test_the_valid_column_may_be_left_out() -> None:
    n_step = NStep(2, GAMMA, 1)
    for step in stream(np.zeros((2, 1), int)):
        del step["valid"]
        out = n_step.push(step)
    assert out["obs"]["id"].tolist() == [0]


def test_an_invalid_row_inside_an_episode_is_refused() -> None:
    n_step = NStep(3, GAMMA, 2)
    steps = stream(np.array([[GOES_ON, GOES_ON], [GOES_ON, DUMMY]]))
    n_step.push(steps[0])
    with pytest.raises(UsageError, match="environment 1"):
        n_step.push(steps[1])


def test_reset_forgets_what_waits() -> None:
    steps = stream(np.array([[GOES_ON], [GOES_ON], [TERMINATES]]))
    n_step = NStep(3, GAMMA, 1)
    n_step.push(steps[0])
    n_step.reset()
    assert_same(table([n_step.push(step) for step in steps[1:]]), brute(steps[1:], 3))


@given(kinds, st.integers(1, 4), st.integers(0, 29))
@settings(max_examples=30, deadline=None)
def test_a_restored_object_goes_on_like_the_saved_one(kinds: np.ndarray, n: int, stop: int) -> None:
    steps = stream(kinds)
    saved, restored = NStep(n, GAMMA, kinds.shape[1]), NStep(n, GAMMA, kinds.shape[1])
    found = [saved.push(step) for step in steps[:stop]]
    restored.load_state_dict(saved.state_dict())
    for step in steps[stop:]:
        saved.push(step)
    found += [restored.push(step) for step in steps[stop:]]
    assert_same(table(found), brute(steps, n))


def test_a_state_of_another_n_is_refused() -> None:
    with pytest.raises(StateError, match="n=3"):
        NStep(2, GAMMA, 1).load_state_dict(NStep(3, GAMMA, 1).state_dict())


@pytest.mark.parametrize("n", [1, 2])
def test_a_missing_or_misshapen_column_is_named(n: int) -> None:
    step = stream(np.zeros((1, 2), int))[0]
    with pytest.raises(TreeError, match="'truncated' is missing"):
        NStep(n, GAMMA, 2).push({name: step[name] for name in step if name != "truncated"})
    with pytest.raises(TreeError, match="'reward' has shape"):
        NStep(n, GAMMA, 2).push({**step, "reward": np.zeros((2, 1), np.float32)})
    with pytest.raises(TreeError, match="'terminated' has shape"):
        NStep(n, GAMMA, 3).push(step)


@pytest.mark.parametrize(("n", "discount", "num_envs"), [(0, 0.9, 1), (1, 1.5, 1), (1, 0.9, 0)])
def test_impossible_arguments_are_refused_when_building(n: int, discount: float, num_envs: int) -> None:
    with pytest.raises(UsageError):
        NStep(n, discount, num_envs)
