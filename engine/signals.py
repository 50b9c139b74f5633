"""How signals end a program: the first one asks for an orderly end, a second one ends it at once.

Every `Stop` that is entered stands inside the one before: a task inside an experiment inside a command.
A signal is noted in all of them, so that each ends its own part, and the innermost decides whether to raise.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

REASONS: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "sigterm",
    signal.SIGHUP: "sighup",
}
"""Why a task or a run ended, by the signal that ended it; nothing is evaluated or filmed afterwards."""

_last: int | None = None
_REPEATED = (signal.SIGHUP, signal.SIGTERM)
_REPEATED_SECONDS = 0.02


@contextmanager
def blocked() -> Iterator[None]:
    """Keep the signals from this thread, and from the processes that it starts until those `unblock` them.

    So a signal for the whole process group cannot hit a process before it has said what it does with it.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, REASONS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Let the signals in that a parent process has `blocked`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REASONS)


class Terminated(SystemExit):
    """Raised by SIGTERM and SIGHUP where Ctrl-C raises KeyboardInterrupt; exits with 128 + the number."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number

    def __str__(self) -> str:
        return f"terminated by {name_of(self.number)}"


def name_of(number: int) -> str:
    """``Ctrl-C``, or the signal's name like ``SIGTERM``."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def number_of(reason: str | None) -> int | None:
    """Return the signal that a run's reason to end names; None for every other reason."""
    first = (reason or "").partition(" ")[0]
    return next((number for number, word in REASONS.items() if word == first), None)


def last_heeded() -> int | None:
    """Return the signal that this process heeded last, for what runs at its exit; None if there was none."""
    return _last


def exit_code(reason: str | None) -> int:
    """Return what a process that was interrupted for `reason` leaves with: 143, 129, else 130."""
    return 128 + (number_of(reason) or signal.SIGINT)


class Stop:
    """What signals asked for while this was entered, on the main thread only.

    The first SIGINT, SIGTERM or SIGHUP is told to `ask`; without `ask` it raises KeyboardInterrupt or
    `Terminated`, unless inside `held`.  A second one raises in any case.  The handlers that stood before are
    restored on exit.  A signal that was ignored (by nohup, say) stays ignored, and a handler of the program's
    own for SIGTERM or SIGHUP stays in charge.
    """

    def __init__(self, ask: Callable[[int], None] | None = None) -> None:
        self.number: int | None = None
        """The first signal."""
        self.insisted = False
        """Whether there was a second one."""
        self.outer: Stop | None = None
        """The one that this stands in."""
        self._ask = ask
        self._held = 0
        self._before: dict[int, Any] = {}
        self._open = False
        self._waiting: list[int] = []
        self._repeats: list[int] | None = None

    @property
    def asked(self) -> bool:
        """Whether a signal came."""
        return self.number is not None

    @property
    def reason(self) -> str | None:
        """Why to end, as in `REASONS`; None if no signal came."""
        return None if self.number is None else REASONS[self.number]

    @property
    def asks(self) -> bool:
        """Whether it tells a task, which ends in its own time, instead of raising."""
        return self._ask is not None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only note the first signal until the block ends; see `check`."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def check(self) -> None:
        """Raise what the first signal would have raised outside of `held`."""
        if self.number is not None:
            raise _ending(self.number)

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            for number in REASONS:
                before = signal.getsignal(number)
                if isinstance(before, Stop):
                    self.outer = before
                if _yields(number, before):
                    self._before[number] = before
                    signal.signal(number, self)
            self._open = True
            if self.outer is not None and not self.outer.asks:
                self.outer.check()
            for number in self._taken_up():
                self(number, None)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self._open:  # handlers are just being exchanged, which must not be left half done
            self._waiting.append(number)
            return
        if self._repeats is not None and number in _REPEATED:
            self._repeats.append(number)
            return
        around = list(self._around())
        again = any(stop.asked for stop in around)
        for stop in around:
            stop.insisted = again
            stop.number = stop.number or number
        if again:
            raise _ending(number)
        if number in _REPEATED:
            number = self._without_repeats(number)
        global _last
        _last = number
        for stop in around:
            stop.number = number
            if stop._ask is not None:
                stop._ask(number)
        if self._ask is None and not self._held:
            raise _ending(number)

    def _around(self) -> Iterator[Stop]:
        stop: Stop | None = self
        while stop is not None:
            yield stop
            stop = stop.outer

    def _without_repeats(self, number: int) -> int:
        """Let repeats of an order pass; return its signal, which is SIGTERM if that is among them."""
        # One order often comes twice: `timeout` signals the process and then its group, systemd sends SIGHUP
        # right behind SIGTERM, the kernel and the shell both tell of a terminal that went away.
        self._repeats = repeats = [number]
        try:
            time.sleep(_REPEATED_SECONDS)
            signal.raise_signal(number)  # has Python handle what came meanwhile now, and not after this
        finally:
            self._repeats = None
        return int(signal.SIGTERM if signal.SIGTERM in repeats else number)

    def _restore(self) -> None:
        self._open = False
        for number, before in self._before.items():
            signal.signal(number, before)
        self._before = {}
        for number in self._taken_up():
            signal.raise_signal(number)

    def _taken_up(self) -> list[int]:
        waiting, self._waiting = self._waiting, []
        return waiting


def _yields(number: int, before: Any) -> bool:
    """Whether a `Stop` may stand in for this handler; None is one that was not set up in Python."""
    if before is None or before is signal.SIG_IGN:
        return False
    return number == signal.SIGINT or before is signal.SIG_DFL or isinstance(before, Stop)


def _ending(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
