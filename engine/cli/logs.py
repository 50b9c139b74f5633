"""`engine logs`: what the processes of a run said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.errors import UsageError, did_you_mean
from engine.runs.folder import Run
from engine.runs.logs import LOG

EXAMPLES = """\b
Examples:
  engine logs latest                        (of many processes, or of one)
  engine logs latest --role collector
  engine logs latest --role learner -f      (and what comes, until the run is over)
  engine logs latest --json                 (one object a line, with tracebacks)"""

_LOOK_SECONDS = 0.25
MAIN = Path(LOG).stem


@click.command(epilog=EXAMPLES)
@click.argument("run", default="latest")
@click.option("--role", help="Of one role, or one process such as collector_0.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes, until the run is over.")
@click.option("--json", "as_json", is_flag=True, help="Print records as they are.")
def logs(run: str, role: str | None, follow: bool, as_json: bool) -> None:
    """Print what the processes of a run said, in the order of time."""
    found = Run.open(run)
    read: dict[Path, int] = {}
    state = found.state
    expected = _expected(found) if follow and state == "running" else set()
    role = MAIN if role == "main" else role  # the one process of a run without roles
    if role is not None and role.rpartition("_")[0] not in expected and role not in _names(found) | expected:
        known = sorted(_names(found) | expected)
        there = f"; there are {', '.join(known)}" if known else " or of any other process"
        raise UsageError(f"{found.path} has no logs of {role!r}{did_you_mean(role, known)}{there}")
    while True:
        for seat, row in sorted(_new(found, role, read), key=lambda pair: str(pair[1].get("time"))):
            click.echo(json.dumps({"seat": seat, **row}) if as_json else _line(seat, row))
        if not follow or state != "running":
            if not read:
                click.echo(f"{found.path} has no logs: nothing was said in it", err=True)
            return
        state = Run.open(found.path).state  # looked at before the last reading
        time.sleep(_LOOK_SECONDS)


def _files(run: Run) -> list[Path]:
    """The logs of the processes; the learner's own of the whole run is in them."""
    files = sorted((run.path / "logs").glob("*.jsonl"))
    seats = [file for file in files if file.stem != MAIN]
    return seats or files


def _names(run: Run) -> set[str]:
    stems = {file.stem for file in _files(run)}
    return stems | {stem.rpartition("_")[0] for stem in stems if "_" in stem}


def _expected(run: Run) -> set[str]:
    """Of whom something may come while the run goes on; of roles, also of one process."""
    roles = run.info.get("roles")
    return {"launcher", *roles} if roles else {MAIN}


def _new(run: Run, role: str | None, read: dict[Path, int]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in _files(run):
        if role is not None and role not in (path.stem, path.stem.rpartition("_")[0]):
            continue
        with path.open("rb") as file:
            file.seek(read.get(path, 0))
            for line in file:
                if not line.endswith(b"\n"):
                    break  # being written
                read[path] = read.get(path, 0) + len(line)
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict):
                    yield path.stem, row


def _line(seat: str, row: dict[str, Any]) -> str:
    level = str(row.get("level"))
    mark = f"{level}: " if level in ("warning", "error", "critical") else ""
    text = f"{str(row.get('time'))[11:23]} {seat:<11} | {mark}{row.get('message')}"
    return f"{text}\n{row['traceback'].rstrip()}" if row.get("traceback") else text
