"""`engine eval`: how good the policy of a run is."""

from __future__ import annotations

import json
import math
import statistics
from typing import Any

import click

from engine.cli import experiment
from engine.runs.folder import Run

EXAMPLES = """\b
Examples:
  engine eval latest
  engine eval runs/CartPole-v1/ppo-s1-... --episodes 100 --json
  engine eval latest --video 2               (mp4 files in the run's videos/)
  engine eval latest --seed 7 --policy last

\b
RUN is a folder, `latest`, or a part of its name that no other run has.
Episodes are played deterministically, in environments that training never saw."""


@click.command(name="eval", epilog=EXAMPLES)
@click.argument("run")
@click.option("--episodes", type=click.IntRange(min=1), default=20, show_default=True)
@click.option("--video", type=click.IntRange(min=0), default=0, help="Film so many further episodes.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the episodes (default: the run's).")
@click.option("--env", help="Another environment with the same spaces.")
@click.option("--policy", "which", type=click.Choice(["best", "last"]), help="Default: best if there is one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def evaluate(
    run: str, episodes: int, video: int, seed: int | None, env: str | None, which: str | None, as_json: bool
) -> None:
    """Play episodes with the trained policy of a run."""
    found = Run.open(run)
    policy, played, films = experiment.play(
        found, episodes=episodes, seed=seed, env=env, which=which, videos=video
    )
    report = measure([return_ for return_, *_ in played], [length for _, length, _ in played])
    report |= {
        "cut": sum(cut for *_, cut in played),
        "env": env or found.info.get("env"),
        "run": str(found.path),
        "policy": str(policy),
        "videos": [str(path) for path in films],
    }
    click.echo(json.dumps(report) if as_json else table(report))


def measure(returns: list[float], lengths: list[int]) -> dict[str, Any]:
    """Describe returns and lengths of episodes; the standard deviation is the population's."""
    mean, std = statistics.fmean(returns), statistics.pstdev(returns)
    return {
        "return_mean": mean,
        "return_std": std,
        "return_min": min(returns),
        "return_max": max(returns),
        "return_error": 1.96 * std / math.sqrt(len(returns)),
        "episodes": len(returns),
        "length_mean": statistics.fmean(lengths),
        "returns": returns,
        "lengths": lengths,
    }


def table(report: dict[str, Any]) -> str:
    """Lay a report out for reading."""
    cut = f", of which {report['cut']} did not end and were cut" if report.get("cut") else ""
    rows = [
        ("policy", report["policy"]),
        ("env", report["env"]),
        ("episodes", f"{report['episodes']}{cut}"),
        ("return", f"{report['return_mean']:.2f} ± {report['return_std']:.2f} (mean ± standard deviation)"),
        ("range", f"{report['return_min']:.2f} to {report['return_max']:.2f}"),
        ("mean within", f"± {report['return_error']:.2f} (95 %)"),
        ("length", f"{report['length_mean']:.1f} steps"),
        *(("video", path) for path in report["videos"]),
    ]
    return "\n".join(f"{label:<12} {value}" for label, value in rows)
