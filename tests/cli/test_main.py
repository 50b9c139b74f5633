"""The command as a whole: quick, helpful, one screen for every mistake."""

from __future__ import annotations

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

from engine import __version__
from engine.cli.main import COMMANDS, call, cli

ROOT = Path(__file__).parents[2]


def engine(*words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "engine.cli.main", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **env},
        timeout=100,
    )


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ENGINE_RUNS", "ENGINE_DEBUG", "ENGINE_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_help_takes_little_more_than_importing_click() -> None:
    """150 ms on an idle machine; processor time against a baseline holds on a busy one too."""

    def seconds(*words: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run([sys.executable, *words], capture_output=True, cwd=ROOT).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(seconds("-m", "engine.cli.main", "--help"), seconds("-c", "import click")) for _ in range(5)]
    assert min(took for took, _ in pairs) < 2 * min(base for _, base in pairs) + 0.02


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from engine.cli.main import call; call(['--help'])\n"
        "print('HEAVY', {'torch', 'numpy', 'gymnasium', 'rich', 'yaml', 'msgspec'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "HEAVY set()" in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_in_its_help_what_the_list_says_and_gives_examples(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    assert (command.help or "").splitlines()[0] == COMMANDS[name][1]
    assert "Examples:" in (command.epilog or "")


@pytest.mark.parametrize(
    "words", [[], ["-h"], ["--help"], ["run", "-h"], ["new", "middleware", "--help"], ["--version"]]
)
def test_asking_for_help_is_no_mistake(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(words) == 0
    shown = capsys.readouterr()
    assert shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["rnu"], 2, "no command 'rnu'; did you mean 'run'?"),
        (["zzzzzz"], 2, "`engine --help` lists them"),
        (["run"], 2, "missing argument 'TARGET'"),
        (["run", "ppo/cartpole", "--sed", "3"], 2, "did you mean '--seed'"),
        (["run", "ppo/cartpole", "--policy.clip=1"], 2, "values are set without dashes: policy.clip=..."),
        (["run", "ppo/cartpole", "--async-mode=true"], 2, "values are set without dashes: async_mode=..."),
        (["run", "ppo/cartpole", "async_mod=true"], 3, "did you mean 'async_mode'?"),
        (["run", "ppo/cartpole", "async_mode=2"], 3, "'async_mode' of PPORun must be true or false, got 2"),
        (["graph", "dqn/cartpole", "async_mode=true", "max_lag=-1"], 3, "must be a whole number >= 0"),
        (["config", "show", "ppo/cartpole", "max_lag=1"], 3, "it needs async_mode=true"),
        (["run", "ppo/cartpole", "--seed", "x"], 2, "'x' is not a valid integer"),
        (["run", "ppo/cartpole", "--progress", "loud"], 2, "'loud' is not one of"),
        (["run", "ppo/cartpol"], 2, "no configuration 'ppo/cartpol'; did you mean 'ppo/cartpole'?"),
        (["run", "gone.py"], 2, "no script 'gone.py'"),
        (["run", "engine.recipes.pp:ppo"], 2, "did you mean 'engine.recipes.ppo'?"),
        (["run", "engine.recipes.ppo:pp", "env.id=X"], 2, "has no recipe 'pp'; did you mean 'ppo'?"),
        (["run", "engine.recipes.ppo:train"], 3, "is no recipe: its first parameter must be annotated"),
        (["run", "ppo/cartpole", "policy.learning_rat=1"], 3, "did you mean 'learning_rate'?"),
        (["run", "ppo/cartpole", "learning_rate=1"], 3, "did you mean 'policy.learning_rate'?"),
        (["run", "ppo/cartpole", "policy.learning_rate=fast"], 3, "must be a number"),
        (["run", "ppo/cartpole", "policy.learning_rate=-1"], 3, "a number > 0.0, got -1 (command line"),
        (["run", "ppo/cartpole", "policy.hidden=64,64"], 3, "policy.hidden); write policy.hidden=[64,64]"),
        (["run", "ppo/cartpole", "seed"], 3, "is not of the form key=value"),
        (["run", "ppo/cartpole", "env.id=CartPol-v1"], 3, "did you mean 'CartPole-v1'?"),
        (["run", "ppo/cartpole", "env.id=nowhere:Env"], 3, "there is no module 'nowhere'"),
        (["run", "ppo/cartpole", "--run-dir", "file/x"], 2, "choose another with --run-dir"),
        (["run", "broken.yaml"], 3, "not valid YAML"),
        (["run", "no_recipe.yaml"], 3, "names no recipe"),
        (["run", "bad_recipe.yaml"], 3, "did you mean 'ppo'?"),
        (["run", "script.py", "--dry-run"], 2, "a script can only be run"),
        (["run", "ppo/cartpole", "stop.seconds=0"], 3, "must be a number > 0.0 or null, got 0 (command line"),
        (["config", "explain", "ppo/cartpole", "policy.clp"], 3, "; did you mean 'policy.clip'?"),
        (["config", "explain", "x.py"], 2, "no script 'x.py'"),
        (["config", "explain", "script.py"], 2, "explain wants a configuration or module:function"),
        (["eval", "nope"], 2, "no run 'nope' in runs"),
        (["eval", "latest"], 2, "there is no latest run"),
        (["show", "."], 2, "has no run.json"),
        (["plot"], 2, "missing argument 'RUN...'"),
        (["graph", "ppo/cartpole", "--format", "png"], 2, "'png' is not one of"),
        (["new", "midleware", "x"], 2, "Did you mean 'middleware'?"),
        (["config", "show", "ppo/cartpole", "sed=1"], 3, "did you mean 'seed'?"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_screen_without_traceback(
    words: list[str], code: int, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("file").write_text("")
    Path("script.py").write_text("")
    Path("broken.yaml").write_text("a: [")
    Path("no_recipe.yaml").write_text("seed: 1")
    Path("bad_recipe.yaml").write_text("recipe: engine.recipes.ppo:pop")
    assert call(words) == code
    shown = capsys.readouterr()
    assert sentence.lower() in shown.err.lower()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") < 12
    assert shown.out == ""
    assert not Path("runs").exists()


@pytest.mark.parametrize("word", ["policy.clip=x", "nothing=1", "env.id=CartPol-v1", "env.num_envs=0"])
def test_mistakes_are_found_before_torch_is_imported(word: str) -> None:
    code = (
        "import sys; from engine.cli.main import call\n"
        f"code = call(['run', 'ppo/cartpole', {word!r}]); print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "3 False\n"


def test_a_process_shows_the_mistake_and_the_traceback_only_when_debugging() -> None:
    plain, debug = engine("show", "nope"), engine("show", "nope", ENGINE_DEBUG="1")
    assert plain.returncode == 2
    assert plain.stderr == "error: no run 'nope' in runs; `engine list` shows what there is\n"
    assert "Traceback" in debug.stderr


def test_the_package_is_the_command() -> None:
    words = [sys.executable, "-m", "engine", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"engine, version {__version__}\n", "")
    mistaken = subprocess.run([*words[:3], "show", "nope"], capture_output=True, text=True, cwd=ROOT)
    assert (mistaken.returncode, mistaken.stdout) == (2, "")
    assert mistaken.stderr.startswith("error: no run 'nope'")


def test_a_reader_that_leaves_early_is_no_mistake() -> None:
    words = f"{sys.executable} -m engine.cli.main config show ppo/cartpole | true"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""


RECIPE = """
import errno
import msgspec
from engine import OnlineContext, Task

class Config(msgspec.Struct):
    fail: list[int] | None = None

def recipe(config: Config) -> Task:
    def work(ctx):
        if config.fail is not None:
            raise BrokenPipeError(*config.fail[:1], *(["of the simulator"] * len(config.fail)))
        ctx.env_step += 1

    return Task(OnlineContext()).use(work).use(lambda ctx: ctx.finish("one is enough"), name="end")
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "streams",
    ["2>&1 | true", "2>/dev/null | true", "--progress json 2>&1 | true", "--progress rich 2>&1 | true",
     "2>&-", "<&- >&- 2>&-", "--progress json >&- 2>&-"],
)  # fmt: skip
def test_a_run_outlives_its_readers_and_closed_streams(streams: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(RECIPE)
    command = f"{sys.executable} -m engine.cli.main run one:recipe --run-dir run {streams}"
    words = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["state"], info["stop_reason"]) == ("finished", "one is enough")


@pytest.mark.timeout(120)
def test_a_script_that_prints_for_a_reader_that_has_gone_fails_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("while True:\n    print('more', flush=True)\n")
    command = f"{sys.executable} -m engine.cli.main run script.py --run-dir run | head -1"
    words = ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "more\n", "run folder: run\n")
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (info["state"], info["stop_reason"]) == ("failed", "BrokenPipeError: [Errno 32] Broken pipe")


@pytest.mark.timeout(120)
def test_a_result_that_stdout_does_not_take_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(RECIPE)
    words = [sys.executable, "-m", "engine.cli.main", "run", "one:recipe", "--run-dir", "run"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            words, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "error: cannot write the result to stdout: no space left on device"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["state"] == "finished"


@pytest.mark.parametrize("number", [[], [errno.EPIPE]])
def test_a_broken_pipe_of_the_programs_own_is_an_error(
    number: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"broken_{len(number)}"
    (tmp_path / f"{module}.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BrokenPipeError):
        call(["run", f"{module}:recipe", f"fail={number}", "--progress", "off"])


@pytest.mark.parametrize("group", ["config", "new"])
def test_a_group_alone_shows_its_help(group: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call([group]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"Usage: engine {group}")
    assert "error" not in said
