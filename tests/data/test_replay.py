"""The ring keeps the last rows, whole, and draws them uniformly."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.replay import ReplayBuffer
from engine.errors import StateError, TreeError, UsageError


def buffer(capacity: int = 10, seed: int = 0) -> ReplayBuffer:
    return ReplayBuffer(capacity, generator=np.random.default_rng(seed))


def rows(start: int, count: int) -> dict[str, Any]:
    """Transitions that carry their number in every column."""
    number = np.arange(start, start + count)
    return {
        "obs": {"position": np.stack([number, -number], axis=1).astype(np.float32), "seen": {"id": number}},
        "action": number.copy(),
        "terminated": number % 2 == 0,
    }


def held(replay: ReplayBuffer) -> list[int]:
    """The numbers of the rows held, each checked to be whole."""
    columns = replay.state_dict()["columns"]
    action = columns["action"]
    assert np.array_equal(columns["obs"]["position"], np.stack([action, -action], axis=1))
    assert np.array_equal(columns["obs"]["seen"]["id"], action)
    assert np.array_equal(columns["terminated"], action % 2 == 0)
    return sorted(action.tolist())


@given(st.integers(1, 12), st.lists(st.integers(0, 30), min_size=1, max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_last_rows_are_held_whatever_the_pushes(capacity: int, counts: list[int]) -> None:
    replay, oracle, start = buffer(capacity), deque[int](maxlen=capacity), 0
    for count in counts:
        replay.push(rows(start, count))
        oracle.extend(range(start, start + count))
        start += count
        assert held(replay) == sorted(oracle)
        assert len(replay) == len(oracle)


@given(st.lists(st.integers(1, 25), min_size=1, max_size=8))
@settings(max_examples=30, deadline=None)
def test_pushing_a_batch_is_pushing_its_rows_one_by_one(counts: list[int]) -> None:
    together, alone, start = buffer(7), buffer(7), 0
    for count in counts:
        together.push(rows(start, count))
        for number in range(start, start + count):
            alone.push(rows(number, 1))
        start += count
    assert np.array_equal(together.state_dict()["columns"]["action"], alone.state_dict()["columns"]["action"])
    assert together.state_dict()["position"] == alone.state_dict()["position"]


def test_samples_are_whole_rows_of_what_is_held() -> None:
    replay = buffer(8)
    replay.push(rows(0, 13))
    batch = replay.sample(500)
    assert set(batch["action"].tolist()) == set(range(5, 13))
    assert np.array_equal(batch["obs"]["position"][:, 1], -batch["action"])
    assert np.array_equal(batch["terminated"], batch["action"] % 2 == 0)


def test_every_row_is_drawn_equally_often() -> None:
    replay = buffer(20)
    replay.push(rows(0, 10))
    counts = np.bincount(replay.sample(20_000)["action"], minlength=10)
    # Ten standard deviations of a binomial with p = 1/10.
    assert np.abs(counts - 2000).max() < 10 * np.sqrt(20_000 * 0.1 * 0.9)


def test_samples_stay_when_the_ring_moves_on() -> None:
    replay = buffer(4)
    replay.push(rows(0, 4))
    batch = replay.sample(6)
    before = batch["action"].copy()
    replay.push(rows(100, 4))
    assert np.array_equal(batch["action"], before)


def test_pushed_arrays_are_copied() -> None:
    replay, transitions = buffer(4), rows(0, 4)
    replay.push(transitions)
    transitions["action"][:] = 99
    assert held(replay) == [0, 1, 2, 3]


def test_dtypes_come_from_the_first_push() -> None:
    replay = buffer()
    replay.push({"pixels": np.full((2, 3, 3), 255, np.uint8), "reward": np.ones(2, np.float32)})
    batch = replay.sample(5)
    assert batch["pixels"].dtype == np.uint8
    assert batch["pixels"].shape == (5, 3, 3)
    assert batch["reward"].dtype == np.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"action": np.zeros(3)}, r"'action' is float64 \(3,\), expected int64 \(3,\)"),
        ({"action": np.zeros((3, 1), np.int64)}, r"'action' is int64 \(3, 1\), expected int64 \(3,\)"),
        ({"action": np.zeros(2, np.int64)}, r"'action' is int64 \(2,\), expected int64 \(3,\)"),
        ({"action": [0, 1, 2]}, "'action' is list, expected a numpy array"),
        ({"rewrad": np.zeros(3)}, "'rewrad' was not in the first rows"),
        ({"action": None}, "'action' is NoneType"),
        ({"obs": np.zeros(3)}, "'obs' is ndarray, expected a dict"),
        ({"obs": {"position": np.zeros((3, 2), np.float32)}}, "'obs.seen' is missing"),
        ({"obs": {**rows(0, 3)["obs"], "seen": {"id": np.zeros(3, bool)}}}, "'obs.seen.id' is bool"),
    ],
)
def test_a_column_that_differs_is_named_and_nothing_is_stored(change: dict[str, Any], message: str) -> None:
    replay = buffer(4)
    replay.push(rows(0, 4))
    with pytest.raises(TreeError, match=message):
        replay.push({**rows(50, 3), **change})
    assert held(replay) == [0, 1, 2, 3]


def test_rows_that_are_no_dict_are_refused() -> None:
    replay = buffer()
    replay.push(rows(0, 2))
    with pytest.raises(TreeError, match="list, expected a dict"):
        replay.push([1, 2])  # type: ignore[arg-type]


def test_a_missing_column_is_named() -> None:
    replay = buffer()
    replay.push(rows(0, 2))
    transitions = rows(2, 2)
    del transitions["terminated"]
    with pytest.raises(TreeError, match="'terminated' is missing"):
        replay.push(transitions)


def test_columns_of_different_length_are_refused_at_the_first_push() -> None:
    replay = buffer()
    with pytest.raises(TreeError, match=r"'reward' is float32 \(2,\)"):
        replay.push({"obs": np.zeros((3, 4)), "reward": np.zeros(2, np.float32)})
    assert len(replay) == 0
    replay.push(rows(0, 2))
    assert held(replay) == [0, 1]


def test_sampling_from_an_empty_buffer_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        buffer().sample(4)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_of_nothing_is_refused(batch_size: int) -> None:
    replay = buffer()
    replay.push(rows(0, 2))
    with pytest.raises(UsageError, match="batch_size"):
        replay.sample(batch_size)


def test_no_capacity_is_refused() -> None:
    with pytest.raises(UsageError, match="capacity is 0"):
        buffer(0)


@pytest.mark.parametrize("pushed", [0, 5, 13])
def test_a_restored_buffer_goes_on_like_the_saved_one(pushed: int) -> None:
    saved, restored = buffer(8), buffer(8, seed=99)
    if pushed:
        saved.push(rows(0, pushed))
        saved.sample(3)
    state = saved.state_dict()
    restored.load_state_dict(state)
    for replay in (saved, restored):
        replay.push(rows(100, 3))
    assert len(saved) == len(restored)
    for _ in range(3):
        assert np.array_equal(saved.sample(50)["action"], restored.sample(50)["action"])
    assert held(saved) == held(restored)


def test_a_saved_state_does_not_change_with_the_buffer() -> None:
    replay = buffer(4)
    replay.push(rows(0, 4))
    state = replay.state_dict()
    replay.push(rows(50, 4))
    replay.load_state_dict(state)
    assert held(replay) == [0, 1, 2, 3]


def test_a_state_of_another_capacity_is_refused() -> None:
    with pytest.raises(StateError, match="capacity 10 cannot continue one of 4"):
        buffer(10).load_state_dict(buffer(4).state_dict())


def test_a_restored_buffer_refuses_other_columns() -> None:
    saved, restored = buffer(4), buffer(4)
    saved.push(rows(0, 3))
    restored.load_state_dict(saved.state_dict())
    with pytest.raises(TreeError, match="'action'"):
        restored.push({**rows(0, 1), "action": np.zeros(1)})
