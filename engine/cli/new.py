"""`engine new`: first versions of users' own code, each with a test that passes."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

import click

from engine.errors import UsageError
from engine.runs.files import claim

EXAMPLES = """\b
Examples:
  engine new middleware clip_reward
  engine new middleware clip_reward --folder my_project
  python -m pytest test_clip_reward.py"""

MIDDLEWARE = '''"""A middleware of your own: `{name}`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from engine import Context


def {name}(*, every: int = 1) -> Callable[[Context], Iterator[None]]:
    """Count the env steps that each iteration adds, once for every `every` iterations.

    The outer function takes what the middleware needs, by name; what it returns takes ctx alone and is
    what the loop runs. What stands before the yield runs on the way in, what stands after it on the way
    out, when every middleware placed after this one is done. Without a yield, all of it runs on the way in.

    Reads: ctx.total_step, ctx.env_step.  Writes: ctx.metrics["{name}/env_steps"].
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, got {{every}}")

    def {name}(ctx: Context) -> Iterator[None]:
        before = ctx.env_step
        yield
        if ctx.total_step % every == 0:
            ctx.metrics["{name}/env_steps"] = ctx.env_step - before

    return {name}
'''

TEST = '''"""`{name}` by itself, in a pipeline of two."""

from __future__ import annotations

import pytest

from engine import OnlineContext, Task
from {name} import {name}


def collect(ctx: OnlineContext) -> None:
    """Stands in for a collector: eight env steps."""
    ctx.env_step += 8


def test_it_counts_what_stands_after_it() -> None:
    with Task(OnlineContext()) as task:
        ctx = task.use({name}(), collect).run(max_step=3)
    assert ctx.metrics["{name}/env_steps"] == 8


def test_it_refuses_a_rhythm_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        {name}(every=0)
'''


@click.group(epilog=EXAMPLES)
def new() -> None:
    """Write a first version of your own code, with a test that passes."""


@new.command(epilog=EXAMPLES, short_help="Write NAME.py, a middleware, and its test.")
@click.argument("name")
@click.option(
    "--folder", type=click.Path(path_type=Path), default=Path("."), help="Where to write (default: here)."
)
def middleware(name: str, folder: Path) -> None:
    """Write NAME.py, a documented middleware, and test_NAME.py; nothing is overwritten."""
    _check_name(name)
    files = {folder / f"{name}.py": MIDDLEWARE, folder / f"test_{name}.py": TEST}
    for path in files:
        if path.exists():
            raise UsageError(f"{path} exists already; choose another name or --folder")
    for path, text in files.items():
        try:
            if not claim(path, text.format(name=name)):
                raise UsageError(f"{path} exists already; choose another name or --folder")
        except OSError as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from None
        click.echo(path)
    click.echo(f"try it: python -m pytest {folder / f'test_{name}.py'}", err=True)


def _check_name(name: str) -> None:
    """Refuse what cannot be a module, or would hide one."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        better = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
        better = re.sub(r"[^a-z0-9]+", "_", better.lower()).strip("_0123456789")
        raise UsageError(
            f"{name!r} is no name for a function{f'; did you mean {better!r}?' if better else ''}"
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise UsageError(f"{name!r} is a word of Python itself; try {name + '_data'!r}")
    if name in sys.stdlib_module_names or name in ("engine", "torch", "numpy", "gymnasium", "pytest", "test"):
        raise UsageError(f"a file {name}.py would hide the module {name!r}; try {'my_' + name!r}")
