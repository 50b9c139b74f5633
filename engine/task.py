"""The Task: runs a list of middleware again and again, and owns what that takes.

It knows nothing of reinforcement learning.  It starts nothing until entered, and leaving
the block closes what it was given to own, whatever happened.
"""

from __future__ import annotations

import fnmatch
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from engine import pipeline
from engine.bus.aside import HandlerThread
from engine.bus.bus import Bus, Handler
from engine.bus.services import Where
from engine.context import Context, next_context, renewal_of
from engine.errors import ConflictError, Finishing, UnknownName, UsageError, did_you_mean
from engine.executor import Executor, InOrder, Overlapped, StationTime
from engine.pipeline import Compiler, Enter, Hooks, Node, Position, Run, Timing
from engine.signals import REASONS, Stop, name_of
from engine.state import graph as state_graph

log = logging.getLogger(__name__)


class Task:
    """Runs middleware in order, iteration after iteration.

    ``ctx`` is the first context (default: a plain `Context`), ``role`` is named in errors (default:
    the bus's), ``bus`` carries events (default: one in memory, of this task alone).  With ``async_mode``
    every argument of `use` becomes a station of an assembly line, with a thread of its own
    (see `engine.executor`), and at most ``max_lag + 1`` iterations are in flight (default:
    as many as there are stations).

    Use it as a context manager, or, where a block is in the way (a notebook), between
    `open` and `close`.
    """

    transient = True  # middleware may hold the task, to emit or to finish: that is no state of theirs

    def __init__(
        self,
        ctx: Any = None,
        *,
        role: str | None = None,
        bus: Bus | None = None,
        async_mode: bool = False,
        max_lag: int | None = None,
    ) -> None:
        if ctx is not None and not isinstance(ctx, Context):
            shown = getattr(ctx, "__name__", type(ctx).__name__)
            raise UsageError(f"Task takes a context such as OnlineContext(), not {shown}")
        if max_lag is not None:
            _whole(max_lag, "max_lag counts iterations")
            if not async_mode:
                raise UsageError("max_lag belongs to the overlapped mode: give async_mode=True too")
        self.ctx: Context = Context() if ctx is None else ctx
        renewal_of(type(self.ctx))  # says now what would fail between the first two iterations
        self.bus = Bus() if bus is None else bus
        self.role = self.bus.role if role is None else role
        self.attention = False
        self.altered = True  # whether an alteration, or a hook, waits for a boundary
        self.async_mode = bool(async_mode)
        self.max_lag = max_lag
        self._executor: Executor = Overlapped(max_lag) if async_mode else InOrder()
        self._members: dict[str, Any] = {}
        self._taken: set[str] = set()
        self._hooks: list[tuple[str, str, Callable[[Any], Any]]] = []
        self._timings: dict[str, Timing] | None = None
        self._clock: Callable[[], float] = time.perf_counter
        self._compiled: Run = _nothing
        self._runners: dict[Any, Run] = {}
        self._owned: list[Any] = []
        self._shared: list[Any] = []
        self._finish_reason: str | None = None
        self._interrupted = self._hurried = False
        self._stop = Stop()
        self._entered = False
        self._running = False
        self._fresh = True  # ctx has not been run yet

    # --- building -----------------------------------------------------------------------

    def use(self, *middleware: Any, name: str | None = None) -> Self:
        """Append middleware; return the task, so that calls chain.

        One middleware takes `name` as its own; several under one name become one serial
        group of that name.  While the task runs, the change waits for the next boundary.
        """
        if not middleware:
            raise UsageError("use() needs at least one middleware")
        if name is not None:
            pipeline.check_name(name)
        members = [pipeline.check(member) for member in middleware]
        if name is not None and len(members) > 1:
            members = [pipeline.serial(*members, name=name)]
        for member in members:
            self._members[self._new_name(member, name)] = member
        self._altered()
        return self

    def insert(
        self, middleware: Any, *, before: str | None = None, after: str | None = None, name: str | None = None
    ) -> Self:
        """Insert a middleware `before` or `after` the one of that name, from the next boundary on."""
        if (before is None) == (after is None):
            raise UsageError("insert takes either before= or after=, the name of a middleware")
        place = self._place(before if before is not None else after or "") + (after is not None)
        members = list(self._members.items())
        members.insert(place, (self._new_name(middleware, name), middleware))
        self._members = dict(members)
        self._altered()
        return self

    def replace(self, name: str, middleware: Any) -> Self:
        """Put another middleware in the place, and under the name, of `name`, from the next boundary on."""
        self._place(name)
        self._members = {
            label: pipeline.check(middleware) if label == name else member
            for label, member in self._members.items()
        }
        self._altered()
        return self

    def remove(self, name: str) -> Self:
        """Take a middleware out, from the next boundary on; its name is not given again."""
        self._place(name)
        self._members = {label: member for label, member in self._members.items() if label != name}
        self._altered()
        return self

    def before(self, name: str, hook: Callable[[Any], Any]) -> Self:
        """Call ``hook(ctx)`` before the first half of `name`, a full name or a pattern (``collector.*``)."""
        return self._hook("before", name, hook)

    def after(self, name: str, hook: Callable[[Any], Any]) -> Self:
        """Call ``hook(ctx)`` after the first half of `name`, a full name or a pattern."""
        return self._hook("after", name, hook)

    def around(self, wrapper: Callable[[Any], Iterator[None]], name: str = "*") -> Self:
        """Run the one-yield `wrapper` of ctx around each half of every middleware that `name` matches.

        ``ctx.running`` tells the wrapper which middleware it surrounds.
        """
        if not inspect.isgeneratorfunction(wrapper):
            raise UsageError("around takes a function of ctx that yields once")
        return self._hook("around", name, wrapper)

    def measure(self, clock: Callable[[], float] = time.perf_counter) -> Self:
        """Record what every middleware costs in `timings`, from the next boundary on."""
        if self._timings is None:
            self._timings = {}
        self._clock = clock
        self._altered()
        return self

    def own(self, *resources: Any) -> Self:
        """Close `resources` (anything with ``close()``) when the task closes, the last one first."""
        for resource in resources:
            if not callable(getattr(resource, "close", None)):
                raise UsageError(f"own takes things that have close(), not {type(resource).__name__}")
            self._owned.append(resource)
        return self

    @property
    def owned(self) -> tuple[Any, ...]:
        """What the task closes when it closes, in the order of `own`."""
        return tuple(self._owned)

    def share(self, *objects: Any) -> Self:
        """Allow members that run at the same time to hold `objects`, and what is reachable from them.

        You answer for it that this is safe: that they change between slots only, or guard themselves.
        """
        self._shared.extend(objects)
        return self

    # --- looking ------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names of the middleware that were used, in order."""
        return list(self._members)

    @property
    def timings(self) -> dict[str, Timing]:
        """What each middleware cost so far, by full name; empty unless `measure` was called."""
        return dict(self._timings or {})

    @property
    def stations(self) -> list[StationTime]:
        """What each station of an overlapped task did with its time so far; empty in order."""
        return self._executor.times()

    def graph(self) -> list[Node]:
        """Return the pipeline as a picture shows it: nested nodes with names, kinds and docs."""
        return [pipeline.describe(member, name) for name, member in self._members.items()]

    def holdings(self) -> list[state_graph.Found]:
        """Return every object that can change and that the middleware hold, each with its path."""
        return state_graph.walk(self._members)

    # --- finishing ----------------------------------------------------------------------

    @property
    def finish(self) -> bool:
        """Whether the task is finishing; set it to True to end after the iterations in flight."""
        return self._finish_reason is not None or self._executor.finishing()

    @finish.setter
    def finish(self, value: bool) -> None:
        if value:
            self.request_finish("task.finish was set")
        else:
            self._finish_reason = None

    @property
    def finish_reason(self) -> str | None:
        """Why the task finishes or finished before its steps were done; None if nobody asked."""
        return self._finish_reason

    @property
    def hurried(self) -> bool:
        """Whether a signal asked for the end since `run` began, of this process or of the whole program."""
        return self._hurried

    def request_finish(self, reason: str) -> None:
        """Ask for the end after the iterations in flight; the first reason stands.

        Overlapped, what a station asks holds for itself at once, and for the others from the next slot on.
        """
        if reason in REASONS.values():
            self._hurried = True
        if self._executor.hold(reason):
            return
        if self._finish_reason is None:
            self._finish_reason = reason
        self.attention = True
        self.wake()

    def interrupt(self, reason: str = "interrupted") -> None:
        """Ask for the end as Ctrl-C does: after the iteration, or overlapped after the slot, under way."""
        self._interrupted = True
        self.request_finish(reason)

    # --- events -------------------------------------------------------------------------

    def on(
        self, event: str, handler: Handler, *, view: bool = False, thread: HandlerThread = "task"
    ) -> Handler:
        """Call ``handler`` at the boundary after each `emit` of `event`, on the thread that runs the task.

        `view` and ``thread="service"`` as in `Bus.on`.
        """
        return self.bus.on(event, handler, view=view, thread=thread)

    def once(self, event: str, handler: Handler) -> Handler:
        """Like `on`, for the next occurrence only."""
        return self.bus.once(event, handler)

    def off(self, event: str, handler: Handler | None = None) -> None:
        """Take a handler off an event, or all of them."""
        self.bus.off(event, handler)

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Queue an event; its handlers run at the next boundary.  Allowed from any thread."""
        self.bus.emit(event, *args, **kwargs)

    def wait_for(self, event: str, *, timeout: float | None = 30.0) -> Any:
        """Wait for an event (see `Bus.wait_for`); with ``timeout=None``, until the task is finishing."""
        return self.bus.wait_for(event, timeout=timeout)

    def serve(self, method: str, handler: Handler, *, thread: Where = "task") -> Handler:
        """Answer calls of ``<receiver>_<method>`` at boundaries or on the service thread; see `Bus.serve`."""
        return self.bus.serve(method, handler, thread=thread)

    def call(
        self, method: str, *args: Any, timeout: float | None = 30.0, peer: str | None = None, **kwargs: Any
    ) -> Any:
        """Call a method that this process or another, or `peer`, serves; see `Bus.call`."""
        return self.bus.call(method, *args, timeout=timeout, peer=peer, **kwargs)

    def call_all(
        self, method: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> dict[str, Any]:
        """Call a method in every process that serves it; return results or errors; see `Bus.call_all`."""
        return self.bus.call_all(method, *args, timeout=timeout, **kwargs)

    # --- running ------------------------------------------------------------------------

    def open(self) -> Self:
        """Enter the task without a block; pair it with `close`."""
        if self._entered:
            raise UsageError("the task is open already")
        self.bus.attach(
            finishing=lambda: self.finish,
            failed=self._executor.failed,
            notify=self._look,
            line=self._executor,
            finish=self.request_finish,
        )
        self._entered = True
        return self

    def close(self) -> None:
        """Close everything the task owns; every close is tried, then the first error is raised."""
        if self._entered:
            self.bus.detach()
        self._entered = False
        errors = self._executor.close(self)
        while self._owned:
            resource = self._owned.pop()
            try:
                resource.close()
            except BaseException as error:
                error.add_note(f"raised while closing {type(resource).__name__}, owned by the task")
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"closing something else raised {type(other).__name__}: {other}")
            raise errors[0]

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Exception as closing:
            if error is None:
                raise
            error.add_note(f"then closing the task raised {type(closing).__name__}: {closing}")

    def run(self, max_step: int | None = None) -> Context:
        """Run `max_step` iterations (None: until finished) and return the last context.

        May be called again and goes on: kept fields and ``ctx.total_step`` continue.  The
        first Ctrl-C, SIGTERM or SIGHUP ends it after the iteration under way (overlapped: after the
        slot, what is in flight stays so until then), `finish_reason` says which, and a further call
        goes on; a second one raises KeyboardInterrupt or `Terminated` at once.  An error of a
        middleware or a handler reaches the caller with its own type and a note that says where it
        happened.
        """
        steps = _checked_steps(max_step)
        if not self._entered:
            raise UsageError(
                "the task is not open: run it inside `with task:` (or between open() and close())"
            )
        if self._running:
            raise UsageError("the task is running already; run it from one place at a time")
        if steps is None and not self._members:
            raise UsageError("nothing to run: use(...) a middleware first, or give max_step")
        self._finish_reason, self._interrupted, self._hurried = None, False, False
        self._stop = Stop(self._signalled)
        self._running = True
        self.bus.runs_on(threading.get_ident())
        if self.bus.told_to_finish is not None:
            self.request_finish(self.bus.told_to_finish)
        try:
            with self._stop:
                self._start(steps)
        finally:
            self.bus.runs_on(None)
            self._running = False
        return self.ctx

    # --- what the executor asks for -----------------------------------------------------

    @property
    def interrupted(self) -> bool:
        """Whether `interrupt` was called since the run began."""
        return self._interrupted

    def begin(self) -> Context:
        """Return the context of the first iteration of a run, which is `ctx` from now on."""
        if not self._fresh:
            self.ctx = next_context(self.ctx)
        self._fresh = False
        return self.ctx

    def boundary(self, position: Position) -> Run | None:
        """Do what waits for a boundary: deliver events, make alterations; return what runs next.

        `position` tells which member runs while it does.
        """
        self.deliver()
        if self.finish:
            return None
        if self.altered:
            compiler = self._compiler()
            self._compiled = compiler.chain(
                tuple(self._members.values()), tuple(self._members), position=position
            )
            self._runners.update(compiler.runners)
        return self._compiled

    def deliver(self) -> None:
        """Call the handlers of the events that were emitted."""
        self.attention = False
        if self.bus.pending:
            try:
                self.bus.deliver()
            except Exception as error:
                steps = self.ctx.total_step
                where = f"after iteration {steps - 1}" if steps else "before the first iteration"
                error.add_note(f"delivered {where}, role {self.role!r}")
                raise
            if self.bus.pending:
                self.attention = True

    def line(self) -> dict[str, Enter]:
        """Make alterations; return every member by name, compiled as a station."""
        self._check_shared(
            self._members,
            "are stations that run at the same time",
            "group them in one station with serial(...)",
        )
        compiler = self._compiler()
        line = {name: compiler.station(member, name) for name, member in self._members.items()}
        self._runners.update(compiler.runners)
        return line

    def wake(self) -> None:
        """Let waits look again whether they should end."""
        self.bus.wake()

    def _start(self, steps: int | None) -> None:
        if steps == 0:
            return
        self.ctx.__dict__.update(_task=self, _runners=self._runners)
        try:
            self._executor.run(self, steps)
        except Finishing:
            if self.bus.told_to_finish is not None:
                self.request_finish(self.bus.told_to_finish)  # the wait was told before the task
            elif not self.finish:  # raised by somebody else, for another reason
                raise

    def _compiler(self) -> Compiler:
        """Return what compiles the members as they are now; it is asked after an alteration only."""
        for name, member in pipeline.named_members(self._members):
            if isinstance(member, pipeline.Parallel):
                together = {
                    f"{name}.{label}": one for label, one in zip(member.names, member.members, strict=True)
                }
                self._check_shared(
                    together, "run in parallel", "run them one after the other with serial(...)"
                )
        self.altered = False
        self.bus.stations(self._members)
        return Compiler(self._hooks_of if self._hooks or self._timings is not None else None)

    def _check_shared(self, together: Mapping[str, Any], how: str, instead: str) -> None:
        """Refuse two members that run at the same time and hold one object that changes."""
        allowed: set[int] | None = None
        for found, owners in state_graph.shared(together):
            if allowed is None:
                allowed = {id(one.value) for one in state_graph.walk({"shared": self._shared})}
            if id(found.value) not in allowed:
                raise ConflictError(
                    f"{owners[0]!r} and {owners[1]!r} {how} and both hold "
                    f"{type(found.value).__name__} ({found.path}), which changes; give each its own, "
                    f"{instead}, or allow it with task.share(...)"
                )

    def _new_name(self, member: Any, name: str | None) -> str:
        pipeline.check(member)
        if name is not None and pipeline.check_name(name) in self._taken:
            raise UsageError(f"a middleware is named {name!r} already; names are unique and never change")
        return pipeline.unique(name or pipeline.name_of(member), self._taken)

    def _place(self, name: str) -> int:
        if name not in self._members:
            nested = name.partition(".")[0] in self._members and "." in name
            hint = (
                f"; {name.partition('.')[0]!r} can be altered as a whole"
                if nested
                else did_you_mean(name, self._members)
                or f"; there are {', '.join(self._members) or 'none yet'}"
            )
            raise UnknownName(f"no middleware is named {name!r}{hint}")
        return list(self._members).index(name)

    def _look(self) -> None:
        self.attention = True

    def _altered(self) -> None:
        self.altered = True
        self.attention = True

    def _hook(self, kind: str, name: str, hook: Callable[[Any], Any]) -> Self:
        if not callable(hook):
            raise UsageError(f"{kind} takes a function of ctx, not {type(hook).__name__}")
        if kind != "around" and inspect.isgeneratorfunction(hook):
            raise UsageError(f"{kind} takes a plain function of ctx; use around(...) for one that yields")
        known = [full for full, _ in pipeline.named_members(self._members)]
        if not any(wild in name for wild in "*?[") and name not in known:
            hint = did_you_mean(name, known) or f"; there are {', '.join(known) or 'none yet'}"
            raise UnknownName(f"no middleware is named {name!r}{hint}")
        self._hooks.append((kind, name, hook))
        self._altered()
        return self

    def _hooks_of(self, name: str) -> Hooks:
        hooks = Hooks()
        for kind, pattern, hook in self._hooks:
            if name == pattern or fnmatch.fnmatchcase(name, pattern):
                getattr(hooks, kind).append(hook)
        if self._timings is not None:
            hooks.timing, hooks.clock = self._timings.setdefault(name, Timing()), self._clock
        return hooks

    def _signalled(self, number: int) -> None:
        """The first signal: end after the iteration, as the tasks do that this one runs inside of."""
        self.interrupt(REASONS[number])
        if self._stop.outer is None or not self._stop.outer.asks:
            word, again = REASONS[number], "Ctrl-C once more"
            if word != "interrupted":
                word, again = name_of(number), "another signal"
            unit = "slot" if self.async_mode else "iteration"
            log.warning("%s: this %s is completed first; %s stops at once", word, unit, again)


def _nothing(ctx: Context) -> None:
    """The pipeline before anything was compiled."""


def _checked_steps(max_step: Any) -> int | None:
    return None if max_step is None else _whole(max_step, "max_step counts iterations")


def _whole(value: Any, what: str) -> int:
    """Return a whole number of at least 0; raise `UsageError` for anything else."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise UsageError(f"{what}: a whole number or None, not {value!r}")
    number: int = value.__index__()
    if number < 0:
        raise UsageError(f"{what}: at least 0, not {number}")
    return number
