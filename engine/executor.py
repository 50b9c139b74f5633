"""How a pipeline is driven: in order, or overlapped.

*In order*: one iteration after the other, on the thread that called `run`.

*Overlapped*: an assembly line.  Each member of the task is a station with a thread; while
station s works on iteration i, station s-1 works on iteration i+1.  Time moves in slots::

    slot        0   1   2   3
    station 0   i0  i1  i2  i3        first halves, at the same time
    station 1       i0  i1  i2

Between slots nothing runs but the thread that called `run`, and only there: second halves run
(the oldest iteration first), kept fields that were written are copied into the iterations
that have yet to reach their writer, wishes to finish are granted, handlers are called, and the
next iteration enters.  So nothing that a station sees depends on how quick another one is.

A failure is thrown, when its slot has ended, into the second halves of its own iteration.  What
leaves them stops the line, and the other iterations in flight get `Abandoned` thrown into theirs.
A station that asks meanwhile whether the task is finishing waits for that verdict: it sees
neither an end that is swallowed after all nor, in a wait without a bound, no end at all.  The
verdict needs the failed iteration's second halves, which then run before those of an older
iteration that completes in the same slot.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, Protocol, TypeAlias

from engine.context import Context, kept_values, kept_writes, next_context, renewal_of
from engine.errors import Abandoned, ConflictError, Finishing, foremost
from engine.pipeline import Enter, Position, Run, Suspended, leave
from engine.signals import Terminated
from engine.threads import inherited

Origin: TypeAlias = tuple[int, int, int]
"""When an event was emitted: the slot; the place among what ran in it, negative for stations, the oldest
iteration first; and which iteration, counted as they enter the line, -1 for none."""

_PATIENCE = 5.0  # seconds that stations get to end after an interrupt
_GRACE = 1.0  # seconds that a wish to finish is kept from stations that may wait for it
_LOOK_AGAIN_SECONDS = 0.2


class Driven(Protocol):
    """What an executor needs of the task that it drives."""

    ctx: Context
    """In order the context of the iteration that runs, or ran last; overlapped, that completed last."""

    attention: bool
    """Whether the next boundary has something to do: events, alterations, finishing."""

    altered: bool
    """Whether members were used, inserted, replaced, removed or hooked since they were compiled."""

    @property
    def finish(self) -> bool:
        """Whether no further iteration starts."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether to end as soon as can be, with iterations in flight."""
        ...

    def begin(self) -> Context:
        """Return the context of the first iteration of a run, which is `ctx` from now on."""
        ...

    def boundary(self, position: Position) -> Run | None:
        """Deliver events and make alterations; return what to run next, or None to stop.

        `position` tells which member runs while it does.
        """
        ...

    def deliver(self) -> None:
        """Deliver events."""
        ...

    def line(self) -> Mapping[str, Enter]:
        """Make alterations; return every member by name, compiled as a station."""
        ...

    def request_finish(self, reason: str) -> None:
        """Ask for the end after the iterations in flight."""
        ...

    def wake(self) -> None:
        """Let waits look again whether they should end."""
        ...


@dataclass(frozen=True)
class StationTime:
    """What one station of an overlapped task did with its time."""

    name: str
    busy: float
    """Seconds in its first halves."""
    waiting: float
    """Seconds in which the line ran and it had nothing to do."""


class Executor:
    """Drives a pipeline until its steps are done or the task stops it."""

    def run(self, task: Driven, steps: int | None) -> None:
        """Run iterations until `steps` are complete (None: until the task stops)."""
        raise NotImplementedError

    def hold(self, reason: str) -> bool:
        """Keep a wish to finish until nothing runs; return whether that was needed."""
        return False

    def finishing(self) -> bool:
        """Whether whoever asks should end, for a reason that the task does not know of."""
        return False

    def failed(self) -> bool:
        """Whether the line stops because of a failure, so that even bounded waits should end."""
        return False

    def origin(self) -> Origin:
        """Return the place, in an order that does not depend on timing, of what the asking thread emits."""
        return 0, 0, -1

    def station(self) -> tuple[str, Origin] | None:
        """Return the name and the place in time of the station that asks; None outside of all."""
        return None

    def oldest(self) -> int:
        """Return the oldest iteration that is under way, or the next one to enter."""
        return 0

    def abandoned(self, entry: int) -> bool:
        """Whether that iteration ended because the line stopped."""
        return False

    def times(self) -> list[StationTime]:
        """Return what each station did; empty in order."""
        return []

    def close(self, task: Driven) -> list[BaseException]:
        """Let go of iterations in flight; return the errors that this raised."""
        return []


# The tasks in order inside of which code runs.  Context variables reach the threads of parallel groups.
_inside: contextvars.ContextVar[tuple[InOrder, ...]] = contextvars.ContextVar("inside", default=())


class InOrder(Executor):
    """One iteration after the other, on the thread that calls `run`."""

    def __init__(self) -> None:
        self._position = Position()
        self._iterating = False

    def station(self) -> tuple[str, Origin] | None:
        """Return the member that runs; None at boundaries and on threads of others."""
        if not self._iterating or self not in _inside.get():
            return None
        return self._position.name(), (0, 0, 0)

    def run(self, task: Driven, steps: int | None) -> None:
        """Run iterations until `steps` are done (None: until the task stops).

        ``task.ctx`` is the context of the iteration that runs; each starts with a new one.
        After an error it stays at the iteration that failed, whose step is not counted.
        """
        run = task.boundary(self._position)
        if run is None:
            return
        ctx = task.begin()
        token = _inside.set((*_inside.get(), self))
        self._iterating = True
        try:
            self._iterate(task, run, ctx, steps)
        finally:
            self._iterating = False
            _inside.reset(token)

    def _iterate(self, task: Driven, run: Run, ctx: Context, steps: int | None) -> None:
        left = -1 if steps is None else steps
        renew: Callable[[Context], Context] = renewal_of(ctx.__class__)
        while left:
            left -= 1
            run(ctx)
            ctx.total_step += 1
            if task.attention:
                self._iterating = False
                following = task.boundary(self._position)
                self._iterating = True
                if following is None:
                    return
                run = following
            if left:
                task.ctx = ctx = renew(ctx)


# --- overlapped -------------------------------------------------------------------------


@dataclass(eq=False)
class _Iteration:
    """One iteration in flight."""

    number: int
    entry: int
    """Which one to enter the line; unlike `number` never given again."""
    ctx: Context
    place: int = 0
    """The next station; as many as there are stations when it has passed the last."""
    pending: list[Suspended] = field(default_factory=list)
    error: BaseException | None = None
    told: bool = False
    """Whether its middleware has seen that the line stops, and may have done less than it would have."""


class _Station:
    """One member, and the thread that runs its first halves."""

    def __init__(self, line: Overlapped, index: int, name: str, enter: Enter) -> None:
        self.line, self.index, self.name = line, index, name
        self.inbox: SimpleQueue[_Iteration | None] = SimpleQueue()
        self.verdict: SimpleQueue[None] = SimpleQueue()
        self.parked = False
        """Whether it waits for a verdict, see `Overlapped.failed`."""
        self.wish: str | None = None
        """Why its middleware asked to finish in this slot."""
        self.iteration: _Iteration | None = None
        self.before: dict[str, Any] = {}
        """The fields of its iteration's context when the slot began."""
        self.seconds = 0.0
        self.thread: threading.Thread | None = None
        self._enter = enter

    def hire(self) -> None:
        """Start the thread."""
        self.inbox, self.verdict, self.parked, self.wish = SimpleQueue(), SimpleQueue(), False, None
        thread = threading.Thread(target=inherited(self._work), name=f"station {self.name}", daemon=True)
        thread.start()
        self.thread = thread

    def _work(self) -> None:
        """Run first halves, one after the other, until there is None to run."""
        _station.set(self)
        try:
            while (iteration := self.inbox.get()) is not None:
                start = time.perf_counter()
                try:
                    suspended = self._enter(iteration.ctx)
                    if suspended is not None:
                        iteration.pending.append(suspended)
                except BaseException as error:
                    iteration.error = error
                self.seconds = time.perf_counter() - start
                del iteration  # while it waits, a station keeps nothing alive
                self.line.reports.put(self)
        except KeyboardInterrupt:
            return  # it arrived between two first halves, where there is nothing to interrupt


# Which station the running code belongs to.  Context variables reach the threads of parallel groups.
_station: contextvars.ContextVar[_Station | None] = contextvars.ContextVar("station", default=None)


class Overlapped(Executor):
    """An assembly line: each member is a station with a thread, see the module's text.

    At most ``max_lag + 1`` iterations are in flight (None: as many as there are stations).
    The threads live as long as a call of `run`.  An interrupt leaves iterations in flight: the
    next `run` goes on with them, `close` lets go of them.
    """

    def __init__(self, max_lag: int | None = None) -> None:
        self.max_lag = max_lag
        self.reports: SimpleQueue[_Station] = SimpleQueue()
        """Where a station says that it is done, or parked."""
        self._stations: list[_Station] | None = None
        self._working: set[_Station] = set()
        self._reported: list[_Station] = []
        self._flight: list[_Iteration] = []  # the oldest first
        self._newest: _Iteration | None = None
        self._done = 0  # iterations completed, as ctx.total_step counts them
        self._slot = 0
        self._entered = 0
        self._void: set[int] = set()  # iterations that ended because the line stopped
        self._unwinding: tuple[str, int] | None = None  # whose second half runs, of which iteration
        self._writers: dict[str, tuple[str, str]] = {"total_step": ("the task", "")}
        self._written: dict[str, Any] = {}  # kept fields, in this slot
        self._keep: frozenset[str] = frozenset()  # what `ctx.keep` named
        self._failures: list[_Iteration] = []
        self._faults: list[BaseException] = []  # of the pipeline as a whole: nobody may swallow them
        self._unjudged = False  # a station failed, and whether that stops the line is not known yet
        self._stopped = False
        self._runner = 0  # the thread that called `run`
        self._parked: list[_Station] = []
        self._moved = 0.0  # when a station was done last
        self._times: dict[str, float] = {}
        self._seconds = self._since = 0.0

    # --- asked from any thread ----------------------------------------------------------

    def hold(self, reason: str) -> bool:
        """Keep a station's wish until its slot has ended, so that others see it neither sooner nor later."""
        station = self._asking()
        if station is None:
            return False
        station.wish = station.wish or reason
        return True

    def finishing(self) -> bool:
        """Whether the asking station wished to finish in this slot, or the line stops; see `failed`.

        What another station wished in this slot shows when nothing but the asking ones has moved for a
        while: a loop without a bound of its own would wait for the end of the slot, and it for the loop.
        """
        station = self._asking()
        if station is None or station.wish is None:
            return self.failed() or (threading.get_ident() != self._runner and self._overdue())
        return True

    def failed(self) -> bool:
        """Whether the line stops because of a failure.

        A station that asks while this is open waits for the verdict, which is found when every
        other station is done or waits for it too.
        """
        station = self._asking()
        if self._unjudged and (station is None or threading.current_thread() is not station.thread):
            # A thread that some station may wait for, which then cannot ask for a verdict itself.
            return threading.get_ident() != self._runner and self._still()
        if self._unjudged and station is not None:
            station.parked = True
            self.reports.put(station)
            station.verdict.get()
        if self._stopped and station is not None and station.iteration is not None:
            station.iteration.told = True
        return self._stopped

    def origin(self) -> Origin:
        """Return the slot, and the place among its iterations: the oldest first, last what is no station."""
        station = self._asking()
        if station is None:
            return self._slot, 0, -1
        iteration = station.iteration  # once: a thread that outlives its slot may ask while it goes
        return self._slot, -1 - station.index, -1 if iteration is None else iteration.entry

    def station(self) -> tuple[str, Origin] | None:
        """Return the station that asks; its second half runs when the slot is over, as if in the next."""
        station = self._asking()
        if station is not None:
            return station.name, self.origin()
        if self._unwinding is None or threading.get_ident() != self._runner:
            return None
        name, entry = self._unwinding
        return name, (self._slot + 1, 0, entry)

    def oldest(self) -> int:
        """Return the oldest iteration in flight, or the next one to enter."""
        return self._flight[0].entry if self._flight else self._entered

    def abandoned(self, entry: int) -> bool:
        """Whether that iteration ended because the line stopped."""
        return entry in self._void

    def times(self) -> list[StationTime]:
        """Return what each station did, up to the last slot that ended."""
        return [StationTime(name, busy, max(0.0, self._seconds - busy)) for name, busy in self._times.items()]

    def _still(self) -> bool:
        return bool(self._working) and time.monotonic() >= self._moved + _GRACE

    def _overdue(self) -> bool:
        return self._still() and any(
            one.wish is not None and one not in self._working for one in self._stations or ()
        )

    def _asking(self) -> _Station | None:
        station = _station.get()
        return station if station is not None and station.line is self else None

    # --- the line -----------------------------------------------------------------------

    def run(self, task: Driven, steps: int | None) -> None:
        """Move the line, slot by slot, until `steps` iterations of this call are complete."""
        self._stopped, self._runner = False, threading.get_ident()
        self._since = time.perf_counter()
        if not self._flight:  # else the count goes on where an interrupt left it
            self._newest, self._done = None, task.ctx.total_step
        try:
            self._move(task, None if steps is None else self._done + steps)
        except BaseException as error:
            self._stop(task, error)
        finally:
            self._dismiss()
            self._stopped = False

    def _move(self, task: Driven, goal: int | None) -> None:
        while True:
            if task.attention:
                task.deliver()
            if task.interrupted or self._done == goal:
                break
            if not self._flight and not task.finish and (task.altered or self._stations is None):
                self._man(task.line())
            if self._may_enter(task, goal):
                self._enter(task)
            if not self._flight:
                break
            self._run_slot(task)
            self._end_slot(task)
        if not self._flight:
            self._hand_over(task)

    def _man(self, members: Mapping[str, Enter]) -> None:
        self._dismiss()
        self._stations = [
            _Station(self, index, name, enter) for index, (name, enter) in enumerate(members.items())
        ]
        self._writers = {
            name: writer
            for name, writer in self._writers.items()
            if writer[0] in members or name == "total_step"
        }
        self._times = {name: self._times.get(name, 0.0) for name in members}

    def _may_enter(self, task: Driven, goal: int | None) -> bool:
        if task.finish or task.altered:
            return False
        if goal is not None and self._done + len(self._flight) >= goal:
            return False
        return self.max_lag is None or len(self._flight) <= self.max_lag

    def _enter(self, task: Driven) -> None:
        if self._newest is None:
            ctx = task.begin()
            number = ctx.total_step
        else:
            ctx, number = next_context(self._newest.ctx), self._newest.number + 1
            ctx.total_step = number
        self._newest = _Iteration(number, self._entered, ctx)
        self._entered += 1
        self._flight.append(self._newest)

    def _run_slot(self, task: Driven) -> None:
        """Run a first half of every iteration in flight, at the same time, and wait for the last."""
        assert self._stations is not None
        self._slot += 1
        for iteration in self._flight:
            if iteration.place == len(self._stations):  # a task without members
                continue
            station = self._stations[iteration.place]
            if station.thread is None:
                station.hire()
            station.iteration, station.before = iteration, dict(iteration.ctx.__dict__)
            self._working.add(station)
            station.inbox.put(iteration)
        while self._working or self._parked:
            if not self._working:
                self._judge(task)
                parked, self._parked = self._parked, []
                self._working.update(parked)
                for station in parked:
                    station.parked = False
                    station.verdict.put(None)
            station = self._next_report()
            self._working.remove(station)
            if station.parked:
                self._parked.append(station)
                continue
            self._reported.append(station)
            self._moved = time.monotonic()
            if station.iteration is not None and station.iteration.error is not None and not self._stopped:
                self._unjudged = True
                task.wake()

    def _next_report(self) -> _Station:
        while True:
            try:
                return self.reports.get(timeout=_LOOK_AGAIN_SECONDS)
            except Empty:  # a signal that another thread received is handled here, and ends a wait only so
                continue

    def _judge(self, task: Driven) -> None:
        """Find out whether the failures of this slot stop the line, while those who ask wait."""
        self._take_reports()
        for iteration in list(self._flight):
            if iteration.error is not None:
                self._unwind(task, iteration)
        self._unjudged, self._stopped = False, bool(self._failures)

    def _end_slot(self, task: Driven) -> None:
        assert self._stations is not None
        self._take_reports()
        self._unjudged = False
        for station in reversed(self._stations):  # the oldest iteration's wish first
            wish, station.wish = station.wish, None
            if wish is not None:
                task.request_finish(wish)
        for iteration in list(self._flight):
            passed = iteration.place == len(self._stations) and not iteration.told
            if iteration.error is not None or passed:
                self._unwind(task, iteration)
                self._commit()  # before the next one's second halves, which may write the same
        self._commit()
        now = time.perf_counter()
        self._seconds, self._since = self._seconds + now - self._since, now
        if self._faults or self._failures:
            self._raise(task)

    def _take_reports(self) -> None:
        """Note what the stations that are done have written, in the order of the line."""
        for station in sorted(self._reported, key=lambda station: station.index):
            iteration, station.iteration = station.iteration, None
            assert iteration is not None
            iteration.place += 1
            self._times[station.name] += station.seconds
            self._note_writes(iteration.ctx, station.before, station.name, "first")
            station.before = {}
        self._reported.clear()

    def _unwind(self, task: Driven, iteration: _Iteration) -> None:
        """Run the second halves that wait; the iteration leaves the line, complete or with a failure."""
        self._run_second_halves(iteration)
        self._flight.remove(iteration)
        if iteration.error is None:
            self._done += 1
            iteration.ctx.total_step += 1
            task.ctx = iteration.ctx
        elif not (isinstance(iteration.error, (Finishing, Abandoned)) and (task.finish or self._wished())):
            self._failures.append(iteration)

    def _wished(self) -> bool:
        return any(station.wish is not None for station in self._stations or ())

    def _run_second_halves(self, iteration: _Iteration) -> None:
        # The error stays in the iteration: a local variable here would be a cycle with its traceback.
        while iteration.pending:
            suspended = iteration.pending.pop()
            before = dict(iteration.ctx.__dict__)
            self._unwinding = suspended[1], iteration.entry
            try:
                iteration.error = leave(suspended, iteration.ctx, iteration.error)
            finally:
                self._unwinding = None
            self._note_writes(iteration.ctx, before, suspended[1], "second")

    # --- kept fields --------------------------------------------------------------------

    def _note_writes(self, ctx: Context, before: Mapping[str, Any], name: str, half: str) -> None:
        """Remember which kept fields a half has written; two writers of one are a fault of the pipeline."""
        self._keep |= ctx._kept
        try:
            written = kept_writes(ctx, before)
        except Exception as error:  # MiddlewareError, or what the hash of a value raised
            self._faults.append(error)
            return
        for field_name, value in written.items():
            owner = self._writers.setdefault(field_name, (name, half))
            if owner != (name, half):
                self._faults.append(_two_writers(field_name, owner, (name, half)))
            self._written[field_name] = value

    def _commit(self) -> None:
        """Copy what was written into the iterations that have yet to reach the writer."""
        assert self._stations is not None
        places = {station.name: station.index for station in self._stations}
        behind = list(self._flight)
        if self._newest is not None and self._newest not in behind:  # it left early: the next starts from it
            behind.append(self._newest)
        for iteration in behind:
            iteration.ctx.__dict__["_kept"] = self._keep
            for name, value in self._written.items():
                owner, half = self._writers[name]
                if half == "second" or iteration.place <= places.get(owner, -1):
                    iteration.ctx.__dict__[name] = value
        self._written.clear()

    def _hand_over(self, task: Driven) -> None:
        """Let the task's context, from which the next run starts, hold what is newest of the kept fields."""
        newest, self._newest = self._newest, None
        if newest is None:
            return
        task.ctx.__dict__.update(kept_values(newest.ctx), _kept=self._keep, total_step=self._done)

    # --- the end ------------------------------------------------------------------------

    def _raise(self, task: Driven) -> NoReturn:
        """Raise what stops the line: the oldest iteration's failure, the others as notes."""
        if self._failures:
            task.ctx = self._failures[0].ctx
        first = _first([*self._faults, *(one.error for one in self._failures if one.error is not None)])
        try:
            raise first
        finally:
            del first  # no cycle between this frame and the traceback

    def _stop(self, task: Driven, error: BaseException) -> NoReturn:
        """End everything in flight because of `error`, and raise it."""
        self._stopped, self._unjudged = True, False
        task.wake()
        self._working.update(self._parked)
        self._parked = []
        if self._working:
            self._interrupt(error)
        self._take_reports()
        why = f"{type(error).__name__} stopped the line: {error}"
        _add_notes(error, self._abandon(task, why, error), "ending an iteration in flight raised")
        for iteration in self._failures:
            iteration.error = None
        self._failures.clear()
        self._faults.clear()
        try:
            raise error
        finally:
            del error  # no cycle between this frame and the traceback

    def close(self, task: Driven) -> list[BaseException]:
        """Throw `Abandoned` into what an interrupt left in flight; return the errors that this raised."""
        return self._abandon(task, "the task was closed", None)

    def _abandon(self, task: Driven, why: str, cause: BaseException | None) -> list[BaseException]:
        errors: list[BaseException] = []
        self._void.update(iteration.entry for iteration in self._flight)
        for iteration in self._flight:
            if iteration.error is None:
                iteration.error = Abandoned(f"iteration {iteration.number} will not complete: {why}")
                iteration.error.__cause__ = cause
            thrown = id(iteration.error)
            self._run_second_halves(iteration)
            if iteration.error is not None and id(iteration.error) != thrown:
                errors.append(iteration.error)
            iteration.error = None
            if self._stations is not None:
                self._commit()
        self._flight.clear()
        if self._stations is not None:
            self._commit()
        self._hand_over(task)
        return errors

    def _interrupt(self, error: BaseException) -> None:
        """Raise KeyboardInterrupt in the stations that work, and wait for them as long as patience lasts."""
        import ctypes  # takes milliseconds, which only this needs

        raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
        for station in self._working:
            station.verdict.put(None)
            station.inbox.put(None)
            if station.thread is not None and station.thread.ident is not None:
                raise_in(ctypes.c_ulong(station.thread.ident), ctypes.py_object(KeyboardInterrupt))
        deadline = time.monotonic() + _PATIENCE
        try:
            for station in self._working:
                if station.thread is not None:
                    station.thread.join(max(0.0, deadline - time.monotonic()))
        except (KeyboardInterrupt, Terminated):
            error.add_note("interrupted once more while the stations were ending")
        for station in self._working:
            if station.thread is not None and station.thread.is_alive():
                error.add_note(f"station {station.name!r} did not end within {_PATIENCE:g} s and runs on")
                station.thread = None
            else:
                self._reported.append(station)
        self._working.clear()

    def _dismiss(self) -> None:
        """End the threads, which have nothing to do."""
        for station in self._stations or ():
            thread, station.thread = station.thread, None
            if thread is not None:
                station.inbox.put(None)
                thread.join()
        self.reports = SimpleQueue()


def _first(errors: list[BaseException]) -> BaseException:
    """Return the error to raise, with the others as notes."""
    first = foremost(errors)
    _add_notes(first, [other for other in errors if other is not first], "in the same slot was raised")
    return first


def _add_notes(error: BaseException, others: list[BaseException], what: str) -> None:
    for other in others:
        error.add_note(f"{what} {type(other).__name__}: {other}")


def _two_writers(name: str, owner: tuple[str, str], other: tuple[str, str]) -> ConflictError:
    if name == "total_step":
        return ConflictError(
            f"{other[0]!r} writes ctx.total_step, which the task counts; use a field of your own"
        )
    if owner[0] == other[0]:
        return ConflictError(
            f"{owner[0]!r} writes the kept field ctx.{name} in its first half and in its second half; "
            "overlapped, iterations in flight would not agree on it: write it in one of the two"
        )
    return ConflictError(
        f"{owner[0]!r} and {other[0]!r} both write the kept field ctx.{name}; overlapped, one station writes "
        "it for the whole run: write it in one of them, or group the two in one station with serial(...)"
    )
