"""`engine config`: look at configurations."""

from __future__ import annotations

import click
import msgspec

from engine.errors import UsageError
from engine.recipes.target import Target, is_script, resolve

EXAMPLES = """\b
Examples:
  engine config show ppo/cartpole
  engine config show ppo/cartpole seed=3 policy.clip=0.1
  engine config explain ppo/cartpole policy.clip"""

EXPLAIN_EXAMPLES = """\b
Examples:
  engine config explain ppo/cartpole                      (every key)
  engine config explain ppo/cartpole policy.clip          (one key)
  engine config explain dqn/cartpole train seed           (a section with all its keys, and a key)
  engine config explain ppo/cartpole policy.clip=0.1      (all, with a value changed)
  engine config explain engine.recipes.ppo:ppo env.id=CartPole-v1 --json

\b
For each key: its value and where it comes from (default, a file, base and a file, or the
command line), type, range, default, and what it is for."""


@click.group(epilog=EXAMPLES)
def config() -> None:
    """Look at configurations."""


@config.command(epilog=EXAMPLES)
@click.argument("target")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def show(target: str, overrides: tuple[str, ...]) -> None:
    """Print every value of a configuration and where it came from."""
    click.echo(_resolve(target, overrides, "show").yaml(), nl=False)


@config.command(epilog=EXPLAIN_EXAMPLES)
@click.argument("target")
@click.argument("words", nargs=-1, metavar="[KEY]... [KEY=VALUE]...")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects, one for each key.")
def explain(target: str, words: tuple[str, ...], as_json: bool) -> None:
    """Explain the keys of a configuration: type, range, default, origin, and what each is for."""
    from engine.cli import explain as explaining

    keys = [word for word in words if "=" not in word]
    resolved = _resolve(target, [word for word in words if "=" in word], "explain")
    known = explaining.explain(resolved)
    asked = [one for key in keys for one in explaining.choose(known, key, resolved)] if keys else known
    chosen = list({one.key: one for one in asked}.values())
    if as_json:
        click.echo(msgspec.json.encode([one.row() for one in chosen]).decode())
    else:
        click.echo("\n".join(one.text() for one in chosen).lstrip("\n"))


def _resolve(target: str, words: list[str] | tuple[str, ...], command: str) -> Target:
    if is_script(target):
        raise UsageError(
            f"a script says its configuration itself; {command} wants a configuration or module:function"
        )
    return resolve(target, words)
