"""Wrappers of our own."""

from __future__ import annotations

import pytest

from engine.envs.wrappers import RepeatAction
from engine.errors import EnvError
from engine.testing import Script, ScriptedEnv


def test_repeated_actions_keep_the_return_and_stop_at_the_end() -> None:
    env = RepeatAction(ScriptedEnv([Script([1.0, 2.0, 4.0, 8.0, 16.0], "truncated")]), 2)
    env.reset()
    steps = [env.step(1)[1:4] for _ in range(3)]
    assert steps == [(3.0, False, False), (12.0, False, False), (16.0, False, True)]


@pytest.mark.parametrize("repeat", [0, -1, 1.5, True])
def test_a_repeat_below_one_is_refused(repeat: int) -> None:
    with pytest.raises(EnvError, match="repeat="):
        RepeatAction(ScriptedEnv([Script([1.0])]), repeat)
