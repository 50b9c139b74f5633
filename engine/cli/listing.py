"""`engine list` and `engine show`: what there is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from engine import config as configs
from engine.runs.folder import Run, command_line, find_runs, seconds
from engine.runs.throughput import duration

LIST_EXAMPLES = """\b
Examples:
  engine list
  engine list --runs --root /data/runs
  engine list --json"""

SHOW_EXAMPLES = """\b
Examples:
  engine show latest
  engine show runs/CartPole-v1/ppo-s1-... --json"""


@click.command(name="list", epilog=LIST_EXAMPLES)
@click.option("--configs", "only_configs", is_flag=True, help="Configurations only.")
@click.option("--runs", "only_runs", is_flag=True, help="Runs only.")
@click.option(
    "--root", type=click.Path(path_type=Path), help="Where runs are (default: $ENGINE_RUNS or runs)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_all(only_configs: bool, only_runs: bool, root: Path | None, as_json: bool) -> None:
    """List configurations and runs."""
    found: dict[str, list[dict[str, Any]]] = {}
    if not only_runs or only_configs:
        found["configs"] = [
            {"name": name, "path": str(configs.find(name)), "about": configs.summary(configs.find(name))}
            for name in configs.names()
        ]
    if not only_configs or only_runs:
        found["runs"] = [describe(run) for run in find_runs(root)]
    if as_json:
        click.echo(json.dumps(found))
        return
    sections = []
    if "configs" in found:
        shipped = [(row["name"], row["about"]) for row in found["configs"]]
        sections.append(_table(("configuration", "about"), shipped) or "no configurations")
    if "runs" in found:
        rows = [
            (
                row["run"],
                row["state"],
                _number(row["last_return"]),
                _number(row["best_return"]),
                row["start"][:16],
            )
            for row in found["runs"]
        ]
        head = ("run", "state", "last return", "best return", "started (UTC)")
        sections.append(_table(head, rows) or "no runs yet; start one with: engine run ppo/cartpole")
    click.echo("\n\n".join(sections))


@click.command(epilog=SHOW_EXAMPLES)
@click.argument("run")
@click.option("--json", "as_json", is_flag=True, help="Print run.json and the newest scalars as one object.")
def show(run: str, as_json: bool) -> None:
    """Tell what a run is and how it went."""
    found = Run.open(run)
    about = describe(found)
    metrics = found.metrics()
    newest = {name: metrics.last(name) for name in metrics.names()}
    if as_json:
        click.echo(json.dumps({**found.info, **about, "metrics": newest}))
        return
    info = found.info
    versions = info.get("versions") or {}
    rows = [
        ("run", str(found.path)),
        ("state", f"{about['state']}{', ' + info['stop_reason'] if info.get('stop_reason') else ''}"),
        ("env", str(about["env"])),
        ("algorithm", f"{about['algo']}, seed {about['seed']}"),
        ("started", f"{about['start'][:19]} UTC, {duration(about['seconds'])} on {info.get('host')}"),
        ("command", command_line(info.get("argv") or [])),
        ("commit", str(info.get("commit") or "none")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items() if version)),
        ("env steps", f"{newest['env_step']:,.0f}" if newest.get("env_step") is not None else "none yet"),
        ("last return", _number(about["last_return"])),
        ("best return", _number(about["best_return"])),
        *((key.replace("_", " "), _number(value)) for key, value in found.result.items()),
        *(("file", str(path)) for path in _products(found.path)),
    ]
    click.echo("\n".join(f"{label:<13} {value}" for label, value in rows))


def describe(run: Run) -> dict[str, Any]:
    """The facts of a run that lists show; returns are those of evaluations, else of training."""
    metrics = run.metrics()
    key = "eval/return_mean" if "eval/return_mean" in metrics.names() else "collect/return_mean"
    return {
        "run": str(run.path),
        "state": run.state,
        "env": run.info.get("env"),
        "algo": run.info.get("algo"),
        "seed": run.info.get("seed"),
        "start": str(run.info.get("start") or ""),
        "seconds": seconds(run),
        "last_return": metrics.last(key),
        "best_return": metrics.best(key),
    }


def _products(folder: Path) -> list[Path]:
    patterns = ("config.yaml", "metrics.jsonl", "policies/*", "plots/*.png", "videos/*.mp4")
    return [path for pattern in patterns for path in sorted(folder.glob(pattern))]


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return (
        f"{value:,.1f}"
        if isinstance(value, float)
        else f"{value:,}"
        if isinstance(value, int)
        else str(value)
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns under their heads, as wide as they need; nothing for no rows."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)
