"""`engine top`: who is in a run, and how they are doing."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from engine.errors import EngineError
from engine.runs.folder import Run, seconds

EXAMPLES = """\b
Examples:
  engine top                     (the newest run, until Ctrl-C)
  engine top latest --once
  engine top latest --json       (one JSON object)"""

_EVERY = 1.0
_LOOK_SECONDS, _END_SECONDS = 0.05, 2.0


@click.command(epilog=EXAMPLES)
@click.argument("run", default="latest")
@click.option("--once", is_flag=True, help="Print the table once, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and end.")
def top(run: str, once: bool, as_json: bool) -> None:
    """Show the processes of a run: role, speed, lag, queues, restarts."""
    found = Run.open(run)
    if found.state != "running" or not _launched(found):
        _print(_past(found), as_json)
        return
    from engine.launch.attach import find, observing

    with observing(find(str(found.path))) as bus:

        def ask() -> dict[str, Any]:
            status: dict[str, Any] = bus.call("launcher_get_status", timeout=10)
            return status

        if once or as_json:
            _print(ask(), as_json)
        else:
            _watch(ask, found)
    if not (once or as_json):
        click.echo(f"{found.path}: {Run.open(found.path).state}")


def _watch(ask: Any, run: Run) -> None:
    """Draw until the run is over."""
    from rich.console import Console

    from engine.runs.area import Area
    from engine.runs.fleet import picture

    console = Console()
    title = f"{run.info['algo']} · {run.info['env']} · seed {run.info['seed']}"
    with Area(console, redirect_stdout=True) as live:
        while Run.open(run.path).state == "running":
            try:
                live.show(picture(ask(), title, console.width - 2))
            except EngineError:
                if not _ends(run):
                    raise
                return  # it ended while it was asked
            time.sleep(_EVERY)


def _ends(run: Run) -> bool:
    """Whether a run whose launcher answers no more is over, which is written a moment later."""
    by = time.monotonic() + _END_SECONDS
    while Run.open(run.path).state == "running":
        if time.monotonic() >= by:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _launched(run: Run) -> bool:
    from engine.launch.card import read_card

    card = read_card(run)
    return card is not None and card.address is not None


def _past(run: Run) -> dict[str, Any]:
    """What is known of a run that is over, or in one process."""
    from engine.launch.card import read_card

    card = read_card(run)
    if card is not None and card.status:
        return {**card.status, "state": run.state}
    metrics = run.metrics()
    rate = metrics.last("time/sps") if "time/sps" in metrics.names() else None
    main = {
        "seat": "main",
        "role": "main",
        "state": run.state,
        "pid": run.info.get("pid"),
        "host": run.info.get("host"),
        "restarts": 0,
        "env_step": metrics.last("env_step") if metrics.rows else None,
        "env_steps_per_second": rate,
    }
    crew = [
        {
            "seat": f"{role}_{number}",
            "role": role,
            "state": "starting" if run.state == "running" else "gone",
            "pid": None,
            "host": None,
            "restarts": None,
        }
        for role, count in (run.info.get("roles") or {}).items()
        for number in range(count)
    ]
    killed = "its launcher is gone, and its processes with it" if crew and run.state == "died" else None
    return {
        "run": run.name,
        "folder": str(run.path),
        "program": run.info.get("recipe"),
        "state": run.state,
        "stage": run.state,
        "reason": run.info.get("stop_reason") or killed,
        "seconds": seconds(run),
        "progress": {},
        "seats": crew or [main],
    }


def _print(status: dict[str, Any], as_json: bool) -> None:
    from engine.runs.fleet import cells, sentence

    if as_json:
        click.echo(json.dumps(status))
        return
    rows = cells(status)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    click.echo(sentence(status))
    for row in rows:
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())
