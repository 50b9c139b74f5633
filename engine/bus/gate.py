"""Where threads of a task wait for what other threads, or other processes, bring."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable
from numbers import Real
from typing import TypeVar

from engine.errors import Abandoned, DeadlineExceeded, Finishing, UsageError

T = TypeVar("T")

FOR_EVER = 365 * 24 * 3600.0
"""Seconds of a wait without a timeout, for what needs a number."""

# A signal handler that runs between a check and a wait cannot wake that wait: look again this often.
_LOOK_AGAIN_SECONDS = 0.1


def check_timeout(timeout: float | None, what: str) -> float | None:
    """Return `timeout` as a float; raise `UsageError` for what is no number of seconds."""
    if timeout is None:
        return None
    given: object = timeout  # whatever it is annotated as
    if isinstance(given, bool) or not isinstance(given, Real) or not timeout >= 0:
        raise UsageError(f"{what} takes timeout= in seconds, at least 0, or None, not {timeout!r}")
    return float(min(timeout, FOR_EVER))  # a float too of numpy's numbers, which no lock takes


@functools.cache
def _gates() -> weakref.WeakSet[Gate]:
    """Return all gates there are, of which those at work are told when this process is a fork."""
    gates: weakref.WeakSet[Gate] = weakref.WeakSet()

    def tell() -> None:
        for gate in gates:
            if gate.network is not None or gate.runner is not None:
                gate.forked = gate.trouble = True

    os.register_at_fork(after_in_child=tell)
    return gates


class Gate:
    """One lock and condition for everything that a bus keeps, and the rules of waiting for it.

    Every wait ends: by what it waits for, by its deadline, when the run has failed or the network
    broke, and where it is asked to, when the task is finishing.  The thread that runs the task
    answers calls while it waits, so that two tasks which call each other cannot lock.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.forked = False
        """Whether this process is a fork of the one in which the bus is at work: no thread moves anything."""
        self.trouble = False
        """Whether `check` or `check_event` may have anything to raise."""
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.finishing: Callable[[], bool] = _no
        self.failed: Callable[[], bool] = _no
        self.broken: BaseException | None = None
        self.runner: int | None = None
        """The thread that runs the task, while one does."""
        self.answer: Callable[[], bool] = _no
        """Answers one call that waits for the task's thread; False if none does."""
        self.closed = False
        self.clashes: dict[str, str] = {}
        """Events that are of another kind in another process, with what to say; replaced as a whole."""
        self.waiting = 0
        """How many threads wait now, which `changed` must notify."""
        self.network: int | None = None
        """The network's thread, which everybody waits for: it must not wait itself."""
        _gates().add(self)

    def wake(self) -> None:
        """Let everybody look again."""
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """Let waits end, and what would be in vain raise."""
        self.closed = self.trouble = True
        self.wake()

    def fail(self, error: BaseException) -> None:
        """Let all waits end with an error, unless they do with an earlier one."""
        if self.broken is None:
            self.broken = error
        self.trouble = True

    def clash(self, clashes: dict[str, str]) -> None:
        """Say which events are of another kind in another process."""
        self.clashes = clashes
        self.trouble = self.trouble or bool(clashes)

    def check_process(self) -> None:
        """Raise `UsageError` in a fork of the process in which the bus is at work, without taking a lock."""
        if self.forked:
            raise UsageError(
                f"this bus belongs to process {self._pid}, of which this one is a fork: nothing that is done "
                "with it here reaches the run; let the child join with a bus of its own, or give what it "
                "found back to its parent"
            )

    def check(self, what: str) -> None:
        """Raise what a wait would raise if `what` would be in vain: the bus was closed, or broke."""
        self.check_process()
        if self.closed or (self.broken is not None and self.finishing()):
            raise Finishing(f"the bus was closed; {what} would be in vain")
        if self.broken is not None:
            raise self.broken.with_traceback(None)

    def check_event(self, event: str) -> None:
        """Raise `UsageError` if an event is of another kind in another process."""
        if event in self.clashes:
            raise UsageError(self.clashes[event])

    def until(
        self,
        ready: Callable[[], T | None],
        timeout: float | None,
        late: Callable[[], str],
        *,
        what: str,
        event: str = "",
        finishing: bool | None = None,
    ) -> T:
        """Return what `ready`, which is asked with the lock held, returns first that is not None.

        A wait for `event` ends with `UsageError` if that is of another kind elsewhere.

        Raises `DeadlineExceeded` with the words of `late` after `timeout` seconds, and `Finishing`
        when the task is finishing, if `finishing` (by default where there is no timeout).
        """
        self.check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        ends = deadline is None if finishing is None else finishing
        mine = self.runner == threading.get_ident()
        first = True
        while True:
            with self.changed:
                found = ready()
                if found is not None:
                    return found
            if threading.get_ident() == self.network:
                raise UsageError(
                    f"the bus's own thread must not wait (for {what}): serve with thread='service'"
                )
            # Without the lock: whoever is asked may wait for other threads, which may need it.
            if mine and self.answer() and (deadline is None or time.monotonic() < deadline):
                continue
            if self.failed():
                raise Abandoned(f"the run has failed; the wait for {what} ends")
            if ends and self.finishing():
                raise Finishing(f"the task is finishing; the wait for {what} ends")
            if self.broken is not None:
                raise self.broken.with_traceback(None)
            if self.closed:
                raise Finishing(f"the bus was closed; the wait for {what} ends")
            self.check_event(event)
            left = _LOOK_AGAIN_SECONDS
            if deadline is not None:
                left = min(left, deadline - time.monotonic())
                if left <= 0 and not first:
                    raise DeadlineExceeded(late())
            first = False
            with self.changed:
                found = ready()
                if found is not None:
                    return found
                if left > 0:
                    self.waiting += 1
                    try:
                        self.changed.wait(left)
                    finally:
                        self.waiting -= 1


def _no() -> bool:
    return False
