"""Imports point down the floors."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ENGINE = Path(__file__).parent.parent / "engine"

FLOORS = {
    "errors": "0", "types": "0", "tree": "0", "seeding": "0", "threads": "0", "signals": "0",
    "context": "1",
    "pipeline": "2", "state": "2",
    "executor": "3", "bus": "3",
    "task": "4",
    "ops": "T1", "data": "T1", "config": "T1", "runs": "T1",
    "envs": "T2", "nets": "T2", "league": "T2",
    "policies": "T3",
    "middleware.functional": "5",
    "middleware": "6",
    "recipes": "7", "testing": "7",
    "launch": "8",
    "cli": "9",
    "__main__": "10",
}  # fmt: skip

T_FLOORS = ["T1", "T2", "T3"]


def package_of(module: str) -> str:
    """The row of the table that a module belongs to."""
    parts = module.split(".")[1:]
    if parts[:2] == ["middleware", "functional"]:
        return "middleware.functional"
    return parts[0] if parts else ""


def may_import(user: str, used: str) -> bool:
    if user == used or not used:
        return True
    here, there = FLOORS[user], FLOORS[used]
    if there == "0":
        return here != "0" or used == "errors"
    if here in T_FLOORS:
        return there in T_FLOORS[: T_FLOORS.index(here)]
    if user == "middleware.functional":
        return there in T_FLOORS or used in ("context", "pipeline")
    if there in T_FLOORS:
        return int(here) >= 6
    return int(there) < int(here)


def imports_of(path: Path) -> list[str]:
    """Modules of engine that a file imports, those under TYPE_CHECKING left out."""
    found: list[str] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                deeper = ENGINE.parent / Path(*node.module.split("."), alias.name)
                is_module = deeper.is_dir() or deeper.with_suffix(".py").is_file()
                found.append(f"{node.module}.{alias.name}" if is_module else node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return [name for name in found if name == "engine" or name.startswith("engine.")]


MODULES = sorted(ENGINE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ENGINE)))
def test_imports_point_down_the_floors(path: Path) -> None:
    module = ".".join(["engine", *path.relative_to(ENGINE).with_suffix("").parts]).removesuffix(".__init__")
    user = package_of(module)
    if not user:
        assert imports_of(path) == ["engine.errors"], "the front door resolves names lazily"
        return
    assert user in FLOORS, f"{module} stands on no floor: add it to the table"
    for used in imports_of(path):
        assert used != "engine" or user == "cli" or module.endswith("__main__"), (
            f"{module} imports the front door"
        )
        assert may_import(user, package_of(used)), f"{module} ({FLOORS[user]}) imports {used}"


def test_only_one_file_imports_treetensor() -> None:
    users = [path.name for path in MODULES if "import treetensor" in path.read_text(encoding="utf-8")]
    assert users == ["tree.py"]


def test_no_tree_is_built_from_a_dict_the_slow_way() -> None:
    for path in MODULES:
        if path.name != "tree.py":
            text = path.read_text(encoding="utf-8")
            assert "tt.Tensor(" not in text
            assert "FastTreeValue(" not in text
