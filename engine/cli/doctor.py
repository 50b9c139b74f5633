"""`engine doctor`: what works on this machine, and the command that mends what does not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

Mark = Literal["ok", "warn", "fail"]


class Finding(NamedTuple):
    """One line of the report."""

    name: str
    mark: Mark
    text: str
    fix: str = ""


EXAMPLES = """\b
Examples:
  engine doctor
  engine doctor --json                   (for a bug report)
  engine doctor --env my_module:MyEnv    (an environment of your own)

\b
Exits with 1 when something is broken that every run needs; with --env, when the environment is."""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--env",
    "env_id",
    metavar="ID",
    help="Check an environment instead: gymnasium's own checker, then 100 steps as a run takes them.",
)
def doctor(as_json: bool, env_id: str | None) -> int:
    """Check this machine, or an environment, and say what to do about what is wrong."""
    findings: list[Finding] = []
    checks = CHECKS if env_id is None else tuple(partial(check, env_id) for check in ENV_CHECKS)
    for check in checks:
        for finding in _safely(check):
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding.mark:<4}  {finding.name:<12} {finding.text}")
                if finding.fix:
                    click.echo(f"      {'':<12} -> {finding.fix}")
        if env_id is not None and findings[-1].name == "spaces":
            break  # it cannot even be made
    broken = any(finding.mark == "fail" for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "checks": [finding._asdict() for finding in findings]}))
    return int(broken)


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that breaks is a finding of its own."""
    try:
        yield from check()
    except Exception as error:  # whatever a broken installation raises belongs into the report
        name = check.func.__name__ if isinstance(check, partial) else check.__name__
        said = _plain(f"{type(error).__name__}: {error}").partition("; `engine doctor")[0]
        yield Finding(name.removeprefix("_"), "fail", said)


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = (3, 11) <= sys.version_info[:2] < (3, 13)
    text = f"{version} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    yield Finding("python", "ok" if good else "fail", text, "" if good else "install Python 3.11 or 3.12")


def _packages() -> Iterator[Finding]:
    for module, package in (
        ("numpy", "numpy"),
        ("gymnasium", "gymnasium"),
        ("treetensor", "DI-treetensor"),
        ("msgspec", "msgspec"),
        ("yaml", "PyYAML"),
        ("rich", "rich"),
        ("matplotlib", "matplotlib"),
        ("tensorboard", "tensorboard"),
        ("safetensors", "safetensors"),
    ):
        found = importlib.util.find_spec(module) is not None
        if found:
            yield Finding(module, "ok", _version(package))
        else:
            yield Finding(module, "fail", "not installed", f"pip install -c constraints.txt {package}")


def _torch() -> Iterator[Finding]:
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        yield Finding("torch", "fail", f"cannot be imported: {error}", "pip install -c constraints.txt torch")
        return
    yield Finding("torch", "ok", f"{torch.__version__}, {torch.get_num_threads()} threads")
    if torch.cuda.is_available():
        yield Finding("device", "ok", f"cuda: {torch.cuda.get_device_name(0)}")
    else:
        why = "no GPU is visible" if torch.version.cuda else "this build of torch is for CPUs"
        yield Finding("device", "ok", f"cpu ({why})")


def _environment() -> Iterator[Finding]:
    from engine.envs.config import EnvConfig
    from engine.envs.make import check_env

    check_env(EnvConfig(id="CartPole-v1"))
    yield Finding("environment", "ok", "CartPole-v1 can be made")


def _extras() -> Iterator[Finding]:
    for extra, modules, what in (
        ("render", ("pygame",), "films of the classic environments"),
        ("box2d", ("Box2D",), "LunarLander, BipedalWalker"),
        ("mujoco", ("mujoco",), "HalfCheetah, Hopper, ..."),
        ("atari", ("ale_py", "cv2"), "the Atari games and their preprocessing"),
    ):
        if all(importlib.util.find_spec(module) is not None for module in modules):
            yield Finding(extra, "ok", what)
        else:
            line = f"pip install -c constraints.txt 'engine[{extra}]'"
            yield Finding(extra, "warn", f"not installed: {what}", line)


def _display() -> Iterator[Finding]:
    if importlib.util.find_spec("pygame") is None:
        return
    code = "import pygame; pygame.display.init(); pygame.Surface((8, 8)); print(pygame.display.get_driver())"
    driver = os.environ.get("SDL_VIDEODRIVER") or ("" if os.environ.get("DISPLAY") else "dummy")
    env = {**os.environ, "PYGAME_HIDE_SUPPORT_PROMPT": "1", **({"SDL_VIDEODRIVER": driver} if driver else {})}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        yield Finding("display", "ok", f"frames can be drawn (SDL driver {done.stdout.strip() or 'unknown'})")
    else:
        text = (done.stderr.strip().splitlines() or ["pygame failed"])[-1]
        yield Finding("display", "warn", text, "export SDL_VIDEODRIVER=dummy")


def _film() -> Iterator[Finding]:
    from engine.errors import EngineError
    from engine.runs.video import check_encoder

    try:
        check_encoder()
    except EngineError as error:
        yield Finding(
            "film", "warn", str(error), "pip install -c constraints.txt --force-reinstall 'imageio[ffmpeg]'"
        )
    else:
        yield Finding("film", "ok", "mp4 files can be written")


def _writing() -> Iterator[Finding]:
    for name, folder in (
        ("runs", Path(os.environ.get("ENGINE_RUNS") or ".")),
        ("temporary", Path(tempfile.gettempdir())),
    ):
        place = next(path for path in (folder, *folder.resolve().parents) if path.is_dir())
        free = shutil.disk_usage(place).free / (1 << 30)
        fix = "choose another folder with --run-dir or ENGINE_RUNS" if name == "runs" else "set TMPDIR"
        try:
            with tempfile.NamedTemporaryFile(dir=place):
                pass
        except OSError as error:
            yield Finding(name, "fail", f"{place.resolve()} cannot be written: {error.strerror}", fix)
            continue
        low = free < 1
        text = f"{place.resolve()} can be written, {free:,.1f} GiB free"
        yield Finding(name, "warn" if low else "ok", text, fix if low else "")


def _spaces(env_id: str) -> Iterator[Finding]:
    """Whether it can be made, and what a policy would see and do."""
    from engine.envs.config import EnvConfig
    from engine.envs.make import check_env

    observation, action = check_env(EnvConfig(id=env_id))
    yield Finding("observation", "ok", _plain(str(observation)))
    yield Finding("action", "ok", _plain(str(action)))


def _gymnasium(env_id: str) -> Iterator[Finding]:
    """What gymnasium's own checker says of the innermost environment."""
    import warnings

    from gymnasium.utils.env_checker import check_env

    from engine.envs.make import EnvMaker

    made = EnvMaker(env_id)()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(made.unwrapped, skip_render_check=True)
    finally:
        made.close()
    said = list(dict.fromkeys(_plain(str(warning.message)) for warning in caught))
    for text in said:
        yield Finding("gymnasium", "warn", text, "see https://gymnasium.farama.org/api/env")
    yield Finding("gymnasium", "ok", "its checker finds " + ("nothing worse" if said else "nothing wrong"))


def _steps(env_id: str) -> Iterator[Finding]:
    """Step it as a run does, with random actions."""
    import numpy as np

    from engine.envs.make import make_env

    with make_env(env_id, vectorization="sync") as env:
        env.reset()
        actions = env.env.single_action_space
        actions.seed(0)
        episodes: list[Any] = []
        start = time.perf_counter()
        for _ in range(STEPS):
            action = np.asarray(actions.sample()) - getattr(actions, "start", 0)
            episodes += env.step(action[None]).episodes
        seconds = time.perf_counter() - start
    text = f"{STEPS} random steps, {STEPS / seconds:,.0f} a second"
    if episodes:
        mean = sum(episode.return_ for episode in episodes) / len(episodes)
        text += f"; {len(episodes)} episodes ended, mean return {mean:.4g}"
    else:
        text += "; no episode ended"
    yield Finding("steps", "ok", text)


def _plain(text: str) -> str:
    """A text of gymnasium's in one line, without its colours."""
    return " ".join(re.sub(r"\x1b\[\d+m", "", text).removeprefix("WARN: ").split())


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "installed, version unknown"


CHECKS = (_python, _packages, _torch, _environment, _extras, _display, _film, _writing)
ENV_CHECKS = (_spaces, _gymnasium, _steps)
STEPS = 100
