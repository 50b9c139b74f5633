"""Prioritised replay against the definitions of its paper, computed from all transitions one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data.prioritized import PrioritizedReplay
from engine.data.replay import ReplayBuffer
from engine.errors import StateError, TreeError, UsageError

ALPHA, EPSILON = 0.7, 0.01


def buffer(capacity: int = 10, seed: int = 0, **more: Any) -> PrioritizedReplay:
    options = {"alpha": ALPHA, "epsilon": EPSILON, **more}
    return PrioritizedReplay(capacity, generator=np.random.default_rng(seed), **options)


def rows(start: int, count: int) -> dict[str, Any]:
    """Transitions that carry their number in every column."""
    number = np.arange(start, start + count)
    return {"obs": {"id": number.astype(np.float32)}, "action": number}


class Oracle:
    """A list of (number, priority), and the largest priority there ever was."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: dict[int, float] = {}
        self.largest = 1.0

    def push(self, start: int, count: int, errors: list[float] | None = None) -> None:
        first = [self.largest] * count
        if errors is not None:
            first = [(abs(error) + EPSILON) ** ALPHA for error in errors]
        pushed = dict(zip(range(start, start + count), first, strict=True))
        self.held = dict([*self.held.items(), *pushed.items()][-self.capacity :])
        self.largest = max([self.largest, *(pushed[n] for n in self.held if n in pushed)])

    def update(self, numbers: list[int], errors: list[float]) -> None:
        told = [
            (n, (abs(e) + EPSILON) ** ALPHA) for n, e in zip(numbers, errors, strict=True) if n in self.held
        ]
        self.held.update(told)
        self.largest = max([self.largest, *(priority for _, priority in told)])


@given(st.integers(1, 40), st.lists(st.integers(0, 60), min_size=1, max_size=10), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_priorities_are_those_of_the_definition(capacity: int, counts: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    replay, oracle, start = buffer(capacity, seed), Oracle(capacity), 0
    late: tuple[Any, Any] | None = None
    for count in counts:
        if random.random() < 0.5:
            replay.push(rows(start, count))
            oracle.push(start, count)
        else:
            first = random.normal(size=count) * 10
            replay.push({**rows(start, count), "td_error": first})
            oracle.push(start, count, first.tolist())
        start += count
        if not len(replay):
            continue
        if late is not None:  # the errors of a batch whose rows may be gone by now
            replay.update(*late)
            oracle.update(late[0].tolist(), late[1].tolist())
        batch = replay.sample(8)
        assert (batch["replay_index"] == batch["action"]).all(), "rows are numbered as they are pushed"
        errors = random.normal(size=8) * 10
        replay.update(batch["replay_index"], errors)
        oracle.update(batch["action"].tolist(), errors.tolist())
        late = batch["replay_index"], random.normal(size=8)
        found = dict(zip(replay.state_dict()["columns"]["action"].tolist(), replay.priorities(), strict=True))
        assert found == pytest.approx(oracle.held)


@given(st.integers(1, 50), st.floats(0.0, 1.0), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_weights_are_those_of_the_definition(count: int, beta: float, seed: int) -> None:
    replay = buffer(40, seed, beta=beta)
    replay.push(rows(0, count))
    held = np.arange(max(0, count - 40), count)
    replay.update(held, np.random.default_rng(seed).exponential(size=len(held)) * 5)
    batch = replay.sample(32)
    state = replay.state_dict()
    priority = dict(zip(state["columns"]["action"].tolist(), state["priorities"], strict=True))
    total = sum(priority.values())
    weights = [(len(held) * priority[number] / total) ** -beta for number in batch["action"].tolist()]
    np.testing.assert_allclose(batch["weight"], np.array(weights) / max(weights), rtol=1e-5)
    assert batch["weight"].dtype == np.float32
    assert batch["weight"].max() == 1.0


def test_transitions_are_drawn_by_priority() -> None:
    replay = buffer(4, alpha=1.0, epsilon=1e-9)
    replay.push(rows(0, 4))
    replay.update(np.arange(4), np.array([1.0, -2.0, 3.0, -4.0]))
    counts = sum(np.bincount(replay.sample(10)["action"], minlength=4) for _ in range(2_000))
    # Each batch has one draw from every tenth of the probability, so the counts spread less than binomially.
    np.testing.assert_allclose(counts / 20_000, [0.1, 0.2, 0.3, 0.4], atol=0.01)


def test_alpha_0_draws_uniformly_with_equal_weights() -> None:
    replay = buffer(8, alpha=0.0, beta=1.0)
    replay.push(rows(0, 8))
    replay.update(np.arange(8), np.arange(8.0))
    batch = replay.sample(8)
    assert batch["action"].tolist() == list(range(8)), "one from each eighth"
    assert (batch["weight"] == 1.0).all()


def test_beta_1_makes_the_weighted_mean_unbiased() -> None:
    """sum_i P(i) w(i) x(i) is the plain mean of x, up to the common factor of the weights."""
    replay = buffer(5, alpha=1.0, beta=1.0)
    replay.push(rows(0, 5))
    replay.update(np.arange(5), np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    batch = replay.sample(31_000)
    share = [batch["weight"][batch["action"] == number].sum() for number in range(5)]
    np.testing.assert_allclose(np.array(share) / sum(share), 0.2, atol=0.002)


def test_new_transitions_get_the_largest_priority_there_ever_was() -> None:
    replay = buffer(6, alpha=1.0)
    replay.push(rows(0, 2))
    np.testing.assert_array_equal(replay.priorities(), [1.0, 1.0])
    replay.update(np.array([0, 1]), np.array([9.0, 0.5]))
    replay.update(np.array([0]), np.array([0.0]))
    replay.push(rows(2, 1))
    np.testing.assert_allclose(replay.priorities(), [0.01, 0.51, 9.01])


def test_first_errors_are_priorities_and_no_column() -> None:
    replay = buffer(4, alpha=1.0)
    errors = np.array([3.0, -2.0, 0.0], np.float32)
    replay.push({"td_error": errors, **rows(0, 3)})
    np.testing.assert_allclose(replay.priorities(), [3.01, 2.01, 0.01])
    assert set(replay.sample(2)) == {"obs", "action", "weight", "replay_index"}
    replay.push(rows(3, 1))
    assert replay.priorities()[3] == pytest.approx(3.01), "the largest so far was pushed"


def test_wrong_first_errors_are_named_and_nothing_is_stored() -> None:
    replay = buffer(4)
    replay.push(rows(0, 2))
    before = replay.state_dict()
    with pytest.raises(UsageError, match="push: td_error has a value that is not finite"):
        replay.push({**rows(2, 2), "td_error": np.array([1.0, np.inf])})
    with pytest.raises(UsageError, match=r"push: td_error \(3,\) is to be \(2,\)"):
        replay.push({**rows(2, 2), "td_error": np.zeros(3)})
    with pytest.raises(TreeError, match="column 'action' is missing"):
        replay.push({"obs": rows(2, 2)["obs"], "td_error": np.full(2, 9.0)})
    after = replay.state_dict()
    assert (after["size"], after["pushed"], after["largest"]) == (2, 2, before["largest"])
    np.testing.assert_array_equal(after["priorities"], before["priorities"])


def test_an_error_of_what_was_overwritten_reaches_nobody_else() -> None:
    replay = buffer(4)
    replay.push(rows(0, 4))
    batch = replay.sample(4)
    replay.push(rows(4, 4))
    before = replay.priorities()
    replay.update(batch["replay_index"], np.full(4, 100.0))
    np.testing.assert_array_equal(replay.priorities(), before)
    replay.push(rows(8, 1))
    assert replay.priorities().max() == 1.0, "and is not the largest one either"


def test_of_a_transition_drawn_twice_the_last_error_counts() -> None:
    replay = buffer(4, alpha=1.0)
    replay.push(rows(0, 2))
    replay.update(np.array([1, 0, 1]), np.array([5.0, 2.0, 3.0]))
    np.testing.assert_allclose(replay.priorities(), [2.01, 3.01])


def test_a_resumed_buffer_draws_what_the_saved_one_would_have() -> None:
    replay, again = buffer(50), buffer(50, seed=99)
    random = np.random.default_rng(1)
    for step in range(8):
        replay.push(rows(9 * step, 9))
        replay.update(replay.sample(16)["replay_index"], random.normal(size=16))
    replay.beta = 0.75
    again.load_state_dict(replay.state_dict())
    for step in range(8, 12):
        one, two = replay.sample(16), again.sample(16)
        for name in ("action", "weight", "replay_index"):
            assert np.array_equal(one[name], two[name])
        errors = random.normal(size=16)
        for each, batch in ((replay, one), (again, two)):
            each.update(batch["replay_index"], errors)
            each.push(rows(9 * step, 9))
    assert np.array_equal(replay.priorities(), again.priorities())


def test_the_saved_state_does_not_change_later() -> None:
    replay = buffer()
    replay.push(rows(0, 3))
    state = replay.state_dict()
    replay.update(np.arange(3), np.full(3, 7.0))
    assert state["priorities"].tolist() == [1.0, 1.0, 1.0]


def test_mistakes_are_named() -> None:
    replay = buffer(4)
    with pytest.raises(UsageError, match="buffer is empty"):
        replay.sample(2)
    replay.push(rows(0, 3))
    with pytest.raises(UsageError, match="at least 1"):
        replay.sample(0)
    with pytest.raises(UsageError, match="not finite"):
        replay.update(np.arange(2), np.array([1.0, np.nan]))
    with pytest.raises(UsageError, match=r"\(B,\) both"):
        replay.update(np.arange(2), np.zeros(3))
    with pytest.raises(TreeError, match="column 'action' is missing"):
        replay.push({"obs": rows(0, 2)["obs"]})
    assert len(replay) == 3
    with pytest.raises(StateError, match="no priorities"):
        replay.load_state_dict(ReplayBuffer(4, generator=np.random.default_rng(0)).state_dict())
    for wrong in ({"alpha": 1.1}, {"beta": -0.1}, {"epsilon": 0.0}):
        with pytest.raises(UsageError, match="alpha and beta are 0 to 1"):
            buffer(4, **wrong)
