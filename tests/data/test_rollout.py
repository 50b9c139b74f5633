"""A rollout stacks time rows without changing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine.data.rollout import Rollout
from engine.data.trajectories import flatten
from engine.errors import StateError, TreeError, UsageError


def row(t: int, num_envs: int = 3) -> dict[str, Any]:
    return {
        "obs": {"a": np.full((num_envs, 2), t, np.float32), "b": {"c": np.full(num_envs, t, np.uint8)}},
        "reward": np.arange(num_envs, dtype=np.float32) + 10 * t,
    }


def filled(num_steps: int, steps: int) -> Rollout:
    rollout = Rollout(num_steps)
    for t in range(steps):
        rollout.add(**row(t))
    return rollout


def test_rows_are_stacked_time_first() -> None:
    trajectory = filled(4, 4).take()
    assert np.array_equal(trajectory["reward"], [[0, 1, 2], [10, 11, 12], [20, 21, 22], [30, 31, 32]])
    assert trajectory["obs"]["a"].shape == (4, 3, 2)
    assert trajectory["obs"]["b"]["c"].dtype == np.uint8
    assert trajectory["obs"]["b"]["c"][:, 0].tolist() == [0, 1, 2, 3]


def test_it_is_full_after_its_number_of_steps() -> None:
    rollout = filled(2, 1)
    assert (len(rollout), rollout.full) == (1, False)
    rollout.add(**row(1))
    assert (len(rollout), rollout.full) == (2, True)
    with pytest.raises(UsageError, match="full"):
        rollout.add(**row(2))


def test_what_was_taken_is_never_written_again() -> None:
    rollout = filled(2, 2)
    first = rollout.take()
    assert len(rollout) == 0
    rollout.add(**row(7))
    rollout.add(**row(8))
    assert first["reward"][:, 0].tolist() == [0, 10]
    assert rollout.take()["reward"][:, 0].tolist() == [70, 80]


def test_added_rows_are_copied() -> None:
    rollout, reward = Rollout(1), np.zeros(3, np.float32)
    rollout.add(reward=reward)
    reward[:] = 5
    assert rollout.take()["reward"].tolist() == [[0, 0, 0]]


def test_after_a_take_another_kind_of_rows_may_come() -> None:
    rollout = filled(2, 2)
    rollout.take()
    rollout.add(reward=np.zeros(5))
    assert rollout.take()["reward"].shape == (1, 5)


def test_after_a_take_nothing_is_held() -> None:
    rollout = filled(2, 2)
    rollout.take()
    assert rollout.state_dict() == Rollout(2).state_dict()
    with pytest.raises(UsageError, match="empty"):
        rollout.take()


def test_rows_that_are_refused_after_a_take_leave_the_rollout_as_it_was() -> None:
    rollout = filled(2, 2)
    rollout.take()
    with pytest.raises(TreeError, match="'text' holds Python objects") as refused:
        rollout.add(text=np.array(["a"], object))
    assert refused.value.__context__ is None  # the rows before are no reason
    rollout.add(**row(0))
    assert len(rollout) == 1


def test_a_part_may_be_taken() -> None:
    assert filled(5, 2).take()["reward"].shape == (2, 3)


def test_nothing_cannot_be_taken() -> None:
    with pytest.raises(UsageError, match="empty"):
        Rollout(3).take()


def test_no_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="num_steps is 0"):
        Rollout(0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": np.zeros((3, 1), np.float32)}, r"'reward' is float32 \(3, 1\), expected float32 \(3,\)"),
        ({"reward": np.zeros(1, np.float32)}, r"'reward' is float32 \(1,\), expected float32 \(3,\)"),
        ({"reward": np.zeros(3)}, "'reward' is float64"),
        ({"value": np.zeros(3)}, "'value' was not in the first rows"),
        ({"obs": {"a": np.zeros((3, 2), np.float32)}}, "'obs.b' is missing"),
    ],
)
def test_a_row_that_differs_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    rollout = filled(4, 1)
    with pytest.raises(TreeError, match=message):
        rollout.add(**{**row(1), **change})
    assert len(rollout) == 1


def test_python_objects_are_refused_by_name() -> None:
    with pytest.raises(TreeError, match=r"'obs\.text' holds Python objects"):
        Rollout(2).add(obs={"text": np.array(["a", None], object)})


def test_a_restored_rollout_goes_on_where_it_was() -> None:
    saved, restored = filled(4, 2), Rollout(4)
    restored.load_state_dict(saved.state_dict())
    for rollout in (saved, restored):
        rollout.add(**row(2))
    assert np.array_equal(saved.take()["reward"], restored.take()["reward"])
    restored.load_state_dict(Rollout(4).state_dict())
    assert len(restored) == 0


def test_more_saved_steps_than_fit_are_refused() -> None:
    with pytest.raises(StateError, match="3 saved steps"):
        Rollout(2).load_state_dict(filled(4, 3).state_dict())


def test_flat_rows_are_the_trajectory_without_a_copy() -> None:
    trajectory = filled(4, 4).take()
    rows = flatten(trajectory, np.ones((4, 3), bool))
    assert rows["reward"].tolist() == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32]
    assert rows["obs"]["a"].shape == (12, 2)
    assert np.shares_memory(rows["obs"]["a"], trajectory["obs"]["a"])


def test_flat_rows_leave_out_what_is_not_valid() -> None:
    valid = np.ones((4, 3), bool)
    valid[1, 2] = valid[3, 0] = False
    rows = flatten(filled(4, 4).take(), valid)
    assert rows["reward"].tolist() == [0, 1, 2, 10, 11, 20, 21, 22, 31, 32]
    assert rows["obs"]["b"]["c"].tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3]
