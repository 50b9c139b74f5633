"""One process's part in the network of a run: a thread that moves frames, and who is there.

The thread owns the transport, a pair of reliable lanes to each peer, the router, and in one
process of the run the hub.  Everybody else hands it work with `do` and gets what arrives through the
`Receiver`.  Nothing here decodes a value.

How a loss is noticed: the transport says that a connection broke, or nothing answers.  A member
whose connection is refused, or does not come back, or that answers nothing for a while is struck off by
the hub, which tells everybody; a member whose hub is lost is alone and says so.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from engine.bus.hub import Hub
from engine.bus.lines import ANSWER_SECONDS, Lines
from engine.bus.link import (
    ACK,
    DATA,
    FIRST_PROBE_SECONDS,
    HELLO,
    PROBE,
    PROBED,
    WELCOME,
    Head,
    Intake,
    Lane,
    pack_blobs,
    pack_head,
    read_blobs,
    read_head,
)
from engine.bus.message import (
    MOST_FACTS,
    SMALL_BYTES,
    VERSION,
    Call,
    Changed,
    Fenced,
    Finish,
    Gone,
    Hello,
    Leaving,
    Member,
    Refused,
    Report,
    Welcome,
    check_small,
    pack,
    plain,
    unpack,
)
from engine.bus.router import Inflow, Router
from engine.bus.transport import BULK, CONTROL, Asked, Down, Frame, Line, Received, Transport, Up
from engine.errors import CodecError, DeadlineExceeded, HubLost, UsageError

log = logging.getLogger(__name__)

REFUSED_SECONDS, BROKEN_SECONDS, DEAF_SECONDS = 0.03, 1.5, 7.0
"""After these a peer is lost: nobody listens there; its connection does not come back; it answers nothing."""

HUB_SECONDS = 4.0
"""A hub whose connection broke is waited for so long."""

ACK_SECONDS, ACK_MESSAGES, ACK_BYTES = 0.005, 64, 4 << 20
"""An acknowledgement waits at most so for something to travel with."""

MOST_HELLOS = 200
"""So many requests to join are looked at in a second; those beyond are dropped unread, and come again."""

MOST_CONTROL_BYTES = 2 << 20
"""Of one frame of the control lane; a request to join has `SMALL_BYTES` at most."""

MOST_COMMANDS = 20_000
"""So much may wait for the network's thread; whoever emits more waits until there is less."""

_MOST_OUTSIDERS, _OUTSIDE_SECONDS = 64, 60.0
_HELLO_SECONDS = 0.1
_PING_SECONDS = 2.0
_BLOCKED_SECONDS = 0.05  # the transport tells when there is room; this is for one that cannot
_LONGEST_WAIT = 0.25
_STALL_SECONDS = 1.0
_SWITCH_SECONDS = 0.0005


class Receiver(Inflow, Protocol):
    """What the network tells of beside what the router does; on the network's thread."""

    def joined(self, member: Member) -> None: ...

    def changed(self) -> None:
        """Who is there, or what they offer, has changed."""
        ...

    def gone(self, member: Member, cause: str, left: bool) -> None: ...

    def finish_told(self, reason: str) -> None: ...

    def broken(self, error: BaseException) -> None:
        """The network is of no use any more."""
        ...


class _Peer:
    """The link to one peer: lanes out, intakes in, and what is known of its health."""

    __slots__ = (
        "down_at",
        "down_cause",
        "greeting",
        "heard_at",
        "intakes",
        "key",
        "lanes",
        "met",
        "owed",
        "owed_bytes",
        "owed_since",
        "refused",
        "up",
    )

    def __init__(self, key: str, now: float) -> None:
        self.key = key
        self.lanes = (
            Lane(window=4096, window_bytes=8 << 20),
            Lane(window=64, window_bytes=64 << 20),
        )
        self.intakes = (Intake(), Intake())
        self.up = False
        self.met = False  # whether it was ever up
        self.greeting: bytes | None = None  # what a newcomer may not have heard yet
        self.down_at = now
        self.down_cause = "it could not be reached"
        self.refused = False
        self.heard_at = now
        self.owed = 0
        self.owed_bytes = 0
        self.owed_since: float | None = None

    @property
    def expected(self) -> tuple[int, int]:
        return self.intakes[CONTROL].expected, self.intakes[BULK].expected

    @property
    def asked_at(self) -> float | None:
        asked = [lane.asked_at for lane in self.lanes if lane.asked_at is not None]
        return min(asked) if asked else None

    @property
    def queued_bytes(self) -> int:
        return self.lanes[CONTROL].queued_bytes


@dataclass(frozen=True, slots=True)
class _Outsider:
    """Somebody who is no member: refused, or lost and alive after all."""

    key: str
    frame: bytes
    until: float


class Network:
    """The thread, and what may be asked of it.

    With ``at``, an address, it joins the run there; without, it is the hub of a new one, which lets
    in `roles` (none given: any).
    """

    def __init__(
        self,
        transport: Transport,
        receiver: Receiver,
        attach: Callable[[tuple[Any, ...]], bool],
        *,
        run: str,
        role: str,
        name: str = "",
        at: str | None = None,
        roles: Iterable[str] = (),
        crew: Mapping[str, int] | None = None,
        about: dict[str, Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._receiver, self._clock = transport, receiver, clock
        self._at = at
        incarnation = f"{name or role}:{secrets.token_hex(4)}"
        self.address = transport.start(incarnation)
        try:
            facts = {"pid": os.getpid(), "host": socket.gethostname(), **(about or {})}
            check_small(facts, "about")
            if at is None and not name:
                name = f"{role}_0"
            self.me = Member(incarnation, name, role, self.address, facts)
            self.run = run
            self.roles: list[str] = sorted(roles)
            self.crew = dict(crew or {})
            self.hub_id: str | None = None if at is not None else incarnation
            self._hub = Hub(run, self.me, self.roles, crew) if at is None else None
            self.router = Router(
                self.me,
                send=self._push,
                answer=transport.answer,
                backlog=self._backlog,
                attach=attach,
                inflow=receiver,
            )
        except BaseException:
            transport.close(0)
            raise
        self.lines = Lines(self._line)
        self._peers: dict[str, _Peer] = {}
        self._ids: dict[str, str] = {}  # by the transport's key
        self._dirty: set[_Peer] = set()
        self._commands: deque[Callable[[], None]] = deque()
        self._waking = False
        self._wakes: list[Callable[[], None]] = []
        self._joined = threading.Event()
        self._refusal: str | None = None
        self._broken: BaseException | None = None
        self._hello_at = 0.0
        self._hellos, self._hellos_at = float(MOST_HELLOS), 0.0  # a bucket that fills as time goes by
        self._looked_at: float | None = None
        self._outsiders: dict[str, _Outsider] = {}
        self._blocked = False
        self._look_at = 0.0  # when `_keep_up` has something to do; moved forward by what happens
        self._closing: tuple[float, str] | None = None
        self._left = self._let_go = self._over = self._lost_hub = self._finishing = False
        self._room = threading.Condition()
        self.dropped = 0
        """Frames and messages that made no sense."""
        self.lost: dict[str, str] = {}
        """Members that were lost, by name, with the cause."""
        self._thread = threading.Thread(target=self._run, name="engine-bus", daemon=True)

    # --- for other threads ----------------------------------------------------------------

    def start(self, timeout: float) -> None:
        """Start, and with ``at`` wait until the hub has let us in.

        Raises `UsageError` where it refuses, and `DeadlineExceeded`, naming the address, where it
        does not answer.
        """
        if sys.getswitchinterval() > _SWITCH_SECONDS:
            # A thread that computes in Python lets this one in after half a millisecond instead of five.
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()
        if self._at is None:
            return
        if not self._joined.wait(timeout):
            self.close("gave up joining", 0.0)
            raise DeadlineExceeded(
                f"no hub answered at {self._at} within {timeout:g} s: is the run {self.run!r} still going?"
            )
        if self._refusal is not None:
            refusal = self._refusal
            self.close("refused", 0.0)
            raise UsageError(f"the hub at {self._at} did not let {self.me.role} in: {refusal}")
        if self._broken is not None:
            raise self._broken

    def do(self, command: Callable[[], None]) -> None:
        """Let the network's thread do something soon, in the order of the calls; not once it has ended."""
        if self._over:
            return
        self._commands.append(command)
        if not self._waking and threading.get_ident() != self._thread.ident:
            self._waking = True
            self._transport.wake()

    def now_or_soon(self, command: Callable[[], None]) -> None:
        """As `do`, but at once on the network's own thread, which has somebody waiting for it."""
        if threading.get_ident() == self._thread.ident:
            command()
        else:
            self.do(command)

    def at_last(self, wake: Callable[[], None]) -> None:
        """On the network's thread: wake somebody once this round's work is done.

        Who is woken in its midst would only wait for the interpreter, and be in the way.
        """
        self._wakes.append(wake)

    def _line(self, id: str, number: int) -> Line | None:
        peer = self._peers.get(id)
        return None if peer is None else self._transport.line(peer.key, number, ANSWER_SECONDS)

    def admit(self) -> None:
        """Wait a little where more was asked for than the thread gets done; not with a lock in hand."""
        if len(self._commands) > MOST_COMMANDS and threading.get_ident() != self._thread.ident:
            with self._room:
                self._room.wait_for(lambda: self._over or len(self._commands) <= MOST_COMMANDS // 2, 1.0)

    def close(self, reason: str, linger: float = 2.0) -> None:
        """Leave in order: what was sent is delivered first, for at most `linger` seconds; then stop."""
        if self._thread.ident is None:
            self._transport.close(0)
            return

        def leave() -> None:
            self._leave(reason, self._clock() + linger)

        self.do(leave)
        if threading.current_thread() is not self._thread:
            self._thread.join(linger + 5.0)

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def ident(self) -> int | None:
        """The thread's number."""
        return self._thread.ident

    def knows(self, name: str) -> bool:
        """Whether a member of that name is there."""
        return any(member.name == name for member in list(self.router.members.values()))

    def consumers_of(self, stream: str) -> list[str]:
        """The names of those who consume a stream."""
        members = self.router.members
        ids = self.router.consumers.get(stream, {})
        return sorted(members[id].name for id in list(ids) if id in members)

    def server_of(self, method: str) -> str:
        """The name of who serves a method; empty if nobody does."""
        ids = self.router.servers.get(method, ())
        member = self.router.members.get(ids[0]) if ids else None
        return member.name if member is not None else ""

    # --- what others ask for, on the network's thread ---------------------------------------

    def change(self, **fields: Any) -> None:
        """Tell everybody what we offer or want now."""
        self.me = msgspec.structs.replace(self.me, **fields)
        self.router.me = self.me
        if self._hub is not None:
            self._tell(self._hub.changed(self.me.id, self.me))
        elif self.hub_id is not None:
            self._push(self.hub_id, CONTROL, [pack(Changed(self.me))])

    def report(self, values: dict[str, Any]) -> None:
        """Tell the hub how we are."""
        self.me.report.update(values)
        if self._hub is None and self.hub_id is not None:
            self._push(self.hub_id, CONTROL, [pack(Report(self.me.id, values))])

    def finish(self, reason: str) -> None:
        """Ask every task of the run to finish."""
        if self._hub is None:
            if self.hub_id is not None:
                self._push(self.hub_id, CONTROL, [pack(Finish(plain(reason)))])
        elif self._hub.finish is None:
            self._hub.finish = reason = plain(reason)
            self._tell(Finish(reason))
            self._finish_told(reason)

    def declare_lost(self, name: str, cause: str) -> None:
        """Strike off the member of that name, if it is there; only the hub can."""
        assert self._hub is not None
        member = self._hub.named(name)
        if member is not None and member.id != self.me.id:
            self._lose(member.id, plain(cause))

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        transport = self._transport
        try:
            if self._at is not None:
                peer = _Peer("hub", self._clock())
                self._peers["hub"] = peer
                self._ids["hub"] = "hub"
                transport.connect("hub", self._at)
            while True:
                wait = 0.0 if self._commands else max(0.0, self._look_at - self._clock())
                arrivals = transport.poll(wait)
                self._waking = False
                now = self._clock()
                self._pardon(now, wait)
                self.router.at(now)
                for arrival in arrivals:
                    self._arrived(arrival, now)
                self._obey()
                for id in self.router.behind:
                    self.router.catch_up(id)
                due = now >= self._look_at
                if due:
                    self._keep_up(now)
                over = self._closing is not None and self._closed(now)
                if self._dirty:
                    self._flush(now)
                if over:
                    return
                if due or now >= self._look_at:
                    self._acknowledge(now)
                    self._look_at = self._next_look(now)
                if self._wakes:
                    for wake in self._wakes:
                        wake()
                    self._wakes.clear()
        except BaseException as error:
            self._broken = error
            self._receiver.broken(error)
            self._joined.set()
        finally:
            self._over = True
            self.lines.close()
            transport.close(0.2)
            for wake in self._wakes:
                wake()
            with self._room:
                self._commands.clear()
                self._room.notify_all()

    def _obey(self) -> None:
        """Do what other threads asked for until now; what they ask for meanwhile waits for the next round."""
        crowded = len(self._commands) > MOST_COMMANDS
        for _ in range(len(self._commands)):
            self._commands.popleft()()
        if crowded:
            with self._room:
                self._room.notify_all()

    def _pardon(self, now: float, wait: float) -> None:
        """Where this thread did not get to look for a while, give peers as much more time to answer."""
        before, self._looked_at = self._looked_at, now
        if before is None or now - before < wait + _STALL_SECONDS:
            return
        stalled = now - before - wait
        for peer in self._peers.values():
            peer.down_at += stalled
            for lane in peer.lanes:
                lane.pardon(stalled)

    def _soon(self, at: float) -> None:
        """There will be something for `_keep_up` to do at that time."""
        if at < self._look_at:
            self._look_at = at

    def _next_look(self, now: float) -> float:
        """Until when there is nothing for `_keep_up` to do unless something happens."""
        until = now + (_BLOCKED_SECONDS if self._blocked else _LONGEST_WAIT)
        for peer in self._peers.values():
            if not peer.up and now < (lost_at := self._lost_at(peer)) < until:
                until = lost_at
            if peer.owed_since is not None:
                until = min(until, peer.owed_since + ACK_SECONDS)
            for lane in peer.lanes:
                due = lane.due()
                if due is not None and due < until:
                    until = due
        if not self._joined.is_set() and self._at is not None:
            until = min(until, self._hello_at)
        if self._closing is not None:
            until = min(until, self._closing[0])
        return until

    def _arrived(self, arrival: Any, now: float) -> None:
        if type(arrival) is Received:
            try:
                self._received(arrival, now)
            except CodecError as error:
                self._drop(arrival.peer, error)
        elif type(arrival) is Asked:
            try:
                self._asked(arrival)
            except CodecError as error:
                self._drop(arrival.peer, error)
        elif type(arrival) is Up:
            id = self._ids.get(arrival.peer)
            peer = self._peers.get(id) if id is not None else None
            if peer is not None:
                peer.up, peer.refused = True, False
                for lane in peer.lanes:
                    lane.connected(now)
                self._dirty.add(peer)
                self._look_at = now
                peer.met = True
                if peer.greeting is not None:
                    self._transport.send(peer.key, CONTROL, [peer.greeting])
            elif arrival.peer in self._outsiders:
                self._transport.send(arrival.peer, CONTROL, [self._outsiders[arrival.peer].frame])
        elif type(arrival) is Down:
            id = self._ids.get(arrival.peer)
            peer = self._peers.get(id) if id is not None else None
            if peer is not None:
                if peer.up:
                    peer.down_at = now
                peer.up = False
                peer.refused = arrival.refused
                peer.down_cause = arrival.cause
                self._look_at = now
                for lane in peer.lanes:
                    lane.broken()

    def _asked(self, arrival: Asked) -> None:
        """Take a call that came on a line: members alone are answered."""
        member = self.router.members.get(arrival.peer)
        if member is None:
            return
        call = unpack(arrival.frame)
        if type(call) is not Call or call.size:
            raise CodecError("something on a line that is no small call")
        self.router.asked(member, call, arrival.line)

    def _drop(self, sender: str, error: CodecError) -> None:
        self.dropped += 1
        if self.dropped <= 3:
            log.warning("dropped a frame of %s: %s", sender[:80], error)

    # --- frames in ------------------------------------------------------------------------

    def _received(self, arrival: Received, now: float) -> None:
        frames = arrival.frames
        if not frames:
            raise CodecError("a message without frames")
        head = read_head(frames[0])
        if arrival.lane == CONTROL and (len(frames) != 1 or len(frames[0]) > MOST_CONTROL_BYTES):
            raise CodecError(f"{sum(map(len, frames))} bytes on the lane for what is small")
        if head.kind in (HELLO, WELCOME):
            self._greeting(arrival.peer, head, frames[0], now)
            return
        peer = self._peers.get(arrival.peer)
        if peer is None:
            member = self.router.members.get(arrival.peer)
            if member is None:
                outsider = self._outsiders.get(arrival.peer)
                if outsider is not None:
                    self._transport.send(outsider.key, CONTROL, [outsider.frame])
                return
            peer = self._link(member, now)
        peer.greeting = None
        peer.heard_at = now
        control, bulk = peer.lanes
        control.asked_at = bulk.asked_at = None  # it is there
        control.acknowledged(head.expected[CONTROL], now)
        bulk.acknowledged(head.expected[BULK], now)
        if head.kind == DATA:
            self._data(arrival, peer, head, now)
        elif head.kind == PROBE:
            answer = pack_head(PROBED, 0, head.lane, head.number, peer.expected)
            self._transport.send(peer.key, CONTROL, [answer])
        elif head.kind == PROBED:
            peer.lanes[head.lane].probed(head.number, head.expected[head.lane], now)
        if control.waiting or bulk.waiting:
            self._dirty.add(peer)

    def _data(self, arrival: Received, peer: _Peer, head: Head, now: float) -> None:
        if head.lane != arrival.lane:
            raise CodecError("a frame that came by another lane than it says")
        frames = arrival.frames
        # Before anything is accepted: what was cut short somewhere is sent again.
        blobs = read_blobs(frames[0], head.messages)
        known = peer.intakes[head.lane].accept(head.number, head.messages)
        peer.owed += max(1, head.messages)
        peer.owed_bytes += sum(map(len, frames)) if head.lane == BULK else len(frames[0])
        if peer.owed_since is None:
            peer.owed_since = now
            self._soon(now + ACK_SECONDS)
        if peer.owed >= ACK_MESSAGES or peer.owed_bytes >= ACK_BYTES:
            self._look_at = now
        if known is None:
            return
        for blob in blobs[known:] if known else blobs:
            try:
                self._message(arrival.peer, blob, frames[1:])
            except CodecError as error:
                self._drop(arrival.peer, error)

    def _message(self, sender: str, blob: memoryview, arena: Any) -> None:
        message = unpack(blob)
        kind = type(message)
        if sender == self.hub_id and self._hub is None and kind in _FROM_HUB:
            self._from_hub(message)
            return
        if self._hub is not None and kind in _TO_HUB:
            self._to_hub(sender, message)
            return
        member = self.router.members.get(sender)
        if member is not None:
            self.router.handle(member, message, arena)

    # --- joining --------------------------------------------------------------------------

    def _greeting(self, sender: str, head: Head, frame: Frame, now: float) -> None:
        if head.kind == HELLO and not self._has_time_for(frame, now):
            return
        (blob,) = read_blobs(frame, 1)
        message = unpack(blob)
        if head.kind == HELLO:
            if type(message) is Hello:
                self._hello(sender, message, now)
        elif head.kind == WELCOME and type(message) is Fenced and sender == self.hub_id:
            if self._left:
                self._let_go = True
            else:
                self._lose_hub(f"it had declared this process lost ({message.cause})")
        elif head.kind == WELCOME and self.hub_id is None and self._at is not None:
            if type(message) is Refused:
                self._refusal = message.reason
                self._joined.set()
            elif type(message) is Welcome and message.run == self.run:
                self._welcome(sender, message)

    def _has_time_for(self, frame: Frame, now: float) -> bool:
        """Whether a request to join is looked at: by the hub, if it is small, and not too many at once."""
        if self._hub is None or len(frame) > SMALL_BYTES:
            return False
        self._hellos = min(MOST_HELLOS, self._hellos + (now - self._hellos_at) * MOST_HELLOS)
        self._hellos_at = now
        if self._hellos < 1:
            return False
        self._hellos -= 1
        return True

    def _hello(self, sender: str, hello: Hello, now: float) -> None:
        assert self._hub is not None
        if hello.member.id != sender or sender == self.me.id or self._closing is not None:
            return
        answer, news = self._hub.hello(hello)
        if type(answer) is Refused:
            answer = Refused(plain(answer.reason))
        frame = _greeting_frame(answer)
        if type(answer) is Refused:
            if sender not in self._outsiders:
                self._transport.connect(sender, hello.member.address)
                self._outside(sender, sender, frame, now)
            self._transport.send(sender, CONTROL, [frame])
            return
        if news is not None:
            self._outsiders.pop(sender, None)
            self._link(news.member, now)
            self._met(news.member)
            self._tell(news, but=sender)
        peer = self._peers[sender]
        peer.greeting = frame
        if peer.up:
            self._transport.send(peer.key, CONTROL, [frame])

    def _outside(self, id: str, key: str, frame: bytes, now: float) -> None:
        """Keep a connection to somebody who is no member, to tell him why, for a while."""
        if len(self._outsiders) >= _MOST_OUTSIDERS:
            self._forget_outsider(next(iter(self._outsiders)))
        self._outsiders[id] = _Outsider(key, frame, now + _OUTSIDE_SECONDS)

    def _forget_outsider(self, id: str) -> None:
        self._transport.disconnect(self._outsiders.pop(id).key)

    def _welcome(self, sender: str, welcome: Welcome) -> None:
        self.hub_id = sender
        peer = self._peers.pop("hub")
        self._peers[sender] = peer
        self._ids["hub"] = sender
        self.roles, self.crew = welcome.roles, welcome.crew
        self.me = self.router.me = msgspec.structs.replace(self.me, name=welcome.name)
        for member in welcome.members:
            if member.id != self.me.id:
                self._met(member)
        if welcome.finish is not None:
            self._finish_told(welcome.finish)
        self._joined.set()

    # --- membership -----------------------------------------------------------------------

    def _from_hub(self, message: Any) -> None:
        """Take news that only the hub may bring."""
        match message:
            case Changed(member):
                if member.id != self.me.id:
                    self._met(member)
            case Gone(id, cause, left):
                if id == self.hub_id:
                    self._lose_hub(f"it left: {cause}")
                else:
                    self._part(id, cause, left)
            case Finish(reason):
                self._finish_told(reason)
            case _:
                pass

    def _to_hub(self, sender: str, message: Any) -> None:
        """Take what a member tells the hub about itself."""
        assert self._hub is not None
        match message:
            case Changed(member):
                news = self._hub.changed(sender, member)
                if news is not None:
                    self._met(news.member)
                    self._tell(news, but=sender)
            case Report(_, report):
                known = self.router.members.get(sender)
                if known is not None and len(known.report | report) <= MOST_FACTS:
                    known.report.update(report)
            case Leaving(reason):
                self._remove(sender, reason, left=True)
            case Finish(reason):
                self.finish(reason)
            case _:
                pass

    def _finish_told(self, reason: str) -> None:
        self._finishing = True
        self._receiver.finish_told(reason)

    def _met(self, member: Member) -> None:
        """A member is new, or offers or wants something else."""
        new = member.id not in self.router.members
        self.router.changed(member)
        if new:
            self._receiver.joined(member)
        self._receiver.changed()

    def _remove(self, id: str, cause: str, *, left: bool) -> None:
        """Strike a member off, and tell everybody."""
        assert self._hub is not None
        gone = self._hub.remove(id, cause, left=left)
        if gone is not None:
            self._tell(gone, but=id)
            self._part(id, cause, left)

    def _lose(self, id: str, cause: str) -> None:
        self._remove(id, cause, left=False)

    def _part(self, id: str, cause: str, left: bool) -> None:
        """A member is gone: let go of its link, and of what was between us."""
        peer = self._peers.pop(id, None)
        member = self.router.members.get(id)
        if member is None:
            return
        if not left:
            self.lost[member.name] = cause
        self.lines.drop(id)
        self.router.removed(id, f"{member.name} {'left' if left else 'was lost'}: {cause}")
        if peer is not None:
            self._dirty.discard(peer)
            self._ids.pop(peer.key, None)
            if self._hub is not None:
                # It may be alive after all, and then has to know that it is out; one that left waits
                # to be let go.
                self._outside(id, peer.key, _greeting_frame(Fenced(cause)), self._clock())
                if left:
                    self._transport.send(peer.key, CONTROL, [self._outsiders[id].frame])
            elif id == self.hub_id:
                # If it left in order, it waits to hear that everybody knows.
                heard = pack_head(ACK, 0, CONTROL, 0, peer.expected)
                self._outside(id, peer.key, heard, self._clock())
                self._transport.send(peer.key, CONTROL, [heard])
            else:
                self._transport.disconnect(peer.key)
        self._receiver.gone(member, cause, left)
        self._receiver.changed()

    def _tell(self, news: Any, but: str = "") -> None:
        """Tell all other members, as the hub."""
        if news is None:
            return
        blob = pack(news)
        for id in self.router.members:
            if id != but:
                self._push(id, CONTROL, [blob])

    # --- links ----------------------------------------------------------------------------

    def _link(self, member: Member, now: float) -> _Peer:
        """Return the link to a member, made when it is first needed."""
        peer = self._peers.get(member.id)
        if peer is None:
            peer = self._peers[member.id] = _Peer(member.id, now)
            self._ids[member.id] = member.id
            self._transport.connect(member.id, member.address)
        return peer

    def _push(self, id: str, lane: int, frames: list[Frame]) -> None:
        """Put a message on a lane to a member."""
        peer = self._peers.get(id)
        if peer is None:
            member = self.router.members.get(id)
            if member is None:
                return
            peer = self._link(member, self._clock())
        peer.lanes[lane].push(frames)
        self._dirty.add(peer)

    def _backlog(self, id: str) -> int:
        peer = self._peers.get(id)
        return peer.lanes[CONTROL].queued_bytes if peer is not None else 0

    # --- keeping up -----------------------------------------------------------------------

    def _keep_up(self, now: float) -> None:
        """Do what time asks for: greet, probe, judge who is lost, tell who fell behind."""
        if self._at is not None and not self._joined.is_set():
            self._say_hello(now)
            self._judge_before_joining(now)
        for id, peer in list(self._peers.items()):
            for number, lane in enumerate(peer.lanes):
                epoch = lane.probe(now)
                if epoch is not None:
                    frame = pack_head(PROBE, 0, number, epoch, peer.expected)
                    self._transport.send(peer.key, number, [frame])
            if self._hub is not None or id == self.hub_id:
                self._judge(id, peer, now)
        self.router.look_again()
        for id, outsider in list(self._outsiders.items()):
            if now > outsider.until:
                self._forget_outsider(id)

    def _say_hello(self, now: float) -> None:
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            hello = Hello(self.run, VERSION, self.me)
            frame = pack_head(HELLO, 1, CONTROL, 0, (0, 0)) + pack_blobs([pack(hello)])
            self._transport.send("hub", CONTROL, [frame])

    def _judge_before_joining(self, now: float) -> None:
        """A hub that was there and is gone is not waited for; one that is yet to come is."""
        hub = self._peers["hub"]
        if hub.met and not hub.up and now >= self._lost_at(hub):
            what = f"the hub at {self._at} was lost before it let this process in: {hub.down_cause}"
            self._broken = HubLost(what, peer="the hub", cause=hub.down_cause)
            self._joined.set()

    def _lost_at(self, peer: _Peer) -> float:
        """When a peer that is down is lost, if nothing happens."""
        if not peer.met:
            return peer.down_at + HUB_SECONDS
        if peer.refused:
            return peer.down_at + REFUSED_SECONDS
        # Where its own connection to us still brings something, it is there.
        return max(peer.down_at, peer.heard_at) + (BROKEN_SECONDS if self._hub else HUB_SECONDS)

    def _judge(self, id: str, peer: _Peer, now: float) -> None:
        """Decide whether a member, or the hub, is lost."""
        cause = None
        if not peer.up:
            if now >= self._lost_at(peer):
                cause = peer.down_cause
                if not peer.refused:
                    cause += f", and nothing was heard of it for {now - peer.heard_at:.0f} s"
        else:
            asked_at = peer.asked_at
            if asked_at is not None and now - asked_at > DEAF_SECONDS:
                cause = f"it has not answered for {DEAF_SECONDS:g} s"
            elif now - peer.heard_at > _PING_SECONDS:
                peer.lanes[CONTROL].ask(now)
        if cause is None:
            return
        if self._hub is not None:
            self._lose(id, cause)
        elif self._joined.is_set() and self._closing is None:
            self._lose_hub(cause)

    def _lose_hub(self, cause: str) -> None:
        if self._lost_hub:
            return
        self._lost_hub = True
        name = self.router.members[self.hub_id].name if self.hub_id in self.router.members else "the hub"
        for id in list(self.router.members):
            self._part(id, f"the run's hub was lost: {cause}", id != self.hub_id)
        error = HubLost(f"{name}, which holds the run together, was lost: {cause}", peer=name, cause=cause)
        self._receiver.broken(error)

    def _flush(self, now: float) -> None:
        """Send what may go out."""
        self._blocked = False
        send = self._transport.send
        for peer in list(self._dirty):
            if not peer.up:
                continue  # comes back with Up
            blocked = False
            for number, lane in enumerate(peer.lanes):
                while (sending := lane.next(now, pack=number == CONTROL)) is not None:
                    head = pack_head(DATA, sending.messages, number, sending.number, peer.expected)
                    frames: list[Frame]
                    if number == CONTROL:
                        frames = [pack_blobs(sending.frames, head)]  # type: ignore[arg-type]
                    else:
                        frames = [pack_blobs(sending.frames[:1], head), *sending.frames[1:]]  # type: ignore[arg-type]
                    if not send(peer.key, number, frames):
                        lane.not_taken(sending)
                        blocked = self._blocked = True
                        break
                    peer.owed, peer.owed_bytes, peer.owed_since = 0, 0, None
            self._soon(now + FIRST_PROBE_SECONDS)
            if blocked:
                self._soon(now + _BLOCKED_SECONDS)
            else:
                self._dirty.discard(peer)

    def _acknowledge(self, now: float) -> None:
        """Acknowledge what nothing else did that went out."""
        send = self._transport.send
        for peer in self._peers.values():
            if peer.owed_since is not None and (
                now >= peer.owed_since + ACK_SECONDS
                or peer.owed >= ACK_MESSAGES
                or peer.owed_bytes >= ACK_BYTES
            ):
                send(peer.key, CONTROL, [pack_head(ACK, 0, CONTROL, 0, peer.expected)])
                peer.owed, peer.owed_bytes, peer.owed_since = 0, 0, None

    # --- leaving --------------------------------------------------------------------------

    def _leave(self, reason: str, until: float) -> None:
        if self._closing is not None:
            return
        self._closing = until, reason
        self._look_at = 0.0
        if self._hub is not None:
            self._tell(Gone(self.me.id, plain(reason), True))
            self._left = True

    def _closed(self, now: float) -> bool:
        """Whether everything that was sent has arrived, the farewell last; or it is time to go anyway."""
        assert self._closing is not None
        until, reason = self._closing
        if now >= until or self._let_go:
            return True
        hub = self._peers.get(self.hub_id or "")
        if self._hub is None and (hub is None or hub.refused):
            return True
        # A connection that broke just now may come back; where nobody listens it will not.
        if any(not lane.idle for peer in self._peers.values() if not peer.refused for lane in peer.lanes):
            return False
        # Somebody may take them whom this process has not heard of yet.
        if not self._left and not self._finishing and self.router.has_items_waiting:
            return False
        if not self._left:
            self._left = True
            if self.hub_id is not None:
                self._push(self.hub_id, CONTROL, [pack(Leaving(plain(reason)))])
            return False
        return True


def _greeting_frame(message: Welcome | Refused | Fenced) -> bytes:
    return pack_head(WELCOME, 1, CONTROL, 0, (0, 0)) + pack_blobs([pack(message)])


_FROM_HUB = (Changed, Gone, Finish)
_TO_HUB = (Changed, Report, Leaving, Finish)
