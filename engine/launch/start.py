"""Launch a program from Python, as the command line does."""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

from engine.bus.keys import RunKeys, generate_keys
from engine.bus.zeromq import check_place
from engine.errors import FolderError, UsageError
from engine.launch.backend import Backend
from engine.launch.card import KEYS
from engine.launch.launcher import JOIN_SECONDS, Launcher
from engine.launch.plan import Plan, make_plan
from engine.launch.processes import Processes
from engine.recipes.check import check
from engine.recipes.target import resolve
from engine.runs.fleet import Fleet
from engine.runs.folder import Run
from engine.runs.progress import choose_mode

BackendName = Literal["processes", "threads"]


def launch(
    target: str | Callable[..., Any],
    roles: Mapping[str, int] | None = None,
    overrides: Sequence[str] = (),
    *,
    on_loss: Iterable[str] = (),
    backend: BackendName | Backend = "processes",
    run_dir: str | Path | None = None,
    name: str | None = None,
    progress: str = "auto",
    tcp: str | None = None,
    join_timeout: float = JOIN_SECONDS,
) -> Run:
    """Run a program with each role in processes of its own; return the run when it is over.

    `target` is what the command line takes, or a recipe; `roles` says how many of each
    (``{"collector": 2}``); `on_loss` are words like ``"collector=restart:3"``.  With `tcp`, the address of
    this machine as others reach it, more can join from elsewhere.  Raises what made the run fail: a
    `RemoteError` with the traceback of the process that failed, or a `PeerLost` for one that died.
    """
    if not isinstance(target, str):
        target = f"{target.__module__}:{getattr(target, '__name__', target)}"
        if target.startswith("__main__:"):
            raise UsageError(
                "a recipe that is launched must stand in a module, as every process imports it; "
                "this one stands in the script that was started"
            )
    check_means(backend, tcp, progress)
    plan = make_plan(resolve(target, overrides), roles, on_loss, elastic=tcp is not None)
    check(plan.target.config)
    run = create_run(plan, given=target, overrides=overrides, name=name, run_dir=run_dir)
    return run_plan(plan, run, backend=backend, progress=progress, tcp=tcp, join_timeout=join_timeout)


def check_means(backend: BackendName | Backend, tcp: str | None, progress: str) -> None:
    """Raise UsageError for means by which no run can be made, before its folder is."""
    if isinstance(backend, str) and backend not in ("processes", "threads"):
        raise UsageError(f"no backend {backend!r}; there are 'processes' and 'threads', or give your own")
    if tcp is not None:
        if backend != "processes":
            raise UsageError("others can join by TCP only where the roles run in processes")
        check_place(tcp)
    choose_mode(progress, sys.stderr)


def create_run(
    plan: Plan,
    *,
    given: str,
    overrides: Sequence[str] = (),
    name: str | None = None,
    run_dir: str | Path | None = None,
) -> Run:
    """Make the folder of a run, with its configuration and its roles in it."""
    target = plan.target
    run = Run.create(
        env=str(getattr(getattr(target.config, "env", None), "id", "no-env")),
        algo=target.algo,
        seed=int(getattr(target.config, "seed", 0)),
        name=name,
        run_dir=run_dir,
        recipe=target.name,
        target=given,
        roles={role: sum(seat.role == role for seat in plan.seats) for role in plan.roles},
    )
    run.describe(config=target.yaml(), overrides=list(overrides))
    return run


def run_plan(
    plan: Plan,
    run: Run,
    *,
    backend: BackendName | Backend = "processes",
    progress: str = "auto",
    tcp: str | None = None,
    join_timeout: float = JOIN_SECONDS,
    ready: Callable[[str], None] | None = None,
) -> Run:
    """Run a plan in the folder of `run`; `ready` is told the address once others can join."""
    check_means(backend, tcp, progress)
    keys: RunKeys | None = None
    if tcp is not None:
        keys = generate_keys()
        keys.save(run.path / KEYS)
    chosen: Any = backend
    if backend == "processes":
        chosen = Processes(tcp=tcp, keys=keys, key_file=run.path / KEYS)
    elif backend == "threads":
        from engine.launch.threads import Threads

        chosen = Threads()
    title = f"{run.info['algo']} · {run.info['env']} · seed {run.info['seed']}"
    with _logs(run) as keep:
        display = Fleet(progress, title, keep=keep)
        launcher = Launcher(
            plan,
            chosen,
            run,
            display,
            run_id=run_id(keys),
            join_timeout=join_timeout,
            ready=ready,
        )
        return launcher()


def run_id(keys: RunKeys | None = None) -> str:
    """Return a new name for a run on the bus; with keys, the one that follows from them.

    Whoever holds the key file so knows which run it is for.
    """
    if keys is None:
        return secrets.token_hex(6)
    return hashlib.blake2b(keys.server_public.encode(), digest_size=6).hexdigest()


@contextlib.contextmanager
def _logs(run: Run) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Yield what writes the records of each process into its file of the run's folder."""
    files: dict[str, TextIO] = {}

    def keep(seat: str, row: dict[str, Any]) -> None:
        # A record that does not fit is lost: a full disk, or a folder that is gone, ends the run elsewhere.
        with contextlib.suppress(OSError, FolderError):
            if seat not in files:
                files[seat] = run.file(f"logs/{seat}.jsonl").open("a", encoding="utf-8", buffering=1)
            files[seat].write(json.dumps(row, default=str) + "\n")

    try:
        yield keep
    finally:
        for file in files.values():
            with contextlib.suppress(OSError):
                file.close()
