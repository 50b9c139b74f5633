"""Where the command line meets what trains: the only file of it that imports recipes and torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from engine.errors import UsageError
from engine.recipes.target import Target, resolve
from engine.runs.diagram import draw
from engine.runs.folder import Run


def check(target: Target) -> None:
    """Raise ConfigError for an environment, device or combination that cannot work; see `recipes.check`."""
    from engine.recipes.check import check

    check(target.config)


def spaces(target: Target) -> str:
    """The observation and action space in words, or nothing where the configuration names no environment."""
    from engine.envs.config import EnvConfig
    from engine.envs.make import check_env

    env = getattr(target.config, "env", None)
    if not isinstance(env, EnvConfig):
        return ""
    observation, action = check_env(env)
    return f"env          {env.id} x {env.num_envs}\nobservation  {observation}\naction       {action}"


def env_id(target: Target) -> str:
    """What the run's folder is named after."""
    return str(getattr(getattr(target.config, "env", None), "id", "no-env"))


def train(target: Target, run: Run, *, progress: str) -> Run:
    """Train in the folder of `run`; return it with its final state."""
    from engine.recipes.experiment import run_experiment

    return run_experiment(target.recipe, target.config, run=run, progress=progress)


def picture(target: Target, form: str) -> str:
    """Build the task and draw its pipeline as `form` says; everything it opened is closed again."""
    from engine.recipes.experiment import built

    with built(target.recipe, target.config) as task:
        return draw(task, form)


def play(
    run: Run, *, episodes: int, seed: int | None, env: str | None, which: str | None, videos: int
) -> tuple[Path, list[tuple[float, int, bool]], list[Path]]:
    """Play deterministic episodes with a run's policy; return its path, what came of each, and films.

    Of each episode its return, its length, and whether it was cut after ``evaluate.max_steps``.

    `seed` and `env` replace those of the run; `which` is ``best``, ``last``, or None for the best there is.
    """
    from engine.recipes import experiment
    from engine.recipes.parts import make_evaluation_env

    words = [f"env.id={env}"] if env else []
    words += [f"seed={seed}"] if seed is not None else []
    words.append(f"evaluate.episodes={episodes}")
    target = resolve(str(run.path / "config.yaml"), words)
    check(target)
    folder = run.path / "policies" / which if which else experiment.policy_folder(run)
    if not folder.is_dir():
        raise UsageError(f"{run.path} has no {which} policy")
    policy = experiment.load_policy(folder)
    with make_evaluation_env(target.config) as environment:
        _check_spaces(policy, environment, env)
        if environment.about_returns is not None:
            click.echo(environment.about_returns, err=True)
        environment.reset(episode=3_000_000)  # after every episode that chose or judged the policy
        max_steps = target.config.evaluate.max_steps
        played = experiment.play(policy, environment, episodes, max_steps=max_steps)
    films: list[Path] = []
    if videos:
        step = int(run.result.get("env_step") or 0)
        films = experiment.film(policy, target.config, run.path / "videos", episodes=videos, env_step=step)
    return folder, [(float(one.return_), int(one.length), one.cut) for one in played], films


def _check_spaces(policy: Any, environment: Any, env: str | None) -> None:
    pairs: list[tuple[str, Callable[[Any], Any]]] = [
        ("observation", lambda owner: getattr(owner, "single_observation_space", None)),
        ("action", lambda owner: getattr(owner, "single_action_space", None)),
    ]
    for kind, of in pairs:
        mine, theirs = getattr(policy, f"{kind}_space", None), of(environment)
        if env and mine is not None and mine != theirs:
            raise UsageError(
                f"the policy cannot play {env}: its {kind} space is {theirs}, the policy's {mine}"
            )
