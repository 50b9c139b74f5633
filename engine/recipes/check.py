"""What can be known to fail is said before a run leaves anything behind."""

from __future__ import annotations

from typing import Any

from engine.envs.config import EnvConfig
from engine.envs.make import check_env
from engine.policies.config import DQNConfig
from engine.policies.spaces import discrete_actions


def check(config: Any) -> None:
    """Raise `ConfigError` for an environment, a device or a combination that cannot work.

    Makes one environment and closes it.  Imports torch only where CUDA is asked for.
    """
    env = getattr(config, "env", None)
    if isinstance(env, EnvConfig):
        _, action_space = check_env(env)
        if isinstance(getattr(config, "policy", None), DQNConfig):
            discrete_actions(action_space)
    if getattr(config, "device", None) == "cuda":
        from engine.policies.device import choose_device

        choose_device("cuda")
