"""The bus of one task: named events between middleware, threads and, later, processes.

`emit` never runs a handler itself.  Handlers run on the thread that called `run`, at the
next boundary between iterations, in the order in which events were emitted and handlers
were added.  Emitting is allowed from any thread.
"""

from __future__ import annotations

import difflib
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import (
    Abandoned,
    DeadlineExceeded,
    Finishing,
    UnknownName,
    UsageError,
    did_you_mean,
    foremost,
)

Handler: TypeAlias = Callable[..., Any]

_EVENT = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
# A signal handler that runs between a check and a wait cannot wake that wait: look again this often.
_LOOK_AGAIN_SECONDS = 0.1


def check_event(event: str) -> str:
    """Return `event` if it is a well-formed name, ``<sender>_<data>``; else raise `UsageError`."""
    if not isinstance(event, str) or not _EVENT.fullmatch(event):
        raise UsageError(
            f"{event!r} cannot name an event; a name is <sender>_<data>[_<parameter>_<value>] "
            "in small letters and digits, like 'learner_model' or 'league_job_actor_0'"
        )
    return event


@dataclass(slots=True, eq=False)
class _Event:
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: tuple[int, int]


@dataclass(eq=False)
class _Subscription:
    event: str
    handler: Handler
    once: bool
    live: bool = True


@dataclass(eq=False)
class _Wait:
    event: str
    found: _Event | None = None


class Bus:
    """Events of one task, in memory.

    ``pending`` says whether a boundary has anything to deliver; the run loop asks it and
    nothing else while no event is under way.
    """

    transient = True  # what is under way between two boundaries is no state of the run

    def __init__(self) -> None:
        self.pending = False
        self._changed = threading.Condition()
        self._queue: deque[_Event] = deque()
        self._checked: set[str] = set()  # names that are well formed
        self._subscriptions: dict[str, list[_Subscription]] = {}
        self._number = 0
        self._waited: dict[tuple[int, str], int] = {}
        self._waits: list[_Wait] = []
        self._notify: Callable[[], None] | None = None
        self._finishing: Callable[[], bool] = _no
        self._failed: Callable[[], bool] = _no
        self._origin: Callable[[], tuple[int, int]] = _anywhere

    def attach(
        self,
        *,
        finishing: Callable[[], bool],
        notify: Callable[[], None],
        failed: Callable[[], bool] | None = None,
        origin: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        """Belong to a task.

        Unbounded waits end when ``finishing()``, all waits when ``failed()``; ``notify()`` tells of
        new events.  What is emitted by threads at the same time is delivered in the order of the
        ``origin()`` that each of them has.
        """
        if self._notify is not None:
            raise UsageError("this bus belongs to another open task; give each task its own")
        self._finishing, self._notify = finishing, notify
        self._failed, self._origin = failed or _no, origin or _anywhere
        if self.pending:
            notify()

    def detach(self) -> None:
        """Belong to no task any more."""
        self._notify, self._finishing, self._failed, self._origin = None, _no, _no, _anywhere

    def on(self, event: str, handler: Handler) -> Handler:
        """Call ``handler(*args, **kwargs)`` at the boundary after each `emit` of `event`; return it."""
        return self._subscribe(event, handler, once=False)

    def once(self, event: str, handler: Handler) -> Handler:
        """Like `on`, for the next occurrence only."""
        return self._subscribe(event, handler, once=True)

    def off(self, event: str, handler: Handler | None = None) -> None:
        """Take back `on` or `once`; without a handler, all of them.  Raises `UnknownName` if none is on."""
        with self._changed:
            known = self._subscriptions.get(check_event(event), [])
            gone = [one for one in known if handler is None or one.handler == handler]
            if not gone:
                who = "no handler" if handler is None else f"not {getattr(handler, '__name__', handler)!r}"
                raise UnknownName(
                    f"event {event!r} has {who} to take off{did_you_mean(event, self._subscriptions)}"
                )
            gone = gone if handler is None else gone[-1:]
            for one in gone:
                one.live = False
                known.remove(one)
            if not known:
                del self._subscriptions[event]

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Queue an event for the next boundary and wake whoever waits for it."""
        if event not in self._checked:
            self._checked.add(check_event(event))
        with self._changed:
            self._number += 1
            emitted = _Event(event, self._number, args, kwargs, self._origin())
            self._queue.append(emitted)
            self.pending = True
            if self._notify is not None:
                self._notify()
            if self._waits:
                # Handed over at once: a boundary may deliver it before the waiting thread wakes.
                for wait in self._waits:
                    if wait.event == event and wait.found is None:
                        wait.found = emitted
                self._changed.notify_all()

    def wait_for(self, event: str, *, timeout: float | None = 30.0) -> Any:
        """Wait for an occurrence of `event` that no earlier wait of this thread has returned.

        Returns its single argument, or the tuple of its arguments, or None where it had none;
        where it had keyword arguments only, the dict of them.
        An event that is queued but not yet delivered counts; handlers still get it at the
        boundary.  Raises `DeadlineExceeded` after `timeout` seconds; with ``timeout=None`` the
        wait has no bound and raises `Finishing` when the task is finishing.
        """
        check_event(event)
        if timeout is not None and not timeout >= 0:
            raise UsageError(f"wait_for takes timeout= in seconds, at least 0, or None, not {timeout!r}")
        deadline = None if timeout is None else time.monotonic() + timeout
        wait = _Wait(event)
        with self._changed:
            wait.found = self._unseen(event)
            if wait.found is None:
                self._waits.append(wait)
        try:
            found = self._awaited(wait, deadline, timeout)
        finally:
            with self._changed:
                if wait in self._waits:
                    self._waits.remove(wait)
        self._waited[threading.get_ident(), event] = found.number
        return found.args[0] if len(found.args) == 1 else found.args or found.kwargs or None

    def _awaited(self, wait: _Wait, deadline: float | None, timeout: float | None) -> _Event:
        while True:
            left = _LOOK_AGAIN_SECONDS
            if wait.found is None:
                # Without the lock: whoever is asked may wait for other threads, which may emit.
                if self._failed():
                    raise Abandoned(f"the run has failed; the wait for {wait.event!r} ends")
                if deadline is None:
                    if self._finishing():
                        raise Finishing(f"the task is finishing; the wait for {wait.event!r} ends")
                else:
                    left = min(left, deadline - time.monotonic())
            with self._changed:
                if wait.found is not None:
                    return wait.found
                if left <= 0:
                    raise DeadlineExceeded(self._late(wait.event, timeout))
                self._changed.wait(left)

    def wake(self) -> None:
        """Let waits look again, because the task began to finish."""
        with self._changed:
            self._changed.notify_all()

    def deliver(self) -> None:
        """Run the handlers of what was emitted until now.

        Every event is delivered even when a handler fails; then the first error is raised with
        the others as notes.  What handlers emit waits for the next boundary.
        """
        errors: list[Exception] = []
        with self._changed:
            count = len(self._queue)
            if count > 1:
                self._queue = deque(sorted(self._queue, key=lambda event: event.origin))
        try:
            for _ in range(count):  # one by one: an interrupt leaves the rest queued
                with self._changed:
                    event = self._queue.popleft()
                    listening = tuple(self._subscriptions.get(event.name, ()))
                for one in listening:
                    if one.live:
                        self._call(one, event, errors)
        except BaseException as interrupt:
            _add_others(interrupt, errors)
            raise
        finally:
            with self._changed:
                self.pending = bool(self._queue)
        if errors:
            first = foremost(errors)
            _add_others(first, errors)
            raise first

    def _call(self, one: _Subscription, event: _Event, errors: list[Exception]) -> None:
        if one.once:
            self._remove(one)
        try:
            one.handler(*event.args, **event.kwargs)
        except Exception as error:
            name = getattr(one.handler, "__qualname__", repr(one.handler))
            error.add_note(f"raised in handler {name!r} of event {event.name!r}")
            errors.append(error)

    def _remove(self, one: _Subscription) -> None:
        with self._changed:
            one.live = False
            known = self._subscriptions.get(one.event, [])
            if one in known:
                known.remove(one)
            if not known:
                self._subscriptions.pop(one.event, None)

    def _subscribe(self, event: str, handler: Handler, *, once: bool) -> Handler:
        if not callable(handler):
            raise UsageError(f"the handler of {event!r} must be callable, not {type(handler).__name__}")
        with self._changed:
            one = _Subscription(check_event(event), handler, once)
            self._subscriptions.setdefault(event, []).append(one)
        return handler

    def _unseen(self, event: str) -> _Event | None:
        after = self._waited.get((threading.get_ident(), event), 0)
        return next((one for one in self._queue if one.name == event and one.number > after), None)

    def _late(self, event: str, timeout: float | None) -> str:
        known = {one.name for one in self._queue} | set(self._subscriptions)
        near = difflib.get_close_matches(event, known - {event}, n=1)
        hint = f"; an event {near[0]!r} is known: is that the one?" if near else ""
        return f"no {event!r} was emitted within {timeout:g} s{hint}"


def _no() -> bool:
    return False


def _anywhere() -> tuple[int, int]:
    return 0, 0


def _add_others(first: BaseException, errors: list[Exception]) -> None:
    for error in errors:
        if error is not first:
            first.add_note(f"another handler raised {type(error).__name__}: {error}")
