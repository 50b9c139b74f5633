"""`engine launch`: a target with each role in processes of its own."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from engine.cli import experiment
from engine.cli.voice import Voice, speaking
from engine.errors import UsageError
from engine.recipes.target import is_script, resolve
from engine.runs.folder import Run
from engine.runs.progress import MODES
from engine.runs.summary import ending, summary
from engine.signals import Stop

if TYPE_CHECKING:
    from engine.launch.plan import Plan

EXAMPLES = """\b
Examples:
  engine launch ppo/cartpole --role collector=2
  engine launch impala/cartpole --role collector=4 stop.env_step=200_000
  engine launch dqn/cartpole --role collector=2 --on-loss collector=restart:3
  engine launch ppo/cartpole --role collector=2 --dry-run     (show what would be started)
  engine launch ppo/cartpole --tcp 10.0.0.7                   (more may join from other machines)

\b
A loss is a process that failed or was killed. Per role the run then fails, the seat is
taken again (restart:N, after 0.5 s, 1 s, 2 s ...), or the others go on (go_on) while there
are enough of them; the role that records the run can only fail.

\b
Ctrl-C ends every process after the iteration under way and saves everything (exit code
130); a second one stops at once. SIGTERM and SIGHUP do the same (exit codes 143 and 129).
Results go to stdout, everything else to stderr."""


@click.command(epilog=EXAMPLES)
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--role", "roles", multiple=True, metavar="ROLE=N", help="How many processes of a role.")
@click.option("--on-loss", multiple=True, metavar="ROLE=POLICY", help="fail, go_on, restart or restart:N.")
@click.option("--seed", type=click.IntRange(min=0), help="Same as seed=N.")
@click.option("--device", help="Same as device=...: auto, cpu or cuda.")
@click.option("--name", help="A word of your own in the folder's name.")
@click.option("--run-dir", type=click.Path(), help="The exact folder; it must be new or empty.")
@click.option(
    "--tcp",
    metavar="HOST[:PORT]",
    help="Let others join at this address of this machine; keys are made for the run.",
)
@click.option(
    "--on",
    "backend",
    type=click.Choice(["processes", "threads"]),
    default="processes",
    show_default=True,
    help="Where the roles run; threads are for debugging.",
)
@click.option(
    "--progress",
    type=click.Choice(MODES),
    default="auto",
    show_default=True,
    envvar="ENGINE_PROGRESS",
    help="How to show progress on stderr; with json every line of stdout is JSON too.",
)
@click.option("--dry-run", is_flag=True, help="Show processes, pipelines and configuration, start nothing.")
def launch(
    target: str,
    overrides: tuple[str, ...],
    roles: tuple[str, ...],
    on_loss: tuple[str, ...],
    seed: int | None,
    device: str | None,
    name: str | None,
    run_dir: str | None,
    tcp: str | None,
    backend: str,
    progress: str,
    dry_run: bool,
) -> int:
    """Train with each role in processes of its own."""
    from engine.launch.plan import make_plan, parse_counts
    from engine.launch.start import check_means, create_run, run_plan

    words = list(overrides)
    words += [f"seed={seed}"] if seed is not None else []
    words += [f"device={device}"] if device is not None else []
    if is_script(target):
        raise UsageError(
            f"{target} is a script, and has no roles; launch a configuration or module:function, "
            "or call engine.launch.launch in the script"
        )
    with speaking(progress) as voice, Stop() as stop:
        plan = make_plan(resolve(target, words), parse_counts(roles), on_loss, elastic=tcp is not None)
        experiment.check(plan.target)
        check_means(backend, tcp, progress)  # type: ignore[arg-type]
        if dry_run:
            _show(plan, voice)
            return 0
        with stop.held():
            run = create_run(plan, given=target, overrides=words, name=name, run_dir=run_dir)

        def ready(address: str) -> None:
            if tcp is not None:
                voice.tell(_invitation(address, run.path))

        try:
            stop.check()
            voice.tell(f"run folder: {run.path}", folder=str(run.path))
            run = run_plan(plan, run, backend=backend, progress=progress, tcp=tcp, ready=ready)  # type: ignore[arg-type]
        except BaseException as error:
            with contextlib.suppress(UsageError):  # its folder is gone, which the error says
                Run.open(run.path).end_with(error)  # unless the launcher has told how it ended
            raise
        voice.result(summary(run), "end", ending(run))
    return run.exit_code


def _show(plan: Plan, voice: Voice) -> None:
    """Print what would be started; each role is built in this process and closed again."""
    from engine.launch.preview import pipelines

    shown = pipelines(plan)
    started = {seat.name: f"engine worker --attach RUN --role {seat.role}" for seat in plan.seats}
    parts = [
        f"{plan.text()}\n",
        *(f"{name:<14} {command}" for name, command in started.items()),
        *(f"\n{role}:\n{pipeline}" for role, pipeline in shown.items()),
        f"\n{plan.target.yaml()}".rstrip("\n"),
    ]
    row = {**plan.target.row(), "processes": started, "pipelines": shown}
    voice.result("\n".join(parts), "plan", row)


def _invitation(address: str, folder: Path) -> str:
    """What to type on another machine, with a copy of the key file."""
    from engine.launch.card import KEYS

    place = next(part for part in address.split() if part.startswith("tcp://")).partition("#")[0]
    key_file = shlex.quote(str(folder / KEYS))
    return f"join with: engine worker --attach {place} --role ROLE --key-file {key_file}"
