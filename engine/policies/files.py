"""Trained policies as folders: what acting needs, readable by anything, without pickle.

`policy.safetensors` holds the weights, and in its header the description of the policy: one file,
replaced as a whole, is always complete.  `policy.json` beside it repeats the description for
people and tools; loading does not read it.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from engine.errors import ConfigError, StateError, did_you_mean
from engine.policies.spaces import describe, rebuild
from engine.runs.files import replacing, write_text

if TYPE_CHECKING:
    from torch import nn

    from engine.policies.base import TorchPolicy

WEIGHTS, DESCRIPTION = "policy.safetensors", "policy.json"
_FORMAT = 1

_ALGORITHMS = {
    "ppo": ("engine.policies.ppo", "PPO"),
    "dqn": ("engine.policies.dqn", "DQN"),
    "impala": ("engine.policies.impala", "IMPALA"),
}


def save_policy(policy: TorchPolicy, folder: str | Path) -> Path:
    """Write a policy's weights, spaces, config and version into `folder`; return the folder.

    What is there already is replaced at once or, when writing fails, kept.  The optimizer and the
    random streams are left out: for them save `state_dict()`.
    """
    import safetensors.torch

    from engine.policies.base import weights_of

    kind = type(policy.model)
    description = {
        "format": _FORMAT,
        "algorithm": policy.algorithm,
        "version": policy.version,
        "model": f"{kind.__module__}:{kind.__qualname__}" if policy.custom_model else None,
        "observation_space": describe(policy.observation_space),
        "action_space": describe(policy.action_space),
        "config": msgspec.to_builtins(policy.config),
    }
    folder = Path(folder)
    text = json.dumps(description, indent=2, allow_nan=False)
    data = safetensors.torch.save(weights_of(policy.model), {"policy": text})
    with replacing(folder / WEIGHTS) as temporary:
        temporary.write_bytes(data)
    write_text(folder / DESCRIPTION, text + "\n")
    return folder


def load_policy(
    folder: str | Path, *, device: str = "cpu", seed: int = 0, model: nn.Module | None = None
) -> Any:
    """Return the policy that `save_policy` wrote, ready to act: a `PPO`, `DQN` or `IMPALA`.

    Raises `StateError` when there is none or its file is damaged, and `ConfigError` when it was trained
    with a model of the user's own, which must then be given as `model`.
    """
    import safetensors
    import safetensors.torch

    path = Path(folder) / WEIGHTS
    if not path.is_file():
        raise StateError(f"no policy in {folder}: {path} is missing")
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            header = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        description = json.loads(header["policy"])
    except (safetensors.SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise StateError(f"{path} is damaged or was not written by engine: {error}") from None
    if description["format"] > _FORMAT:
        raise StateError(
            f"{path} has format {description['format']}, newer than this engine reads ({_FORMAT})"
        )
    algorithm = description["algorithm"]
    if algorithm not in _ALGORITHMS:
        raise StateError(f"{path} holds a policy of {algorithm!r}{did_you_mean(algorithm, _ALGORITHMS)}")
    module, name = _ALGORITHMS[algorithm]
    if description["model"] is not None and model is None:
        raise ConfigError(
            f"{path} was trained with the model {description['model']}, which a file cannot rebuild; "
            f"give an instance of it: load_policy({str(folder)!r}, model=...)"
        )
    kind = getattr(importlib.import_module(module), name)
    config = msgspec.convert(description["config"], kind.config_type)
    spaces = rebuild(description["observation_space"]), rebuild(description["action_space"])
    policy = kind(*spaces, config, device=device, seed=seed, model=model)
    policy.load_weights(weights)
    policy.version = description["version"]
    return policy
