"""The command `engine`: commands that are imported when called, and one screen for every mistake."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import click

from engine import __version__
from engine.cli.streams import flush, open_standard_streams, reader_gone
from engine.errors import EngineError, did_you_mean
from engine.signals import Terminated

INTERRUPTED = 130

# name: (module:function, what `engine --help` says); a test compares it with each command's own help
COMMANDS = {
    "run": ("engine.cli.run:run", "Train: a configuration, a script, or a recipe."),
    "launch": ("engine.cli.launch:launch", "Train with each role in processes of its own."),
    "worker": ("engine.cli.worker:worker", "Join a running program in one of its roles."),
    "top": ("engine.cli.top:top", "Show the processes of a run: role, speed, lag, queues, restarts."),
    "stop": ("engine.cli.stop:stop", "End a run after the iteration under way, as Ctrl-C does."),
    "logs": ("engine.cli.logs:logs", "Print what the processes of a run said, in the order of time."),
    "eval": ("engine.cli.evaluate:evaluate", "Play episodes with the trained policy of a run."),
    "plot": ("engine.cli.plot:plot", "Draw learning curves of one or more runs."),
    "graph": ("engine.cli.graph:graph", "Print the pipeline that a target would run."),
    "list": ("engine.cli.listing:list_all", "List configurations and runs."),
    "show": ("engine.cli.listing:show", "Tell what a run is and how it went."),
    "config": ("engine.cli.config:config", "Look at configurations."),
    "doctor": (
        "engine.cli.doctor:doctor",
        "Check this machine, or an environment, and say what to do about what is wrong.",
    ),
    "new": ("engine.cli.new:new", "Write a first version of your own code, with a test that passes."),
}

EXAMPLES = """\b
Examples:
  engine run ppo/cartpole                         train with a shipped configuration
  engine run ppo/cartpole seed=3 policy.clip=0.1  ... changed a little
  engine launch ppo/cartpole --role collector=2   ... collectors and learner in processes
  engine eval latest --video 1                    play with what was learned
  engine plot latest                              draw the learning curve
  engine COMMAND --help                           more about one command"""


class _Broken(Exception):
    """Carries a BrokenPipeError past click, which would leave without a word whatever pipe it was."""

    def __init__(self, error: BrokenPipeError) -> None:
        super().__init__(str(error))
        self.error = error


class Commands(click.Group):
    """A group that imports a command when it is called, and not to list it."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _Broken(error) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which they are met."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command."""
        if name not in COMMANDS:
            return None
        module, _, function = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(import_module(module), function)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of a word, or name the nearest."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = did_you_mean(args[0], self.list_commands(ctx)) or "; `engine --help` lists them"
            raise click.UsageError(f"no command {args[0]!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from the table."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXAMPLES,
)
@click.version_option(__version__, "-V", "--version", prog_name="engine")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Train reinforcement-learning agents with pipelines of middleware."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave: 0 ok, 1 failed, 2 usage, 3 configuration, 130, 143, 129 by signals."""
    open_standard_streams()
    sys.exit(call(argv))


def call(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; print mistakes as one screen without a traceback.

    With ``ENGINE_DEBUG=1`` errors of engine are raised instead.
    """
    try:
        result: Any = cli.main(None if argv is None else list(argv), "engine", standalone_mode=False)
        flush()
    except click.ClickException as error:
        # `engine config` alone: its help, and no complaint (click 8.1, without this error, does so itself)
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):
            _complain(error.format_message())
            return error.exit_code
        _complain(f"error: {_lower(error.format_message())}{_dashes(error)}")
        if isinstance(error, click.UsageError) and error.ctx is not None:
            _complain(f"{error.ctx.get_usage()}\nTry: {error.ctx.command_path} --help")
        return error.exit_code
    except EngineError as error:
        if os.environ.get("ENGINE_DEBUG", "") not in ("", "0"):
            raise
        _complain(f"error: {error}")
        for note in getattr(error, "__notes__", ()):
            _complain(f"  {note}")
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _complain("interrupted")
        return INTERRUPTED
    except Terminated as error:
        _complain(str(error))
        return 128 + error.number
    except _Broken as broken:
        if not reader_gone():
            raise broken.error from None  # some other pipe of the program
        flush()
        return 0
    return result if isinstance(result, int) else 0


def _complain(text: str) -> None:
    click.echo(text, err=True)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:].removesuffix(".")


def _dashes(error: click.ClickException) -> str:
    """Tell those who write ``--policy.learning_rate=1e-3`` how it is written here."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    name, known = error.option_name.lstrip("-"), {parameter.name for parameter in error.ctx.command.params}
    if "overrides" not in known or (error.possibilities and "." not in name):
        return ""
    return f"; values are set without dashes: {name.replace('-', '_')}=..."


if __name__ == "__main__":
    main()
