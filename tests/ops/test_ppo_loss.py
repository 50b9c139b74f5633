"""PPO's loss equals a naive loop over rows; its closed-form gradient equals autograd of the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.ops.ppo import normalize, ppo_gradient, ppo_loss

NAMES = ("log_prob", "old_log_prob", "advantage", "value", "returns", "entropy", "old_value")


def rows(count: int = 64, seed: int = 0) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    data = {name: random.normal(size=count) for name in NAMES}
    data["log_prob"] = data["old_log_prob"] + 0.3 * random.normal(size=count)
    return data


def naive(data, *, clip, value_coef, entropy_coef, value_clip):
    """The definitions, one row after the other."""
    terms = dict.fromkeys(("policy", "value", "entropy", "kl", "outside"), 0.0)
    count = len(data["log_prob"])
    for i in range(count):
        row = {name: float(column[i]) for name, column in data.items()}
        ratio = math.exp(row["log_prob"] - row["old_log_prob"])
        kept = min(max(ratio, 1 - clip), 1 + clip)
        terms["policy"] -= min(ratio * row["advantage"], kept * row["advantage"]) / count
        error = (row["value"] - row["returns"]) ** 2
        if value_clip is not None:
            moved = row["value"] - row["old_value"]
            near = row["old_value"] + math.copysign(min(abs(moved), value_clip), moved)
            error = max(error, (near - row["returns"]) ** 2)
        terms["value"] += error / count
        terms["entropy"] += row["entropy"] / count
        terms["kl"] += (ratio - 1 - math.log(ratio)) / count
        terms["outside"] += (abs(ratio - 1) > clip) / count
    total = terms["policy"] + value_coef * terms["value"] - entropy_coef * terms["entropy"]
    return [total, *terms.values()]


OPTIONS = [
    {"clip": 0.2, "value_coef": 0.5, "entropy_coef": 0.01, "value_clip": None},
    {"clip": 0.1, "value_coef": 1.3, "entropy_coef": 0.0, "value_clip": 0.4},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("function", [ppo_loss, ppo_gradient])
def test_loss_equals_a_naive_loop(function, options, convert) -> None:
    data = rows()
    out = function(**{name: convert(column) for name, column in data.items()}, **options)
    loss = out if function is ppo_loss else out.loss
    np.testing.assert_allclose([float(x) for x in loss], naive(data, **options), rtol=1e-10)


@pytest.mark.parametrize("options", OPTIONS)
def test_gradient_equals_autograd_of_the_loss(options, convert) -> None:
    tensors = {name: torch.from_numpy(column).requires_grad_() for name, column in rows().items()}
    ppo_loss(**tensors, **options).total.backward()
    found = ppo_gradient(**{name: convert(column) for name, column in rows().items()}, **options)
    np.testing.assert_allclose(np.asarray(found.log_prob), tensors["log_prob"].grad, atol=1e-12)
    np.testing.assert_allclose(np.asarray(found.value), tensors["value"].grad, atol=1e-12)
    np.testing.assert_allclose(np.full(64, found.entropy), tensors["entropy"].grad, atol=1e-12)


def test_gradient_equals_finite_differences() -> None:
    data, options, step = rows(8), OPTIONS[1], 1e-6
    found = ppo_gradient(**data, **options)
    for name in ("log_prob", "value"):
        for i in range(8):
            up, down = ({**data, name: data[name].copy()} for _ in range(2))
            up[name][i] += step
            down[name][i] -= step
            slope = (naive(up, **options)[0] - naive(down, **options)[0]) / (2 * step)
            assert getattr(found, name)[i] == pytest.approx(slope, abs=1e-6)


def test_an_unmoved_policy_has_the_plain_policy_gradient() -> None:
    data = rows(4)
    data["log_prob"] = data["old_log_prob"]
    found = ppo_gradient(**data, **OPTIONS[0])
    np.testing.assert_allclose(found.log_prob, -data["advantage"] / 4)
    assert (found.loss.kl, found.loss.clip_fraction) == (0.0, 0.0)


def test_value_is_clipped_around_the_stored_value() -> None:
    one = np.ones(1)
    common = {"log_prob": 0 * one, "old_log_prob": 0 * one, "advantage": 0 * one, "entropy": 0 * one}
    options = {"clip": 0.2, "value_coef": 1.0, "entropy_coef": 0.0, "value_clip": 0.5}
    # V moved from 0 to 2 past the return 1.5: the clipped value 0.5 has the larger error, (0.5 - 1.5)^2
    found = ppo_gradient(**common, value=2 * one, returns=1.5 * one, old_value=0 * one, **options)
    assert float(found.loss.value) == 1.0
    assert float(found.value[0]) == 0.0
    # had the old value been recomputed as the present one, nothing would be clipped
    again = ppo_gradient(**common, value=2 * one, returns=1.5 * one, old_value=2 * one, **options)
    assert float(again.loss.value) == 0.25
    assert float(again.value[0]) == 1.0


def test_value_clip_without_the_stored_value_is_an_error() -> None:
    data = rows(4)
    del data["old_value"]
    with pytest.raises(ValueError, match="stored when the data was collected"):
        ppo_gradient(**data, **OPTIONS[1])


def test_normalized_advantages_have_mean_0_and_deviation_1(convert) -> None:
    found = np.asarray(normalize(convert(np.array([1.0, 2.0, 3.0, 10.0]))))
    assert found.mean() == pytest.approx(0)
    assert found.std() == pytest.approx(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rows", [2, 3, 64, 1000, 4097])
@pytest.mark.parametrize("value", [0.0, 0.1, -1 / 3, 123.456, -7.7e5, 1e10, 3e18])
def test_equal_advantages_have_no_spread_to_be_blown_up(convert, value, rows, dtype) -> None:
    found = np.asarray(normalize(convert(np.full(rows, value, dtype))))
    assert np.all(found == 0), "rounding of the mean is no advantage"


@pytest.mark.parametrize("rows", [2, 64, 256, 1000])
def test_ordinary_advantages_are_what_the_plain_formula_gives_to_the_last_bit(rows) -> None:
    advantage = np.random.default_rng(rows).normal(0.3, 2.0, rows).astype(np.float32)
    centred = advantage - np.mean(advantage)
    plain = centred / (np.mean(centred * centred) ** 0.5 + 1e-8)
    assert normalize(advantage).tobytes() == plain.tobytes()


@pytest.mark.parametrize("offset", [0.0, 1.0, -1000.0])
def test_a_small_spread_above_the_rounding_of_the_mean_is_kept(convert, offset) -> None:
    advantage = np.full(64, offset, np.float32)
    advantage[::2] += np.float32(abs(offset) or 1.0) * 2.0**-18  # 32 roundings
    found = np.asarray(normalize(convert(advantage), epsilon=0.0))
    np.testing.assert_allclose(np.abs(found), 1.0, rtol=0.05)  # the mean itself is rounded


def test_a_single_advantage_is_neither_nan_nor_0() -> None:
    assert normalize(np.array([3.0], np.float32)).tolist() == [3.0]
    assert normalize(torch.tensor([3.0])).tolist() == [3.0]
