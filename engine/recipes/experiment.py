"""One experiment: a recipe trained in a run folder, with progress, pictures and the policies it leaves.

`run_experiment` is what the command line and `ppo.train(...)` share; `load_policy` reads what it saved.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from engine import config as configs
from engine.context import Middleware, OnlineContext
from engine.envs.find import DEPENDENCY, absent
from engine.envs.vector import Episode, VectorEnv
from engine.errors import EngineError, EnvError, FolderError, MissingExtra, StateError, UsageError
from engine.middleware.functional.evaluate import MAX_STEPS, Tell, evaluate, never, run_episodes
from engine.middleware.functional.stop import TimeLimit
from engine.middleware.recorder import ROWS, Recorder
from engine.policies import files
from engine.recipes.check import check
from engine.recipes.config import RunConfig, config_type
from engine.recipes.parts import make_evaluation_env
from engine.runs import plots
from engine.runs.diagram import draw
from engine.runs.folder import Run
from engine.runs.logs import LOG, logging_to, record
from engine.runs.metrics import read_metrics
from engine.runs.progress import Progress, choose_mode
from engine.runs.stations import describe
from engine.runs.trackers import TensorBoard, Trackers
from engine.runs.video import Video
from engine.seeding import stream
from engine.signals import REASONS, Stop, Terminated
from engine.task import Task

log = logging.getLogger(__name__)

Recipe: TypeAlias = Callable[..., Task]
"""``recipe(config, *, watch=None) -> Task``; the config's type is the annotation of its first parameter."""


def run_experiment(recipe: Recipe, config: Any, *, run: Run, progress: str = "auto") -> Run:
    """Train `recipe` in the folder of `run` and leave there everything that it is known for.

    Returns the run with state ``finished``, or ``interrupted`` after a first Ctrl-C, SIGTERM or SIGHUP
    (everything saved).  An error, or a second signal, is written into run.json and raised.

    A recipe of the user's own may leave `watch` out, or watch no policy (None); then metrics are
    recorded, and policies and their evaluation are its own affair.
    """
    total = getattr(getattr(config, "stop", None), "env_step", None)
    title = f"{run.info['algo']} · {run.info['env']} · seed {run.info['seed']}"
    logged = run.file(LOG)
    with (
        logging_to(logged, as_json=choose_mode(progress, sys.stderr) == "json"),
        _recorded(run, title),
        Progress(progress, total, title, keep=functools.partial(record, logged)) as display,  # type: ignore[arg-type]
        Stop() as stop,
        _told(run, stop),
    ):
        recorders: list[Recorder] = []

        def watch(policy: Any = None) -> Middleware:
            trackers = Trackers([TensorBoard(run.path / "tb")])
            every = None if total is None else max(1, total // ROWS)
            recorders.append(Recorder(run, policy, progress=display, trackers=[trackers], every=every))
            return recorders[0]

        watched = "watch" in inspect.signature(recipe).parameters
        task = built(recipe, config, **({"watch": watch} if watched else {}))
        # From here on the first signal lets what is under way end in order, so that it is saved and closed.
        with stop.held(), task:
            if not recorders:
                if watched:
                    raise UsageError(f"{_name(recipe)} did not use the `watch` that it was given")
                task.use(watch())
            recorder = recorders[0]
            judged = recorder.policy is not None
            task.own(recorder).measure()
            recorder.watch(task)
            run.write("pipeline.mmd", draw(task, "mermaid"))
            mode = describe(task, len(task.names))
            if mode is not None:
                display.message(mode)
            for note in notes(task):
                log.warning("%s", note)  # a launcher shows no less of what its learner says
            threads = getattr(getattr(config, "train", None), "threads", None)
            if threads is not None:
                display.message(f"torch threads: {threads} (train.threads; one is quickest for small nets)")
            limit = TimeLimit(getattr(getattr(config, "stop", None), "seconds", None))
            for note in _following_time(config):
                display.message(note)
            limit.begin()
            display.end_in(limit.seconds)
            ctx = task.run()
            stopped = task.finish_reason if task.finish_reason in REASONS.values() else stop.reason
            if judged and stopped is None and not _hopeless(recorder, limit):
                _evaluate_last(config, recorder, ctx, stop, limit)
            recorder.write(ctx)
            recorder.save_last()
            display.settle()
            # Now, as closing lets go of what an interrupt left in flight, and counts its env steps.
            result = {"env_step": ctx.get("env_step"), "train_iter": ctx.get("train_iter")}
        try:
            stopped = stopped or stop.reason
            if judged and stopped is None and _hopeless(recorder, limit):
                # Nothing that takes seconds follows, so that a run keeps to its time.
                why = str(limit) if limit.passed() else task.finish_reason
                display.message(
                    f"{why}, and the last evaluation was cut: it is not repeated, and the closing "
                    "examination, film and pictures are left out (engine plot draws them)"
                )
            elif stopped is None or stopped == REASONS[signal.SIGINT]:
                with run.storing():
                    _draw(run, config, recorder)
                if judged and stopped is None:
                    result |= _examine(run, config, recorder, display, stop, limit)
        except (KeyboardInterrupt, Terminated):
            if stop.insisted or not stop.asked:
                raise
        with stop.held():
            stopped = stopped or stop.reason
            if judged and stopped is not None:
                display.message("the closing examination and its film are left out")
            run.finish("interrupted" if stopped else "finished", stopped or task.finish_reason, result=result)
    return run


def _hopeless(recorder: Recorder, limit: TimeLimit) -> bool:
    """Whether the last evaluation was given up, or the time is over and its episodes did not end."""
    return recorder.gave_up or (bool(recorder.cut) and limit.passed())


def _until(limit: TimeLimit, other: Callable[[], bool]) -> Callable[[], bool]:
    """Return what gives up when `other` does, or when the time passes; not if it has passed already."""
    late = limit.passed()
    return lambda: other() or (not late and limit.passed())


def built(recipe: Recipe, config: Any, **more: Any) -> Task:
    """Return the task of a recipe; raises UsageError for a recipe that returns something else."""
    task: Any = recipe(config, **more)
    if not isinstance(task, Task):
        raise UsageError(f"{target(recipe)} must return a Task, and returned {task!r}")
    wanted = getattr(config, "async_mode", False), getattr(config, "max_lag", None)
    if wanted != (task.async_mode, task.max_lag) and wanted[0]:
        task.open().close()  # gives back what it was given to own
        raise UsageError(
            f"{target(recipe)} does not pass the mode on, which the configuration asks for: "
            "Task(..., async_mode=config.async_mode, max_lag=config.max_lag)"
        )
    return task


def _following_time(config: Any) -> list[str]:
    """Return which settings follow the time, as nothing else tells how far the run is."""
    if not isinstance(config, RunConfig) or config.stop.env_step is not None or config.stop.seconds is None:
        return []
    return [
        f"{setting} follows stop.seconds, so this run does not repeat exactly" for setting in config.decays()
    ]


def notes(task: Task) -> list[str]:
    """Return what a run's environments have to say once, before it starts."""
    envs = [resource for resource in task.owned if isinstance(resource, VectorEnv)]
    return list(dict.fromkeys(env.about_returns for env in envs if env.about_returns))


@contextlib.contextmanager
def _recorded(run: Run, title: str) -> Iterator[None]:
    """Write into the run's log that it began, and how it ended."""
    log_file = run.path / LOG
    record(log_file, f"{title}: process {os.getpid()} on {socket.gethostname()}")
    try:
        yield
    except (KeyboardInterrupt, Terminated):
        record(log_file, run.ended)
        raise
    except BaseException as error:
        record(log_file, run.ended, level="error", error=error)
        raise
    record(log_file, run.ended)


@contextlib.contextmanager
def _told(run: Run, stop: Stop) -> Iterator[None]:
    """Write into run.json how it ended, when it ends in an error."""
    try:
        yield
    except (KeyboardInterrupt, Terminated) as error:
        if stop.asked and not stop.insisted:  # nothing had begun that could have been saved
            run.end_with(error)
            raise
        reason = REASONS[error.number if isinstance(error, Terminated) else signal.SIGINT]
        with contextlib.suppress(FolderError):  # nothing can be told in a folder that is gone
            run.finish("interrupted", f"{reason} at once: what came after the last evaluation is not saved")
        saved = run.path / "policies"
        where = (
            f"the policies of the last evaluations are in {saved}"
            if saved.is_dir()
            else "no policy was saved yet"
        )
        log.warning("stopped at once; %s", where)
        raise
    except FolderError as error:
        run.end_with(error)
        raise FolderError(str(error)) from None  # without notes: where it was found out says nothing
    except BaseException as error:
        run.end_with(error)
        raise


def train_with(
    recipe: Recipe,
    env: str | None,
    *,
    seed: int | None = None,
    config: RunConfig | None = None,
    overrides: Sequence[str] = (),
    run_dir: str | Path | None = None,
    progress: str = "auto",
) -> Run:
    """Train a recipe from Python; see `engine.recipes.ppo.train`."""
    algo, kind = _name(recipe), config_type(recipe, target(recipe))
    if isinstance(overrides, str):
        raise UsageError(f"overrides is a list of words, like [{overrides!r}]")
    if isinstance(env, type):
        raise UsageError(f"env is the name of an environment, like '{env.__module__}:{env.__qualname__}'")
    words = [*overrides] if seed is None else [f"seed={seed}", *overrides]
    if config is not None:
        if env is not None and env != config.env.id:
            raise UsageError(f"env is {env!r} but config.env.id is {config.env.id!r}; give one of them")
        if overrides:
            raise UsageError(
                "give either a config or overrides; a config can be changed with msgspec.structs.replace"
            )
        settings = None
        wanted: Any = config if seed is None else msgspec.structs.replace(config, seed=seed)
    else:
        if env is None:
            raise UsageError(f"{algo}.train needs an environment, like {algo}.train('CartPole-v1')")
        settings = configs.override(shipped(algo, env), words)
        wanted = configs.convert(settings, kind)
    check(wanted)
    run = Run.create(env=wanted.env.id, algo=algo, seed=wanted.seed, run_dir=run_dir)
    run.describe(config=configs.to_yaml(wanted, settings, recipe=target(recipe)), overrides=list(overrides))
    return run_experiment(recipe, wanted, run=run, progress=progress)


def shipped(algo: str, env: str) -> Any:
    """Return the settings of the shipped configuration for an environment, or just its id."""
    for name in configs.names():
        if name.startswith(f"{algo}/"):
            settings = configs.load(name)
            if settings.values.get("env", {}).get("id") == env:
                return settings
    return configs.override(configs.Settings({}, {}), [f"env.id={env}"])


def target(recipe: Recipe) -> str:
    """Return ``module:function`` for a recipe."""
    return f"{recipe.__module__}:{_name(recipe)}"


def load_policy(path: str | Path, *, device: str = "cpu", model: Any = None) -> Any:
    """Return the trained policy of a run (the best by evaluation, else the last) or of a policy's folder.

    `path` is the folder of a run, its name, ``latest``, or a folder with policy.safetensors.
    Raises `UsageError` for an unknown run and `StateError` for one without a policy.
    """
    folder = Path(path)
    if not (folder / files.WEIGHTS).is_file():
        folder = policy_folder(Run.open(path))
    return files.load_policy(folder, device=device, model=model)


def policy_folder(run: Run) -> Path:
    """Return the folder of a run's best policy, or of its last; raises `StateError` where it has none."""
    for which in ("best", "last"):
        folder = run.path / "policies" / which
        if (folder / files.WEIGHTS).is_file():
            return folder
    raise StateError(f"{run.path} has no policy yet: the first is saved at the first evaluation")


def play(
    policy: Any,
    env: Any,
    episodes: int,
    *,
    deterministic: bool = True,
    max_steps: int = MAX_STEPS,
    give_up: Callable[[], bool] = never,
    tell: Tell | None = None,
) -> list[Episode]:
    """Play episodes with a policy in a `VectorEnv` and return them; see `run_episodes`."""
    start = _start_of(env)

    def act(obs: Any) -> Any:
        return np.asarray(policy.act(obs, deterministic=deterministic)) - start

    return run_episodes(act, env, episodes, max_steps=max_steps, give_up=give_up, tell=tell)


def film(
    policy: Any,
    config: RunConfig,
    folder: Path,
    *,
    episodes: int,
    env_step: int,
    give_up: Callable[[], bool] = never,
    tell: Tell | None = None,
) -> list[Path]:
    """Film deterministic episodes, each into a file named by its return; return the paths.

    An episode that does not end is cut as in an evaluation.  Once ``give_up()`` the film that is being
    made is dropped.
    Raises `MissingExtra` for an absent package, `EnvError` for an environment that cannot draw itself.
    """
    paths = []
    folder.mkdir(parents=True, exist_ok=True)
    with _without_screen(), make_evaluation_env(config, render_mode="rgb_array") as env:
        start = _start_of(env)
        obs = env.reset(episode=0)
        for number in range(episodes):
            if give_up():
                break
            unnamed = folder / f".step_{env_step:09d}-ep{number}.mp4"
            with Video(unnamed, fps=env.render_fps) as video:
                over: tuple[Episode, ...] = ()
                while not over and not give_up():
                    video.add(_frame(env, config.env.id))
                    step = env.step(np.asarray(policy.act(obs, deterministic=True)) - start)
                    obs, over = step.obs, step.episodes
                    if not over and video.frames >= config.evaluate.max_steps:
                        over = (env.cut(0),)
                        obs = env.reset()
                    if tell is not None:
                        tell(number, episodes, video.frames)
            if not over:
                unnamed.unlink()
                break
            named = f"step_{env_step:09d}-ep{number}-return{over[0].return_:+.0f}.mp4"
            paths.append(unnamed.replace(folder / named))
    return paths


def _frame(env: Any, name: str) -> Any:
    """One picture; raises EnvError for an environment that cannot draw itself."""
    try:
        frame = env.render()[0]
    except EngineError:
        raise
    except DEPENDENCY as error:
        raise absent(error, f"the film of {name}") from error
    except Exception as error:  # the user's environment draws: anything can happen
        said = f": {error}" if str(error) else ""
        raise EnvError(f"{name} cannot be drawn: its render() raised {type(error).__name__}{said}") from error
    if getattr(frame, "ndim", 0) != 3:
        raise EnvError(
            f"{name} cannot be drawn: its render() gave no picture (height, width, 3), but "
            + (f"shape {frame.shape}" if hasattr(frame, "shape") else type(frame).__name__)
        )
    return frame


@contextlib.contextmanager
def _without_screen() -> Iterator[None]:
    """Let SDL, which draws many environments, draw in memory and say nothing, unless told otherwise."""
    missing = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    missing = {name: value for name, value in missing.items() if name not in os.environ}
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


def _evaluate_last(config: RunConfig, recorder: Recorder, ctx: Any, stop: Stop, limit: TimeLimit) -> None:
    """Evaluate where the run ended, unless that was just done."""
    if "eval/return_mean" in ctx.metrics:
        return
    detached: Any = OnlineContext(
        env_step=ctx.env_step, env_episode=ctx.env_episode, train_iter=ctx.train_iter
    )
    actor = recorder.policy.actor(stream(config.seed, "evaluate", 1))
    with make_evaluation_env(config) as env:
        if limit.passed() and recorder.cut is None and not env.time_limited:
            # Nothing is known of how its episodes end: a little more time is all they get.
            limit = TimeLimit(max(1.0, (limit.seconds or 0.0) / 10))
            limit.begin()
        # The episodes after those of the regular evaluations.
        env.reset(episode=1_000_000)
        evaluate(
            recorder.policy,
            actor,
            env,
            num_episodes=config.evaluate.episodes,
            max_steps=config.evaluate.max_steps,
            give_up=_until(limit, lambda: stop.asked),
            tell=recorder.tell,
        )(detached)
    recorder(detached)


def _examine(
    run: Run, config: RunConfig, recorder: Recorder, display: Progress, stop: Stop, limit: TimeLimit
) -> dict[str, Any]:
    """Play fresh episodes with the best policy: choosing the best has flattered its own; film it."""
    trained, wanted = recorder.policy, config.evaluate.final_episodes
    if not wanted and not config.evaluate.video:
        return {}
    if _hopeless(recorder, limit):
        display.message(f"{limit}: the closing examination and its film are left out")
        return {}
    give_up = _until(limit, lambda: stop.asked)
    policy = load_policy(run.path, model=copy.deepcopy(trained.model) if trained.custom_model else None)
    episodes: list[Episode] = []
    if wanted:
        with make_evaluation_env(config) as env:
            env.reset(episode=2_000_000)
            tell = functools.partial(display.playing, "closing examination")
            episodes = play(
                policy, env, wanted, max_steps=config.evaluate.max_steps, give_up=give_up, tell=tell
            )
        display.played_all()
    stop.check()  # what a signal raises gets lost if Python code that C calls was running just then
    if give_up():
        display.message(f"{limit} during the closing examination: it is ended, and not filmed")
        return {}
    if config.evaluate.video:
        try:
            step = int(read_metrics(run.path / "metrics.jsonl").rows[-1]["env_step"])
            with stop.held(), run.storing():  # no frame is left half written
                film(
                    policy,
                    config,
                    run.path / "videos",
                    episodes=config.evaluate.video,
                    env_step=step,
                    give_up=give_up,
                    tell=functools.partial(display.playing, "filming"),
                )
        except FolderError:
            raise
        except (MissingExtra, EngineError) as error:
            display.message(f"no film was made: {error}")
        display.played_all()
        stop.check()
    if not episodes:
        return {}
    returns = [episode.return_ for episode in episodes]
    return {
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "episodes": len(returns),
        "cut": sum(episode.cut for episode in episodes),
    }


def _draw(run: Run, config: Any, recorder: Recorder) -> None:
    metrics = read_metrics(run.path / "metrics.jsonl")
    title = f"{run.info['algo']} on {run.info['env']}, seed {run.info['seed']}"
    folder = run.path / "plots"
    folder.mkdir(exist_ok=True)
    pictures = (
        functools.partial(
            plots.learning_curve,
            {run.info["algo"]: [metrics]},
            folder / "learning_curve.png",
            title=title,
            threshold=getattr(getattr(config, "stop", None), "return_mean", None),
        ),
        functools.partial(plots.losses, metrics, folder / "losses.png", title=title),
        functools.partial(
            plots.timing,
            recorder.seconds(),
            folder / "timing.png",
            stations=recorder.stations(),
            title=title,
        ),
    )
    missing = []
    for picture in pictures:
        try:
            picture()
        except EngineError as error:
            missing.append(f"{error}\n")
    if missing:
        (folder / "nothing-to-draw.txt").write_text("".join(missing), encoding="utf-8")


def _start_of(env: Any) -> Any:
    """What Discrete actions count from: policies act as the environment wants it, `VectorEnv` from 0."""
    return getattr(env.single_action_space, "start", 0)


def _name(recipe: Recipe) -> str:
    return str(getattr(recipe, "__name__", recipe))
