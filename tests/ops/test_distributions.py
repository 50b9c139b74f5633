"""Distributions agree with torch's own, and their pull-backs with autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from engine.ops import distributions as ops

ROWS = 32
RANDOM = np.random.default_rng(7)
LOGITS = torch.from_numpy(3 * RANDOM.normal(size=(ROWS, 5)))
OTHER = torch.from_numpy(3 * RANDOM.normal(size=(ROWS, 5)))
CHOICE = torch.from_numpy(RANDOM.integers(0, 5, ROWS))
MEAN, LOG_STD, ACTION, MEAN_2, LOG_STD_2 = (torch.from_numpy(RANDOM.normal(size=(ROWS, 3))) for _ in range(5))
# actions that a model rules out: none, one, two, all but one
MASKED, MASKED_OTHER = (
    logits.masked_fill(torch.arange(5)[None, :] >= 5 - torch.arange(ROWS)[:, None] % 5, -torch.inf)
    for logits in (LOGITS, OTHER)
)
POSSIBLE = torch.from_numpy(RANDOM.integers(0, 5, ROWS)) % (5 - torch.arange(ROWS) % 5)
NORMAL = Independent(Normal(MEAN, LOG_STD.exp()), 1)
NORMAL_2 = Independent(Normal(MEAN_2, LOG_STD_2.exp()), 1)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda c: ops.categorical(c(LOGITS), c(CHOICE))[0], Categorical(logits=LOGITS).log_prob(CHOICE)),
        (lambda c: ops.categorical(c(LOGITS), c(CHOICE))[1], Categorical(logits=LOGITS).entropy()),
        (
            lambda c: ops.categorical_log_prob(c(LOGITS), c(CHOICE)),
            Categorical(logits=LOGITS).log_prob(CHOICE),
        ),
        (lambda c: ops.categorical_entropy(c(LOGITS)), Categorical(logits=LOGITS).entropy()),
        (
            lambda c: ops.categorical_kl(c(LOGITS), c(OTHER)),
            kl_divergence(Categorical(logits=LOGITS), Categorical(logits=OTHER)),
        ),
        (
            lambda c: ops.categorical(c(MASKED), c(CHOICE))[0],
            Categorical(logits=MASKED).log_prob(CHOICE),
        ),
        (lambda c: ops.categorical(c(MASKED), c(CHOICE))[1], Categorical(logits=MASKED).entropy()),
        (
            lambda c: ops.categorical_log_prob(c(MASKED), c(CHOICE)),
            Categorical(logits=MASKED).log_prob(CHOICE),
        ),
        (lambda c: ops.categorical_entropy(c(MASKED)), Categorical(logits=MASKED).entropy()),
        *(
            (
                lambda c, one=one, two=two: ops.categorical_kl(c(one), c(two)),
                kl_divergence(Categorical(logits=one), Categorical(logits=two)),
            )
            for one, two in ((MASKED, MASKED_OTHER), (MASKED, LOGITS), (LOGITS, MASKED))
        ),
        (lambda c: ops.gaussian(c(MEAN), c(LOG_STD), c(ACTION))[0], NORMAL.log_prob(ACTION)),
        (lambda c: ops.gaussian(c(MEAN), c(LOG_STD), c(ACTION))[1], NORMAL.entropy()),
        (lambda c: ops.gaussian_log_prob(c(MEAN), c(LOG_STD), c(ACTION)), NORMAL.log_prob(ACTION)),
        (lambda c: ops.gaussian_entropy(c(LOG_STD)), NORMAL.entropy()),
        (
            lambda c: ops.gaussian_kl(c(MEAN), c(LOG_STD), c(MEAN_2), c(LOG_STD_2)),
            kl_divergence(NORMAL, NORMAL_2),
        ),
    ],
)
def test_values_are_those_of_torch_distributions(found, expected, convert) -> None:
    np.testing.assert_allclose(np.asarray(found(convert)), expected.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "entropy_weight", [0.0, -0.3, RANDOM.uniform(-1, 1, ROWS)], ids=["0", "scalar", "rows"]
)
@pytest.mark.parametrize("kind", ["categorical", "masked", "gaussian"])
def test_pull_backs_are_autograd_of_torch_distributions(kind, entropy_weight, convert) -> None:
    weight = np.random.default_rng(2).normal(size=ROWS)
    parameters = {"categorical": [LOGITS], "masked": [MASKED], "gaussian": [MEAN, LOG_STD]}[kind]
    leaves = [x.clone().requires_grad_() for x in parameters]
    if kind != "gaussian":
        law, action = Categorical(logits=leaves[0]), POSSIBLE
    else:
        law, action = Independent(Normal(leaves[0], leaves[1].exp()), 1), ACTION
    spread = torch.as_tensor(entropy_weight, dtype=torch.float64) * law.entropy()
    (torch.from_numpy(weight) * law.log_prob(action) + spread).sum().backward()
    function = ops.gaussian if kind == "gaussian" else ops.categorical
    _, _, pull_back = function(*(convert(x.detach()) for x in leaves), convert(action))
    spread = entropy_weight if isinstance(entropy_weight, float) else convert(entropy_weight)
    for found, leaf in zip(pull_back(convert(weight), spread), leaves, strict=True):
        np.testing.assert_allclose(np.asarray(found), leaf.grad.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: ops.categorical(x, POSSIBLE)[0], lambda law: law.log_prob(POSSIBLE)),
        (lambda x: ops.categorical(x, POSSIBLE)[1], lambda law: law.entropy()),
        (lambda x: ops.categorical_log_prob(x, POSSIBLE), lambda law: law.log_prob(POSSIBLE)),
        (ops.categorical_entropy, lambda law: law.entropy()),
        (
            lambda x: ops.categorical_kl(x, LOGITS),
            lambda law: -law.entropy() - (law.probs * torch.log_softmax(LOGITS, -1)).sum(-1),
        ),
    ],
    ids=["log_prob", "entropy", "categorical_log_prob", "categorical_entropy", "categorical_kl"],
)
def test_gradients_through_masked_logits_are_those_of_torch_distributions(function, expected) -> None:
    mine, theirs = (MASKED.clone().requires_grad_() for _ in range(2))
    function(mine).sum().backward()
    expected(Categorical(logits=theirs)).sum().backward()
    assert torch.isfinite(mine.grad).all()
    torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12)


def test_huge_logits_neither_overflow_nor_lose_the_choice() -> None:
    logits = np.array([[1e4, 0.0], [-1e4, 0.0]], np.float32)
    log_prob, entropy, pull_back = ops.categorical(logits, np.array([0, 0]))
    np.testing.assert_array_equal(log_prob, [0.0, -1e4])
    np.testing.assert_array_equal(entropy, [0.0, 0.0])
    np.testing.assert_array_equal(pull_back(np.ones(2, np.float32), 0.0)[0], [[0, 0], [1, -1]])


def test_float32_stays_float32() -> None:
    logits = np.zeros((4, 3), np.float32)
    log_prob, entropy, pull_back = ops.categorical(logits, np.zeros(4, np.int64))
    assert {log_prob.dtype, entropy.dtype, pull_back(log_prob, -0.1)[0].dtype} == {np.dtype(np.float32)}
