"""The report: printed, and written to docs/benchmarks.md."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import statistics
from pathlib import Path

from benchmarks.measure import Section


def machine() -> str:
    """The machine and the versions, in one line."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    versions = []
    for name in ("torch", "numpy", "gymnasium", "stable-baselines3"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {name}")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    python = platform.python_version()
    return (
        f"{model}, {cores} cores, {system}; Python {python}, {', '.join(versions)}; {datetime.date.today()}"
    )


def table(section: Section) -> list[str]:
    """A section in Markdown."""
    lines = [f"## {section.title}", "", section.setting, ""]
    lines += ["| figure | median (lowest to highest) | goal | |", "| --- | --- | --- | --- |"]
    marks = {True: "kept", False: "**missed**", None: ""}
    for goal in section.goals:
        lines.append(f"| {goal.what} | {goal.figure}{goal.unit} | {goal.wanted} | {marks[goal.kept]} |")
    lines += ["", "| side | median | unit |", "| --- | --- | --- |"]
    for sides in section.sides:
        for name, numbers in sides.numbers.items():
            lines.append(f"| {name} | {statistics.median(numbers):.4g} | {sides.unit} |")
    return lines + [""] + [line for note in section.notes for line in (note, "")]


def write(sections: list[Section], command: str, path: Path) -> None:
    """Write the whole report."""
    rounds = min(len(next(iter(sides.numbers.values()))) for section in sections for sides in section.sides)
    head = [
        "# Benchmarks",
        "",
        f"Written by `{command}` on: {machine()}.",
        "",
        f"All sides of a table were timed in turns in one run, at least {rounds} rounds each; a figure "
        "is the median of what each round gave, with the lowest and highest. Only the ratios "
        "mean something elsewhere.",
        "",
    ]
    lines = head + [line for section in sections for line in table(section)]
    path.write_text("\n".join(lines).rstrip() + "\n")
