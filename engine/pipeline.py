"""The onion: run middleware forward, unwind their second halves in reverse.

A middleware is called with ctx.  If it yields once, what stands after the yield runs on the
way out, and an error raised further in is thrown into it at the yield, as if the rest of
the pipeline were the body of a `with` statement: it may clean up, replace the error, or
swallow it, and then what encloses it goes on as if nothing had happened.

This is the only file that knows generators.  `compile_group` turns members into one
function; hooks and timing cost something only where they are present.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from engine.context import Context, Middleware, merge, view, writes
from engine.errors import ConflictError, MiddlewareError, UsageError, foremost
from engine.threads import inherited

Run: TypeAlias = Callable[[Any], None]
"""A compiled pipeline: runs to completion and returns None."""

Suspended: TypeAlias = tuple[Generator[None, None, Any], str]
"""A second half that waits, and the full name of its middleware."""

Enter: TypeAlias = Callable[[Any], Suspended | None]
"""A compiled station: runs its first half and returns the second, if one waits."""

_NAME = re.compile(r"[a-z][a-z0-9_]*")


# --- one middleware ---------------------------------------------------------------------


def check(middleware: Any) -> Any:
    """Return `middleware` if it can be called with ctx alone; else raise `MiddlewareError` saying why."""
    import inspect  # slow to import, and only building a pipeline needs it

    shown = getattr(middleware, "__qualname__", None) or repr(middleware)
    if isinstance(middleware, type):
        raise MiddlewareError(f"{shown} is a class; pass an instance: {middleware.__name__}(...)")
    if isinstance(middleware, Generator):
        raise MiddlewareError(f"{shown} is a generator: pass the function itself, without calling it on ctx")
    if not callable(middleware):
        raise MiddlewareError(f"{shown} is not callable; a middleware is a callable of one argument, ctx")
    call = middleware if inspect.isroutine(middleware) else type(middleware).__call__
    if inspect.iscoroutinefunction(middleware) or inspect.iscoroutinefunction(call):
        raise MiddlewareError(f"{shown} is async; a middleware is a plain function or one that yields once")
    try:
        signature = inspect.signature(middleware)
    except (TypeError, ValueError):  # some builtins have none; calling them will tell
        return middleware
    try:
        signature.bind(None)
    except TypeError as error:
        raise MiddlewareError(
            f"{shown}{signature} cannot be called with ctx alone ({error}); "
            "options belong to the outer function: use(f(option), ...), where f returns the middleware"
        ) from None
    return middleware


def name_of(middleware: Any) -> str:
    """Return the snake_case name of a function, or of an instance's class."""
    named = getattr(middleware, "name", None)
    if isinstance(middleware, Group) and isinstance(named, str):
        return named
    while isinstance(middleware, functools.partial):
        middleware = middleware.func
    name: str = getattr(middleware, "__name__", None) or type(middleware).__name__
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return re.sub(r"\W+", "", name).strip("_").lower() or "middleware"


def check_name(name: str) -> str:
    """Return `name` if it is snake_case, as names of middleware are."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a middleware; names are snake_case, like 'push_fresh'")
    return name


def unique(name: str, taken: set[str]) -> str:
    """Return `name`, or ``name#2`` and so on where it is taken; the result is added to `taken`."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    taken.add(candidate)
    return candidate


def _suspended(result: Any, name: str) -> Generator[None, None, Any] | None:
    """Run the first half of what a call returned; return the generator if a second half waits."""
    if not isinstance(result, Generator):
        close = getattr(result, "close", None)
        if callable(close) and hasattr(result, "__await__"):
            close()
        hint = "; was the outer function meant to be called first?" if callable(result) else ""
        raise MiddlewareError(
            f"middleware {name!r} returned {type(result).__name__}; it must return nothing{hint}"
        )
    try:
        next(result)
    except StopIteration as stop:
        _check_return(stop, name)
        return None
    return result


def _check_return(stop: StopIteration, name: str) -> None:
    if stop.value is not None:
        kind = type(stop.value).__name__
        raise MiddlewareError(f"middleware {name!r} returned {kind}; it must return nothing") from None


def _second_yield(suspended: Generator[None, None, Any], name: str) -> MiddlewareError:
    error = MiddlewareError(f"middleware {name!r} yielded twice; one yield parts the way in from the way out")
    try:
        suspended.close()
    except Exception as closing:  # it yields a third time, or its own cleaning up fails
        error.add_note(f"then closing it raised {type(closing).__name__}: {closing}")
    return error


def _resume(suspended: Generator[None, None, Any], name: str) -> None:
    """Run a second half after the inside went well."""
    try:
        next(suspended)
    except StopIteration as stop:
        if stop.value is not None:
            _check_return(stop, name)
        return
    raise _second_yield(suspended, name)


def _throw(suspended: Generator[None, None, Any], name: str, error: BaseException) -> None:
    """Run a second half after the inside failed: return if it swallows `error`, raise what leaves it."""
    traceback = error.__traceback__
    try:
        suspended.throw(error)
    except StopIteration as stop:
        if stop is error:  # a StopIteration of the inside, raised anew by the generator protocol
            raise
        _check_return(stop, name)
        return
    except BaseException as raised:
        if raised is error:
            error.__traceback__ = traceback  # the way through this generator says nothing new
        elif (
            isinstance(error, StopIteration)
            and isinstance(raised, RuntimeError)
            and raised.__cause__ is error
        ):
            raise error from None  # Python turns a StopIteration that leaves a generator into a RuntimeError
        raise
    else:
        raise _second_yield(suspended, name) from error
    finally:
        del error  # no cycle between this frame and the traceback


def leave(suspended: Suspended, ctx: Any, error: BaseException | None) -> BaseException | None:
    """Run one second half, with `error`, if any, thrown into it; return the error that leaves it."""
    waiting, name = suspended
    try:
        if error is None:
            _resume(waiting, name)
        else:
            _throw(waiting, name, error)
    except BaseException as raised:
        if raised is not error:
            _note(raised, name, ctx)
        return raised
    finally:
        del error  # no cycle between this frame and the traceback
    return None


def _note(error: BaseException, name: str, ctx: Any) -> None:
    """Say once on `error` where it happened."""
    iteration = getattr(ctx, "total_step", None)
    task = getattr(ctx, "_task", None)
    here = (id(task), iteration)  # a task that runs inside another has both say where
    if getattr(error, "_engine_noted", None) == here:
        return
    role = f", role {task.role!r}" if task is not None else ""
    error.add_note(f"raised in middleware {name!r}, iteration {iteration}{role}")
    with contextlib.suppress(
        AttributeError
    ):  # an exception class may refuse attributes; then two notes stand
        error._engine_noted = here  # type: ignore[attr-defined]


# --- hooks ------------------------------------------------------------------------------


@dataclass
class Timing:
    """What one middleware has cost: calls, and seconds in both halves, inner members included."""

    calls: int = 0
    seconds: float = 0.0


@dataclass
class Hooks:
    """What surrounds one middleware; called with ctx, in the order in which it was asked for."""

    before: list[Callable[[Any], Any]] = field(default_factory=list)
    after: list[Callable[[Any], Any]] = field(default_factory=list)
    around: list[Callable[[Any], Iterator[None]]] = field(default_factory=list)
    timing: Timing | None = None
    clock: Callable[[], float] | None = None

    def __bool__(self) -> bool:
        return bool(self.before or self.after or self.around)


HooksOf: TypeAlias = Callable[[str], Hooks | None]
"""Maps the full name of a middleware to its hooks."""


def _timed(call: Middleware, timing: Timing, clock: Callable[[], float], name: str) -> Middleware:
    def second_half(suspended: Generator[None, None, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            start = clock()
            try:
                _throw(suspended, name, error)
            finally:
                timing.seconds += clock() - start
        else:
            start = clock()
            try:
                _resume(suspended, name)
            finally:
                timing.seconds += clock() - start

    def timed(ctx: Any) -> Iterator[None] | None:
        start = clock()
        try:
            result = call(ctx)
            suspended = None if result is None else _suspended(result, name)
        finally:
            timing.calls += 1
            timing.seconds += clock() - start
        return None if suspended is None else second_half(suspended)

    return timed


def _hooked(call: Middleware, hooks: Hooks, name: str) -> Middleware:
    labels = (*(f"{name} (around: {name_of(wrapper)})" for wrapper in hooks.around), name)

    def half(ctx: Any, body: Middleware) -> None:
        """Run one half inside every wrapper, the first asked for outermost."""
        if hooks.around:
            _chain((*hooks.around, body), labels)(ctx)
        else:
            body(ctx)

    def second_half(ctx: Any, suspended: Generator[None, None, Any]) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            finish(ctx, suspended, error)
        else:
            finish(ctx, suspended, None)

    def finish(ctx: Any, suspended: Generator[None, None, Any], error: BaseException | None) -> None:
        def second(ctx: Any) -> None:
            if error is None:
                _resume(suspended, name)
            else:
                _throw(suspended, name, error)

        outside = _running(ctx, name)
        try:
            half(ctx, second)
        except BaseException as raised:
            _tell(suspended, name, raised)
            raise
        finally:
            _running(ctx, outside)
            error = None  # no cycle between this frame and the traceback

    def hooked(ctx: Any) -> Iterator[None] | None:
        suspended: Generator[None, None, Any] | None = None

        def first(ctx: Any) -> None:
            nonlocal suspended
            result = call(ctx)
            suspended = None if result is None else _suspended(result, name)

        outside = _running(ctx, name)
        try:
            for hook in hooks.before:
                hook(ctx)
            half(ctx, first)
            for hook in hooks.after:
                hook(ctx)
        except BaseException as error:
            _tell(suspended, name, error)
            raise
        finally:
            _running(ctx, outside)
        return None if suspended is None else second_half(ctx, suspended)

    return hooked


def _tell(suspended: Generator[None, None, Any] | None, name: str, error: BaseException) -> None:
    """Show a hook's error to the middleware whose second half it kept from running."""
    if suspended is not None and getattr(suspended, "gi_suspended", False):
        _throw(suspended, name, error)


def _running(ctx: Any, name: str | None) -> str | None:
    """Tell ctx which middleware the hooks that run now belong to; return what it held."""
    values = ctx.__dict__
    outside: str | None = values.get("_running")
    values["_running"] = name
    return outside


# --- groups -----------------------------------------------------------------------------


class Group:
    """Several middleware that are one: called, it runs to completion, second halves included."""

    kind = "group"

    def __init__(self, *members: Any, name: str | None = None) -> None:
        self.members = tuple(check(member) for member in members)
        self.name = check_name(name) if name is not None else self.kind
        taken: set[str] = set()
        self.names = tuple(unique(name_of(member), taken) for member in self.members)
        self._alone: Run | None = None

    def __call__(self, ctx: Any) -> None:
        runners = getattr(ctx, "_runners", None)
        run = None if runners is None else runners.get(self)
        if run is None:  # called directly, outside of a task
            if self._alone is None:
                self._alone = self.compile(Compiler())
            run = self._alone
        run(ctx)

    def compile(self, compiler: Compiler, path: str = "") -> Run:
        """Return the function that runs this group; `path` is its full name."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{self.kind}({', '.join(self.names)})"


class Position:
    """Which member of a chain runs now."""

    __slots__ = ("_names", "at")

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._names = names
        self.at: Any = None
        """What goes through the first halves, or the name of the member whose second half runs."""

    def name(self) -> str:
        """Return the name of the member that runs; ask while one does."""
        at = self.at
        return at if isinstance(at, str) else self._names[len(self._names) - 1 - at.__length_hint__()]

    def enter(self, names: tuple[str, ...]) -> None:
        """Belong to a chain of members with these names."""
        self._names = names


class Compiler:
    """Turns groups into functions, with the hooks of each member's full name compiled in.

    ``runners`` collects what it made of each group, so that a class which calls its own
    ``self.pipeline`` gets the hooks too.
    """

    def __init__(self, hooks_of: HooksOf | None = None) -> None:
        self.hooks_of = hooks_of
        self.runners: dict[Group, Run] = {}

    def member(self, middleware: Middleware, full_name: str) -> Middleware:
        """Return the callable that stands for a member under its full name."""
        call: Middleware = middleware
        if isinstance(middleware, Group):
            call = self._group(middleware, full_name)
        elif isinstance(inner := getattr(middleware, "pipeline", None), Group):
            self._group(inner, full_name)
        hooks = self.hooks_of(full_name) if self.hooks_of is not None else None
        if hooks is not None:
            if hooks.timing is not None and hooks.clock is not None:
                call = _timed(call, hooks.timing, hooks.clock, full_name)
            if hooks:
                call = _hooked(call, hooks, full_name)
        return call

    def _group(self, group: Group, full_name: str) -> Run:
        run = group.compile(self, full_name)
        self.runners.setdefault(group, run)
        return run

    def station(self, middleware: Middleware, full_name: str) -> Enter:
        """Return a function that runs the first half of a member and returns the second, if one waits."""
        call = self.member(middleware, full_name)

        def enter(ctx: Any) -> Suspended | None:
            try:
                result: Any = call(ctx)
                suspended = None if result is None else _suspended(result, full_name)
            except BaseException as error:
                _note(error, full_name, ctx)
                raise
            return None if suspended is None else (suspended, full_name)

        return enter

    def chain(
        self,
        members: Sequence[Middleware],
        names: Sequence[str],
        path: str = "",
        *,
        position: Position | None = None,
    ) -> Run:
        """Return a function that runs members forward and their second halves in reverse.

        `position` tells which of them runs.
        """
        full = tuple(f"{path}.{name}" if path else name for name in names)
        calls = tuple(self.member(member, name) for member, name in zip(members, full, strict=True))
        return _chain(calls, full, position)


def _chain(calls: tuple[Middleware, ...], names: tuple[str, ...], position: Position | None = None) -> Run:
    count = len(calls)
    if position is not None:
        position.enter(names)

    def run(ctx: Any) -> None:
        result: Any
        pending: list[tuple[Generator[None, None, Any], str]] = []
        error: BaseException | None = None
        left: Any = iter(calls)
        if position is not None:
            position.at = left
        try:
            for call in left:
                result = call(ctx)
                if result is not None:
                    # __length_hint__ says how many calls are left, for nothing while all goes well.
                    name = names[count - 1 - left.__length_hint__()]
                    if result.__class__ is _GENERATOR:
                        try:  # _suspended, without the price of the call
                            next(result)
                        except StopIteration as stop:
                            if stop.value is not None:
                                _check_return(stop, name)
                            continue
                        pending.append((result, name))
                    else:
                        suspended = _suspended(result, name)
                        if suspended is not None:
                            pending.append((suspended, name))
        except BaseException as raised:
            _note(raised, names[count - 1 - left.__length_hint__()], ctx)
            if not pending:
                raise
            error = raised
        while pending:
            suspended, name = pending.pop()
            if position is not None:
                position.at = name
            try:
                if error is None:
                    try:
                        next(suspended)
                    except StopIteration as stop:
                        if stop.value is not None:
                            _check_return(stop, name)
                    else:
                        raise _second_yield(suspended, name)
                else:
                    _throw(suspended, name, error)
                    error = None  # swallowed: what encloses it goes on as if nothing had happened
            except BaseException as raised:
                if raised is not error:
                    _note(raised, name, ctx)
                error = raised
        if error is not None:
            try:
                raise error
            finally:
                error = None  # no cycle between this frame and the traceback

    return run


def _generator() -> Iterator[None]:
    yield


_GENERATOR: Any = type(_generator())


class Serial(Group):
    """Members one after the other."""

    kind = "serial"

    def compile(self, compiler: Compiler, path: str = "") -> Run:
        return compiler.chain(self.members, self.names, path)


class Parallel(Group):
    """Members at the same time, each on a view of ctx."""

    kind = "parallel"

    def compile(self, compiler: Compiler, path: str = "") -> Run:
        full = tuple(f"{path}.{name}" if path else name for name in self.names)
        runs = [
            _chain((compiler.member(member, name),), (name,))
            for member, name in zip(self.members, full, strict=True)
        ]

        def run(ctx: Context) -> None:
            if not runs:
                return
            views = [view(ctx) for _ in runs]
            with ThreadPoolExecutor(len(runs), thread_name_prefix="parallel") as pool:
                futures = [
                    pool.submit(inherited(member), seen) for member, seen in zip(runs, views, strict=True)
                ]
            error = _earliest([future.exception() for future in futures], full)
            if error is not None:
                try:
                    raise error
                finally:
                    del error, futures  # no cycle between this frame and the traceback
            _check_writers(views, full)
            for seen in views:
                merge(ctx, seen)

        return run


def _earliest(errors: Sequence[BaseException | None], names: Sequence[str]) -> BaseException | None:
    """Return the error of the earliest listed member, the others attached as notes."""
    raised = {name: error for error, name in zip(errors, names, strict=True) if error is not None}
    if not raised:
        return None
    first = foremost(list(raised.values()))
    for name, error in raised.items():
        if error is not first:
            first.add_note(f"{name!r}, in parallel, raised {type(error).__name__}: {error}")
    return first


def _check_writers(views: Sequence[Context], names: Sequence[str]) -> None:
    writer: dict[str, str] = {}
    for seen, name in zip(views, names, strict=True):
        for written in sorted(writes(seen)):
            if written in writer:
                raise ConflictError(
                    f"{writer[written]!r} and {name!r} both write ctx.{written} in parallel; "
                    "let one of them write it, or run them one after the other with serial(...)"
                )
            writer[written] = name


class Repeat(Group):
    """One member several times."""

    kind = "repeat"

    def __init__(
        self,
        member: Any,
        *,
        times: int | None = None,
        until: Callable[[Any], bool] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(member, name=name)
        if (times is None) == (until is None):
            raise UsageError("repeat takes either times= or until=")
        if times is not None and (isinstance(times, bool) or not isinstance(times, int) or times < 0):
            raise UsageError(f"repeat takes times= as a whole number >= 0, not {times!r}")
        if until is not None and not callable(until):
            raise UsageError(f"repeat takes until= as a function of ctx, not {until!r}")
        self.times, self.until = times, until

    def compile(self, compiler: Compiler, path: str = "") -> Run:
        once, times, until = compiler.chain(self.members, self.names, path), self.times, self.until

        def run_times(ctx: Any) -> None:
            for _ in range(times or 0):
                once(ctx)

        def run_until(ctx: Any) -> None:
            assert until is not None
            while True:
                once(ctx)
                if until(ctx) or getattr(ctx, "finishing", False):
                    return

        return run_times if until is None else run_until


class Branch(Group):
    """One of two members, by a predicate of ctx."""

    kind = "branch"

    def __init__(
        self, predicate: Callable[[Any], Any], then: Any, otherwise: Any = None, *, name: str | None = None
    ) -> None:
        if not callable(predicate):
            raise UsageError(f"branch takes a predicate of ctx, not {predicate!r}")
        super().__init__(*([then] if otherwise is None else [then, otherwise]), name=name)
        self.predicate = predicate

    def compile(self, compiler: Compiler, path: str = "") -> Run:
        predicate = self.predicate
        sides = [
            compiler.chain((member,), (name,), path)
            for member, name in zip(self.members, self.names, strict=True)
        ]
        then, otherwise = sides[0], sides[1] if len(sides) > 1 else None

        def run(ctx: Any) -> None:
            if predicate(ctx):
                then(ctx)
            elif otherwise is not None:
                otherwise(ctx)

        return run


def serial(*members: Any, name: str | None = None) -> Serial:
    """Return the members as one middleware; their second halves run when the group ends."""
    return Serial(*members, name=name)


def parallel(*members: Any, name: str | None = None) -> Parallel:
    """Return one middleware that runs the members on threads, each on a view of ctx.

    Writes are merged in listed order when all have ended.  Raises `ConflictError` when two
    members write one field; the error of the earliest listed member, the others as notes,
    and then nothing is merged.
    """
    return Parallel(*members, name=name)


def repeat(
    member: Any,
    *,
    times: int | None = None,
    until: Callable[[Any], bool] | None = None,
    name: str | None = None,
) -> Repeat:
    """Return one middleware that runs `member` `times` times, or again and again until ``until(ctx)``.

    `until` is asked after each pass, so there is at least one; such a loop has no bound of
    its own and ends, too, when the task is finishing.
    """
    return Repeat(member, times=times, until=until, name=name)


def branch(
    predicate: Callable[[Any], Any], then: Any, otherwise: Any = None, *, name: str | None = None
) -> Branch:
    """Return one middleware that runs `then` where ``predicate(ctx)`` holds, else `otherwise` if given."""
    return Branch(predicate, then, otherwise, name=name)


# --- looking at it ----------------------------------------------------------------------


@dataclass(frozen=True)
class Node:
    """One middleware as a picture of the pipeline shows it."""

    name: str
    """Its full name, like ``collector.step``."""
    kind: str
    """``function``, ``class``, ``serial``, ``parallel``, ``repeat`` or ``branch``."""
    doc: str
    """The first line of its docstring."""
    members: tuple[Node, ...]


def describe(middleware: Any, full_name: str) -> Node:
    """Return the picture of a middleware and of what it exposes."""
    inner = middleware if isinstance(middleware, Group) else getattr(middleware, "pipeline", None)
    members: tuple[Node, ...] = ()
    if isinstance(inner, Group):
        members = tuple(
            describe(member, f"{full_name}.{name}")
            for member, name in zip(inner.members, inner.names, strict=True)
        )
    if isinstance(middleware, Group):
        kind = middleware.kind
    else:
        kind = "function" if hasattr(middleware, "__name__") else "class"
    doc = (getattr(middleware, "__doc__", None) or "").strip().partition("\n")[0]
    return Node(full_name, kind, doc if not isinstance(middleware, functools.partial) else "", members)


def named_members(members: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield every middleware with its full name, groups before what they hold."""
    for name, middleware in members.items():
        yield name, middleware
        inner = middleware if isinstance(middleware, Group) else getattr(middleware, "pipeline", None)
        if isinstance(inner, Group):
            yield from named_members(
                {f"{name}.{label}": member for label, member in zip(inner.names, inner.members, strict=True)}
            )
