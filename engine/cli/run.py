"""`engine run`: train a target in a folder of its own."""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine import config as configs
from engine.cli import experiment
from engine.cli.streams import reader_gone
from engine.cli.voice import Voice, speaking
from engine.errors import ConfigError, UsageError
from engine.recipes.target import Target, is_script, resolve
from engine.runs.folder import Run
from engine.runs.logs import LOG, record
from engine.runs.progress import MODES, wishing
from engine.runs.script import Handover, handing_over
from engine.runs.summary import ending, summary
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
    help="How to show progress on stderr; with json every line of stdout is JSON too.",
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
    with speaking(progress) as voice, Stop() as stop:
        if is_script(target):
            if dry_run or print_config:
                option = "--dry-run" if dry_run else "--print-config"
                raise UsageError(
                    f"{option} needs a configuration or module:function; a script can only be run"
                )
            script = Path(target)
            with wishing(progress):
                return run_script(script, words, stop, voice, seed=seed or 0, name=name, run_dir=run_dir)
        resolved = resolve(target, words)
        if print_config:
            voice.result(resolved.yaml().rstrip("\n"), "config", resolved.row())
            return 0
        experiment.check(resolved)
        if dry_run:
            _show_plan(resolved, voice)
            return 0
        return train(
            resolved, words, stop, voice, name=name, run_dir=run_dir, progress=progress, given=target
        )


def train(
    target: Target,
    words: list[str],
    stop: Stop,
    voice: Voice,
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
        voice.tell(f"run folder: {run.path}", folder=str(run.path))
        with voice.kept_in(run.file(LOG)):
            experiment.train(target, run, progress=progress)
    voice.result(summary(run), "end", ending(run))
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
    script: Path,
    words: list[str],
    stop: Stop,
    voice: Voice,
    *,
    seed: int,
    name: str | None,
    run_dir: str | None,
) -> int:
    """Run a Python file as ``python x.py`` would, with a run folder and overrides to ask for.

    Once a signal has asked it to end, a further `Task.run` of the script raises what ends it.  Overrides that
    are refused leave no folder, unless the script has put something into it.
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

    handover = Handover(run, configure)
    try:
        number = _run_script(script, words, stop, voice, handover)
    except BaseException as error:
        refused = handover.refused and isinstance(error, ConfigError)
        if not (refused and run.withdraw()):
            record(run.path / LOG, run.ended, level="error", error=error)
        if isinstance(error, BrokenPipeError) and reader_gone():
            return 1  # it printed for a reader that has gone; that needs no traceback
        raise
    if handover.refused and number:
        run.withdraw()
    return number


def _run_script(script: Path, words: list[str], stop: Stop, voice: Voice, handover: Handover) -> int:
    """Run the script with what is handed over; return the number that it left with."""
    run = handover.run
    argv, path = sys.argv, list(sys.path)
    code: int | str | None = 0
    with _described(run, stop):
        run.describe(config="", overrides=words)
        log = run.file(LOG)
        record(log, f"{script}: process {os.getpid()} on {run.info['host']}")
        sys.argv, sys.path[0] = [str(script)], str(script.parent.resolve())
        try:
            with voice.kept_in(log), handing_over(handover):
                voice.tell(f"run folder: {run.path}", folder=str(run.path))
                runpy.run_path(str(script), run_name="__main__")
        except Terminated:
            raise
        except SystemExit as leaving:
            code = leaving.code
        finally:
            sys.argv, sys.path[:] = argv, path
    if isinstance(code, str):
        voice.tell(code)
    number = code if isinstance(code, int) else 0 if code is None else 1
    reason = f"the script left with {number}" if number else None
    if run.info["end"] is None:  # a recipe that ran in the folder may have said more already
        if stop.asked:
            run.finish("interrupted", stop.reason)
        else:
            run.finish("failed" if number else "finished", reason)
    record(log, run.ended)
    number = exit_code(stop.reason) if stop.asked else number
    if words and not handover.configured:
        voice.tell(
            f"warning: {script} never asked for its overrides, so {' '.join(words)} changed nothing; "
            "it reads them with engine.overrides(Config)"
        )
    if voice.in_json:
        voice.result("", "end", {**ending(run), "exit_code": number})
    return number


def _show_plan(target: Target, voice: Voice) -> None:
    """Print what would run; the task is built and closed again, and nothing is written."""
    pipeline = experiment.picture(target, "text")
    about = experiment.spaces(target)
    text = "\n".join([target.yaml(), *([f"{about}\n"] if about else []), pipeline])
    voice.result(text, "plan", {**target.row(), "spaces": about, "pipeline": pipeline})
