"""First priorities are the errors that the definition gives, whatever ends an episode."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from engine.context import OnlineContext
from engine.data.n_step import NStep
from engine.data.prioritized import PrioritizedReplay
from engine.middleware.functional.priorities import rows_with_errors
from engine.middleware.functional.push import prepare_rows, push_rows, rows_to_push
from engine.pipeline import serial
from engine.policies.config import DQNConfig
from engine.policies.dqn import DQN

DISCOUNT, ACTIONS = 0.9, 3
# How each step of two environments ends: goes on, terminated, truncated, both; x is no transition.
ENDS = ("..t.ux...b..", "u...tx..u...")
STEPS, ENVS = len(ENDS[0]), len(ENDS)
STATES = 2 * STEPS * ENVS  # each step begins in a state of its own and ends in another


def table(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=(STATES, ACTIONS)).astype(np.float32)


def table_policy(q: Any, **options: Any) -> DQN:
    """A policy whose net looks up the values `q` of one-hot states."""
    net = nn.Linear(STATES, ACTIONS, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(q.T))
    config = DQNConfig(discount=DISCOUNT, **options)
    return DQN(spaces.Box(0, 1, (STATES,)), spaces.Discrete(ACTIONS), config, model=net)


def trajectory() -> dict[str, Any]:
    random = np.random.default_rng(3)
    ends = np.array([list(line) for line in ENDS]).T
    states = np.eye(STATES, dtype=np.float32).reshape(2, STEPS, ENVS, STATES)
    return {
        "obs": states[0],
        "action": random.integers(ACTIONS, size=(STEPS, ENVS)),
        "reward": random.normal(size=(STEPS, ENVS)).astype(np.float32),
        "terminated": np.isin(ends, ["t", "b"]),
        "truncated": np.isin(ends, ["u", "b"]),
        "next_obs": states[1],
        "valid": ends != "x",
        "version": np.zeros((STEPS, ENVS), np.int64),
    }


def expected(q: Any, n: int) -> dict[int, float]:
    """The error of each step whose n steps are known, by the state in which it begins."""
    data, errors = trajectory(), {}
    for env in range(ENVS):
        for begin in range(STEPS):
            if not data["valid"][begin, env]:
                continue
            total, t = 0.0, begin
            for t in range(begin, min(begin + n, STEPS)):
                total += DISCOUNT ** (t - begin) * data["reward"][t, env]
                ended = data["terminated"][t, env] or data["truncated"][t, env]
                if ended:
                    break
            if not ended and t - begin + 1 < n:
                continue  # waits for its rest
            if not data["terminated"][t, env]:
                total += DISCOUNT ** (t - begin + 1) * q[data["next_obs"][t, env].argmax()].max()
            state = int(data["obs"][begin, env].argmax())
            errors[state] = q[state, data["action"][begin, env]] - total
    return errors


def n_steps(n: int) -> NStep | None:
    return NStep(n, DISCOUNT, ENVS) if n > 1 else None


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_first_errors_are_those_of_the_definition_at_every_kind_of_end(n: int, double: bool) -> None:
    q = table(1)
    actor = table_policy(q, n_step=n, double=double).actor(np.random.default_rng(0))
    rows = rows_with_errors(actor, rows_to_push(n_steps(n)))(trajectory())
    found = dict(zip(rows["obs"].argmax(-1).tolist(), rows["td_error"].tolist(), strict=True))
    assert found == pytest.approx(expected(q, n), abs=1e-5)


def test_first_errors_are_of_the_weights_that_the_actor_has_now() -> None:
    q, newer = table(1), table(2)
    actor = table_policy(q).actor(np.random.default_rng(0))
    actor.load(table_policy(newer))
    rows = rows_with_errors(actor, rows_to_push(None))(trajectory())
    found = dict(zip(rows["obs"].argmax(-1).tolist(), rows["td_error"].tolist(), strict=True))
    assert found == pytest.approx(expected(newer, 1), abs=1e-5)
    assert found != pytest.approx(expected(q, 1), abs=1e-1)


@pytest.mark.parametrize("n", [1, 3])
def test_rows_enter_the_replay_with_their_first_errors(n: int) -> None:
    q = table(1)
    actor = table_policy(q, n_step=n).actor(np.random.default_rng(0))
    replay = PrioritizedReplay(100, generator=np.random.default_rng(0), alpha=1.0, epsilon=0.01)
    made = rows_with_errors(actor, rows_to_push(n_steps(n)))
    ctx = OnlineContext()
    ctx.trajectory = trajectory()
    serial(prepare_rows(made), push_rows(replay))(ctx)
    held = replay.state_dict()
    found = dict(zip(held["columns"]["obs"].argmax(-1).tolist(), held["priorities"].tolist(), strict=True))
    assert found == pytest.approx({s: abs(error) + 0.01 for s, error in expected(q, n).items()}, abs=1e-5)
    assert "td_error" not in held["columns"]
