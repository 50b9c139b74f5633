"""The bus of one task: named events, states, streams and calls, within a process and between them.

`emit` never runs a handler itself.  Handlers run on the thread that called `run`, at the
next boundary between iterations, in the order in which events came and handlers were added.
Emitting is allowed from any thread.

Alone, a `Bus` joins the middleware and threads of one task.  One that `host` or `join` made speaks
with other processes too, by the same verbs.
"""

from __future__ import annotations

import difflib
import itertools
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from engine.bus.gate import Gate, check_timeout
from engine.bus.message import SMALL_BYTES, Call, Event, Failure, Member, pack
from engine.bus.router import Arrived
from engine.bus.services import Served, Services, Where, error_of, failure_of
from engine.bus.slots import Torn
from engine.bus.streams import CAPACITY, Stream, Taken, Waiting, WhenFull
from engine.bus.transport import Frame, Transport
from engine.bus.values import Values
from engine.errors import (
    CodecError,
    EngineError,
    NoSuchService,
    PayloadTooLarge,
    UnknownName,
    UsageError,
    did_you_mean,
    foremost,
)

if TYPE_CHECKING:
    from engine.bus.network import Network

Handler: TypeAlias = Callable[..., Any]
Kind: TypeAlias = Literal["event", "state", "stream"]
Watcher: TypeAlias = Callable[[str, "Peer", str], None]

LOST, LEFT, MISSED, FINISH = "task_peer_lost", "task_peer_left", "task_events_missed", "task_finish"
OWN = (LOST, LEFT, MISSED, FINISH)
"""Events that the bus itself emits, and nobody else."""

MOST_PENDING = 100_000
"""So many events of one peer may wait for a boundary; what comes then is counted, and told."""

_EVENT = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
_NEWER_SECONDS = 5.0


def check_event(event: str, roles: Sequence[str] = ()) -> str:
    """Return `event` if it is a well-formed name, ``<sender>_<data>``; else raise `UsageError`.

    Where there are `roles`, its first word is one of them, or ``task``.
    """
    if not isinstance(event, str) or not _EVENT.fullmatch(event):
        raise UsageError(
            f"{event!r} cannot name an event; a name is <sender>_<data>[_<parameter>_<value>] "
            "in small letters and digits, like 'learner_model' or 'league_job_actor_0'"
        )
    role = event.partition("_")[0]
    if roles and role != "task" and role not in roles:
        near = did_you_mean(role, roles)
        raise UsageError(
            f"{event!r} does not begin with a role of this run{near}; names begin with the role that sends "
            f"or serves, one of {', '.join(roles)}, or with 'task', like {roles[0] + '_model'!r}"
        )
    return event


@dataclass(frozen=True)
class Peer:
    """Another process of the run; ``report`` is what it last said of itself (known to the hub alone)."""

    name: str
    role: str
    address: str
    about: dict[str, Any]
    report: dict[str, Any]
    ready: bool


@dataclass(slots=True, eq=False)
class _Event:
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    origin: tuple[int, int]
    sender: str = ""
    sender_id: str = ""
    version: int = 0
    arrived: Arrived | None = None
    state: bool = False
    only: _Subscription | None = None
    queued: bool = True


@dataclass(eq=False)
class _Subscription:
    event: str
    handler: Handler
    once: bool
    view: bool = False
    live: bool = True


@dataclass(eq=False)
class _Wait:
    event: str
    found: _Event | None = None


class Bus:
    """Events of one task.

    ``pending`` says whether a boundary has anything to deliver; the run loop asks it and
    nothing else while no event is under way.  ``role`` and ``peer`` say who this process is in
    its run, like ``collector`` and ``collector_1``.
    """

    transient = True  # what is under way between two boundaries is no state of the run

    def __init__(self) -> None:
        self.pending = False
        self.role = self.peer = "main"
        self.told_to_finish: str | None = None
        """Why the whole run is asked to finish; None while it is not."""
        self._gate = Gate()
        self._gate.answer, self._gate.finishing = self._answer, self._told
        self._changed = self._gate.changed
        self._queue: deque[_Event] = deque()
        self._checked: set[str] = set()  # names that are well formed
        self._subscriptions: dict[str, list[_Subscription]] = {}
        self._number = 0
        self._waited: dict[tuple[int, str], int] = {}
        self._waits: list[_Wait] = []
        self._heard: set[str] = set()  # events that were waited for: others send them to who listens
        self._notify: Callable[[], None] | None = None
        self._finish: Callable[[str], None] | None = None
        self._origin: Callable[[], tuple[int, int]] = _anywhere
        self._kinds: dict[str, Kind] = {}
        self._states: dict[str, _Event] = {}  # the latest of each
        self._versions: dict[str, int] = {}
        self._streams: dict[str, Stream] = {}
        self._services = Services()
        self._replies: dict[int, Arrived | Failure] = {}
        self._numbers = itertools.count(1)
        self._pending_of: dict[str, int] = {}
        self._missed: dict[str, int] = {}
        self._watchers: list[Watcher] = []
        self._network: Network | None = None
        self._values: Values | None = None
        self._announced = True
        self._ready = False

    # --- a task's -------------------------------------------------------------------------

    def attach(
        self,
        *,
        finishing: Callable[[], bool],
        notify: Callable[[], None],
        failed: Callable[[], bool] | None = None,
        origin: Callable[[], tuple[int, int]] | None = None,
        finish: Callable[[str], None] | None = None,
    ) -> None:
        """Belong to a task.

        Unbounded waits end when ``finishing()``, all waits when ``failed()``; ``notify()`` tells of
        new events, ``finish(reason)`` of the whole run's end.  What is emitted by threads at the same
        time is delivered in the order of the ``origin()`` that each of them has.
        """
        if self._notify is not None:
            raise UsageError("this bus belongs to another open task; give each task its own")
        self._gate.finishing = lambda: self.told_to_finish is not None or finishing()
        self._gate.failed = failed or _no
        self._notify, self._finish = notify, finish
        self._origin = origin or _anywhere
        self.ready()
        if self.pending:
            notify()

    def detach(self) -> None:
        """Belong to no task any more."""
        self._notify, self._finish, self._origin = None, None, _anywhere
        self._gate.finishing, self._gate.failed = self._told, _no

    def ready(self) -> None:
        """Tell the others that this process listens and serves: `wait_for_peers` waits for that.

        A task says so when it is opened.
        """
        self._ready = True
        self._announce()

    def _told(self) -> bool:
        return self.told_to_finish is not None

    def runs_on(self, thread: int | None) -> None:
        """Say which thread runs the task: while it waits it answers calls."""
        self._gate.runner = thread

    @property
    def address(self) -> str:
        """Where others reach this process; empty where it is alone."""
        return self._network.address if self._network is not None else ""

    # --- names and kinds --------------------------------------------------------------------

    @property
    def roles(self) -> Sequence[str]:
        """The roles of the run; none where any is allowed."""
        return self._network.roles if self._network is not None else ()

    def declare(
        self, event: str, kind: Kind = "event", *, capacity: int | None = None, when_full: WhenFull = "block"
    ) -> None:
        """Say once what kind of event `event` is, before it is emitted; both ends may say it.

        *event*: small, to everybody who listens, in order.  *state*: the latest value counts, and
        reaches who comes late.  *stream*: each item goes to one consumer; at most `capacity` wait
        that nobody took, and `when_full` says what becomes of one more: it waits, the oldest that was not
        sent is dropped, or `Overloaded` is raised.
        """
        self._check(event)
        if kind not in ("event", "state", "stream"):
            raise UsageError(f"an event is of kind 'event', 'state' or 'stream', not {kind!r}")
        known = self._kinds.setdefault(event, kind)
        if known != kind:
            raise UsageError(f"{event!r} was declared as {known!r}; it cannot be {kind!r} too")
        if kind != "stream":
            if capacity is not None or when_full != "block":
                raise UsageError(
                    f"capacity and when_full belong to streams; {event!r} is declared as {kind!r}"
                )
            return
        if when_full not in ("block", "drop_oldest", "error"):
            raise UsageError(f"when_full is 'block', 'drop_oldest' or 'error', not {when_full!r}")
        if capacity is not None and (isinstance(capacity, bool) or capacity < 1):
            raise UsageError(f"capacity counts items, at least 1, not {capacity!r}")
        with self._changed:
            stream = self._stream(event)
            if stream.declared and (capacity, when_full) != (stream.capacity, stream.when_full):
                raise UsageError(f"the stream {event!r} was declared with other settings already")
            stream.capacity, stream.when_full, stream.declared = capacity or CAPACITY, when_full, True

    def _check(self, event: str) -> str:
        if event not in self._checked:
            check_event(event, self.roles)
            self._checked.add(event)
        return event

    def _stream(self, event: str) -> Stream:
        if event not in self._streams:
            if self._kinds.get(event, "stream") != "stream":
                raise UsageError(f"{event!r} was declared as {self._kinds[event]!r}; it is no stream")
            self._kinds[event] = "stream"
            self._streams[event] = Stream(event)
        return self._streams[event]

    # --- listening --------------------------------------------------------------------------

    def on(self, event: str, handler: Handler, *, view: bool = False) -> Handler:
        """Call ``handler(*args, **kwargs)`` at the boundary after each `emit` of `event`; return it.

        Of a state, the latest value is handed over, also where it was emitted before.  With `view`,
        arrays of a state that comes from another process may be looked at where they lie instead of being
        copied: read-only, and only until the handler returns.  Where they were overwritten
        meanwhile, the handler is called again with what is newer before anything else runs.
        """
        return self._subscribe(event, handler, once=False, view=view)

    def once(self, event: str, handler: Handler) -> Handler:
        """Like `on`, for the next occurrence only."""
        return self._subscribe(event, handler, once=True)

    def off(self, event: str, handler: Handler | None = None) -> None:
        """Take back `on` or `once`; without a handler, all of them.  Raises `UnknownName` if none is on."""
        with self._changed:
            known = self._subscriptions.get(self._check(event), [])
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
        self._announce()

    def _subscribe(self, event: str, handler: Handler, *, once: bool, view: bool = False) -> Handler:
        if not callable(handler):
            raise UsageError(f"the handler of {event!r} must be callable, not {type(handler).__name__}")
        self._check(event)
        if self._kinds.get(event) == "stream":
            raise UsageError(f"{event!r} is a stream: its items are taken with take(), one by one")
        with self._changed:
            one = _Subscription(event, handler, once, view)
            self._subscriptions.setdefault(event, []).append(one)
            latest = self._states.get(event)
            if latest is not None and not latest.queued:
                self._number += 1
                again = _Event(
                    event, self._number, latest.args, {}, _anywhere(), latest.sender, latest.sender_id,
                    latest.version, latest.arrived, True, one,
                )  # fmt: skip
                self._enqueue(again)
        self._announce()
        return handler

    # --- emitting ---------------------------------------------------------------------------

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Queue an event for the next boundary, here and in the processes that listen, and wake who waits.

        What the kind of `event` promises holds, see `declare`.  Raises `PayloadTooLarge` for an event of
        more than 64 KiB that other processes listen to, and `CodecError` for what cannot be sent.
        """
        if event not in self._checked:
            self._check(event)
        kind = self._kinds.get(event, "event")
        if kind == "stream":
            self.push(event, self._single(event, args, kwargs))
            return
        if event in OWN:
            raise UsageError(f"{event!r} is emitted by the bus itself; {_INSTEAD.get(event, 'listen to it')}")
        network = self._network
        if kind == "state":
            value = self._single(event, args, kwargs)
            self._publish(event, value)
            return
        if network is not None:
            if event in network.router.listeners:
                blob = self._packed(event, args, kwargs)
                network.do(lambda: network.router.emit(event, blob))
            if self._notify is None and event not in self._subscriptions and event not in self._heard:
                return  # no task delivers here, and nobody listens: it would be kept for ever
        with self._changed:
            self._number += 1
            self._enqueue(_Event(event, self._number, args, kwargs, self._origin()))

    def _single(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) != 1 or kwargs:
            raise UsageError(
                f"{event!r} is a {self._kinds[event]}: emit it with its value alone, emit({event!r}, value)"
            )
        return args[0]

    def _packed(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        assert self._values is not None
        skeleton, arena = self._values.flat((args, kwargs))
        if len(skeleton) + len(arena) > SMALL_BYTES:
            raise PayloadTooLarge(
                f"event {event!r} has {len(skeleton) + len(arena)} bytes, where an event may have "
                f"{SMALL_BYTES}: declare it with kind='state' (the latest counts) or kind='stream' (every "
                "item counts)"
            )
        return pack(Event(event, skeleton, arena))

    def _publish(self, event: str, value: Any) -> None:
        network, values = self._network, self._values
        body = None
        if network is not None and values is not None:
            body = values.snapshot(value, ring=event)
        with self._changed:
            version = self._versions[event] = self._versions.get(event, 0) + 1
            self._put_state(_Event(event, 0, (value,), {}, self._origin(), version=version, state=True))
            if network is not None and body is not None:
                snapshot = body
                network.do(lambda: network.router.publish(event, version, snapshot))

    def _put_state(self, event: _Event) -> None:
        """Queue the latest value of a state in the place of one that was not delivered."""
        self._number += 1
        latest = self._states.get(event.name)
        if latest is not None and latest.queued:
            latest.args, latest.arrived, latest.version = event.args, event.arrived, event.version
            latest.sender, latest.sender_id = event.sender, event.sender_id
            latest.number, latest.origin = self._number, event.origin
            self._hand_over(latest)
            return
        event.number = self._number
        self._states[event.name] = event
        self._enqueue(event)

    def _enqueue(self, event: _Event) -> None:
        self._queue.append(event)
        self.pending = True
        if self._notify is not None:
            self._notify()
        self._hand_over(event)

    def _hand_over(self, event: _Event) -> None:
        if self._waits:
            # At once: a boundary may deliver it before the waiting thread wakes.
            for wait in self._waits:
                if wait.event == event.name and wait.found is None and event.only is None:
                    wait.found = event
        self._changed.notify_all()

    # --- waiting for events -------------------------------------------------------------------

    def wait_for(self, event: str, *, timeout: float | None = 30.0) -> Any:
        """Wait for an occurrence of `event` that no earlier wait of this thread has returned.

        Returns its single argument, or the tuple of its arguments, or None where it had none;
        where it had keyword arguments only, the dict of them.
        An event that is queued but not yet delivered counts; handlers still get it at the
        boundary.  Raises `DeadlineExceeded` after `timeout` seconds; with ``timeout=None`` the
        wait has no bound and raises `Finishing` when the task is finishing.
        """
        self._check(event)
        check_timeout(timeout, "wait_for")
        if self._kinds.get(event) == "stream":
            raise UsageError(f"{event!r} is a stream: take() waits for its items")
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            wait = _Wait(event)
            with self._changed:
                wait.found = self._unseen(event)
                if wait.found is None:
                    self._waits.append(wait)
            try:
                if event not in self._heard:
                    self._heard.add(event)
                    self._announce()
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                found = self._gate.until(
                    lambda: wait.found,  # noqa: B023  # called before the loop goes on
                    left,
                    lambda: self._late(event, timeout),
                    what=repr(event),
                )
            finally:
                with self._changed:
                    if wait in self._waits:
                        self._waits.remove(wait)
            with self._changed:
                self._waited[threading.get_ident(), event] = found.number
            try:
                args, kwargs = self._load(found)
            except Torn:
                continue  # a newer one is on its way
            if found.state:
                self._read(found)
            return args[0] if len(args) == 1 else args or kwargs or None

    def wake(self) -> None:
        """Let waits look again, because the task began to finish."""
        self._gate.wake()

    def _unseen(self, event: str) -> _Event | None:
        after = self._waited.get((threading.get_ident(), event), 0)
        latest = self._states.get(event)
        if latest is not None:
            return latest if latest.number > after else None
        return next((one for one in self._queue if one.name == event and one.number > after), None)

    def _late(self, event: str, timeout: float | None) -> str:
        with self._changed:
            known = {one.name for one in self._queue} | set(self._subscriptions)
        near = difflib.get_close_matches(event, known - {event}, n=1)
        hint = f"; an event {near[0]!r} is known: is that the one?" if near else ""
        return f"no {event!r} was emitted within {timeout:g} s{hint}{self._expected(event)}"

    def _expected(self, event: str) -> str:
        """Say who should have sent, or served, `event`, and who is there."""
        if self._network is None:
            return ""
        role = event.partition("_")[0]
        there = [peer.name for peer in self.peers()]
        if role == "task" or any(name.startswith(role + "_") for name in there):
            return ""
        return f"; no {role} is in the run: there are {', '.join([self.peer, *there])}"

    # --- boundaries ---------------------------------------------------------------------------

    def deliver(self) -> None:
        """Run the handlers of what came until now, and answer the calls that wait for this thread.

        Every event is delivered even when a handler fails; then the first error is raised with
        the others as notes.  What handlers emit waits for the next boundary.
        """
        errors: list[Exception] = []
        with self._changed:
            count = len(self._queue)
            if count > 1:
                self._queue = deque(sorted(self._queue, key=lambda event: event.origin))
        try:
            for _ in range(len(self._services.for_task)):
                self._answer()
            for _ in range(count):  # one by one: an interrupt leaves the rest queued
                with self._changed:
                    event = self._queue.popleft()
                    event.queued = False
                    self._note_delivered(event)
                    listening = tuple(self._subscriptions.get(event.name, ()))
                for one in listening if event.only is None else (event.only,):
                    if one.live:
                        self._call(one, event, errors)
                if event.state and event.arrived is not None:
                    self._read(event)
        except BaseException as interrupt:
            _add_others(interrupt, errors)
            raise
        finally:
            with self._changed:
                self.pending = bool(self._queue) or bool(self._services.for_task) or bool(self._gate.broken)
        broken = self._gate.broken
        if broken is not None and self.told_to_finish is None:
            errors.insert(0, broken if isinstance(broken, Exception) else EngineError(repr(broken)))
        if errors:
            first = foremost(errors)
            _add_others(first, errors)
            raise first

    def _note_delivered(self, event: _Event) -> None:
        if event.sender_id and not event.state:
            left = self._pending_of.pop(event.sender_id) - 1
            if left:
                self._pending_of[event.sender_id] = left
        for sender in list(self._missed):
            if sender not in self._pending_of:
                self._own(MISSED, peer=sender.partition(":")[0], count=self._missed.pop(sender))

    def _call(self, one: _Subscription, event: _Event, errors: list[Exception]) -> None:
        if one.once:
            self._remove(one)
        try:
            if one.view and event.arrived is not None:
                self._show(one, event)
            else:
                args, kwargs = self._load(event)
                one.handler(*args, **kwargs)
        except Torn:
            if one.once:
                with self._changed:
                    one.live = True
                    self._subscriptions.setdefault(one.event, []).append(one)
            # What is newer is on its way, and is delivered in its place.
        except CodecError as error:
            if event.arrived is None:
                errors.append(error)
            elif self._network is not None:
                self._network.dropped += 1
        except Exception as error:
            name = getattr(one.handler, "__qualname__", repr(one.handler))
            error.add_note(f"raised in handler {name!r} of event {event.name!r}")
            errors.append(error)

    def _load(self, event: _Event) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return an event's arguments; those from elsewhere are decoded on the thread that wants them."""
        arrived = event.arrived
        if arrived is None:
            return event.args, event.kwargs
        assert self._values is not None
        if event.state:
            if event.args:
                return event.args, {}
            try:
                value = self._values.load(arrived)
            except Torn:
                self._read(event, torn=True)
                raise
            with self._changed:
                if event.arrived is arrived:
                    event.args = (value,)
            return (value,), {}
        decoded = self._values.load(arrived)
        match decoded:
            case (tuple() as args, dict() as kwargs):
                return args, kwargs
            case _:
                raise CodecError(f"event {event.name!r} has no arguments in it")

    def _show(self, one: _Subscription, event: _Event) -> None:
        """Call a handler with a view; again with what is newer, where that overwrote it meanwhile."""
        assert self._values is not None
        while True:
            arrived = event.arrived
            assert arrived is not None
            try:
                value, still = self._values.view(arrived)
                one.handler(value)
                if still():
                    return
            except Torn:
                pass
            self._read(event, torn=True)
            event = self._newer(event)

    def _newer(self, event: _Event) -> _Event:
        """Wait for a newer version of a state: one is on its way, as it has overwritten this one."""

        def newer() -> _Event | None:
            latest = self._states.get(event.name)
            return latest if latest is not None and latest.version > event.version else None

        return self._gate.until(
            newer,
            _NEWER_SECONDS,
            lambda: f"version {event.version} of {event.name!r} was overwritten and no newer one came",
            what=repr(event.name),
        )

    def _read(self, event: _Event, *, torn: bool = False) -> None:
        """Tell the network that a value was used, or cannot be: a newer one may be pulled."""
        network, sender, name, version = self._network, event.sender_id, event.name, event.version
        if network is None or not sender:
            return
        if torn:
            network.do(lambda: network.router.pull(sender, name))
        elif event.arrived is not None and event.arrived.offer is None:
            network.do(lambda: network.router.read(sender, name, version))

    def _remove(self, one: _Subscription) -> None:
        with self._changed:
            one.live = False
            known = self._subscriptions.get(one.event, [])
            if one in known:
                known.remove(one)
            if not known:
                self._subscriptions.pop(one.event, None)
        self._announce()

    # --- streams ------------------------------------------------------------------------------

    def push(self, event: str, value: Any, *, timeout: float | None = 30.0) -> None:
        """Give an item of a stream to one consumer, in this process or another.

        Where as many items as were declared wait that nobody took, it waits for room.  Raises
        `DeadlineExceeded`, naming who was expected, after `timeout` seconds, and `Finishing` when
        the task is finishing meanwhile.
        """
        self._check(event)
        check_timeout(timeout, "push")
        with self._changed:
            stream = self._stream(event)
        stream.admit(self._gate, timeout, lambda: self._nobody_took(event, timeout))
        network, values = self._network, self._values
        with self._changed:
            if network is None or stream.consuming is not None:
                stream.put(self.peer, value)
                self._changed.notify_all()
                return
        assert values is not None
        try:
            body = values.snapshot(value)
        except BaseException:
            self.settled(event, 1)
            raise
        now, keep = time.monotonic(), stream.keep()
        network.do(lambda: network.router.push(event, body, now, keep))

    def _nobody_took(self, event: str, timeout: float | None) -> str:
        stream = self._streams[event]
        text = f"nobody took an item of {event!r}" + ("" if timeout is None else f" within {timeout:g} s")
        network = self._network
        consumers = [] if network is None else list(network.router.consumers.get(event, ()))
        if consumers:
            who = ", ".join(sorted(id.partition(":")[0] for id in consumers))
            return f"{text}: {stream.outstanding} of {stream.capacity} wait for {who}"
        there = ", ".join([self.peer, *(peer.name for peer in self.peers())])
        return f"{text}: nobody consumes it; in the run are {there}"

    def consume(self, event: str, *, capacity: int | None = None) -> None:
        """Have items of a stream sent here, at most `capacity` of each producer that were not taken."""
        self._check(event)
        with self._changed:
            stream = self._stream(event)
            stream.consuming = capacity or stream.capacity
        self._announce()

    def take(
        self,
        event: str,
        *,
        sender: str | None = None,
        timeout: float | None = 30.0,
        view: bool = False,
    ) -> Taken:
        """Take the oldest item of a stream (of one `sender`, if named), and acknowledge it.

        With `view` its arrays are read-only and stay where they lie until `Taken.release`, which
        acknowledges it.  Raises `DeadlineExceeded`, naming who was expected, after `timeout` seconds,
        and `Finishing` when the task is finishing meanwhile.
        """
        self._check(event)
        check_timeout(timeout, "take")
        stream = self._streams.get(event)
        if stream is None or stream.consuming is None:
            self.consume(event)
            stream = self._streams[event]
        consumed = stream

        def late() -> str:
            who = f" of {sender}" if sender else ""
            there = ", ".join([self.peer, *(peer.name for peer in self.peers())])
            return f"no item of {event!r}{who} came within {timeout:g} s; in the run are {there}"

        while True:
            item = self._gate.until(
                lambda: consumed.next(sender), timeout, late, what=f"an item of {event!r}", finishing=True
            )
            try:
                return self._taken(consumed, item, view)
            except (CodecError, Torn):
                # Nonsense, or the memory of a producer that is gone: it is off everybody's hands.
                self._acknowledge(consumed, item)
                with self._changed:
                    consumed.dropped += 1

    def _taken(self, stream: Stream, item: Waiting, view: bool) -> Taken:
        value = item.value
        if item.arrived is not None:
            assert self._values is not None
            if view:
                value, _ = self._values.view(item.arrived)
            else:
                value = self._values.load(item.arrived)
        with self._changed:
            stream.taken += 1
        taken = Taken(value, item.sender, time.monotonic() - item.since, item.number)
        if view:
            taken._done = lambda: self._acknowledge(stream, item)
        else:
            self._acknowledge(stream, item)
        return taken

    def _acknowledge(self, stream: Stream, item: Waiting) -> None:
        network = self._network
        if item.arrived is None:
            self.settled(stream.name, 1)
        elif network is not None:
            sender, name, number = item.sender_id, stream.name, item.number
            network.do(lambda: network.router.take(sender, name, [number]))

    def waiting(self, event: str) -> int:
        """How many items of a stream came here and were not taken, or were pushed here and not taken yet."""
        with self._changed:
            stream = self._streams.get(self._check(event))
            if stream is None:
                return 0
            return len(stream.came) if stream.consuming is not None else stream.outstanding

    # --- calls --------------------------------------------------------------------------------

    def serve(self, method: str, handler: Handler, *, thread: Where = "task") -> Handler:
        """Answer calls of `method`, named ``<receiver>_<method>``, with ``handler(*args, **kwargs)``.

        On the thread that runs the task, at boundaries and while it waits; with ``thread="service"`` on
        one thread of its own, which answers while the task works and whose handlers must guard what
        they share with it; with ``"inline"`` on the bus's own thread, which everything waits for.
        """
        self._services.add(self._check(method), handler, thread)
        self._announce()
        return handler

    def unserve(self, method: str) -> None:
        """Serve a method no more; raises `UnknownName` for one that is not."""
        if self._services.services.pop(method, None) is None:
            raise UnknownName(f"{method!r} is not served{did_you_mean(method, self._services.services)}")
        self._announce()

    def call(self, method: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any) -> Any:
        """Call a method that this process or another serves, and return what its handler returned.

        Where nobody serves it yet it waits for somebody who does.  Raises the handler's error as a
        `RemoteError` (also of its own type, if that is Python's), `NoSuchService`, `Overloaded`,
        `PeerLost` where the server died, and `DeadlineExceeded` after `timeout` seconds, which are the
        server's too: a call that nobody waits for is not begun.
        """
        self._check(method)
        check_timeout(timeout, "call")
        number = next(self._numbers)
        seconds = 3600.0 * 24 * 365 if timeout is None else timeout
        if method in self._services.services:
            return self._call_here(method, number, seconds, args, kwargs)
        network, values = self._network, self._values
        if network is None or values is None:
            hint = did_you_mean(method, self._services.services)
            raise NoSuchService(f"nobody serves {method!r}{hint}")
        body = values.snapshot((args, kwargs), shared=False)
        call = Call(number, method, int(seconds * 1000), body.size, body.skeleton)
        network.do(lambda: network.router.call(call, body.frames()))

        def reply() -> Arrived | Failure | None:
            return self._replies.pop(number, None)

        try:
            outcome = self._gate.until(
                reply,
                timeout,
                lambda: f"{method!r} was not answered within {timeout:g} s{self._expected(method)}",
                what=f"the answer to {method!r}",
            )
        except BaseException:
            network.do(lambda: network.router.cancel(number))
            with self._changed:
                self._replies.pop(number, None)
            raise
        assert isinstance(outcome, Arrived | Failure)
        if isinstance(outcome, Failure):
            raise error_of(outcome, method, "" if outcome.kind == "PeerLost" else self._server_of(method))
        return values.load(outcome)

    def _server_of(self, method: str) -> str:
        servers = self._network.router.servers.get(method, ()) if self._network is not None else ()
        return servers[0].partition(":")[0] if servers else ""

    def _call_here(
        self, method: str, number: int, seconds: float, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        outcome: list[tuple[Any, BaseException | None]] = []

        def finish(result: Any, error: BaseException | None) -> None:
            with self._changed:
                outcome.append((result, error))
                self._changed.notify_all()

        served = Served("", number, method, time.monotonic() + seconds, lambda: (args, kwargs), finish)
        here = self._gate.runner in (None, threading.get_ident())
        if here and self._services.services[method].where == "task":
            self._services.answer(served)
        elif self._services.accept(served):
            self._wake_task()
        result, error = self._gate.until(
            lambda: outcome[0] if outcome else None,
            seconds,
            lambda: f"{method!r} was not answered within {seconds:g} s",
            what=f"the answer to {method!r}",
            finishing=False,
        )
        if error is not None:
            raise error
        return result

    def _answer(self) -> bool:
        """Answer one call that waits for the task's thread."""
        try:
            call = self._services.for_task.popleft()
        except IndexError:
            return False
        self._services.answer(call)
        return True

    def _wake_task(self) -> None:
        with self._changed:
            self.pending = True
            if self._notify is not None:
                self._notify()
            self._changed.notify_all()

    # --- who is there -------------------------------------------------------------------------

    def peers(self) -> list[Peer]:
        """Return the other processes of the run that are there."""
        if self._network is None:
            return []
        return [_peer(member) for member in list(self._network.router.members.values())]

    def wait_for_peers(self, role: str, n: int = 1, *, timeout: float | None = 30.0) -> list[str]:
        """Wait until `n` processes of a role are there and ready; return their names.

        Raises `DeadlineExceeded` after `timeout` seconds, and says who is there.
        """
        check_timeout(timeout, "wait_for_peers")
        roles = self.roles
        if roles and role not in roles:
            raise UsageError(f"this run has no role {role!r}{did_you_mean(role, roles)}")

        def enough() -> list[str] | None:
            names = sorted(peer.name for peer in self.peers() if peer.role == role and peer.ready)
            return names if len(names) >= n else None

        def late() -> str:
            there = ", ".join(peer.name + ("" if peer.ready else " (not ready)") for peer in self.peers())
            return f"{n} of role {role!r} were expected within {timeout:g} s; there are {there or 'none'}"

        return self._gate.until(enough, timeout, late, what=f"{n} {role}", finishing=True)

    def report(self, **values: Any) -> None:
        """Say how this process is, in small plain values; the hub shows it to whoever looks."""
        if self._network is not None:
            network = self._network
            network.do(lambda: network.report(values))

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(what, peer, cause)`` when a peer "joined", "left" or was "lost".

        On the bus's own thread, which waits for it.
        """
        self._watchers.append(watcher)

    def tell_finish(self, reason: str) -> None:
        """Ask every task of the run, this one included, to finish; those that join later too."""
        network = self._network
        if network is None:
            self.finish_told(reason)
        else:
            network.do(lambda: network.finish(reason))

    def declare_lost(self, peer: str, cause: str) -> None:
        """Strike a peer off, by name: for the process that holds the run together, when it knows better."""
        network = self._network
        if network is None or network.hub_id != network.me.id:
            raise UsageError("only the process that hosts the run can declare a peer lost")
        network.do(lambda: network.declare_lost(peer, cause))

    def stats(self) -> dict[str, Any]:
        """Return counts: of each stream, of shared memory, of peers that were lost, of nonsense that came."""
        network = self._network
        with self._changed:
            streams: dict[str, dict[str, int]] = {
                name: {
                    "outstanding": stream.outstanding,
                    "waiting": len(stream.came),
                    "taken": stream.taken,
                    "dropped": stream.dropped,
                }
                for name, stream in self._streams.items()
            }
            stats: dict[str, Any] = {"streams": streams, "calls": len(self._services.for_task)}
        if network is not None and self._values is not None:
            for name, counts in network.router.counts().items():
                streams[name] |= {
                    "pushed": counts.pushed,
                    "acknowledged": counts.taken,
                    "dropped": streams[name]["dropped"] + counts.dropped,
                }
            stats |= {"lost": dict(network.lost), "dropped": network.dropped, "shared": self._values.stats()}
        return stats

    def close(self, reason: str = "it was closed", *, linger: float = 2.0) -> None:
        """Leave the run in order; nothing happens where the bus is alone, or was closed before."""
        self._services.close()
        network, values = self._network, self._values
        if network is not None:
            network.close(reason, linger)
        if values is not None:
            values.close()

    def _announce(self) -> None:
        """Tell the others, once for several changes, what this process listens to, serves and consumes."""
        network = self._network
        if network is None or not self._announced:
            return
        self._announced = False

        def announce() -> None:
            self._announced = True
            with self._changed:
                on = sorted({*self._subscriptions, *self._heard} - set(OWN))
                serves = sorted(self._services.services)
                consumes = {
                    name: stream.consuming
                    for name, stream in self._streams.items()
                    if stream.consuming is not None
                }
            me = network.me
            if (me.on, me.serves, me.consumes, me.ready) != (on, serves, consumes, self._ready):
                network.change(on=on, serves=serves, consumes=consumes, ready=self._ready)

        network.do(announce)

    # --- what the network brings, on its thread -------------------------------------------------

    def connect(self, network: Network, values: Values) -> None:
        """Speak by way of a network from now on."""
        self._network, self._values = network, values
        self.role, self.peer = network.me.role, network.me.name

    def event(self, sender: Member, event: Event) -> None:
        """An event came."""
        with self._changed:
            if event.name not in self._subscriptions and event.name not in self._heard:
                return  # it was on its way when the last listener went
            if self._pending_of.get(sender.id, 0) >= MOST_PENDING:
                self._missed[sender.id] = self._missed.get(sender.id, 0) + 1
                return
            self._pending_of[sender.id] = self._pending_of.get(sender.id, 0) + 1
            self._number += 1
            arrived = Arrived(event.skeleton, len(event.arena), None, [event.arena] if event.arena else ())
            self._enqueue(
                _Event(event.name, self._number, (), {}, _anywhere(), sender.name, sender.id, arrived=arrived)
            )

    def missed(self, sender: Member, count: int) -> None:
        """A peer could not send so many events, as this process did not read."""
        with self._changed:
            self._own(MISSED, peer=sender.name, count=count)

    def state(self, sender: Member, name: str, version: int, value: Arrived) -> None:
        """A new version of a state came."""
        with self._changed:
            self._put_state(
                _Event(
                    name, 0, (), {}, _anywhere(), sender.name, sender.id, version, arrived=value, state=True
                )
            )

    def item(self, sender: Member, name: str, number: int, age: float, value: Arrived) -> None:
        """An item of a stream came."""
        with self._changed:
            try:
                stream = self._stream(name)
            except UsageError:
                return
            stream.came.append(Waiting(sender.name, sender.id, number, time.monotonic() - age, None, value))
            self._changed.notify_all()

    def settled(self, name: str, count: int) -> None:
        """Items that were pushed here were taken, or dropped."""
        with self._changed:
            self._streams[name].outstanding -= count
            self._changed.notify_all()

    def called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        """Somebody calls a method."""
        network, values = self._network, self._values
        assert network is not None
        assert values is not None
        router, caller, number = network.router, sender.id, call.number

        def load() -> tuple[tuple[Any, ...], dict[str, Any]]:
            match values.load(Arrived(call.skeleton, call.size, None, arena)):
                case (tuple() as args, dict() as kwargs):
                    return args, kwargs
                case _:
                    raise CodecError(f"the call of {call.method!r} has no arguments in it")

        def finish(result: Any, error: BaseException | None) -> None:
            if error is None:
                try:
                    body = values.snapshot(result, shared=False)
                except CodecError as unsendable:
                    error = unsendable
                else:
                    network.do(lambda: router.reply(caller, number, body.skeleton, body.size, body.frames()))
                    return
            failure = failure_of(number, error)
            network.do(lambda: router.fail(caller, failure))

        deadline = time.monotonic() + call.milliseconds / 1000
        if self._services.accept(Served(caller, number, call.method, deadline, load, finish)):
            self._wake_task()

    def cancelled(self, sender: Member, number: int) -> None:
        """Nobody waits for a call any more."""
        self._services.cancel(sender.id, number)

    def replied(self, number: int, outcome: Arrived | Failure) -> None:
        """A call of ours has ended."""
        with self._changed:
            self._replies[number] = outcome
            self._changed.notify_all()

    def joined(self, member: Member) -> None:
        """A peer is new."""
        self._watched("joined", member, "")

    def changed(self) -> None:
        """Who is there has changed."""
        self._gate.wake()

    def gone(self, member: Member, cause: str, left: bool) -> None:
        """A peer left, or was lost."""
        with self._changed:
            if left:
                self._own(LEFT, peer=member.name, role=member.role)
            else:
                self._own(LOST, peer=member.name, role=member.role, cause=cause)
        self._watched("left" if left else "lost", member, cause)

    def finish_told(self, reason: str) -> None:
        """The whole run is asked to finish."""
        if self.told_to_finish is not None:
            return
        self.told_to_finish = reason
        with self._changed:
            self._own(FINISH, reason)
        if self._finish is not None:
            self._finish(reason)
        self._gate.wake()

    def broken(self, error: BaseException) -> None:
        """The network is of no use any more: whoever waits, and the task at its next boundary, is told."""
        with self._changed:
            self._gate.broken = error
            self.pending = True
            if self._notify is not None:
                self._notify()
            self._changed.notify_all()

    def _own(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Emit an event of the bus's own, with the lock held."""
        self._number += 1
        self._enqueue(_Event(event, self._number, args, kwargs, _anywhere()))

    def _watched(self, what: str, member: Member, cause: str) -> None:
        for watcher in list(self._watchers):
            watcher(what, _peer(member), cause)


def host(
    transport: Transport,
    *,
    run: str,
    roles: Iterable[str] = (),
    role: str = "launcher",
    about: dict[str, Any] | None = None,
    shared: bool = True,
) -> Bus:
    """Begin a run on this transport and return its bus; others `join` at ``bus.address``.

    With `roles`, only those may join, and names begin with one of them, with `role`, or with ``task``.
    `shared` allows shared memory between processes of one host.
    """
    roles = {*roles, role} if roles else ()
    return _connected(transport, 0.0, shared, run=run, role=role, roles=roles, about=about)


def join(
    transport: Transport,
    *,
    at: str,
    run: str,
    role: str,
    peer: str | None = None,
    about: dict[str, Any] | None = None,
    timeout: float = 30.0,
    shared: bool = True,
) -> Bus:
    """Join the run at an address, as `peer` (like ``collector_1``; None: the hub gives a name).

    Raises `UsageError` where the hub refuses, with its reason, and `DeadlineExceeded` where nobody
    answers.
    """
    return _connected(transport, timeout, shared, run=run, role=role, name=peer or "", at=at, about=about)


def _connected(transport: Transport, timeout: float, shared: bool, **settings: Any) -> Bus:
    from engine.bus.network import Network

    bus = Bus()
    values = Values(shared=shared)
    try:
        network = Network(transport, bus, values.attachable, **settings)
        bus._network, bus._values = network, values
        network.start(timeout)
    except BaseException:
        values.close()
        raise
    bus.connect(network, values)
    return bus


_INSTEAD = {FINISH: "ask with bus.tell_finish(reason)"}


def _peer(member: Member) -> Peer:
    return Peer(
        member.name, member.role, member.address, dict(member.about), dict(member.report), member.ready
    )


def _no() -> bool:
    return False


def _anywhere() -> tuple[int, int]:
    return 0, 0


def _add_others(first: BaseException, errors: list[Exception]) -> None:
    for error in errors:
        if error is not first:
            first.add_note(f"another handler raised {type(error).__name__}: {error}")


__all__ = ["Bus", "Peer", "Taken", "check_event", "host", "join"]
