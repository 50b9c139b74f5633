"""What to tell at the end of a run."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from engine.runs.folder import Run
from engine.signals import REASONS, name_of, number_of


def summary(run: Run) -> str:
    """Return what to tell the user at the end of a run: the result, the files, what to try next."""
    result = run.result
    command = command_name()
    reason = run.info.get("stop_reason")
    number = number_of(reason)
    if run.state == "interrupted" and number is not None and reason == REASONS[number]:
        reason = f"by {name_of(number)}; everything up to there is saved"
    lines = [f"{run.state}: {reason}"]
    if mismatch := run.info.get("exchange_mismatch"):
        lines.append(f"warning: the env steps do not add up: {mismatch}")
    if "return_mean" in result:
        cut = f", {result['cut']} of them cut" if result.get("cut") else ""
        episodes = "episode" if result["episodes"] == 1 else "episodes"
        lines.append(
            f"return  {result['return_mean']:.1f} ± {result['return_std']:.1f} "
            f"(best policy, {result['episodes']} fresh {episodes}, deterministic{cut})"
        )
    for label, pattern in (
        ("policy", "policies/*"),
        ("curve", "plots/learning_curve.png"),
        ("video", "videos/*.mp4"),
    ):
        lines += [f"{label:<7} {path}" for path in sorted(run.path.glob(pattern))]
    lines.append("next:")
    if any(run.path.glob("policies/*")):
        lines.append(f"  {command} eval {run.path} --episodes 100")
    lines.append(f"  {command} plot {run.path}")
    lines.append(f"  {command.removesuffix('engine')}tensorboard --logdir {run.path / 'tb'}")
    return "\n".join(lines)


def ending(run: Run) -> dict[str, Any]:
    """Return what `summary` tells, for programs: how the run ended, its result, and its files."""
    return {
        "run": str(run.path),
        "state": run.state,
        "stop_reason": run.info.get("stop_reason"),
        "exit_code": run.exit_code,
        "exchange_mismatch": run.info.get("exchange_mismatch"),
        "result": run.result,
        "policies": [str(path) for path in sorted(run.path.glob("policies/*"))],
        "plots": [str(path) for path in sorted(run.path.glob("plots/*.png"))],
        "videos": [str(path) for path in sorted(run.path.glob("videos/*.mp4"))],
    }


def command_name() -> str:
    """``engine``, or its path where the shell would not find it: in an environment that is not activated."""
    mine = Path(sys.executable).parent / "engine"
    if shutil.which("engine") or not mine.is_file():
        return "engine"
    near = os.path.relpath(mine)
    return str(mine) if near.startswith("..") else near
