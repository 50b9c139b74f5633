"""What every process of a run executes: join, build the recipe in one role, run it, leave in order.

``python -m engine.launch.worker`` finds its order in the file that ``$ENGINE_ORDER`` names; `attend` is the
same for a thread, and for a worker that attached itself to a running program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from engine.bus.bus import Bus
from engine.bus.transport import Transport
from engine.config import convert
from engine.errors import (
    EngineError,
    Finishing,
    NoSuchService,
    PeerLost,
    RemoteError,
    StateError,
    UsageError,
)
from engine.launch.backend import Order
from engine.recipes.config import config_type
from engine.recipes.roles import check_roles, roles_of
from engine.recipes.target import find_recipe
from engine.runs.logs import JsonFormatter
from engine.signals import REASONS, Stop, Terminated, exit_code, name_of

log = logging.getLogger(__name__)

JOIN_SECONDS = 60.0
_REPORT_EVERY = 0.5
_PR_SET_PDEATHSIG = 1
_CONSEQUENCES = (PeerLost, NoSuchService, Finishing)


class Stopping:
    """Where a wish to stop finds the task, whenever it comes: before, while or after it runs."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.signal: int | None = None
        """The signal that asked, if one did before the whole run was told to finish."""
        self.bus: Bus | None = None
        self._task: Any = None
        self._over = False

    @property
    def asked(self) -> bool:
        """Whether the task was asked before, by a signal or as the whole run was."""
        return self.reason is not None or (self.bus is not None and self.bus.told_to_finish is not None)

    def signals(self) -> Stop:
        """Return what lets SIGINT, SIGTERM and SIGHUP ask while it is entered.

        A second one, and one that comes before there is a task, raises KeyboardInterrupt or `Terminated`.
        """
        return Stop(self._signalled)

    @property
    def exit_code(self) -> int:
        """The exit code of a process that leaves in order: 128 + the signal that made it leave, else 0."""
        return 0 if self.signal is None else 128 + self.signal

    def ask(self, reason: str) -> bool:
        """Ask the task to finish; False where none is open that could."""
        self.reason = reason
        if self._task is None:
            return False
        self._task.request_finish(reason)
        return True

    def watch(self, task: Any) -> None:
        """Pass a wish on to `task` until it is closed; it must own this object."""
        self._task = task

    def close(self) -> None:
        """The task is closed."""
        self._task, self._over = None, True

    def _signalled(self, number: int) -> None:
        if not self.asked:
            self.signal = number  # else the run is over, and this is not why the process leaves
        if not self.ask(REASONS[number]) and not self._over:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def main() -> None:
    """Take the seat that the environment describes, and leave with its exit code."""
    from engine.launch.processes import KEY_FILE, ORDER, PARENT, SOCKETS, TCP

    _end_with(int(os.environ[PARENT]))
    stopping = Stopping()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the launcher
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.getLogger().addHandler(handler)  # the launcher reads it and keeps it
    logging.getLogger("engine").setLevel(logging.INFO)
    paper = Path(os.environ[ORDER])
    order = msgspec.json.decode(paper.read_bytes(), type=Order)
    from engine.bus.keys import load_keys
    from engine.bus.zeromq import ZeroMQ

    keys = load_keys(Path(os.environ[KEY_FILE])) if KEY_FILE in os.environ else None
    transport = ZeroMQ(ipc=Path(os.environ[SOCKETS]), tcp=os.environ.get(TCP), keys=keys)
    with stopping.signals():
        code = attend(order, transport, stopping=stopping, progress="json")
    with contextlib.suppress(OSError):  # the launcher, who reads it, may be gone
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    # Everything is closed.  Taking the interpreter and torch apart takes seconds on a busy machine, in which
    # this process would be waited for.
    os._exit(code)


def attend(
    order: Order,
    transport: Transport,
    *,
    stopping: Stopping | None = None,
    progress: str = "off",
    timeout: float = JOIN_SECONDS,
    joined: Callable[[str], None] | None = None,
    failed: Callable[[BaseException], None] | None = None,
) -> int:
    """Join the run, do what `order` says, leave; return the exit code.

    `joined` is told the name under which it is known there.
    What goes wrong is told to the launcher, and to `failed`; where there is neither, it is printed.
    """
    from engine.bus.bus import join

    stopping = Stopping() if stopping is None else stopping
    about = {"pid": os.getpid(), "host": socket.gethostname(), "works": True}
    bus = None
    try:
        bus = join(
            transport,
            at=order.address,
            run=order.run,
            role=order.role,
            peer=order.seat,
            about=about,
            timeout=timeout,
            # Before it has joined: importing torch holds everything up for seconds on a busy machine, and
            # a member that answers nothing for so long is taken for dead.
            prepare=lambda: import_module("engine.recipes.experiment"),
        )
        stopping.bus = bus
        if joined is not None:
            joined(bus.peer)
        if not order.program and bus.told_to_finish is None:
            order = _ask_for_order(bus, order.role, timeout)
        return work(order, bus, stopping, progress=progress)
    except (KeyboardInterrupt, Terminated):
        return exit_code(None) if stopping.reason is None else stopping.exit_code
    except BaseException as error:
        if isinstance(error, _CONSEQUENCES) and (stopping.signal is not None or stopping.asked):
            return stopping.exit_code  # the others were quicker to leave
        code = _exit_code(error)
        if code:
            told = _report(bus, error, code, quiet=failed is not None)
            if failed is not None:
                failed(error)
            elif not told:
                traceback.print_exception(error)
        return code
    finally:
        if bus is not None:
            bus.report(made=bus.meter.read().made())  # the last word, for a launcher on another machine
            bus.close(_farewell(stopping))
        else:
            transport.close()


def _farewell(stopping: Stopping) -> str:
    """Why this process leaves the run, for those that stay."""
    return "it was closed" if stopping.signal is None else f"on {name_of(stopping.signal)}"


def _ask_for_order(bus: Bus, role: str, timeout: float) -> Order:
    """Return what is to be done in a role; raises UsageError where the launcher does not give it away."""
    try:
        known = bus.call("launcher_get_order", role=role, timeout=timeout)
    except RemoteError as error:
        if error.kind != UsageError.__name__:
            raise
        raise UsageError(str(error).rpartition(f"{UsageError.__name__}: ")[2]) from None
    return msgspec.convert({**known, "folder": None}, Order)


def work(order: Order, bus: Bus, stopping: Stopping, *, progress: str = "off") -> int:
    """Build the recipe in its one role and run it; return the exit code."""
    if stopping.asked:
        return stopping.exit_code
    sys.path.extend(path for path in order.path if path not in sys.path)
    recipe = find_recipe(order.program, UsageError)
    check_roles(recipe, [order.role])
    role = next(role for role in roles_of(recipe) if role.name == order.role)
    config: Any = convert(order.config, config_type(recipe, order.program))
    from engine.recipes.experiment import built, run_experiment
    from engine.runs.folder import Run
    from engine.task import Task

    @functools.wraps(recipe)
    def in_role(config: Any, **more: Any) -> Any:
        task = recipe(config, roles=frozenset({order.role}), bus=bus, **more)
        if isinstance(task, Task) and task.names:
            stopping.watch(task)
            task.own(stopping)
            task.after(task.names[-1], _reporter(bus, stopping))
            if role.records:
                task.own(_Closing(bus, task, stopping))
        return task

    if not role.records:
        with built(in_role, config) as task:
            task.run()
        return stopping.exit_code
    if order.folder is None:
        raise StateError(f"{order.role} records the run and needs its folder")
    run = run_experiment(in_role, config, run=Run.open(order.folder), progress=progress)
    if run.state == "interrupted":
        return stopping.exit_code or run.exit_code
    return run.exit_code


class _Closing:
    """Tells the launcher that the recorded task is over: the others need not wait for its pictures."""

    transient = True

    def __init__(self, bus: Bus, task: Any, stopping: Stopping) -> None:
        self._bus, self._task, self._stopping = bus, task, stopping

    def close(self) -> None:
        if self._task.finish_reason is None and self._bus.told_to_finish is None:
            return  # it did not end: it failed, which is told in another way
        if self._stopping.signal is not None:
            return  # the signal was for this process, and ends the run only if the launcher says so
        reason = self._task.finish_reason or self._bus.told_to_finish
        try:
            self._bus.call("launcher_end_run", seat=self._bus.peer, reason=reason, timeout=10)
        except EngineError as error:
            log.warning("the launcher was not told that the run is over: %s", error)


def _reporter(bus: Bus, stopping: Stopping) -> Callable[[Any], None]:
    """Return a hook that tells everybody, now and then, how far this process is."""
    due = 0.0

    def report(ctx: Any) -> None:
        nonlocal due
        if stopping.reason is not None:
            ctx.finish(stopping.reason)
        now = time.monotonic()
        if now < due:
            return
        due = now + _REPORT_EVERY
        streams = bus.stats()["streams"].values()
        version = ctx.metrics.get("collect/version", ctx.metrics.get("train/version"))
        bus.report(
            env_step=int(ctx.get("env_step", ctx.total_step)),
            iteration=int(ctx.total_step),
            queue=sum(stream["waiting"] + stream["outstanding"] for stream in streams),
            **({} if version is None else {"version": int(version)}),
        )

    return report


def _end_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, which may have happened already."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _exit_code(error: BaseException) -> int:
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    return error.exit_code if isinstance(error, EngineError) else 1


def _report(bus: Bus | None, error: BaseException, code: int, *, quiet: bool) -> bool:
    """Tell the launcher of an error; False where it cannot be told, which is printed unless `quiet`."""
    if bus is None:
        return False
    try:
        bus.call(
            "launcher_report_failure",
            seat=bus.peer,
            kind=type(error).__name__,
            message=str(error),
            traceback="".join(traceback.format_exception(error)),
            code=code,
            timeout=5,
        )
    except Exception as unheard:  # whatever broke the bus, the first error must not be lost over it
        if not quiet:
            print(f"the launcher was not told: {type(unheard).__name__}: {unheard}", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main()
