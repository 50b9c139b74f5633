"""What a configuration accepts."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from engine.envs.config import EnvConfig


def test_wrappers_are_names_or_dicts():
    raw = {"id": "CartPole-v1", "wrappers": ["TimeLimit", {"wrapper": "m:C", "x": 1}]}
    assert msgspec.convert(raw, EnvConfig).wrappers == raw["wrappers"]


@pytest.mark.parametrize(
    "change", [{"num_envs": 0}, {"vectorization": "sink"}, {"wrapper": []}, {"id": ""}, {"wrappers": [1]}]
)
def test_wrong_values_are_refused(change):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"id": "CartPole-v1", **change}, EnvConfig)


def test_the_config_imports_nothing_heavy():
    code = (
        "import sys, engine.envs.config; sys.exit(bool({'numpy', 'gymnasium', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
