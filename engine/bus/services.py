"""Methods that a process serves, and the calls that wait for them."""

from __future__ import annotations

import builtins
import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from engine.bus.aside import ServiceThread
from engine.bus.message import PEER_LOST, Failure, plain
from engine.errors import EngineError, NoSuchService, Overloaded, PeerLost, RemoteError, UsageError

log = logging.getLogger(__name__)

Where: TypeAlias = Literal["task", "service", "inline"]

MOST_WAITING = 256
"""Calls that wait for one thread; more are refused at once."""

_MESSAGE_CHARACTERS, _TRACEBACK_CHARACTERS = 10_000, 16_000


@dataclass(eq=False, slots=True)
class Served:
    """A call to answer: ``load`` gives its arguments, ``finish`` takes the result or the error."""

    caller: str
    number: int
    method: str
    deadline: float
    load: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
    finish: Callable[[Any, BaseException | None], None]
    cancelled: bool = False


@dataclass(eq=False)
class _Service:
    method: str
    handler: Callable[..., Any]
    where: Where


@dataclass(eq=False)
class Services:
    """The table of what is served, and the calls that wait for the task's thread or the service thread."""

    table: dict[str, _Service] = field(default_factory=dict)
    thread: ServiceThread = field(default_factory=ServiceThread)
    for_task: deque[Served] = field(default_factory=deque)
    _for_service: deque[Served] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _answering: bool = False  # whether the service thread will look at them

    @property
    def for_this_thread(self) -> bool:
        """Whether anything is served by the task's thread, while it waits too."""
        return any(service.where == "task" for service in self.table.values())

    def add(self, method: str, handler: Callable[..., Any], where: Where) -> None:
        """Serve a method from now on; raises `UsageError` for one that is served already."""
        if not callable(handler):
            raise UsageError(f"what serves {method!r} must be callable, not {type(handler).__name__}")
        if where not in ("task", "service", "inline"):
            raise UsageError(f"serve takes thread='task', 'service' or 'inline', not {where!r}")
        if method in self.table:
            raise UsageError(f"{method!r} is served already; unserve it first")
        self.table[method] = _Service(method, handler, where)

    def accept(self, call: Served) -> bool:
        """Let a call wait for its thread, or answer it here; True if it waits for the task's thread."""
        service = self.table.get(call.method)
        if service is None:
            call.finish(None, NoSuchService(f"{call.method!r} is not served here (any more)"))
            return False
        if service.where == "inline":
            self._answer_aside(call)
            return False
        waiting = self.for_task if service.where == "task" else self._for_service
        if len(waiting) >= MOST_WAITING:
            call.finish(None, Overloaded(f"{MOST_WAITING} calls wait here already"))
            return False
        if service.where == "task":
            waiting.append(call)
            return True
        with self._lock:
            waiting.append(call)
            if not self._answering:
                self._answering = True
                self.thread.do(self._answer_next)
        return False

    def answer(self, call: Served) -> None:
        """Run a call's handler here, unless nobody waits for it any more."""
        if call.cancelled or time.monotonic() > call.deadline:
            return
        service = self.table.get(call.method)
        if service is None:
            call.finish(None, NoSuchService(f"{call.method!r} is not served here (any more)"))
            return
        try:
            args, kwargs = call.load()
            result = service.handler(*args, **kwargs)
        except Exception as error:
            call.finish(None, error)
        except BaseException as error:
            call.finish(None, error)
            raise
        else:
            call.finish(result, None)

    def _answer_aside(self, call: Served) -> None:
        """As `answer`, on a thread that others need as well: whatever a handler raises, it goes on."""
        try:
            self.answer(call)
        except BaseException as error:  # only the caller is concerned, and has been told
            log.warning("%s ended with %r, away from the task's thread", call.method, error)

    def cancel(self, caller: str, number: int) -> None:
        """Nobody waits for a call any more."""
        for waiting in (self.for_task, self._for_service):
            for call in list(waiting):
                if call.caller == caller and call.number == number:
                    call.cancelled = True
                    with contextlib.suppress(ValueError):  # it was taken out just now
                        waiting.remove(call)

    def _answer_next(self) -> None:
        """Answer one call on the service thread, and come again if there are more."""
        with contextlib.suppress(IndexError):  # it was cancelled
            self._answer_aside(self._for_service.popleft())
        with self._lock:
            self._answering = bool(self._for_service)
            if self._answering:
                self.thread.do(self._answer_next)


def failure_of(number: int, error: BaseException) -> Failure:
    """Return an error as it travels: type, message, and the traceback as text."""
    refused = isinstance(error, NoSuchService | Overloaded) and error.__traceback__ is None
    text = "" if refused else "".join(traceback.format_exception(error))
    kind = type(error).__name__
    message, trace = plain(error, _MESSAGE_CHARACTERS), plain(text, _TRACEBACK_CHARACTERS)
    return Failure(number, plain(kind, 200), message, trace, refused)


def error_of(failure: Failure, method: str, server: str) -> Exception:
    """Return the error that a failed call raises here."""
    if failure.kind == PEER_LOST:
        return PeerLost(
            f"{method!r} was not answered: {failure.message}", peer=failure.traceback, cause=failure.message
        )
    if failure.refused:
        kind = {"NoSuchService": NoSuchService, "Overloaded": Overloaded}.get(failure.kind, EngineError)
        return kind(failure.message)
    builtin = getattr(builtins, failure.kind, None)
    kinds: tuple[type, ...] = (RemoteError,)
    if failure.kind in _REVIVED and isinstance(builtin, type):
        kinds = (RemoteError, builtin)
    where = f" at {server}" if server else ""
    message = f"{method!r} failed{where}: {failure.kind}: {failure.message}"
    error: Exception = type("RemoteError", kinds, {})(message, kind=failure.kind, peer=server)
    if failure.traceback:
        error.add_note(f"traceback{where}:\n{failure.traceback.rstrip()}")
    return error


# Types of Python's own that a remote error may also be; their constructors take any one argument.
_REVIVED = frozenset(
    kind.__name__
    for kind in (
        *(ArithmeticError, AssertionError, AttributeError, BufferError, ConnectionError, EOFError),
        *(FileNotFoundError, IndexError, KeyError, LookupError, MemoryError, NameError),
        *(NotImplementedError, OSError, OverflowError, PermissionError, RuntimeError, StopIteration),
        *(TimeoutError, TypeError, ValueError, ZeroDivisionError),
    )
)
