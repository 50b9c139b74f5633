"""Configs of policies refuse what cannot be meant, and say which key."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from engine.policies.config import DQNConfig, IMPALAConfig, PPOConfig, decayed


@pytest.mark.parametrize("kind", [PPOConfig, DQNConfig, IMPALAConfig])
def test_defaults_pass_their_own_checks(kind) -> None:
    assert msgspec.convert(msgspec.to_builtins(kind()), kind) == kind()


@pytest.mark.parametrize("kind", [PPOConfig, DQNConfig, IMPALAConfig])
def test_every_field_is_described(kind) -> None:
    properties = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    assert [name for name, about in properties.items() if "description" not in about] == []


@pytest.mark.parametrize(
    ("kind", "data", "words"),
    [
        (PPOConfig, {"epoch": 4}, "unknown field `epoch`"),
        (PPOConfig, {"discount": 1.5}, r"<= 1.0.*\$\.discount"),
        (PPOConfig, {"hidden": [64, 0]}, r">= 1.*\$\.hidden"),
        (PPOConfig, {"target_kl": 0.0}, r"> 0.*\$\.target_kl"),
        (PPOConfig, {"activation": "sine"}, r"\$\.activation"),
        (DQNConfig, {"tau": 0.0}, r"> 0.*\$\.tau"),
        (IMPALAConfig, {"rho_clip": 0.0}, r"> 0.*\$\.rho_clip"),
        (IMPALAConfig, {"epochs": 4}, "unknown field `epochs`"),
        (DQNConfig, {"huber": -1.0}, r"> 0.*\$\.huber"),
    ],
)
def test_a_mistake_is_named(kind, data, words) -> None:
    with pytest.raises(msgspec.ValidationError, match=words):
        msgspec.convert(data, kind)


@pytest.mark.parametrize(
    ("kind", "data"),
    [(PPOConfig, {"target_kl": 0.0}), (IMPALAConfig, {"c_clip": -1.0}), (DQNConfig, {"huber": 0.0})],
)
def test_a_range_holds_for_what_is_built_in_python_too(kind, data) -> None:
    (name,) = data
    with pytest.raises(ValueError, match=f"{name} must be > 0 or null"):
        kind(**data)


def test_the_learning_rate_depends_on_progress_alone() -> None:
    config = PPOConfig(learning_rate=0.1, learning_rate_decay="linear")
    assert [decayed(config, x) for x in (0.0, 0.5, 1.0, 1.1)] == pytest.approx([0.1, 0.05, 0.0, 0.0])
    assert decayed(PPOConfig(learning_rate=0.1), 0.5) == 0.1


def test_configs_import_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'gymnasium'}"
    code = f"import sys, engine.policies.config; print(sorted({heavy} & sys.modules.keys()))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
