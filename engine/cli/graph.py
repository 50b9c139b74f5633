"""`engine graph`: the pipeline as text, Mermaid or DOT."""

from __future__ import annotations

import click

from engine.errors import UsageError
from engine.recipes.target import is_script, resolve
from engine.runs.diagram import FORMATS

EXAMPLES = """\b
Examples:
  engine graph ppo/cartpole
  engine graph ppo/cartpole async_mode=true     (the stations of the overlapped mode)
  engine graph dqn/cartpole --format mermaid > pipeline.mmd
  engine graph my_module:my_recipe env.id=CartPole-v1 --format dot | dot -Tsvg > pipeline.svg"""


@click.command(epilog=EXAMPLES)
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
def graph(target: str, overrides: tuple[str, ...], form: str) -> None:
    """Print the pipeline that a target would run."""
    from engine.cli import experiment

    if is_script(target):
        raise UsageError("a script can only be run; graph wants a configuration or module:function")
    resolved = resolve(target, overrides)
    experiment.check(resolved)
    click.echo(experiment.picture(resolved, form))
