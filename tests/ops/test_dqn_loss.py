"""DQN's targets and loss equal naive loops; the closed-form gradient equals autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.ops.dqn import dqn_gradient, dqn_loss, dqn_target

RANDOM = np.random.default_rng(3)
ROWS = 16
Q, ONLINE = RANDOM.normal(size=(ROWS, 4)) * 2, RANDOM.normal(size=(ROWS, 4))
ACTION = RANDOM.integers(0, 4, ROWS)
REWARD, DISCOUNT, TARGET = RANDOM.normal(size=ROWS), RANDOM.choice([0.0, 0.9], ROWS), RANDOM.normal(size=ROWS)


@pytest.mark.parametrize("double", [False, True])
def test_target_equals_a_naive_loop(double, convert) -> None:
    expected = []
    for i in range(ROWS):
        judge = ONLINE if double else Q
        best = max(range(4), key=lambda a: judge[i][a])
        expected.append(REWARD[i] + DISCOUNT[i] * Q[i][best])
    online = convert(ONLINE) if double else None
    found = dqn_target(convert(REWARD), convert(DISCOUNT), convert(Q), online)
    np.testing.assert_allclose(np.asarray(found), expected)


def naive_loss(q, huber):
    total = 0.0
    for i in range(ROWS):
        error = abs(q[i][ACTION[i]] - TARGET[i])
        linear = huber is not None and error > huber
        total += huber * (error - huber / 2) if linear else error**2 / 2
    return total / ROWS


@pytest.mark.parametrize("huber", [None, 1.0, 0.3])
def test_loss_and_gradient_agree_with_a_naive_loop(huber, convert) -> None:
    found = dqn_gradient(convert(Q), convert(ACTION), convert(TARGET), huber=huber)
    assert float(found.loss) == pytest.approx(naive_loss(Q, huber))
    assert float(dqn_loss(convert(Q), convert(ACTION), convert(TARGET), huber=huber)) == pytest.approx(
        naive_loss(Q, huber)
    )
    for i in range(ROWS):
        for a in range(4):
            up, down = Q.copy(), Q.copy()
            up[i, a] += 1e-6
            down[i, a] -= 1e-6
            slope = (naive_loss(up, huber) - naive_loss(down, huber)) / 2e-6
            assert float(found.q[i, a]) == pytest.approx(slope, abs=1e-6)


@pytest.mark.parametrize("huber", [None, 0.5])
def test_gradient_equals_autograd_of_torchs_own_loss(huber, convert) -> None:
    q = torch.from_numpy(Q).requires_grad_()
    chosen = q.gather(1, torch.from_numpy(ACTION)[:, None])[:, 0]
    target = torch.from_numpy(TARGET)
    own = torch.nn.functional
    loss = own.mse_loss(chosen, target) / 2 if huber is None else own.huber_loss(chosen, target, delta=huber)
    loss.backward()
    found = dqn_gradient(convert(Q), convert(ACTION), convert(TARGET), huber=huber)
    np.testing.assert_allclose(np.asarray(found.q), q.grad, atol=1e-12)


def test_error_is_prediction_less_target() -> None:
    found = dqn_gradient(np.array([[1.0, 5.0]]), np.array([1]), np.array([3.0]))
    assert found.td_error.tolist() == [2.0]


@pytest.mark.parametrize("huber", [None, 0.3])
def test_weights_multiply_each_rows_loss_and_no_error(huber, convert) -> None:
    weight = np.random.default_rng(7).random(ROWS)
    q = torch.from_numpy(Q).requires_grad_()
    args = convert(ACTION), convert(TARGET)
    found = dqn_gradient(convert(Q), *args, huber=huber, weight=convert(weight))
    loss = dqn_loss(
        q, torch.from_numpy(ACTION), torch.from_numpy(TARGET), huber=huber, weight=torch.from_numpy(weight)
    )
    loss.backward()
    rows = (dqn_loss(Q[i : i + 1], ACTION[i : i + 1], TARGET[i : i + 1], huber=huber) for i in range(ROWS))
    expected = sum(share * row for share, row in zip(weight, rows, strict=True)) / ROWS
    assert float(found.loss) == pytest.approx(float(expected))
    assert float(loss.detach()) == pytest.approx(float(expected))
    np.testing.assert_allclose(found.q, q.grad, atol=1e-12)
    np.testing.assert_allclose(found.td_error, Q[np.arange(ROWS), ACTION] - TARGET, atol=1e-12)
