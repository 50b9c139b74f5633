"""Every shipped configuration is read, checked, short, commented, and builds its pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine import config as configs
from engine.envs.config import EnvConfig
from engine.envs.make import check_env
from engine.recipes.target import resolve

ROOT = Path(__file__).parent.parent / "configs"
FILES = sorted(ROOT.rglob("*.yaml"))
EXPECTED = {
    *(
        f"ppo/{name}"
        for name in ("cartpole", "acrobot", "lunarlander", "pendulum", "mountain_car_continuous")
    ),
    *(f"dqn/{name}" for name in ("cartpole", "cartpole_prioritized", "acrobot", "lunarlander")),
    "impala/cartpole",
}


def test_the_promised_configurations_are_there() -> None:
    assert {path.relative_to(ROOT).with_suffix("").as_posix() for path in FILES} >= EXPECTED
    assert set(configs.names()) >= EXPECTED


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem + "-" + path.parent.name)
def test_a_configuration_is_data_under_thirty_lines_with_a_comment_on_top(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 30
    assert lines[0].startswith("# ")
    assert "Expected return" in lines[0]
    assert "minute" in lines[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem + "-" + path.parent.name)
def test_a_configuration_fits_its_recipe_and_its_environment_can_be_made(path: Path) -> None:
    target = resolve(str(path), [])
    assert isinstance(target.config.env, EnvConfig)
    check_env(target.config.env)
    with target.recipe(target.config) as task:
        assert task.names == ["collect", "learn"]
