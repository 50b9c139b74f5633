"""What came for a task's handlers and is not delivered yet: events, and the latest of each state."""

from __future__ import annotations

import difflib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol, TypeAlias, cast

from engine.bus.aside import HandlerThread, ServiceThread
from engine.bus.backlog import Backlog, Line, NoLine, Occurrences, Origin, Waiter, weigh
from engine.bus.gate import Gate
from engine.bus.names import MISSED
from engine.bus.router import Arrived
from engine.bus.slots import Torn, Unattachable
from engine.errors import CodecError, EngineError, UnknownName, UsageError, did_you_mean, foremost

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[..., Any]

MOST_PENDING, MOST_PENDING_BYTES = 100_000, 64 << 20
"""So many events of one peer may wait for a boundary; what comes then is counted, and told."""

_LETTER_BYTES = 500  # what an event takes beside its own bytes

_NEWER_SECONDS = 5.0

_MOST_ERRORS = 100  # of handlers on the service thread that wait for a boundary


class Opener(Protocol):
    """Opens what came from other processes."""

    def load(self, arrived: Arrived) -> Any:
        """Return a value of its own; raises `Torn` and `CodecError`."""
        ...

    def load_call(self, arrived: Arrived) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of an event; raises `CodecError`."""
        ...

    def view(self, arrived: Arrived) -> tuple[Any, Callable[[], bool]]:
        """Return a value where it lies, and what tells whether it still does; raises as `load`."""
        ...

    def read(self, sender_id: str, name: str) -> None:
        """A state that was pulled was used, or made way: what is newer may be pulled."""
        ...

    def pull(self, sender_id: str, name: str) -> None:
        """A state cannot be read any more where it was offered: have the latest sent."""
        ...

    def dropped(self) -> None:
        """Something that came made no sense."""
        ...


@dataclass(slots=True, eq=False)
class Letter:
    """One event on its way to the handlers.  What came from a peer is decoded when it is wanted."""

    name: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    sender: str = ""
    sender_id: str = ""
    version: int = 0
    arrived: Arrived | None = None
    state: bool = False
    only: Subscription | None = None  # a listener that came late and gets what the others had
    number: int = 0
    origin: Origin = (0, 0, -1)
    queued: bool = True

    @property
    def bytes(self) -> int:
        """About how much memory it takes, where it came from a peer."""
        arrived = self.arrived
        return _LETTER_BYTES if arrived is None else _LETTER_BYTES + len(arrived.skeleton) + arrived.size

    @property
    def weight(self) -> int:
        """About how many bytes it keeps alive."""
        weight = self.bytes
        for value in self.args:
            weight += weigh(value)
        for value in (self.kwargs or _NOTHING).values():
            weight += weigh(value)
        return weight


@dataclass(eq=False)
class Subscription:
    """A handler of an event."""

    event: str
    handler: Handler
    once: bool
    view: bool = False
    thread: HandlerThread = "task"
    live: bool = True
    had: tuple[str, int] | None = None
    """The sender and the version of what it was called with last."""

    def has_had(self, letter: Letter) -> bool:
        """Whether a state is the one that it was called with: one that was overwritten may come twice."""
        return letter.state and self.had == (letter.sender_id, letter.version)


class Mailbox:
    """The queue of letters, who listens to them, and who waits for one."""

    def __init__(self, gate: Gate, service: ServiceThread | None = None) -> None:
        self.pending = False
        self.notify: Callable[[], None] | None = None
        self.line: Line = _NO_LINE
        self.opener: Opener | None = None
        self.subscriptions: dict[str, list[Subscription]] = {}
        self.heard: set[str] = set()
        """Events that were waited for: others send them only to who listens."""
        self._gate, self._changed, self._lock = gate, gate.changed, gate.lock  # to take it is quicker
        self._service = service or ServiceThread()
        self._queue: deque[Letter] = deque()
        self._number = 0
        self._occurrences: dict[str, Occurrences] = {}  # by event, what waits may yet return
        self._stations: dict[str, Waiter] = {}
        self._thread = threading.local()  # its Waiter, outside of all stations
        self._states: dict[str, Letter] = {}  # the latest of each
        self._earlier: dict[str, list[Letter]] = {}  # of a state, what a later iteration has overwritten
        self._pending_of: dict[str, tuple[int, int]] = {}  # by peer: letters, and their bytes
        self._aside_of: dict[str, tuple[int, int]] = {}  # the same, of those for the service thread
        self._due: set[str] = set()  # states that it is about to look at
        self._errors: list[Exception] = []  # of handlers there
        self._missed: dict[str, int] = {}  # by peer's name: events that are not here and were not told of

    # --- letters in -------------------------------------------------------------------------

    def post(self, letter: Letter) -> None:
        """Queue a letter for the next boundary, and wake who waits for it."""
        with self._lock:
            if letter.sender_id and not letter.state and not self.wanted(letter.name):
                return  # it was on its way when the last listener went
            self._number += 1
            letter.number = self._number
            if letter.state:
                latest = self._states.get(letter.name)
                if latest is not None and letter.origin[2] >= 0 and letter.origin[:2] != latest.origin[:2]:
                    self._keep_earlier(replace(latest))
                if latest is not None and (latest.queued or latest.sender_id != letter.sender_id):
                    self._used(latest)
                if latest is not None and latest.queued:
                    latest.args, latest.arrived, latest.version = letter.args, letter.arrived, letter.version
                    latest.sender, latest.sender_id = letter.sender, letter.sender_id
                    latest.number, latest.origin = letter.number, letter.origin
                    if any(one.thread == "service" for one in self.subscriptions.get(letter.name, ())):
                        self._put_aside(latest, [])
                    self._wake()
                    return
                self._states[letter.name] = letter
            self._enqueue(letter)

    def missed(self, sender: str, count: int) -> None:
        """So many events of a peer are lost for us: the next boundary tells it."""
        with self._lock:
            self._missed[sender] = self._missed.get(sender, 0) + count
            self.look()

    def wanted(self, name: str) -> bool:
        """Whether anybody here listens to an event, or waited for one."""
        return name in self.subscriptions or name in self.heard

    def look(self) -> None:
        """Have the next boundary look here."""
        with self._lock:
            self.pending = True
            if self.notify is not None:
                self.notify()
            self._changed.notify_all()

    def _enqueue(self, letter: Letter) -> None:
        listening = self.subscriptions.get(letter.name, _NONE) if letter.only is None else [letter.only]
        aside = [one for one in listening if one.thread == "service"] if listening else _NONE
        kept = self._put_aside(letter, aside) if aside else True
        if aside and len(aside) == len(listening) and letter.name not in self.heard:
            letter.queued = False  # no boundary has anything to do with it
            if not letter.state:
                self._keep(letter)
        elif not letter.sender_id or self._admit(self._pending_of, letter):
            self._queue.append(letter)
            self.pending = True
            if self.notify is not None:
                self.notify()
        else:
            kept = False
        if not kept:
            self.missed(letter.sender, 1)
            return
        if not letter.state and letter.name in self._occurrences:
            self._occurrences[letter.name].post(letter)
        self._wake()

    def _admit(self, table: dict[str, tuple[int, int]], letter: Letter) -> bool:
        """Count an event of a peer as pending; False where too much of that peer is."""
        if letter.sender_id and not letter.state:
            count, size = table.get(letter.sender_id, (0, 0))
            if count >= MOST_PENDING or size >= MOST_PENDING_BYTES:
                return False
            table[letter.sender_id] = count + 1, size + letter.bytes
        return True

    # --- on the service thread --------------------------------------------------------------

    def _put_aside(self, letter: Letter, listening: list[Subscription]) -> bool:
        """Have the service thread call handlers; False where too much waits for it."""
        if letter.state:
            name = letter.name
            if name not in self._due:
                self._due.add(name)
                self._service.do(lambda: self._call_aside_with_latest(name))
        elif self._admit(self._aside_of, letter):
            self._service.do(lambda: self._call_aside(listening, letter))
        else:
            return False
        return True

    def _call_aside_with_latest(self, name: str) -> None:
        with self._lock:
            self._due.discard(name)
            letter = replace(self._states[name])
            listening = [one for one in self.subscriptions.get(name, ()) if one.thread == "service"]
        self._call_aside(listening, letter)
        self._used(letter)

    def _call_aside(self, listening: list[Subscription], letter: Letter) -> None:
        """Call handlers; the task's next boundary raises what they raise."""
        errors: list[Exception] = []
        with self._lock:
            self._count_delivered(self._aside_of, letter)
        for one in listening:
            if one.live:
                try:
                    self._call(one, letter, errors)
                except BaseException as error:  # SystemExit ends no thread but the task's
                    errors.append(error if isinstance(error, Exception) else EngineError(repr(error)))
        if errors:
            with self._lock:
                kept = 0 if self.notify is None else _MOST_ERRORS - len(self._errors)
                self._errors += errors[:kept]
                _log_errors(errors[kept:])
                self.look()

    def detach(self) -> None:
        """No task delivers here any more."""
        with self._lock:
            self.notify, self.line = None, _NO_LINE
            self._stations.clear()
            self._earlier.clear()
            for letter in (*self._queue, *self._states.values()):  # another line counts anew
                letter.origin = 0, 0, -1
            for known in self._occurrences.values():
                known.recent.clear()
            _log_errors(self._errors)
            self._errors.clear()

    def _wake(self) -> None:
        if self._gate.waiting:
            self._changed.notify_all()

    # --- listening --------------------------------------------------------------------------

    def subscribe(self, one: Subscription) -> None:
        """Add a listener; of a state it gets the latest value, also where it was delivered before."""
        if not callable(one.handler):
            raise UsageError(
                f"the handler of {one.event!r} must be callable, not {type(one.handler).__name__}"
            )
        with self._lock:
            self.subscriptions.setdefault(one.event, []).append(one)
            latest = self._states.get(one.event)
            if latest is not None and one.thread == "service":
                self._put_aside(latest, [one])
            elif latest is not None and not latest.queued:
                self._number += 1
                again = Letter(
                    one.event, latest.args, None, latest.sender, latest.sender_id, latest.version,
                    latest.arrived, True, one, self._number,
                )  # fmt: skip
                self._enqueue(again)

    def unsubscribe(self, event: str, handler: Handler | None) -> None:
        """Take off a handler's last subscription, or without a handler all of them."""
        with self._lock:
            known = self.subscriptions.get(event, [])
            gone = [one for one in known if handler is None or one.handler == handler]
            if not gone:
                who = "no handler" if handler is None else f"not {getattr(handler, '__name__', handler)!r}"
                raise UnknownName(
                    f"event {event!r} has {who} to take off{did_you_mean(event, self.subscriptions)}"
                )
            for one in gone if handler is None else gone[-1:]:
                self._remove(one)

    def _remove(self, one: Subscription) -> None:
        with self._lock:
            one.live = False
            known = self.subscriptions.get(one.event, [])
            if one in known:
                known.remove(one)
            if not known:
                self.subscriptions.pop(one.event, None)

    # --- waiting ----------------------------------------------------------------------------

    def wait_for(
        self, event: str, timeout: float | None, expected: Callable[[], str], announce: Callable[[], None]
    ) -> Any:
        """Return what the next letter of that name brings; see `Bus.wait_for`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self._awaited(event, timeout, deadline, expected, announce)
            try:
                args, kwargs = self._load(found)
            except (Torn, Unattachable):
                continue  # a newer one is on its way
            if found.state:
                self._used(found)
            return args[0] if len(args) == 1 else args or kwargs or None

    def _awaited(
        self,
        event: str,
        timeout: float | None,
        deadline: float | None,
        expected: Callable[[], str],
        announce: Callable[[], None],
    ) -> Letter:
        station = self.line.station()
        now = (0, 0, 0) if station is None else station[1]
        with self._lock:
            waiter = self._waiter(None if station is None else station[0])
            backlog = self._backlog(event, waiter)

        def unseen() -> Letter | None:
            if event in self._states:
                return self._unseen_state(event, waiter, None if station is None else now)
            return cast("Letter | None", backlog.take(now, self.line))

        if event not in self.heard:
            self.heard.add(event)
            announce()
        found = self._gate.until(
            unseen,
            None if deadline is None else max(0.0, deadline - time.monotonic()),
            lambda: f"{self._late(event, timeout, backlog)}{expected()}",
            what=repr(event),
            event=event,
        )
        if found.state:
            waiter.last[event] = found.number
        return found

    def stations(self, names: Container[str]) -> None:
        """Say which stations there are: what others have waited for is kept no longer."""
        with self._lock:
            self._stations = {name: one for name, one in self._stations.items() if name in names}

    def _waiter(self, station: str | None) -> Waiter:
        if station is not None:
            known = self._stations.get(station)
            if known is None:
                known = self._stations[station] = Waiter(f"station {station!r}", in_time=True)
            return known
        if not hasattr(self._thread, "waiter"):
            name = f"thread {threading.current_thread().name!r}"
            self._thread.waiter = Waiter(name, in_time=False)
        waiter: Waiter = self._thread.waiter
        return waiter

    def _backlog(self, event: str, waiter: Waiter) -> Backlog:
        """Return what a waiter has yet to be given of an event; the first time, what is still known of it."""
        backlog = waiter.backlogs.get(event)
        if backlog is None:
            backlog = waiter.backlogs[event] = Backlog(event, waiter.name, in_time=waiter.in_time)
            known = self._known(event)
            known.add(backlog)
            queued = [one for one in self._queue if one.name == event and not one.state]
            for letter in sorted([*(known.recent if waiter.in_time else ()), *queued], key=_number):
                backlog.add(letter)
        return backlog

    def _unseen_state(self, event: str, waiter: Waiter, now: Origin | None) -> Letter | None:
        """Return the latest value of a state that a wait at this place in time may see, if it is new."""
        after = waiter.last.get(event, 0)
        for letter in (self._states[event], *reversed(self._earlier.get(event, ()))):
            if letter.number <= after:
                return None
            slot, place, entry = letter.origin
            if now is None or entry < 0:
                return letter
            if entry <= now[2] and (slot < now[0] or place == now[1]) and not self.line.abandoned(entry):
                return letter
        return None

    def _keep_earlier(self, latest: Letter) -> None:
        """Keep a value that was overwritten, as long as an earlier iteration under way may wait for it."""
        earlier, oldest = self._earlier.setdefault(latest.name, []), self.line.oldest()
        earlier.append(latest)
        while len(earlier) > 1 and earlier[1].origin[2] < oldest:
            del earlier[0]

    def _keep(self, letter: Letter) -> None:
        """Keep an event that was delivered; without a task no station will ever wait for it."""
        known = self._occurrences.get(letter.name)
        if known is None and self.notify is not None:
            known = self._known(letter.name)
        if known is not None:
            known.delivered(letter, self.line)

    def _known(self, event: str) -> Occurrences:
        return self._occurrences.setdefault(event, Occurrences())

    def _late(self, event: str, timeout: float | None, backlog: Backlog) -> str:
        with self._lock:
            known = {one.name for one in self._queue} | set(self.subscriptions)
        if backlog:
            return (
                f"no {event!r} that this wait may return was emitted within {timeout:g} s: an earlier "
                "station emitted it in a later iteration, or a later one in this slot, which comes with "
                "the next slot"
            )
        near = difflib.get_close_matches(event, known - {event}, n=1)
        hint = f"; an event {near[0]!r} is known: is that the one?" if near else ""
        return f"no {event!r} was emitted within {timeout:g} s{hint}"

    # --- boundaries -------------------------------------------------------------------------

    def deliver(self, errors: list[Exception]) -> None:
        """Call the handlers of what came until now; their errors are added to `errors`.

        What handlers emit waits for the next boundary.
        """
        with self._lock:
            for sender, missed in self._missed.items():
                self.post(Letter(MISSED, (), {"peer": sender, "count": missed}))
            self._missed.clear()
            errors += self._errors
            self._errors.clear()
            count = len(self._queue)
            if count > 1:
                self._queue = deque(sorted(self._queue, key=_origin))
        try:
            for _ in range(count):  # one by one: an interrupt leaves the rest queued
                with self._lock:
                    letter = self._queue.popleft()
                    letter.queued = False
                    if not letter.state:
                        if letter.sender_id:
                            self._count_delivered(self._pending_of, letter)
                        self._keep(letter)
                    listening = self.subscriptions.get(letter.name, _NONE)
                    if listening:
                        listening = [one for one in listening if one.thread == "task"]
                for one in listening if letter.only is None else (letter.only,):
                    if one.live:
                        self._call(one, letter, errors)
                if letter.state:
                    self._used(letter)
        finally:
            with self._lock:
                self.pending = bool(self._queue or self._errors or self._missed)

    def _count_delivered(self, table: dict[str, tuple[int, int]], letter: Letter) -> None:
        if letter.sender_id and not letter.state:
            count, size = table.pop(letter.sender_id)
            if count > 1:
                table[letter.sender_id] = count - 1, size - letter.bytes

    def _call(self, one: Subscription, letter: Letter, errors: list[Exception]) -> None:
        if one.once:
            self._remove(one)
        try:
            if one.view and letter.arrived is not None:
                self._show(one, letter)
                return
            opened = None if one.has_had(letter) else self._opened(one, letter)
            if opened is not None:
                one.had = letter.sender_id, letter.version
                args, kwargs = opened
                one.handler(*args, **kwargs)
        except Exception as error:
            name = getattr(one.handler, "__qualname__", repr(one.handler))
            error.add_note(f"raised in handler {name!r} of event {letter.name!r}")
            errors.append(error)

    def _opened(self, one: Subscription, letter: Letter) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Return a letter's arguments; None where there is nothing to call a handler with."""
        try:
            return self._load(letter)
        except (Torn, Unattachable):
            # What is newer is on its way, and is delivered in its place.
            if one.once:
                with self._lock:
                    one.live = True
                    self.subscriptions.setdefault(one.event, []).append(one)
        except CodecError:
            assert self.opener is not None  # only what came from elsewhere is decoded
            self.opener.dropped()
        return None

    def _load(self, letter: Letter) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a letter's arguments; those from elsewhere are decoded on the thread that wants them."""
        arrived = letter.arrived
        if arrived is None or letter.args:
            return letter.args, letter.kwargs or {}
        assert self.opener is not None
        if letter.state:
            try:
                value = self.opener.load(arrived)
            except (Torn, Unattachable):
                self.opener.pull(letter.sender_id, letter.name)
                raise
            with self._lock:
                if letter.arrived is arrived:
                    letter.args = (value,)
            return (value,), {}
        return self.opener.load_call(arrived)

    def _show(self, one: Subscription, letter: Letter) -> None:
        """Call a handler with a view; again with what is newer, where that overwrote it meanwhile."""
        opener = self.opener
        assert opener is not None
        while True:
            arrived = letter.arrived
            if one.has_had(letter):
                return
            if arrived is None:
                one.had = letter.sender_id, letter.version
                one.handler(*letter.args)
                return
            try:
                value, still = opener.view(arrived)
            except (Torn, Unattachable):
                still = _gone
            except CodecError:
                opener.dropped()
                return
            else:
                try:
                    one.handler(value)
                except Exception:
                    if still():
                        raise  # else it saw what nobody published
            if still():
                one.had = letter.sender_id, letter.version
                return
            opener.pull(letter.sender_id, letter.name)
            letter = self._newer(letter)

    def _newer(self, letter: Letter) -> Letter:
        """Wait for a newer version of a state: one is on its way, as it has overwritten this one."""
        before = letter.arrived

        def newer() -> Letter | None:
            latest = self._states.get(letter.name)
            return latest if latest is not None and latest.arrived is not before else None

        return self._gate.until(
            newer,
            _NEWER_SECONDS,
            lambda: f"version {letter.version} of {letter.name!r} was overwritten and no newer one came",
            what=repr(letter.name),
        )

    def _used(self, letter: Letter) -> None:
        arrived = letter.arrived
        if self.opener is not None and arrived is not None and arrived.offer is None:
            self.opener.read(letter.sender_id, letter.name)


def _log_errors(errors: list[Exception]) -> None:
    """Tell what no boundary will raise."""
    for error in errors:
        log.error("a handler on the service thread failed", exc_info=error)


def raise_first(errors: list[Exception]) -> None:
    """Raise the foremost of the errors, if there is one, with the others as notes."""
    if errors:
        first = foremost(errors)
        add_others(first, errors)
        raise first


def add_others(first: BaseException, errors: list[Exception]) -> None:
    """Attach errors to the one that is raised."""
    for error in errors:
        if error is not first:
            first.add_note(f"another handler raised {type(error).__name__}: {error}")


def _gone() -> bool:
    return False


_NO_LINE = NoLine()
_NONE: list[Subscription] = []
_NOTHING: dict[str, Any] = {}
_origin, _number = attrgetter("origin"), attrgetter("number")
