"""What the documentation shows runs, and what it names exists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
        if path.stem not in ("__init__", "__pycache__", "py")
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
