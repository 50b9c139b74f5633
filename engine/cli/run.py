"""`engine run`: train a target in a folder of its own."""

from __future__ import annotations

import contextlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine import config as configs
from engine.cli import experiment
from engine.errors import UsageError
from engine.recipes.target import Target, is_script, resolve
from engine.runs.folder import Run
from engine.runs.progress import MODES
from engine.runs.script import handing_over
from engine.runs.summary import summary
from engine.signals import Stop, Terminated, exit_code

EXAMPLES = """\b
Examples:
  engine run ppo/cartpole
  engine run ppo/cartpole seed=3 policy.learning_rate=1e-3 stop.env_step=20_000
  engine run dqn/cartpole stop.env_step=null stop.seconds=600      (for ten minutes)
  engine run my/experiment.yaml --run-dir /tmp/try --progress plain
  engine run my_module:my_recipe env.id=CartPole-v1
  engine run script.py learning_rate=0.01      (the script reads it with engine.overrides)
  engine run ppo/cartpole async_mode=true      (collect the next data while learning from the last)
  engine run ppo/cartpole --dry-run            (show what would run)

\b
TARGET is a configuration by name or file, a script, or a recipe as module:function.
KEY=VALUE changes one value of the configuration; `engine config explain TARGET` tells of
every key what it is for, and what it may be.

\b
Ctrl-C ends the run after the iteration under way (with async_mode: after the slot) and
saves everything (exit code 130); a second one ends it at once. So do SIGTERM (143) and
SIGHUP (129), which leave out pictures too. Results go to stdout, progress and messages to
stderr."""


@click.command(epilog=EXAMPLES)
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--seed", type=click.IntRange(min=0), help="Same as seed=N.")
@click.option("--device", help="Same as device=...: auto, cpu or cuda.")
@click.option("--name", help="A word of your own in the folder's name.")
@click.option("--run-dir", type=click.Path(), help="The exact folder; it must be new or empty.")
@click.option(
    "--progress",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    envvar="ENGINE_PROGRESS",
    help="How to show progress on stderr.",
)
@click.option("--dry-run", is_flag=True, help="Build everything, print the pipeline, train nothing.")
@click.option("--print-config", is_flag=True, help="Print the resolved configuration and end.")
def run(
    target: str,
    overrides: tuple[str, ...],
    seed: int | None,
    device: str | None,
    name: str | None,
    run_dir: str | None,
    progress: str,
    dry_run: bool,
    print_config: bool,
) -> int:
    """Train: a configuration, a script, or a recipe."""
    words = list(overrides)
    words += [f"seed={seed}"] if seed is not None else []
    words += [f"device={device}"] if device is not None else []
    with Stop() as stop:
        if is_script(target):
            if dry_run or print_config:
                option = "--dry-run" if dry_run else "--print-config"
                raise UsageError(
                    f"{option} needs a configuration or module:function; a script can only be run"
                )
            return run_script(Path(target), words, stop, seed=seed or 0, name=name, run_dir=run_dir)
        resolved = resolve(target, words)
        if print_config:
            click.echo(resolved.yaml(), nl=False)
            return 0
        experiment.check(resolved)
        if dry_run:
            _show_plan(resolved)
            return 0
        return train(resolved, words, stop, name=name, run_dir=run_dir, progress=progress, given=target)


def train(
    target: Target,
    words: list[str],
    stop: Stop,
    *,
    progress: str,
    given: str,
    name: str | None = None,
    run_dir: str | None = None,
) -> int:
    """Make the folder, train, tell how it went; return the exit code."""
    details = {"recipe": target.name, "target": given}
    seed = int(getattr(target.config, "seed", 0))
    with stop.held():
        run = Run.create(
            env=experiment.env_id(target),
            algo=target.algo,
            seed=seed,
            name=name,
            run_dir=run_dir,
            **details,
        )
    with _described(run, stop):
        run.describe(config=target.yaml(), overrides=words)
        click.echo(f"run folder: {run.path}", err=True)
        experiment.train(target, run, progress=progress)
    click.echo(summary(run))
    return run.exit_code


@contextlib.contextmanager
def _described(run: Run, stop: Stop) -> Iterator[None]:
    """Write into run.json by which error the block ended, unless it has told more."""
    try:
        stop.check()
        yield
    except BaseException as error:
        run.end_with(error)
        raise


def run_script(
    script: Path, words: list[str], stop: Stop, *, seed: int, name: str | None, run_dir: str | None
) -> int:
    """Run a Python file as ``python x.py`` would, with a run folder and overrides to ask for.

    Once a signal has asked it to end, a further `Task.run` of the script raises what ends it.
    """
    given = configs.override(configs.Settings(), words)
    with stop.held():
        run = Run.create(
            env="script", algo=script.stem, seed=seed, name=name, run_dir=run_dir, target=str(script)
        )

    def configure(struct: type[Any]) -> Any:
        config = configs.convert(given, struct)
        run.write("config.yaml", configs.to_yaml(config, given))
        return config

    argv, path = sys.argv, list(sys.path)
    code: int | str | None = 0
    with _described(run, stop):
        run.describe(config="", overrides=words)
        click.echo(f"run folder: {run.path}", err=True)
        sys.argv, sys.path[0] = [str(script)], str(script.parent.resolve())
        try:
            with handing_over(run, configure) as handover:
                runpy.run_path(str(script), run_name="__main__")
        except Terminated:
            raise
        except SystemExit as leaving:
            code = leaving.code
        finally:
            sys.argv, sys.path[:] = argv, path
    if isinstance(code, str):
        click.echo(code, err=True)
    number = code if isinstance(code, int) else 0 if code is None else 1
    reason = f"the script left with {number}" if number else None
    if run.info["end"] is None:  # a recipe that ran in the folder may have said more already
        if stop.asked:
            run.finish("interrupted", stop.reason)
        else:
            run.finish("failed" if number else "finished", reason)
    if words and not handover.configured:
        click.echo(
            f"warning: {script} never asked for its overrides, so {' '.join(words)} changed nothing; "
            "it reads them with engine.overrides(Config)",
            err=True,
        )
    return exit_code(stop.reason) if stop.asked else number


def _show_plan(target: Target) -> None:
    """Print what would run; the task is built and closed again, and nothing is written."""
    pipeline = experiment.picture(target, "text")
    click.echo(target.yaml())
    about = experiment.spaces(target)
    click.echo(f"{about}\n" if about else "", nl=bool(about))
    click.echo(pipeline)
