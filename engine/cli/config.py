"""`engine config`: look at configurations."""

from __future__ import annotations

import click

from engine.errors import UsageError
from engine.recipes.target import is_script, resolve

EXAMPLES = """\b
Examples:
  engine config show ppo/cartpole
  engine config show ppo/cartpole seed=3 policy.clip=0.1"""


@click.group(epilog=EXAMPLES)
def config() -> None:
    """Look at configurations."""


@config.command(epilog=EXAMPLES)
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def show(target: str, overrides: tuple[str, ...]) -> None:
    """Print every value of a configuration and where it came from."""
    if is_script(target):
        raise UsageError(
            "a script says its configuration itself; show wants a configuration or module:function"
        )
    click.echo(resolve(target, overrides).yaml(), nl=False)
