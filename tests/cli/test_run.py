"""`engine run`, and what its folder is good for afterwards."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from engine.cli.main import call
from engine.runs.folder import Run

ROOT = Path(__file__).parents[2]
SHORT = [
    "stop.env_step=512",
    "env.num_envs=4",
    "collect.num_steps=32",
    "evaluate.episodes=2",
    "evaluate.every=256",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which a short run was made by the command, and what it printed."""
    folder = tmp_path_factory.mktemp("trained")
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err):
        code = call(["run", "ppo/cartpole", *SHORT, "--seed", "3", "--name", "short", "--progress", "json"])
    assert code == 0, err.getvalue()
    (folder / "stdout").write_text(out.getvalue())
    (folder / "stderr").write_text(err.getvalue())
    return folder


@pytest.fixture
def inside(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(trained)
    monkeypatch.delenv("ENGINE_RUNS", raising=False)
    return trained


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ENGINE_RUNS", raising=False)
    return tmp_path


def test_a_run_leaves_a_folder_that_describes_it(inside: Path) -> None:
    run = Run.open("latest")
    assert run.path.name.startswith("ppo-short-s3-")
    assert (run.state, run.info["seed"], run.info["recipe"]) == ("finished", 3, "engine.recipes.ppo:ppo")
    assert (run.path / "overrides.txt").read_text().splitlines() == [*SHORT, "seed=3"]
    for name in ("config.yaml", "metrics.jsonl", "packages.txt", "source.diff", "plots/learning_curve.png"):
        assert (run.path / name).exists(), name
    assert "num_steps: 32" in (run.path / "config.yaml").read_text()


def test_in_json_every_line_of_both_streams_is_an_object(inside: Path) -> None:
    (end,) = [json.loads(line) for line in (inside / "stdout").read_text().splitlines()]
    run = Run.open("latest")
    assert (end["event"], end["state"], end["exit_code"], end["run"]) == ("end", "finished", 0, str(run.path))
    assert end["result"] == run.result
    assert [Path(path).name for path in end["policies"]] == ["best", "last"]
    rows = [json.loads(line) for line in (inside / "stderr").read_text().splitlines()]
    assert rows[0] == {"event": "message", "text": f"run folder: {run.path}", "folder": str(run.path)}
    assert {row["event"] for row in rows} == {"message", "progress"}
    assert rows[-1]["env_step"] >= 512


def test_the_log_of_a_run_in_one_process_is_shown(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["logs", "latest"]) == 0
    shown = capsys.readouterr().out
    lines = [line.partition(" | ")[2] for line in shown.splitlines()]
    assert lines[0].startswith(f"ppo · CartPole-v1 · seed 3: process {os.getpid()} on ")
    assert lines[-1] == "finished: 512 env steps are done"
    assert any("torch threads: 1" in line for line in lines)
    evaluations = [row for row in Run.open("latest").metrics().rows if "eval/return_mean" in row]
    assert sum("env steps: eval " in line for line in lines) == len(evaluations) > 1
    for role in ("main", "main-0"):
        assert call(["logs", "latest", "--role", role]) == 0
        assert capsys.readouterr().out == shown
    assert call(["logs", "latest", "--role", "collector"]) == 2
    assert "there are main-0" in capsys.readouterr().err
    assert call(["logs", "latest", "--json"]) == 0
    assert [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()] == lines


def test_the_folders_config_runs_again(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = Run.open("latest")
    assert call(["run", str(run.path / "config.yaml"), "--print-config"]) == 0
    again = [line.split("  #")[0] for line in capsys.readouterr().out.splitlines()]
    assert again == [line.split("  #")[0] for line in (run.path / "config.yaml").read_text().splitlines()]
    assert call(["run", str(run.path)]) == 2
    assert "to do it once more: engine run" in capsys.readouterr().err


def test_eval_prints_one_object_with_json(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["eval", "latest", "--episodes", "3", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["episodes"] == len(report["returns"]) == 3
    assert report["return_mean"] == pytest.approx(sum(report["returns"]) / 3)
    assert report["length_mean"] == report["return_mean"], "CartPole pays one a step"
    assert call(["eval", "latest", "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == report, "the same seed plays the same episodes"
    assert call(["eval", "latest", "--episodes", "3", "--json", "--seed", "99", "--policy", "last"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert other["returns"] != report["returns"]
    assert other["policy"].endswith("last")


def test_eval_tells_a_person_and_films(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["eval", "latest", "--episodes", "2", "--video", "1"]) == 0
    shown = capsys.readouterr().out
    assert "return " in shown
    film = Path(shown.splitlines()[-1].split()[-1])
    assert film.suffix == ".mp4"
    assert film.stat().st_size > 1000


def test_eval_refuses_an_environment_of_other_spaces(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["eval", "latest", "--env", "Acrobot-v1"]) == 2
    assert "the policy cannot play Acrobot-v1" in capsys.readouterr().err


def test_plot_prints_the_path_of_the_picture(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["plot", "latest", "--x", "time", "--output", "curve.svg"]) == 0
    assert capsys.readouterr().out == "curve.svg\n"
    assert "<svg" in Path("curve.svg").read_text()
    assert call(["plot", "latest", "--y", "train/los_value"]) == 2
    assert "no run holds 'train/los_value'" in capsys.readouterr().err
    assert call(["plot", "latest", "latest"]) == 0


def test_plot_makes_no_folders_and_leaves_the_runs_own_pictures_alone(
    inside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from engine.runs.plots import PICTURES

    run = Run.open("latest").path.resolve()
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {f"{path.name}" for path in (run / "plots").iterdir()} == set(PICTURES)
    assert call(["plot", "latest"]) == 0
    assert capsys.readouterr().out == f"{run.name}-learning_curve.png\n"
    assert Path(f"{run.name}-learning_curve.png").stat().st_size > 1000
    assert call(["plot", "latest", "--y", "train/loss_value", "--x", "time"]) == 0
    assert Path(capsys.readouterr().out.strip()).name == f"{run.name}-train_loss_value-time.png"
    for own in (f"{run}/plots/learning_curve.png", f"{run}/plots/../plots/timing.png"):
        assert call(["plot", "latest", "-o", own]) == 2
        assert "is the run's own picture; choose another --output" in capsys.readouterr().err
    with chdir(run / "plots"):
        assert call(["plot", str(run), "-o", "losses.png"]) == 2
    capsys.readouterr()
    assert call(["plot", "latest", "-o", "new/curve.png"]) == 2
    assert "there is no folder new" in capsys.readouterr().err
    assert not Path("new").exists()
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files


def test_list_and_show_tell_state_and_return(inside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "ppo/cartpole" in [row["name"] for row in found["configs"]]
    assert [row["state"] for row in found["runs"]] == ["finished"]
    assert found["runs"][0]["best_return"] >= found["runs"][0]["last_return"] > 0
    assert call(["list"]) == 0
    assert "finished" in capsys.readouterr().out
    assert call(["show", "latest"]) == 0
    assert "ppo, seed 3" in capsys.readouterr().out
    assert call(["show", "latest", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["env_step"] >= 512


def test_a_dry_run_builds_everything_and_writes_nothing(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["run", "ppo/cartpole", "--dry-run", "env.num_envs=2"]) == 0
    shown = capsys.readouterr().out
    assert "collector" in shown
    assert "num_envs: 2" in shown
    assert "Discrete(2)" in shown
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(("async_mode", "unit"), [("false", "iteration"), ("true", "slot")])
def test_first_interrupt_saves_and_exits_130(async_mode: str, unit: str, elsewhere: Path) -> None:
    words = ["run", "ppo/cartpole", *SHORT, "stop.env_step=10_000_000", "evaluate.every=1_000_000"]
    words.append(f"async_mode={async_mode}")
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli.main", *words, "--progress", "json", "--run-dir", "exact"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    for line in process.stderr:
        if '"env_step"' in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert f"this {unit} is completed first" in err
    assert str(Path("exact/policies/last")) in out, "it says where the policy is"
    assert Run.open("exact").state == "interrupted"


def test_a_signal_for_the_whole_group_ends_a_run_whose_environments_are_processes(elsewhere: Path) -> None:
    words = ["run", "ppo/cartpole", *SHORT, "stop.env_step=10_000_000", "evaluate.every=1_000_000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "engine.cli.main", *words, "env.vectorization=process", "--run-dir", "exact"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        process_group=0,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "env steps" in line:
            break
    os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=60)  # to the end of stderr, which the environments have too
    assert process.returncode == 143, err
    assert "Traceback" not in err
    run = Run.open("exact")
    assert (run.state, run.info["stop_reason"]) == ("interrupted", "sigterm")
    assert run.result["env_step"] == run.metrics().rows[-1]["env_step"] > 0
    assert (run.path / "policies/last/policy.safetensors").is_file()
    assert not (run.path / "plots").exists()


RUNS_TWICE = """
import os
from engine import Task
with Task() as task:
    task.use(lambda ctx: os.kill(os.getpid(), {number}))
    print(task.run(max_step=9).total_step, task.finish_reason, flush=True)
    print(task.run(max_step=9).total_step, flush=True)
"""


@pytest.mark.parametrize(
    ("number", "reason", "code"), [(15, "sigterm", 143), (1, "sighup", 129), (2, "interrupted", 130)]
)
@pytest.mark.parametrize("lines", [5, 6, 7])
def test_a_script_that_was_asked_to_end_begins_no_further_run(
    lines: int, number: int, reason: str, code: int, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With five lines the script is killed outside of a task, with six it ends, with seven it goes on."""
    text = RUNS_TWICE.strip().format(number=number).splitlines()[:lines]
    Path("x.py").write_text("\n".join(text if lines > 5 else [text[0], f"os.kill(os.getpid(), {number})"]))
    assert call(["run", "x.py", "--run-dir", "one"]) == code
    assert capsys.readouterr().out == ("" if lines == 5 else f"1 {reason}\n")
    run = Run.open("one")
    assert (run.state, run.info["stop_reason"]) == ("interrupted", reason)


SCRIPT = """
import sys
import msgspec
import engine

class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    power: int = 1

config = engine.overrides(Config)
run = engine.run_folder()
run.write("answer.txt", f"{config.power} {__name__} {len(sys.argv)}")
if config.power == 13:
    raise RuntimeError("unlucky")
if config.power == 14:
    sys.exit(4)
"""


def test_a_script_gets_its_folder_and_overrides(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.py").write_text(SCRIPT)
    assert call(["run", "x.py", "power=3", "--run-dir", "one"]) == 0
    assert Path("one/answer.txt").read_text() == "3 __main__ 1"
    assert "power: 3  # command line" in Path("one/config.yaml").read_text()
    assert Run.open("one").state == "finished"
    assert call(["run", "x.py", "powr=3", "--run-dir", "two"]) == 3
    assert "did you mean 'power'?" in capsys.readouterr().err
    assert not Path("two").exists(), "a refused override leaves no folder"
    assert call(["run", "x.py", "power=14", "--run-dir", "three"]) == 4
    with pytest.raises(RuntimeError, match="unlucky"):
        call(["run", "x.py", "power=13", "--run-dir", "four"])
    assert Run.open("four").info["stop_reason"] == "RuntimeError: unlucky"
    capsys.readouterr()
    assert call(["logs", "four"]) == 0
    assert "failed: RuntimeError: unlucky" in (shown := capsys.readouterr().out)
    assert 'raise RuntimeError("unlucky")' in shown, "its traceback"


FIRST = """
import engine, msgspec

class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    power: int = 1
    caught: bool = False

run = engine.run_folder()
{before}
try:
    engine.overrides(Config)
except engine.EngineError:
    {after}
"""


@pytest.mark.parametrize(("after", "code"), [("raise", 3), ("raise SystemExit(5)", 5)])
@pytest.mark.parametrize("words", [[], ["--run-dir", "a/b"]])
def test_refused_overrides_of_a_script_leave_nothing_behind(
    after: str, code: int, words: list[str], elsewhere: Path
) -> None:
    Path("x.py").write_text(FIRST.format(before="", after=after))
    assert call(["run", "x.py", "power=a", *words]) == code
    assert [path.name for path in elsewhere.iterdir()] == ["x.py"]
    assert call(["run", "x.py", "power=2"]) == 0
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert call(["run", "x.py", "power=a", *words]) == code
    assert {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()} == before
    assert not Path("a").exists()
    Path("mine").mkdir()
    assert call(["run", "x.py", "power=a", "--run-dir", "mine"]) == code
    assert list(Path("mine").iterdir()) == [], "the folder was there before"


def test_what_a_script_has_stored_before_its_overrides_are_refused_is_kept(elsewhere: Path) -> None:
    Path("x.py").write_text(FIRST.format(before="run.write('answer.txt', '42')", after="raise"))
    assert call(["run", "x.py", "power=a", "--run-dir", "one"]) == 3
    assert (Path("one/answer.txt").read_text(), Run.open("one").state) == ("42", "failed")
    Path("y.py").write_text(FIRST.format(before="", after="pass"))
    assert call(["run", "y.py", "power=a", "--run-dir", "two"]) == 0
    assert Run.open("two").state == "finished", "it went on without them"


PRINTS = """
import os, sys
import engine
from engine.runs.progress import Progress
print("first"); print("a line", "in parts", end=""); print()
print("{not json")
os.write(1, b"from below\\n")
os.system("echo from a child")
with Progress("auto", 10) as progress:
    progress.update(10)
sys.stdout.write("without an end")
sys.exit(4)
"""


@pytest.mark.timeout(120)
def test_in_json_what_a_script_prints_is_wrapped_and_its_progress_is_json_too(elsewhere: Path) -> None:
    Path("x.py").write_text(PRINTS)
    words = [sys.executable, "-m", "engine", "run", "x.py", "--progress", "json", "--run-dir", "one"]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 4, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    said = ["first", "a line in parts", "{not json", "without an end"]
    assert [row["text"] for row in rows if row["event"] == "output"] == said
    assert [(row["state"], row["exit_code"]) for row in rows if row["event"] == "end"] == [("failed", 4)]
    assert len(rows) == len(said) + 1
    err = done.stderr.splitlines()
    assert "from below" in err
    assert "from a child" in err
    events = [json.loads(line)["event"] for line in err if line.startswith("{")]
    assert events.count("progress") >= 1, "--progress holds for what the script trains"
    kept = [json.loads(line) for line in Path("one/logs/main-0.jsonl").read_text().splitlines()]
    assert [row["message"] for row in kept if row["level"] == "output"] == said


NOISY = """
from gymnasium.envs.classic_control import CartPoleEnv
class Noisy(CartPoleEnv):
    def reset(self, **more):
        print("hello from an environment")
        return super().reset(**more)
"""


def test_in_json_what_an_environment_prints_is_wrapped(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("noisy.py").write_text(NOISY)
    words = [
        *SHORT,
        "env.id=noisy:Noisy",
        "evaluate.max_steps=20",
        "evaluate.final_episodes=0",
        "evaluate.video=0",
    ]
    assert call(["run", "ppo/cartpole", *words, "stop.env_step=128", "--progress", "json"]) == 0
    out, err = ([json.loads(line) for line in text.splitlines()] for text in capsys.readouterr())
    assert {row["text"] for row in out if row["event"] == "output"} == {"hello from an environment"}
    assert [row["event"] for row in out].count("end") == 1
    assert {row["event"] for row in err} == {"message", "progress"}
    assert call(["logs", "latest"]) == 0
    assert "main-0      | hello from an environment" in capsys.readouterr().out


def test_in_json_plans_and_errors_are_objects_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "ppo/cartpole", "--dry-run", "--progress", "json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["event"], row["config"]["env"]["id"]) == ("plan", "CartPole-v1")
    assert "collector" in row["pipeline"]
    assert call(["run", "ppo/cartpole", "policy.clip=-1", "--progress", "json"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    row = json.loads(shown.err)
    assert row["event"] == "error"
    assert "must be a number > 0.0" in row["text"]


def test_the_resolved_configuration_is_an_object_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["run", "dqn/cartpole", "seed=4", "--print-config", "--progress", "json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["event"], row["recipe"], row["config"]["seed"]) == ("config", "engine.recipes.dqn:dqn", 4)
    words = ["launch", "impala/cartpole", "--role", "collector=2", "--dry-run", "--progress", "json"]
    assert call(words) == 0
    row = json.loads(capsys.readouterr().out)
    assert list(row["processes"]) == ["collector_0", "collector_1", "learner_0"]
    assert "follow_model" in row["pipelines"]["collector"]
    assert call([*words, "exchange.lockstp=true"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    assert json.loads(shown.err)["event"] == "error"


def test_the_same_script_runs_under_plain_python(elsewhere: Path) -> None:
    Path("x.py").write_text(SCRIPT)
    subprocess.run([sys.executable, "x.py"], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    (answer,) = Path("runs").glob("script/x-s0-*/answer.txt")
    assert answer.read_text() == "1 __main__ 1"


def test_a_script_that_ignores_its_overrides_is_told(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.py").write_text("print('done')")
    assert call(["run", "x.py", "a=1"]) == 0
    assert "a=1 changed nothing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "word", "nearest"), [("--x", "tim", "time"), ("--y", "train/los_value", "train/loss_value")]
)
def test_plot_names_the_nearest_scalar(
    inside: Path, capsys: pytest.CaptureFixture[str], option: str, word: str, nearest: str
) -> None:
    assert call(["plot", "latest", option, word]) == 2
    assert f"no run holds {word!r}; did you mean {nearest!r}?" in capsys.readouterr().err
