"""What becomes of messages: events, states, streams and calls between the members of a run.

Pure: no socket, no thread, no clock of its own.  Links below are reliable and in order, so a kind
says only what is kept, and for whom:

- *event*: to everybody who listens; what somebody does not read in time is counted and told to him;
- *state*: the latest version; whoever listens is told of it, and pulls the value where it does not
  lie in shared memory, at most one pull at a time;
- *stream*: to one consumer each, see `engine.bus.outbox`;
- *call*: to one who serves; ends with a reply, a failure, or the loss of the peer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from engine.bus.message import (
    PEER_LOST,
    SMALL_BYTES,
    Call,
    Cancel,
    Event,
    Failure,
    Held,
    Item,
    Member,
    Message,
    Missed,
    Notice,
    Pull,
    Reply,
    Resend,
    State,
    Taken,
    pack,
)
from engine.bus.meter import Meter
from engine.bus.outbox import Counts, Outbox, OutgoingItem
from engine.bus.slots import Torn, Unattachable
from engine.bus.transport import BULK, CONTROL, Frame
from engine.bus.turns import Turns
from engine.errors import did_you_mean

MOST_BACKLOG_BYTES = 8 << 20
"""So much may wait for a peer that does not read; then events are counted instead of kept."""

UNSERVED_SECONDS = 1.0
"""A call of what a process of the right role does not serve is given up after this."""

MOST_CALLS = 64
"""So many calls of one caller may wait for one server."""

_MOST_HEARD = 16
_MOST_CAUSES = 256


class Body(Protocol):
    """A value that is ready to be sent."""

    skeleton: bytes
    size: int
    """Bytes of its arrays, 0 where the skeleton holds everything."""

    def offer(self) -> tuple[Any, ...] | None:
        """Where it lies in shared memory, if it does."""
        ...

    def frames(self) -> list[Frame]:
        """Its arrays as frames that do not change any more.

        Raises `Torn` for a version of a state that a newer one has overwritten.
        """
        ...

    def release(self) -> None:
        """Let go of its memory."""
        ...


@dataclass(slots=True, eq=False)  # frozen, it would take three times as long to make
class Arrived:
    """A value that came from a peer, not decoded yet."""

    skeleton: bytes
    size: int
    offer: tuple[Any, ...] | None = None
    arena: Sequence[Frame] = ()


class Inflow(Protocol):
    """Takes what arrives; called on the bus's own thread, so it only puts things where others find them."""

    def event(self, sender: Member, event: Event) -> None: ...

    def missed(self, sender: Member, count: int) -> None: ...

    def state(self, sender: Member, name: str, version: int, value: Arrived) -> None: ...

    def item(self, sender: Member, name: str, number: int, age: float, value: Arrived) -> None: ...

    def settled(self, name: str, count: int) -> None:
        """So many items of a stream are off this producer's hands."""
        ...

    def called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None: ...

    def cancelled(self, sender: Member, number: int) -> None: ...

    def replied(self, number: int, outcome: Arrived | Failure, server: str = "") -> None:
        """A call of ours has ended; `server` is the name of the process that answered it."""
        ...


@dataclass(eq=False, slots=True)
class _Published:
    version: int
    body: Body


@dataclass(eq=False, slots=True)
class _Asked:
    """A call of ours; ``server`` is None while no process serves it, ``only`` the one that may."""

    call: Call
    frames: list[Frame]
    since: float
    server: str | None = None
    only: str = ""


@dataclass(eq=False, slots=True)
class _Heard:
    """The latest call that came on a line.

    ``way`` is the line while nobody asked by the lanes; ``answer`` is kept until the next call, as the one
    that was sent may not have arrived.
    """

    number: int
    way: bytes | None
    answer: tuple[bytes, list[Frame]] | None = None


class Router:
    """Routes for one member, ``me``.

    `send` takes (peer id, lane, frames), `answer` (line, frame); `backlog` tells how many bytes wait for
    a peer, `attach` whether offered memory can be reached.
    """

    def __init__(
        self,
        me: Member,
        *,
        send: Callable[[str, int, list[Frame]], None],
        answer: Callable[[bytes, bytes], None],
        backlog: Callable[[str], int],
        attach: Callable[[tuple[Any, ...]], bool],
        inflow: Inflow,
    ) -> None:
        self.me = me
        self.members: dict[str, Member] = {}
        self._send, self._answer = send, answer
        self._backlog, self._attach, self._inflow = backlog, attach, inflow
        self.listeners: dict[str, tuple[str, ...]] = {}
        self.consumers: dict[str, dict[str, int]] = {}
        self.servers: dict[str, tuple[str, ...]] = {}
        self.turns = Turns(me.name)
        self._missed: dict[str, int] = {}
        self._behind: dict[str, set[str]] = {}
        self._published: dict[str, _Published] = {}
        self._owing: dict[str, set[str]] = {}  # by state: who pulled what was overwritten meanwhile
        self._newest: dict[tuple[str, str], int] = {}  # the version that we were told of last
        self._handed: dict[tuple[str, str], int] = {}  # the version that was handed over last
        self._pulling: set[tuple[str, str]] = set()
        self._unread: set[tuple[str, str]] = set()  # pulled and handed over, but not read yet
        self.outboxes: dict[str, Outbox] = {}
        self.meter: Meter | None = None
        """Where amounts are counted that items carry."""
        self._apart: set[str] = set()  # who cannot reach our shared memory
        self._asked: dict[int, _Asked] = {}
        self._serving: dict[str, set[int]] = {}
        self._heard: dict[str, dict[int, _Heard]] = {}  # by caller and line
        self._causes: dict[str, tuple[str, str]] = {}  # by id: the name of who is gone, and why

    # --- members --------------------------------------------------------------------------

    def changed(self, member: Member) -> None:
        """Somebody is new, or offers or wants something else."""
        before = self.members.get(member.id)
        self.members[member.id] = member
        self._index()
        known = before.on if before is not None else []
        for name in member.on:
            if name in self._published and name not in known:
                self._notify(member.id, name)
        for name in member.consumes:
            self._pump(name)
        self._find_servers()

    def removed(self, id: str, cause: str) -> None:
        """Somebody left or was lost: what was his falls to others, or fails."""
        member = self.members.pop(id, None)
        if member is None:
            return
        self._apart.discard(id)
        self._missed.pop(id, None)
        self._behind.pop(id, None)
        self._serving.pop(id, None)
        self._heard.pop(id, None)
        self._causes[id] = member.name, cause
        if len(self._causes) > _MOST_CAUSES:
            del self._causes[next(iter(self._causes))]
        for owed in self._owing.values():
            owed.discard(id)
        for key in [key for key in self._newest if key[0] == id]:
            self._newest.pop(key)
            self._handed.pop(key, None)
            self._pulling.discard(key)
            self._unread.discard(key)
        self._index()
        for name, outbox in self.outboxes.items():
            outbox.lost(id)
            self._pump(name)
        for number, asked in list(self._asked.items()):
            if asked.server == id or asked.only == id:
                del self._asked[number]
                self._inflow.replied(number, Failure(number, PEER_LOST, cause, member.name, False))
        self._find_servers()

    def _index(self) -> None:
        """Count anew who listens, consumes and serves; other threads read these, so they change whole."""
        listeners: dict[str, tuple[str, ...]] = {}
        consumers: dict[str, dict[str, int]] = {}
        servers: dict[str, tuple[str, ...]] = {}
        for id, member in self.members.items():
            for name in member.on:
                listeners[name] = (*listeners.get(name, ()), id)
            for name, capacity in member.consumes.items():
                consumers.setdefault(name, {})[id] = capacity
        # In the order of their names, so that turns are the same whoever joined first.
        for member in sorted(self.members.values(), key=lambda member: member.name):
            for name in member.serves:
                servers[name] = (*servers.get(name, ()), member.id)
        self.listeners, self.consumers, self.servers = listeners, consumers, servers

    # --- events ---------------------------------------------------------------------------

    def emit(self, name: str, blob: bytes) -> None:
        """Send a packed `Event` to everybody who listens."""
        for id in self.listeners.get(name, ()):
            if id in self._missed or self._backlog(id) + len(blob) > MOST_BACKLOG_BYTES:
                self._missed[id] = self._missed.get(id, 0) + 1
                self.catch_up(id)
            else:
                self._send(id, CONTROL, [blob])

    def catch_up(self, id: str) -> None:
        """Tell a peer that reads again what it missed."""
        if self._backlog(id) > MOST_BACKLOG_BYTES // 2:
            return
        count = self._missed.pop(id, 0)
        if count:
            self._send(id, CONTROL, [pack(Missed(count))])
        for name in self._behind.pop(id, ()):
            self._notify(id, name)

    @property
    def behind(self) -> list[str]:
        """Peers that have something to catch up with."""
        if not self._missed and not self._behind:
            return []
        return [*self._missed, *(id for id in self._behind if id not in self._missed)]

    # --- states ---------------------------------------------------------------------------

    def publish(self, name: str, version: int, body: Body) -> None:
        """Keep a new version of a state, and tell everybody who listens."""
        before = self._published.get(name)
        self._published[name] = _Published(version, body)
        if before is not None:
            before.body.release()
        for id in self.listeners.get(name, ()):
            self._notify(id, name)
        for id in self._owing.pop(name, ()):
            self._send_state(id, name)

    def _notify(self, id: str, name: str) -> None:
        if self._backlog(id) > MOST_BACKLOG_BYTES:
            self._behind.setdefault(id, set()).add(name)
            return
        state = self._published[name]
        body = state.body
        offer = body.offer()
        here = body.size == 0 and len(body.skeleton) <= SMALL_BYTES // 2
        skeleton = body.skeleton if here or (offer and len(body.skeleton) <= SMALL_BYTES // 2) else None
        notice = Notice(name, state.version, body.size, skeleton, offer if skeleton is not None else None)
        self._send(id, CONTROL, [pack(notice)])

    def _noticed(self, sender: Member, notice: Notice) -> None:
        key = sender.id, notice.name
        if self._newest.get(key, -1) >= notice.version:
            return
        self._newest[key] = notice.version
        if notice.skeleton is not None and (
            notice.size == 0 or (notice.offer is not None and self._attach(notice.offer))
        ):
            self._handed[key] = notice.version
            value = Arrived(notice.skeleton, notice.size, notice.offer if notice.size else None)
            self._inflow.state(sender, notice.name, notice.version, value)
        else:
            self._pull_newer(key)

    def _pull_newer(self, key: tuple[str, str]) -> None:
        """Pull a state where a newer version is known than the last, and that was read."""
        if key not in self._unread and self._newest.get(key, -1) > self._handed.get(key, -1):
            self._pull(key)

    def _pull(self, key: tuple[str, str]) -> None:
        if key not in self._pulling:
            self._pulling.add(key)
            self._send(key[0], CONTROL, [pack(Pull(key[1]))])

    def read(self, sender: str, name: str) -> None:
        """A value that was pulled was used, or made way: a newer one may be pulled now."""
        key = sender, name
        if key in self._unread:
            self._unread.discard(key)
            self._pull_newer(key)

    def pull(self, sender: str, name: str) -> None:
        """The offered value cannot be read any more: pull the latest."""
        key = sender, name
        if key in self._newest:
            self._handed.pop(key, None)
            self._pull(key)

    # --- streams --------------------------------------------------------------------------

    def stream(self, name: str, keep: int | None) -> Outbox:
        """Return the outbox of a stream."""
        outbox = self.outboxes.get(name)
        if outbox is None:

            def send(id: str, item: OutgoingItem) -> None:
                self._send_item(id, name, item)

            outbox = self.outboxes[name] = Outbox(send, keep, self.meter)
        return outbox

    def push(self, name: str, body: Body, now: float, keep: int | None, amount: int = 0) -> None:
        """Give an item to one consumer, now or when there is one with room."""
        self._now = now
        for dropped in self.stream(name, keep).push(body, now, amount):
            dropped.body.release()
            self._inflow.settled(name, 1)
        self._pump(name)

    _now = 0.0

    def at(self, now: float) -> None:
        """Say what time it is, from which the age of items is told."""
        self._now = now

    def _pump(self, name: str) -> None:
        if name in self.outboxes:
            self.outboxes[name].pump(self.consumers.get(name, {}))

    def _send_item(self, id: str, name: str, item: OutgoingItem) -> None:
        body: Body = item.body
        offer = None if item.inline or id in self._apart else body.offer()
        age = max(0.0, self._now - item.since)
        head = pack(Item(name, item.number, age, body.size, body.skeleton, offer))
        # Always on one lane, whatever its size, so that a consumer gets items in order.
        self._send(id, BULK, [head] if offer is not None or body.size == 0 else [head, *body.frames()])

    def resend(self, sender: str, name: str, number: int) -> bool:
        """Ask for the arrays of an offered item that cannot be reached any more; False if nobody is there."""
        if sender not in self.members:
            return False
        self._send(sender, CONTROL, [pack(Resend(name, number))])
        return True

    def take(self, sender: str, name: str, numbers: list[int]) -> None:
        """Tell the producer that items were taken."""
        if sender in self.members:
            self._send(sender, CONTROL, [pack(Taken(name, numbers))])

    def _taken(self, sender: Member, taken: Taken) -> None:
        outbox = self.outboxes.get(taken.name)
        if outbox is None:
            return
        settled = 0
        for number in taken.numbers:
            item = outbox.taken(sender.id, number)
            if item is not None:
                item.body.release()
                settled += 1
        if settled:
            self._inflow.settled(taken.name, settled)
            self._pump(taken.name)

    def _resend(self, sender: Member, name: str, number: int) -> None:
        item = self.outboxes[name].sent_to(sender.id, number) if name in self.outboxes else None
        if item is not None:
            item.inline = True
            self._send_item(sender.id, name, item)
            self._apart.add(sender.id)

    # --- calls ----------------------------------------------------------------------------

    def call(self, call: Call, frames: list[Frame], server: str = "", *, only: bool = False) -> None:
        """Call `server` if it serves the method, else another that does, unless it is to be that one only.

        Waits while none does and one still may.
        """
        if only and server not in self.members:
            self._lost(call.number, server)
            return
        asked = self._asked[call.number] = _Asked(call, frames, self._now, only=server if only else "")
        if server in self.servers.get(call.method, ()):
            self._ask(asked, server)
        else:
            self._find_server(asked)

    def _ask(self, asked: _Asked, server: str) -> None:
        asked.server = server
        self._send_sized(server, pack(asked.call), asked.frames)

    def _lost(self, number: int, server: str) -> None:
        """End a call whose server is gone."""
        name, cause = self._causes.get(server, (server, "it is gone"))
        self._inflow.replied(number, Failure(number, PEER_LOST, cause, name, False))

    def insist(self, call: Call, server: str) -> None:
        """Ask by the lanes what somebody was asked on a line, and did not answer soon."""
        if server in self.members:
            self._asked[call.number] = _Asked(call, [], self._now, server)
            self._send_sized(server, pack(call), [])
        else:  # another could answer, but this one may have done what was asked
            self._lost(call.number, server)

    def cancel(self, number: int, server: str = "") -> None:
        """Nobody waits for a call of ours any more, which `server` was asked on a line."""
        asked = self._asked.pop(number, None)
        server = (asked.server or "") if asked is not None else server
        if server in self.members:
            self._send(server, CONTROL, [pack(Cancel(number))])

    def reply(self, caller: str, number: int, skeleton: bytes, size: int, frames: list[Frame]) -> None:
        """Send what a served call returned."""
        self._over(caller, number)
        self._send_answer(caller, number, pack(Reply(number, size, skeleton)), frames)

    def fail(self, caller: str, failure: Failure) -> None:
        """Send why a served call did not return."""
        self._over(caller, failure.number)
        self._send_answer(caller, failure.number, pack(failure), [])

    def _send_answer(self, caller: str, number: int, head: bytes, frames: list[Frame]) -> None:
        for heard in self._heard.get(caller, {}).values():
            if heard.number == number and heard.way is not None:
                heard.answer = head, frames
                small = not frames and len(head) <= SMALL_BYTES
                self._answer(heard.way, head if small else pack(Held(number)))
                return
        self._send_sized(caller, head, frames)

    def _cancelled(self, sender: Member, number: int) -> None:
        self._over(sender.id, number)
        for heard in self._heard.get(sender.id, {}).values():
            if heard.number == number:
                heard.way = heard.answer = None  # it may be large
        self._inflow.cancelled(sender, number)

    def _over(self, caller: str, number: int) -> None:
        if caller in self._serving:
            self._serving[caller].discard(number)

    def _send_sized(self, id: str, head: bytes, frames: list[Frame]) -> None:
        if id in self.members:
            small = not frames and len(head) <= SMALL_BYTES
            self._send(id, CONTROL if small else BULK, [head, *frames])

    def look_again(self) -> None:
        """Look whether calls that nobody serves are to be given up."""
        if self._asked:
            self._find_servers()

    def _find_servers(self) -> None:
        for asked in list(self._asked.values()):
            if asked.server is None:
                self._find_server(asked)

    def _find_server(self, asked: _Asked) -> None:
        call = asked.call
        servers = self.servers.get(call.method, ())
        if asked.only:
            servers = (asked.only,) if asked.only in servers else ()
        if servers:
            self._ask(asked, self.turns.next(call.method, servers))
        elif self._now - asked.since > UNSERVED_SECONDS:
            message = self.unserved(call.method, asked.only)
            if message:
                del self._asked[call.number]
                self._inflow.replied(call.number, Failure(call.number, "NoSuchService", message, "", True))

    def unserved(self, method: str, only: str = "") -> str:
        """Return why nothing is to be expected of a method that nothing serves; empty if it may come.

        A process of the right role that is ready serves by now what it serves.
        """
        role = method.partition("_")[0]
        there = [
            member
            for member in (*list(self.members.values()), self.me)
            if member.ready and (member.id == only if only else member.role == role)
        ]
        if not there:
            return ""
        hint = did_you_mean(method, {name for member in there for name in member.serves})
        return f"{there[0].name} does not serve {method!r}{hint}"

    def asked(self, sender: Member, call: Call, line: bytes) -> None:
        """Take a call that came on a line, where calls come one after the other, unless they are old."""
        heard = self._heard.setdefault(sender.id, {})
        before = heard.get(call.line)
        if call.line and (before.number < call.number if before else len(heard) < _MOST_HEARD):
            heard[call.line] = _Heard(call.number, line)
            self._called(sender, call, ())

    def _insisted(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        """Take a call by the lanes; one that came on a line before is not made again, but answered here."""
        heard = self._heard.setdefault(sender.id, {}) if call.line else {}
        before = heard.get(call.line)
        if before is None or before.number < call.number:
            if call.line and (before is not None or len(heard) < _MOST_HEARD):
                heard[call.line] = _Heard(call.number, None)  # should it still come on the line
            self._called(sender, call, arena)
        elif before.number == call.number and before.way is not None:
            before.way = None
            if before.answer is not None:
                (head, frames), before.answer = before.answer, None
                self._send_sized(sender.id, head, frames)

    def _called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        serving = self._serving.setdefault(sender.id, set())
        if len(serving) >= MOST_CALLS:
            message = f"{MOST_CALLS} calls of {sender.name} wait at {self.me.name} already"
            failure = Failure(call.number, "Overloaded", message, "", True)
            self._send_answer(sender.id, call.number, pack(failure), [])
            return
        serving.add(call.number)
        self._inflow.called(sender, call, arena)

    def _replied(self, sender: Member, number: int, outcome: Arrived | Failure) -> None:
        asked = self._asked.get(number)
        if asked is not None and asked.server == sender.id:
            del self._asked[number]
            self._inflow.replied(number, outcome, sender.name)

    # --- what comes in --------------------------------------------------------------------

    def handle(self, sender: Member, message: Message, arena: Sequence[Frame]) -> None:
        """Take a message of a member; what makes no sense is left."""
        match message:
            case Event():
                self._inflow.event(sender, message)
            case Call():
                self._insisted(sender, message, arena)
            case Reply():
                value = Arrived(message.skeleton, message.size, None, arena)
                self._replied(sender, message.number, value)
            case Failure():
                self._replied(sender, message.number, message)
            case Cancel():
                self._cancelled(sender, message.number)
            case Notice():
                self._noticed(sender, message)
            case Pull():
                self._pulled(sender, message.name)
            case State():
                self._state(sender, message, arena)
            case Item():
                self._item(sender, message, arena)
            case Taken():
                self._taken(sender, message)
            case Resend():
                self._resend(sender, message.name, message.number)
            case Missed():
                self._inflow.missed(sender, message.count)
            case _:
                pass  # membership is the network's affair

    def _pulled(self, sender: Member, name: str) -> None:
        if name in self._published:
            self._send_state(sender.id, name)

    def _send_state(self, id: str, name: str) -> None:
        state = self._published[name]
        body = state.body
        try:
            frames = body.frames() if body.size else []
        except (Torn, Unattachable):
            # What has overwritten it is published in a moment, and sent instead.
            self._owing.setdefault(name, set()).add(id)
            return
        self._send(id, BULK, [pack(State(name, state.version, body.size, body.skeleton)), *frames])

    def _state(self, sender: Member, message: State, arena: Sequence[Frame]) -> None:
        key = sender.id, message.name
        if key not in self._pulling:
            return
        self._pulling.discard(key)
        if message.version > self._handed.get(key, -1):
            self._handed[key] = message.version
            self._newest[key] = max(message.version, self._newest.get(key, -1))
            self._unread.add(key)
            value = Arrived(message.skeleton, message.size, None, arena)
            self._inflow.state(sender, message.name, message.version, value)
        self._pull_newer(key)

    def _item(self, sender: Member, item: Item, arena: Sequence[Frame]) -> None:
        if item.name not in self.me.consumes:
            return
        if item.offer is not None and not self._attach(item.offer):
            self._send(sender.id, CONTROL, [pack(Resend(item.name, item.number))])
            return
        value = Arrived(item.skeleton, item.size, item.offer, arena)
        self._inflow.item(sender, item.name, item.number, item.age, value)

    # --- looking --------------------------------------------------------------------------

    def counts(self) -> dict[str, Counts]:
        """What became of the items of every stream of ours."""
        return {name: outbox.counts for name, outbox in list(self.outboxes.items())}

    @property
    def has_items_waiting(self) -> bool:
        """Whether an item waits for a consumer, or for room at one."""
        return any(outbox.waiting for outbox in self.outboxes.values())
