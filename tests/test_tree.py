"""Batches as trees: what they hold, what they share, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from engine.errors import TreeError
from engine.tree import as_tree, batch_size, is_tree, plain


def test_arrays_are_held_through_shared_memory_and_tensors_as_they_are() -> None:
    reward, action = np.zeros(3, np.float32), torch.zeros(3)
    tree = as_tree({"obs": {"reward": reward}, "action": action})
    reward[1] = 7
    assert tree.obs.reward.tolist() == [0, 7, 0]
    assert tree["action"] is action
    assert batch_size(tree) == 3


def test_arrays_stay_where_they_are_whatever_torchs_default_device_is() -> None:
    reward = np.zeros(3, np.float32)
    with torch.device("meta"):
        tree = as_tree({"reward": reward})
    assert tree["reward"].device.type == "cpu"


@pytest.mark.parametrize(
    "value", [np.array(2.5), np.float32(2.5), 2.5, [2.5], torch.tensor(2.5), np.array([2.5])[::1]]
)
def test_whatever_has_numbers_becomes_a_leaf(value: Any) -> None:
    leaf = as_tree({"a": value})["a"]
    assert isinstance(leaf, torch.Tensor)
    assert float(leaf) == 2.5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.array(["x"]), r"obs\.name holds ndarray, which is no tensor"),
        (np.zeros(3)[::-1], r"obs\.name holds ndarray, which is no tensor"),
        ("x", r"obs\.name holds str, which is no tensor"),
        ({1: 0}, r"obs\.name\.1 is named by int"),
        ({"shape": 0}, r"obs\.name\.shape: the name 'shape' would hide"),
    ],
)
def test_what_a_tree_cannot_hold_is_refused_by_its_path(value: Any, message: str) -> None:
    with pytest.raises(TreeError, match=message):
        as_tree({"obs": {"name": value}})


def test_trees_are_known_from_everything_else() -> None:
    tree = as_tree({"a": {"b": np.zeros(2)}})
    assert is_tree(tree)
    assert is_tree(tree.a)
    assert not any(map(is_tree, ({"a": 1}, np.zeros(2), torch.zeros(2), None, type(tree))))
    assert plain(tree)["a"]["b"].tolist() == [0, 0]
