"""The bus of one task: named events, states, streams and calls, within a process and between them.

`emit` never runs a handler itself.  Handlers run on the thread that called `run`, at the
next boundary between iterations, in the order in which events came and handlers were added.
Emitting is allowed from any thread.

Alone, a `Bus` joins the middleware and threads of one task.  One that `host` or `join` made speaks
with other processes too, by the same verbs.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from engine.bus.aside import HandlerThread, ServiceThread
from engine.bus.backlog import Line, NoLine
from engine.bus.calls import Calls
from engine.bus.gate import FOR_EVER, Gate, check_timeout
from engine.bus.hub import Admit
from engine.bus.inflow import Inflow, Outflow, Peer, Watcher
from engine.bus.kinds import MOST_ANNOUNCED, clashes
from engine.bus.mailbox import Handler, Letter, Mailbox, Subscription, add_others, raise_first
from engine.bus.message import SMALL_BYTES, Event, Member, check_small, pack
from engine.bus.meter import METER, Meter
from engine.bus.names import FINISH, LAUNCHER, OBSERVER, OWN, Kind, check_event
from engine.bus.services import Where
from engine.bus.streams import Streams, Taken, WhenFull
from engine.bus.transport import Transport
from engine.bus.values import Values
from engine.errors import EngineError, PayloadTooLarge, UnknownName, UsageError, did_you_mean

if TYPE_CHECKING:
    from engine.bus.network import Network

log = logging.getLogger(__name__)

__all__ = ["Bus", "Handler", "Peer", "Taken", "host", "join"]


class Bus:
    """Events of one task.

    ``pending`` says whether a boundary has anything to deliver; the run loop asks it and
    nothing else while no event is under way.  ``role`` and ``peer`` say who this process is in
    its run, like ``collector`` and ``collector_1``.
    """

    transient = True  # what is under way between two boundaries is no state of the run

    def __init__(self) -> None:
        self.role = self.peer = "main"
        self._gate = Gate()
        self._service = ServiceThread()
        self._mailbox = Mailbox(self._gate, self._service)
        self._streams = Streams(self._gate)
        self._calls = Calls(self._gate, self._mailbox.look, self._service)
        self._inflow = Inflow(self._gate, self._mailbox, self._streams, self._calls)
        self._gate.answer, self._gate.finishing = self._calls.answer, self._told
        self._checked: set[str] = set()  # names that are well formed
        self._kinds: dict[str, Kind] = {}  # as declared, or as a verb implies
        self._emitted: set[str] = set()  # once other processes may hear of it, whether declared or not
        self._logged: set[str] = set()  # clashes of kinds
        self._versions: dict[str, int] = {}
        self._counted: str | None = None
        self._network: Network | None = None
        self._values: Values | None = None
        self._announcing = False
        self._ready = False

    # --- a task's ---------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether a boundary has anything to deliver."""
        return self._mailbox.pending

    @property
    def told_to_finish(self) -> str | None:
        """Why the whole run is asked to finish; None while it is not."""
        return self._inflow.told_to_finish

    def attach(
        self,
        *,
        finishing: Callable[[], bool],
        notify: Callable[[], None],
        failed: Callable[[], bool] | None = None,
        line: Line | None = None,
        finish: Callable[[str], None] | None = None,
    ) -> None:
        """Belong to a task.

        Unbounded waits end when ``finishing()``, all waits when ``failed()``; ``notify()`` tells of
        new events, ``finish(reason)`` of the whole run's end.  `line` says where in time something
        is emitted or waited for.
        """
        self._gate.check_process()
        if self._mailbox.notify is not None:
            raise UsageError("this bus belongs to another open task; give each task its own")
        self._gate.finishing = lambda: self._told() or finishing()
        self._gate.failed = failed or _no
        self._mailbox.notify, self._mailbox.line = notify, line or NoLine()
        self._inflow.finish = finish
        self.ready()
        if self.pending:
            notify()

    def detach(self) -> None:
        """Belong to no task any more."""
        if self._gate.forked:
            return  # its locks may be held for ever by threads that are not here
        self._mailbox.detach()
        self._inflow.finish = None
        self._gate.finishing, self._gate.failed = self._told, _no

    def ready(self) -> None:
        """Tell the others that this process listens and serves: `wait_for_peers` waits for that.

        A task says so when it is opened.
        """
        self._gate.check_process()
        self._ready = True
        self._announce()

    def stations(self, names: Container[str]) -> None:
        """Say which stations the task has: what others have waited for is kept no longer."""
        self._mailbox.stations(names)

    def runs_on(self, thread: int | None) -> None:
        """Say which thread runs the task: while it waits it answers calls."""
        if not self._gate.forked:
            self._gate.runner = thread

    def wake(self) -> None:
        """Let waits look again, because the task began to finish."""
        self._gate.wake()

    def deliver(self) -> None:
        """Run the handlers of what came until now, and answer the calls that wait for this thread.

        Every event is delivered even when a handler fails; then the first error is raised with
        the others as notes.  What handlers emit waits for the next boundary.  Raises `HubLost` where
        the run was lost, unless it had been told to finish.
        """
        self._gate.check_process()
        errors: list[Exception] = []
        try:
            self._calls.answer_all()
            self._mailbox.deliver(errors)
        except BaseException as interrupt:
            add_others(interrupt, errors)
            raise
        for clash in self._gate.clashes.values():
            errors.insert(0, UsageError(clash))
        broken = self._gate.broken
        if self._calls.services.for_task or broken is not None:
            self._mailbox.look()
        if broken is not None and not self._told():
            errors.insert(0, broken if isinstance(broken, Exception) else EngineError(repr(broken)))
        raise_first(errors)

    # --- names and kinds --------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where others reach this process; empty where it is alone."""
        return self._network.address if self._network is not None else ""

    @property
    def roles(self) -> Sequence[str]:
        """The roles of the run; none where any is allowed."""
        return self._network.roles if self._network is not None else ()

    @property
    def crew(self) -> dict[str, int]:
        """How many processes of each role the run began with; empty where that was not said."""
        return dict(self._network.crew) if self._network is not None else {}

    def declare(
        self, event: str, kind: Kind = "event", *, capacity: int | None = None, when_full: WhenFull = "block"
    ) -> None:
        """Say once what kind of event `event` is, before it is emitted; both ends may say it.

        Raises `UsageError` if it is of another kind in another process; where that comes out later, the
        next verb that names the event does, a wait for it, and the next boundary.

        *event*: small, to every listener, in order.  *state*: the latest value counts, and
        reaches who comes late.  *stream*: each item goes to one consumer; at most `capacity` wait
        that nobody took, and `when_full` says what becomes of one more: it waits, the oldest that was not
        sent is dropped, or `Overloaded` is raised.
        """
        self._check(event)
        if kind not in ("event", "state", "stream"):
            raise UsageError(f"an event is of kind 'event', 'state' or 'stream', not {kind!r}")
        if kind != "stream" and (capacity is not None or when_full != "block"):
            raise UsageError(f"capacity and when_full belong to streams, and {event!r} is a {kind}")
        self._is(event, kind)
        if kind == "stream":
            self._streams.declare(event, capacity, when_full)

    def _check(self, event: str) -> str:
        self._gate.check_process()
        if event not in self._checked:
            check_event(event, self.roles)
            self._checked.add(event)
        return event

    def _is(self, event: str, kind: Kind) -> None:
        self._gate.check_process()
        known = self._kinds.get(event)
        if known is None:
            self._kinds[self._check(event)] = kind
            self._announce()
            if self._network is not None:  # at once, as here it is known where it is declared
                self._compare_kinds(msgspec.structs.replace(self._network.me, on=[], kinds={event: kind}))
        elif known != kind:
            raise UsageError(f"{event!r} was declared as {known!r}; it cannot be {kind!r} too")
        self._gate.check_event(event)

    # --- events and states --------------------------------------------------------------------

    def on(
        self, event: str, handler: Handler, *, view: bool = False, thread: HandlerThread = "task"
    ) -> Handler:
        """Call ``handler(*args, **kwargs)`` at the boundary after each `emit` of `event`; return it.

        Of a state, the latest value is handed over, also where it was emitted before.  With `view`,
        arrays of a state that comes from another process are looked at where they lie instead of being
        copied: read-only, and only until the handler returns.  Where they were overwritten
        meanwhile, the handler is called again with what is newer before anything else runs.

        With ``thread="service"`` it is called as soon as the event comes, on the thread of that name, while
        the task works: it must guard what it shares with the task.  What it raises ends the task at the
        next boundary, and is logged where none follows.
        """
        if thread not in ("task", "service"):
            raise UsageError(f"on takes thread='task' or 'service', not {thread!r}")
        return self._subscribe(Subscription(event, handler, once=False, view=view, thread=thread))

    def once(self, event: str, handler: Handler) -> Handler:
        """Like `on`, for the next occurrence only."""
        return self._subscribe(Subscription(event, handler, once=True))

    def off(self, event: str, handler: Handler | None = None) -> None:
        """Take back `on` or `once`; without a handler, all of them.  Raises `UnknownName` if none is on."""
        self._mailbox.unsubscribe(self._check(event), handler)
        self._announce()

    def _subscribe(self, one: Subscription) -> Handler:
        self._check(one.event)
        self._gate.check_event(one.event)
        if self._kinds.get(one.event) == "stream":
            raise UsageError(f"{one.event!r} is a stream: its items are taken with take(), one by one")
        self._mailbox.subscribe(one)
        self._announce()
        return one.handler

    def emit(self, event: str, *args: Any, **kwargs: Any) -> None:
        """Queue an event for the next boundary, here and in the processes that listen, and wake who waits.

        What the kind of `event` promises holds, see `declare`.  Raises `PayloadTooLarge` for an event of
        more than 64 KiB that other processes listen to, `CodecError` for what cannot be sent, and, as `push`
        does, `Finishing` once the bus was closed.
        """
        if self._gate.trouble:
            self._gate.check("an emit")
            self._gate.check_event(event)
        if event not in self._checked:
            self._check(event)
        kind = self._kinds.get(event)
        if kind == "stream":
            self.push(event, _single(event, kind, args, kwargs))
        elif kind == "state":
            self._publish(event, _single(event, kind, args, kwargs))
        elif event in OWN:
            ask = "; ask with bus.tell_finish(reason)" if event == FINISH else ""
            raise UsageError(f"{event!r} is emitted by the bus itself{ask}")
        else:
            network, mailbox = self._network, self._mailbox
            if network is not None:
                if event not in self._emitted:
                    self._emitted.add(event)
                    self._announce()
                if event in network.router.listeners:
                    blob = self._packed(event, args, kwargs)
                    network.do(lambda: network.router.emit(event, blob))
                    network.admit()
                if mailbox.notify is None and not mailbox.wanted(event):
                    return  # no task delivers here, and nobody listens: it would be kept for ever
            mailbox.post(Letter(event, args, kwargs, origin=mailbox.line.origin()))

    def _packed(self, event: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        assert self._values is not None
        skeleton, arena = self._values.flat_call(args, kwargs)
        size = len(skeleton) + len(arena)
        if size > SMALL_BYTES:
            raise PayloadTooLarge(
                f"event {event!r} has {size} bytes, where an event may have {SMALL_BYTES}: declare it with "
                "kind='state' (the latest counts) or kind='stream' (every item counts)"
            )
        return pack(Event(event, skeleton, arena))

    def _publish(self, event: str, value: Any) -> None:
        network, values = self._network, self._values
        body = None if values is None else values.snapshot(value, ring=event)
        with self._gate.changed:  # so that versions go out in their order
            version = self._versions[event] = self._versions.get(event, 0) + 1
            letter = Letter(event, (value,), version=version, state=True, origin=self._mailbox.line.origin())
            self._mailbox.post(letter)
            if network is not None and body is not None:
                snapshot = body
                network.do(lambda: network.router.publish(event, version, snapshot))

    def wait_for(self, event: str, *, timeout: float | None = 30.0) -> Any:
        """Return the oldest occurrence of `event` that no earlier wait of this station has returned.

        A station is a member of the task, with all that its group holds; outside of every station a thread
        counts as one, from its first wait on.  Events of handlers and of other threads and processes are
        seen as soon as they are there; overlapped, a wait never returns what an earlier station
        emitted in a later iteration, nor what a later station emitted in this slot.

        Returns its single argument, or the tuple of its arguments, or None where it had none;
        where it had keyword arguments only, the dict of them.
        Handlers get an event as well, before or after a wait returns it.  Raises `DeadlineExceeded`
        after `timeout` seconds; with ``timeout=None`` the wait has no bound and raises `Finishing` when
        the task is finishing.
        """
        self._check(event)
        timeout = check_timeout(timeout, "wait_for")
        if self._kinds.get(event) == "stream":
            raise UsageError(f"{event!r} is a stream: take() waits for its items")
        return self._mailbox.wait_for(event, timeout, lambda: self._expected(event), self._announce)

    # --- streams ------------------------------------------------------------------------------

    def push(self, event: str, value: Any, *, timeout: float | None = 30.0, amount: int = 0) -> None:
        """Give an item of a stream to one consumer, in this process or another.

        `amount` is what it counts on this process's `meter`, its env steps for example; one stream of a
        process can be counted so.

        Where as many items as were declared wait that nobody took, it waits for room.  Raises
        `DeadlineExceeded`, naming the expected processes, after `timeout` seconds, and `Finishing` when
        the task is finishing meanwhile.
        """
        self._is(event, "stream")
        timeout = check_timeout(timeout, "push")
        if amount:
            self._counted = self._counted or event
            if self._counted != event:
                raise UsageError(f"amounts are counted of {self._counted!r}; {event!r} is another stream")
        self._streams.push(event, value, timeout, self.peer, self._there, amount)
        if amount:
            self.meter.sent(amount)

    def consume(self, event: str, *, capacity: int | None = None) -> None:
        """Have items of a stream sent here, at most `capacity` of each producer that were not taken."""
        self._is(event, "stream")
        stream = self._streams.get(event)
        stream.consuming = capacity or stream.capacity
        self._announce()

    def take(
        self,
        event: str,
        *,
        sender: str | None = None,
        timeout: float | None = 30.0,
        view: bool = False,
        held: bool = False,
    ) -> Taken:
        """Take the oldest item of a stream (of one `sender`, if named), and acknowledge it.

        With `view` its arrays are read-only and stay where they lie until `Taken.release`, which
        acknowledges it; with `held`, `release` acknowledges it too, and the value is the caller's.
        Raises `DeadlineExceeded`, naming the expected processes, after `timeout` seconds, `PeerLost` if a
        named sender is not in the run and nothing of it waits, and `Finishing` when the task is
        finishing meanwhile.
        """
        self._is(event, "stream")
        timeout = check_timeout(timeout, "take")
        if self._streams.get(event).consuming is None:
            self.consume(event)
        return self._streams.take(event, sender, timeout, view, self._there, held)

    def waiting(self, event: str) -> int:
        """How many items of a stream came here and were not taken, or were pushed here and not taken yet."""
        return self._streams.waiting(self._check(event))

    # --- calls --------------------------------------------------------------------------------

    def serve(self, method: str, handler: Handler, *, thread: Where = "task") -> Handler:
        """Answer calls of `method`, named ``<receiver>_<method>``, with ``handler(*args, **kwargs)``.

        On the thread that runs the task, at boundaries and while it waits; with ``thread="service"`` on
        one thread of its own, which answers while the task works and whose handlers must guard what
        they share with it; with ``"inline"`` on the bus's own thread, which everything waits for.
        """
        self._calls.services.add(self._check(method), handler, thread)
        self._announce()
        return handler

    def unserve(self, method: str) -> None:
        """Serve a method no more; raises `UnknownName` for one that is not."""
        table = self._calls.services.table
        if table.pop(method, None) is None:
            raise UnknownName(f"{method!r} is not served{did_you_mean(method, table)}")
        self._announce()

    def call(
        self, method: str, *args: Any, timeout: float | None = 30.0, peer: str | None = None, **kwargs: Any
    ) -> Any:
        """Call a method that this process or another serves, and return what its handler returned.

        With `peer` it is called there, like ``collector_1``.  Otherwise this process answers if it serves the
        method itself, and others in turn, those with fewer calls of this process under way first.
        Waits until a process serves the method.  Raises the handler's error as a `RemoteError` (also of its
        own type, if that is Python's), `NoSuchService`, `Overloaded`, `PeerLost` if the server died or
        `peer` is not in the run, and `DeadlineExceeded` after `timeout` seconds, which are the server's
        too: a call that is not waited for any more is not begun.
        """
        self._check(method)
        timeout = check_timeout(timeout, "call")
        if peer is not None and not isinstance(peer, str):
            raise UsageError(f"call takes peer= the name of a process, like 'collector_1', not {peer!r}")
        return self._calls.call(method, args, kwargs, timeout, lambda: self._expected(method), peer)

    def call_all(
        self, method: str, *args: Any, timeout: float | None = 30.0, **kwargs: Any
    ) -> dict[str, Any]:
        """Call a method in every process that serves it, at once; return its result, or error, by peer.

        An error is the one that `call` would have raised: that of the handler, `PeerLost` of a server that
        died meanwhile, `DeadlineExceeded` of one that did not answer within `timeout` seconds.  Waits
        until at least one process serves the method, and raises what `call` does if none comes to.
        """
        self._check(method)
        timeout = check_timeout(timeout, "call_all")
        return self._calls.call_all(method, args, kwargs, timeout, lambda: self._expected(method))

    # --- who is there -------------------------------------------------------------------------

    def peers(self) -> list[Peer]:
        """Return the other processes of the run that are there."""
        self._gate.check_process()
        if self._network is None:
            return []
        return [Peer.of(member) for member in list(self._network.router.members.values())]

    def expect(self, role: str, n: int) -> None:
        """Say how many processes of a role the run has from now on: for the process that holds it together.

        At first they are as many as `host` was told by its `crew`.
        """
        network = self._network
        if network is None or network.hub_id != network.me.id:
            raise UsageError("only the process that hosts the run can say how many processes it expects")
        network.do(lambda: network.expect({role: n}))

    def wait_for_peers(self, role: str, n: int | None = 1, *, timeout: float | None = 30.0) -> list[str]:
        """Wait until `n` processes of a role are there and ready; return their names.

        With ``n=None``, until all are that the run expects, which may become fewer meanwhile; at least one.
        Raises `DeadlineExceeded` after `timeout` seconds, and says who is there.
        """
        timeout = check_timeout(timeout, "wait_for_peers")
        if self.roles and role not in self.roles:
            raise UsageError(f"this run has no role {role!r}{did_you_mean(role, self.roles)}")

        def number() -> int:
            if n is not None:
                return n
            return 1 if self._network is None else max(1, self._network.expected.get(role, 1))

        def enough() -> list[str] | None:
            names = sorted(peer.name for peer in self.peers() if peer.role == role and peer.ready)
            return names if len(names) >= number() else None

        def late() -> str:
            n = number()
            there = ", ".join(peer.name + ("" if peer.ready else " (not ready)") for peer in self._workers())
            return f"{n} of role {role!r} were expected within {timeout:g} s; there are {there or 'none'}"

        return self._gate.until(enough, timeout, late, what=f"{number()} {role}", finishing=True)

    def report(self, **values: Any) -> None:
        """Say how this process is, in small plain values; the hub shows it to whoever looks."""
        self._gate.check_process()
        check_small(values, "report")
        network = self._network
        if network is not None:
            network.do(lambda: network.report(values))

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(what, peer, cause)`` when a peer "joined", "left" or was "lost".

        On the bus's own thread, which waits for it.
        """
        self._gate.check_process()
        self._inflow.watchers.append(watcher)

    def tell_finish(self, reason: str) -> None:
        """Ask every task of the run, this one included, to finish; those that join later too."""
        self._gate.check_process()
        network = self._network
        if network is None:
            self._inflow.finish_told(reason)
        else:
            network.do(lambda: network.finish(reason))

    def declare_lost(self, peer: str, cause: str) -> None:
        """Strike a peer off, by name: for the process that holds the run together, when it knows better."""
        network = self._network
        if network is None or network.hub_id != network.me.id:
            raise UsageError("only the process that hosts the run can declare a peer lost")
        network.do(lambda: network.declare_lost(peer, cause))

    def stats(self) -> dict[str, Any]:
        """Return counts: of each stream, of shared memory, of lost peers, of nonsense that came, of lines."""
        stats: dict[str, Any] = {
            "streams": self._streams.stats(),
            "calls": len(self._calls.services.for_task),
        }
        if self._network is not None and self._values is not None:
            stats["lost"] = dict(self._network.lost)
            stats["dropped"] = self._network.dropped
            stats["lines"] = self._network.lines.count
            stats["shared"] = self._values.stats()
        return stats

    def close(self, reason: str = "it was closed", *, linger: float = 2.0) -> None:
        """Leave the run in order; nothing happens if the bus is alone, was closed before, or in a fork."""
        if self._gate.forked:
            return
        self._service.close()
        if self._network is not None:
            self._network.close(reason, linger)
            self._gate.close()
        if self._values is not None:
            self._values.close()
            self.meter.close()

    @functools.cached_property
    def meter(self) -> Meter:
        """What this process counts of what it makes, sends and takes."""
        return Meter()

    def _told(self) -> bool:
        return self._inflow.told_to_finish is not None

    def _workers(self) -> list[Peer]:
        """The other processes that do the run's work."""
        return [peer for peer in self.peers() if peer.role not in (LAUNCHER, OBSERVER)]

    def _there(self) -> str:
        me = [] if self.role in (LAUNCHER, OBSERVER) else [self.peer]
        return ", ".join([*me, *(peer.name for peer in self._workers())]) or "none"

    def _expected(self, event: str) -> str:
        """Say that nobody of the role is there who should have sent, or served, `event`."""
        if self._network is None:
            return ""
        role = event.partition("_")[0]
        if role in ("task", self.role) or any(peer.role == role for peer in self.peers()):
            return ""
        return f"; no {role} is in the run: there are {self._there()}"

    def _announce(self) -> None:
        """Tell the others, once for several changes, what this process listens to, serves and consumes."""
        network = self._network
        if network is None or self._announcing:
            return
        self._announcing = True

        def announce() -> None:
            self._announcing = False
            with self._gate.changed:
                offers = {
                    "on": sorted({*self._mailbox.subscriptions, *self._mailbox.heard} - set(OWN)),
                    "serves": sorted(self._calls.services.table),
                    "consumes": {
                        name: stream.consuming
                        for name, stream in self._streams.known.items()
                        if stream.consuming is not None
                    },
                    "ready": self._ready,
                }
                kinds = {**dict.fromkeys(sorted(self._emitted), "event"), **self._kinds}
                offers["kinds"] = dict(itertools.islice(kinds.items(), MOST_ANNOUNCED))
            if any(getattr(network.me, field) != value for field, value in offers.items()):
                network.change(**offers)
                self._compare_kinds()

        network.do(announce)

    def _compare_kinds(self, me: Member | None = None) -> None:
        """Find events that are of another kind in another process: all of this one, or those of `me`."""
        network = self._network
        if network is None:
            return
        found = clashes(me or network.me, list(network.router.members.values()))
        for text in {*found.raised.values(), *found.told.values()} - self._logged:
            self._logged.add(text)
            log.error("%s", text)
        new = found.raised.keys() - self._gate.clashes.keys()
        self._gate.clash(found.raised if me is None else {**self._gate.clashes, **found.raised})
        if new:
            self._mailbox.look()  # the next boundary raises it

    @classmethod
    def connected(
        cls,
        transport: Transport,
        timeout: float,
        shared: bool,
        prepare: Callable[[], object] | None = None,
        **settings: Any,
    ) -> Bus:
        """Return a bus that speaks by way of a transport; see `host` and `join`."""
        from engine.bus.network import Network

        bus = cls()
        values = Values(shared=shared)
        if settings.get("at") is not None:
            bus.meter = Meter(shared=True)
            if bus.meter.offer is not None:
                settings["about"] = {**(settings.get("about") or {}), METER: bus.meter.offer}
        try:
            network = Network(transport, bus._inflow, values.attachable, **settings)
            bus.meter.name(network.me.id)
            network.router.meter = bus.meter
            bus._values = bus._streams.values = bus._calls.values = values
            bus._streams.network = bus._calls.network = network
            bus._mailbox.opener = Outflow(network, values)
            try:
                network.start(timeout, prepare)
            except BaseException:
                network.close("could not join", 0.0)
                raise
        except BaseException:
            values.close()
            bus.meter.close()
            raise
        bus._network, bus._gate.network = network, network.ident
        bus._inflow.compare_kinds = bus._compare_kinds
        bus.role, bus.peer = network.me.role, network.me.name
        return bus


def host(
    transport: Transport,
    *,
    run: str,
    roles: Iterable[str] = (),
    crew: Mapping[str, int] | None = None,
    role: str = LAUNCHER,
    about: dict[str, Any] | None = None,
    admit: Admit | None = None,
    shared: bool = True,
) -> Bus:
    """Begin a run on this transport and return its bus; others `join` at ``bus.address``.

    With `roles`, only those may join, and names begin with one of them, with `role`, or with ``task``.
    `crew` tells everybody how many of each role the run begins with.
    ``admit(role, name, about)`` may refuse a process that wants to join, by returning why; its name is
    empty if the hub is to give one.  `shared` allows shared memory between processes of one host.
    """
    roles = {*roles, role} if roles else ()
    return Bus.connected(
        transport, 0.0, shared, run=run, role=role, roles=roles, crew=crew, about=about, admit=admit
    )


def join(
    transport: Transport,
    *,
    at: str,
    run: str,
    role: str,
    peer: str | None = None,
    about: dict[str, Any] | None = None,
    timeout: float | None = 30.0,
    shared: bool = True,
    prepare: Callable[[], object] | None = None,
) -> Bus:
    """Join the run at an address, as `peer` (like ``collector_1``; None: the hub gives a name).

    `prepare`, which may take long, is called once the hub is reached and before it lets this process in.
    A hub that does not answer yet is tried until `timeout`; the log says within two seconds what is known
    of it, and every ten seconds again.  Raises `UsageError` at once for an address that is none, for keys
    that the hub refuses, and if it refuses this process, with its reason; and `DeadlineExceeded` if
    it does not answer.
    """
    seconds = check_timeout(timeout, "join")
    if not isinstance(at, str):
        raise UsageError(f"join takes at= the address of the run, like 'tcp://10.0.0.7:41233', not {at!r}")
    return Bus.connected(
        transport,
        FOR_EVER if seconds is None else seconds,
        shared,
        prepare,
        run=run,
        role=role,
        name=peer or "",
        at=at,
        about=about,
    )


def _single(event: str, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise UsageError(f"{event!r} is a {kind}: emit it with its value alone, emit({event!r}, value)")
    return args[0]


def _no() -> bool:
    return False
