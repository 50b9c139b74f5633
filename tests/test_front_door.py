"""What `import engine` gives: quick to import, and typed for those who use it from outside."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import engine

ROOT = Path(__file__).parent.parent
USES = """
from engine import OnlineContext, Task, load_policy, serial

def count(ctx: OnlineContext) -> None:
    ctx.env_step += 1

task = Task(OnlineContext())
reveal_type(task.use(serial(count)))
reveal_type(load_policy)
"""


def snippet() -> str:
    """The subclass that docs/context.md shows."""
    text = (ROOT / "docs" / "context.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^```python\n(.*?)^```", text, re.S | re.M)
    assert "(OnlineContext)" in found
    return str(found)


def strictly(code: str, folder: Path, *, python: Path) -> tuple[int, str]:
    """What `mypy --strict` says of `code` in a folder that knows nothing of this repository."""
    folder.mkdir()
    (folder / "mine.py").write_text(code)
    words = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "mine.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that holds an editable install of a copy of engine, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    checkout, wheels = folder / "checkout", folder / "wheels"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("engine", "configs"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignore)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, checkout)
    wheels.mkdir()
    build = f"from setuptools.build_meta import build_editable as build; build({str(wheels)!r})"
    subprocess.run([sys.executable, "-c", build], cwd=checkout, check=True, capture_output=True, timeout=100)
    venv.create(folder / "venv", with_pip=False)
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        wheel.extractall(packages)
    return folder / "venv" / "bin" / "python"


def test_the_names_are_the_same_at_run_time_and_for_type_checkers() -> None:
    tree = ast.parse(Path(engine.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and not node.orelse and
                isinstance(node.test, ast.Name)]  # fmt: skip
    imported = {
        name.name: statement.module
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
    }
    assert imported == engine._HOME
    assert engine.__all__ == sorted([*imported, "__version__"])
    assert all(getattr(engine, name) is not None for name in engine.__all__)


@pytest.mark.timeout(400)
def test_the_subclass_of_the_page_on_contexts_passes_strictly_outside_the_repository(
    installed: Path, tmp_path: Path
) -> None:
    found = subprocess.run([installed, "-c", "import engine; print(engine.__file__)"], capture_output=True,
                           text=True, cwd=tmp_path)  # fmt: skip
    assert found.stdout == f"{installed.parents[2] / 'checkout' / 'engine' / '__init__.py'}\n"
    code, said = strictly(f"{snippet()}\nreveal_type(following)\n{USES}", tmp_path / "mine", python=installed)
    assert code == 0, said
    assert 'Revealed type is "mine.MyContext"' in said
    assert 'Revealed type is "engine.task.Task"' in said
    assert 'Revealed type is "Any"' not in said
    code, said = strictly("from engine import Tsk", tmp_path / "misspelt", python=installed)
    assert (code, '"engine" has no attribute "Tsk"' in said) == (1, True), said


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_subclass_passes_strictly_with_the_environment_that_these_tests_run_in(tmp_path: Path) -> None:
    code, said = strictly(snippet() + USES, tmp_path / "mine", python=Path(sys.executable))
    assert code == 0, said


def test_importing_engine_imports_no_more_than_itself() -> None:
    code = "import sys; before = set(sys.modules); import engine; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    new = {name.partition(".")[0] for name in done.stdout.split()}
    assert "engine" in new
    assert new - {"engine"} <= set(sys.stdlib_module_names), new
