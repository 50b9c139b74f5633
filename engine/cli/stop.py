"""`engine stop`: end a run in order."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time

import click

from engine.errors import UsageError
from engine.runs.folder import Run

EXAMPLES = """\b
Examples:
  engine stop latest           (after the iteration under way; everything is saved)
  engine stop latest --now     (at once)"""

_LOOK_SECONDS, _AGAIN_SECONDS, _TIMES = 0.05, 0.5, 6


@click.command(epilog=EXAMPLES)
@click.argument("run")
@click.option("--now", is_flag=True, help="At once: what came after the last evaluation is not saved.")
def stop(run: str, now: bool) -> None:
    """End a run after the iteration under way, as Ctrl-C does."""
    from engine.launch.card import read_card

    found = Run.open(run)
    if found.state != "running":
        raise UsageError(f"{found.path} does not run: {found.state}")
    card = read_card(found)
    if card is not None and card.address is not None:
        from engine.launch.attach import find, observing

        with observing(find(str(found.path))) as bus:
            bus.call("launcher_stop_run", reason="engine stop", now=now, timeout=10)
    elif found.info.get("host") != socket.gethostname():
        raise UsageError(f"{found.path} runs on {found.info.get('host')}; stop it there")
    else:
        os.kill(int(found.info["pid"]), signal.SIGINT)
        if now:
            _insist(found)
    click.echo(f"{found.path} was asked to stop{' at once' if now else ''}")


def _insist(run: Run) -> None:
    """Interrupt once more, and again: signals that come at one time count as one."""
    for _ in range(_TIMES):
        by = time.monotonic() + _AGAIN_SECONDS
        while time.monotonic() < by:
            if Run.open(run.path).state != "running":
                return
            time.sleep(_LOOK_SECONDS)
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(int(run.info["pid"]), signal.SIGINT)
