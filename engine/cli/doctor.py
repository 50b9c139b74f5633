"""`engine doctor`: what works on this machine, and the command that mends what does not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

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
  engine doctor --json      (for a bug report)

\b
Exits with 1 when something is broken that every run needs."""


@click.command(epilog=EXAMPLES)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(as_json: bool) -> int:
    """Check this machine, and say what to do about what is missing."""
    findings: list[Finding] = []
    for check in CHECKS:
        for finding in _safely(check):
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding.mark:<4}  {finding.name:<12} {finding.text}")
                if finding.fix:
                    click.echo(f"      {'':<12} -> {finding.fix}")
    broken = any(finding.mark == "fail" for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "checks": [finding._asdict() for finding in findings]}))
    return int(broken)


def _safely(check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """A check that breaks is a finding of its own."""
    try:
        yield from check()
    except Exception as error:  # whatever a broken installation raises belongs into the report
        yield Finding(check.__name__.removeprefix("_"), "fail", f"{type(error).__name__}: {error}")


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
            yield Finding(module, "fail", "not installed", f"pip install {package}")


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
    for extra, module, what in (
        ("render", "pygame", "films of the classic environments"),
        ("box2d", "Box2D", "LunarLander, BipedalWalker"),
        ("mujoco", "mujoco", "HalfCheetah, Hopper, ..."),
    ):
        if importlib.util.find_spec(module) is not None:
            yield Finding(extra, "ok", what)
        else:
            yield Finding(extra, "warn", f"not installed: {what}", f"pip install 'engine[{extra}]'")


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
        yield Finding("film", "warn", str(error), "pip install --force-reinstall 'imageio[ffmpeg]'")
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


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "installed, version unknown"


CHECKS = (_python, _packages, _torch, _environment, _extras, _display, _film, _writing)
