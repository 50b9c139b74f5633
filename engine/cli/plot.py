"""`engine plot`: learning curves of runs."""

from __future__ import annotations

from pathlib import Path

import click

from engine.errors import UsageError
from engine.runs.folder import Run

EXAMPLES = """\b
Examples:
  engine plot latest
  engine plot latest --x time --output curve.svg
  engine plot latest --y train/loss_value
  engine plot runs/CartPole-v1/ppo-* runs/CartPole-v1/dqn-*    (one band for each algorithm)

\b
Runs of one algorithm on one environment (and of one --name) become their mean and a band
of one standard deviation. The picture is written into this folder, unless --output names
another that exists, and never over a run's own. Its path is printed; nothing is opened."""


@click.command(epilog=EXAMPLES)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--x", default="env_step", show_default=True, help="env_step, time, train_iter or any scalar.")
@click.option("--y", help="A scalar such as eval/return_mean (default: returns, training and evaluation).")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="A .png, .svg or .pdf file.")
def plot(runs: tuple[str, ...], x: str, y: str | None, output: Path | None) -> None:
    """Draw learning curves of one or more runs."""
    from engine.runs.plots import learning_curve

    found = [Run.open(name) for name in runs]
    found = list({run.path.resolve(): run for run in found}.values())
    envs = sorted({str(run.info.get("env")) for run in found})
    groups: dict[str, list[Run]] = {}
    for run in found:
        groups.setdefault(_label(run, with_env=len(envs) > 1), []).append(run)
    if output is None:
        of_one = [found[0].path.resolve().name] if len(found) == 1 else []
        parts = [*of_one, y or "learning_curve", *([x] if x != "env_step" else [])]
        output = Path("-".join(parts).replace("/", "_") + ".png")
    _refuse_own(output)
    title = ", ".join(envs) + (f", seed {found[0].info.get('seed')}" if len(found) == 1 else "")
    curves = {label: [run.metrics() for run in group] for label, group in groups.items()}
    click.echo(learning_curve(curves, output, x=x, y=y, title=title))


def _refuse_own(output: Path) -> None:
    """Raise UsageError for a picture that a run draws itself."""
    from engine.runs.plots import PICTURES

    folder = output.resolve().parent
    if output.name in PICTURES and folder.name == "plots" and (folder.parent / "run.json").is_file():
        raise UsageError(f"{output} is the run's own picture; choose another --output")


def _label(run: Run, *, with_env: bool) -> str:
    parts = [run.info.get("algo"), run.info.get("name"), run.info.get("env") if with_env else None]
    return " ".join(str(part) for part in parts if part)
