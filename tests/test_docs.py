"""What the documentation shows runs, and what it names exists."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from engine.cli import main as command

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = {"launch", "worker", "top", "stop", "logs"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_snippet_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("docs_" + re.sub(r"\W", "_", page.stem))
    monkeypatch.setitem(sys.modules, module.__name__, module)  # dataclasses look their module up
    for snippet in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        exec(compile(snippet, str(page), "exec"), module.__dict__)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_inside_the_repository_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_architecture_page_names_every_package_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("```")[1].split("configs/")[0]
    named = set(re.findall(r"\b([a-z]+)/?(?=\s)", table.split("engine/", 1)[1]))
    there = {
        path.stem
        for path in (ROOT / "engine").iterdir()
        if path.stem not in ("__init__", "__main__", "__pycache__", "py")
    }
    missing = {name for name in there if name not in named}
    assert not missing, f"docs/architecture.md does not name {sorted(missing)}"


def test_the_context_page_names_every_declared_field() -> None:
    from dataclasses import fields

    from engine import OfflineContext, OnlineContext

    text = (ROOT / "docs" / "context.md").read_text(encoding="utf-8")
    for kind in (OnlineContext, OfflineContext):
        for field in fields(kind):
            assert f"`{field.name}`" in text


# --- commands ---------------------------------------------------------------------------------


def consoles(page: Path) -> list[tuple[str, list[str]]]:
    """Return each command of a page's consoles, ``$ command``, with the lines that it is said to print."""
    found: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return found


DRY = [
    pytest.param(words, lines, id=words)
    for page in PAGES
    for words, lines in consoles(page)
    if words.endswith(" --dry-run")
]


@pytest.mark.parametrize(("words", "lines"), DRY)
def test_what_a_page_says_that_a_dry_run_prints_is_printed(
    words: str, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = shlex.split(words)
    assert program == "engine"
    command.call(arguments)
    out, err = capsys.readouterr()
    printed = (out + err).splitlines()
    shown = [line for line in lines if line != "..."]
    assert shown == printed[: len(shown)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_for_runs_of_many_processes_can_be_given(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```(?:console)?\n(.*?)^```", text, re.S | re.M):
        for line in re.findall(r"^(?:\$ )?(?:\w+=\S+ )*engine (.*)$", block, re.M):
            words = shlex.split(line.split(";")[0], comments=True)
            if words and words[0] in COMMANDS:
                known = command.cli.get_command(click.Context(command.cli), words[0])
                assert known is not None
                known.make_context(words[0], words[1:])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_two_scripts_of_the_page_on_the_bus_speak_with_each_other(tmp_path: Path) -> None:
    page = ROOT / "docs" / "bus.md"
    text = page.read_text(encoding="utf-8")
    for name, script in re.findall(r"^```python (\S+)\n(.*?)^```", text, re.S | re.M):
        (tmp_path / name).write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{script}")
    ((_, lines),) = [pair for pair in consoles(page) if pair[0] == "python learner.py"]
    listens = [sys.executable, "learner.py"]
    with subprocess.Popen(listens, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        try:
            address = host.stdout.readline().strip()
            assert address.partition("://")[0] == lines[0].partition("://")[0]
            joins = [sys.executable, "collector.py", address]
            subprocess.run(joins, cwd=tmp_path, check=True, timeout=60)
            assert host.communicate(timeout=60)[0].splitlines() == lines[1:]
        finally:
            host.kill()
