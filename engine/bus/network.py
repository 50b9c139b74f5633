"""One process's part in the network of a run: a thread that moves frames, and who is there.

The thread owns the transport, the links to peers, the router, and in one process of the run the hub.
Everybody else hands it work with `do` and gets what arrives through the `Receiver`.  Nothing here
decodes a value.

The links say who counts as lost.  A member that does is struck off by the hub, which tells everybody; a
member whose hub is lost is alone and says so.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engine.bus.gate import FOR_EVER
from engine.bus.hub import Admit, Hub
from engine.bus.lines import Lines
from engine.bus.link import HELLO, WELCOME, pack_blobs, pack_head, read_blobs
from engine.bus.links import HUB, Links
from engine.bus.message import (
    MOST_FACTS,
    SMALL_BYTES,
    VERSION,
    Call,
    Changed,
    Expected,
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
from engine.bus.transport import CONTROL, NOTHING_LISTENS, Arrival, Asked, Frame, Line, Transport
from engine.errors import CodecError, DeadlineExceeded, HubLost, PeerLost, UsageError

log = logging.getLogger(__name__)

MOST_HELLOS = 200
"""So many requests to join are looked at in a second; those beyond are dropped unread, and come again."""

MOST_COMMANDS = 20_000
"""So much may wait for the network's thread; whoever emits more waits until there is less."""

MOST_NEWCOMERS = 64
"""Processes that the hub connects to at a time before it lets them in; the rest are dropped and retried."""

REFUSED_TOLD_SECONDS, TOLD_SECONDS, TOLD_AGAIN_SECONDS = 0.3, 1.0, 10.0
"""When a process that is not let in says what is known: if nothing listens there, otherwise, and again."""

_HELLO_SECONDS = 0.1
_ROOM_SECONDS = 0.5  # between two looks whether there is room for more peers
_MOST_REMEMBERED = 256
_STALL_SECONDS = 1.0
_SWITCH_SECONDS = 0.0005


class Receiver(Inflow, Protocol):
    """What the network tells of beside what the router does; on the network's thread."""

    def joined(self, member: Member) -> None: ...

    def changed(self) -> None:
        """Who is there, or what they offer, has changed."""
        ...

    def kinds_changed(self) -> None:
        """What a process announces of the kinds of its events has changed, or it is gone."""
        ...

    def gone(self, member: Member, cause: str, left: bool) -> None: ...

    def finish_told(self, reason: str) -> None: ...

    def broken(self, error: BaseException) -> None:
        """The network is of no use any more."""
        ...


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
        admit: Admit | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport, self._receiver, self._clock = transport, receiver, clock
        if at is not None:
            transport.check(at)
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
            self.expected = dict(self.crew)
            self.hub_id: str | None = None if at is not None else incarnation
            self._hub = Hub(run, self.me, self.roles, crew, admit) if at is None else None
            self._links = Links(
                transport,
                address_of=self._address_of,
                accepted=self._message,
                greeted=self._greeting,
                patient=at is not None,
                clock=clock,
            )
            self.router = Router(
                self.me,
                send=self._links.push,
                answer=transport.answer,
                backlog=self._links.backlog,
                attach=attach,
                inflow=receiver,
            )
        except BaseException:
            transport.close(0)
            raise
        self.lines = Lines(self._line)
        self._commands: deque[Callable[[], None]] = deque()
        self._waking = False
        self._wakes: list[Callable[[], None]] = []
        self._reached, self._joined = threading.Event(), threading.Event()
        self._broken: BaseException | None = None
        self._hello_at = self._room_at = 0.0
        self._may_ask = True  # whether this process may ask to be let in
        self._newcomers: dict[str, Hello] = {}  # which the hub connects to
        self._turned_away: dict[str, str] = {}  # the latest, with the reason
        self._hellos, self._hellos_at = float(MOST_HELLOS), 0.0  # a bucket that fills as time goes by
        self._looked_at: float | None = None
        self._closing: tuple[float, str] | None = None
        self._left = self._let_go = self._over = self._lost_hub = self._finishing = False
        self._room = threading.Condition()
        self.dropped = 0
        """Frames and messages that made no sense."""
        self.lost: dict[str, str] = {}
        """Members that were lost, by name, with the cause."""
        self._thread = threading.Thread(target=self._run, name="engine-bus", daemon=True)

    # --- for other threads ----------------------------------------------------------------

    def start(self, timeout: float, prepare: Callable[[], object] | None = None) -> None:
        """Start, and with ``at`` wait until the hub has let us in.

        `prepare` is called once the hub is reached and before it is asked, and takes nothing of the
        `timeout`.  While the hub is not reached, the log says every ten seconds what is known of it.
        Raises `UsageError` if it refuses, and `DeadlineExceeded`, naming the address, if it does not answer.
        """
        if sys.getswitchinterval() > _SWITCH_SECONDS:
            # A thread that computes in Python lets this one in after half a millisecond instead of five.
            sys.setswitchinterval(_SWITCH_SECONDS)
        self._may_ask = prepare is None
        self._thread.start()
        if self._at is None:
            return
        until = self._wait(self._reached, timeout, self._clock() + timeout)
        if prepare is not None and self._broken is None:
            before = self._clock()
            prepare()
            self.do(self._ask_to_join)
            until += self._clock() - before
        self._wait(self._joined, timeout, until)
        if self._broken is not None:
            self.close("could not join", 0.0)
            raise self._broken

    def _wait(self, event: threading.Event, timeout: float, until: float) -> float:
        """Wait for a stage of joining, and say now and then what is known; return `until`."""
        began = self._clock()
        look_at, tell_at = began + REFUSED_TOLD_SECONDS, began + TOLD_SECONDS
        while not event.wait(max(0.0, min(look_at, until) - self._clock())):
            now = self._clock()
            left = until - now
            if left > 0 and now < tell_at and not self._links.standing(HUB).refused:
                look_at = tell_at
                continue
            if left <= 0:
                self.close("gave up joining", 0.0)
                raise DeadlineExceeded(f"no hub answered at {self._at} within {timeout:g} s: {self._known()}")
            how_long = f"for another {left:.0f} s" if left < FOR_EVER / 2 else "until it answers"
            log.warning("%s; it is tried %s", self._known(), how_long)
            look_at = tell_at = now + TOLD_AGAIN_SECONDS
        return until

    def _known(self) -> str:
        """Say what is known of a hub that has not let this process in."""
        standing = self._links.standing(HUB)
        if standing.up:
            return f"the hub at {self._at} is there and has not let this process in yet"
        if standing.refused:
            cause = "" if standing.cause == NOTHING_LISTENS else f": {standing.cause}"
            return f"nothing listens at {self._at}{cause}; the run is over, or has not started yet"
        far = "tcp://" in (self._at or "")
        cause = standing.cause or f"it is {'filtered, down' if far else 'busy, stopped'}, or not started yet"
        return f"no answer from {self._at} so far: {cause}"

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

    def id_of(self, name: str) -> str:
        """The id of the member of that name; raises `PeerLost` if there is none."""
        for member in list(self.router.members.values()):
            if member.name == name:
                return member.id
        cause = self.lost.get(name, "it is not in the run")
        raise PeerLost(f"{name} cannot be called: {cause}", peer=name, cause=cause)

    def name_of(self, id: str) -> str:
        """The name of a member; empty if it is none any more."""
        member = self.router.members.get(id)
        return "" if member is None else member.name

    # --- what others ask for, on the network's thread ---------------------------------------

    def change(self, **fields: Any) -> None:
        """Tell everybody what we offer or want now."""
        self.me = msgspec.structs.replace(self.me, **fields)
        self.router.me = self.me
        if self._hub is not None:
            self._tell(self._hub.changed(self.me.id, self.me))
        elif self.hub_id is not None:
            self._links.push(self.hub_id, CONTROL, [pack(Changed(self.me))])

    def report(self, values: dict[str, Any]) -> None:
        """Tell the hub how we are."""
        self.me.report.update(values)
        if self._hub is None and self.hub_id is not None:
            self._links.push(self.hub_id, CONTROL, [pack(Report(self.me.id, values))])

    def finish(self, reason: str) -> None:
        """Ask every task of the run to finish."""
        if self._hub is None:
            if self.hub_id is not None:
                self._links.push(self.hub_id, CONTROL, [pack(Finish(plain(reason)))])
        elif self._hub.finish is None:
            self._hub.finish = reason = plain(reason)
            self._tell(Finish(reason))
            self._finish_told(reason)

    def expect(self, numbers: Mapping[str, int]) -> None:
        """Tell everybody how many of each role are expected to be there; only the hub can."""
        assert self._hub is not None
        self._hub.expected = {**self._hub.expected, **numbers}
        self._tell(Expected(self._hub.expected))
        self._expected_told(self._hub.expected)

    def declare_lost(self, name: str, cause: str) -> None:
        """Strike off the member of that name, if it is there; only the hub can."""
        assert self._hub is not None
        member = self._hub.named(name)
        if member is not None and member.id != self.me.id:
            self._lose(member.id, plain(cause))

    # --- the thread -----------------------------------------------------------------------

    def _run(self) -> None:
        transport, links = self._transport, self._links
        try:
            if self._at is not None:
                links.open(HUB, self._at, self._clock())
            while True:
                wait = 0.0 if self._commands else max(0.0, links.look_at - self._clock())
                arrivals = transport.poll(wait)
                self._waking = False
                now = self._clock()
                self._pardon(now, wait)
                self.router.at(now)
                for arrival in arrivals:
                    self._arrived(arrival, now)
                if self._newcomers:
                    self._look_at_newcomers(now)
                self._obey()
                for id in self.router.behind:
                    self.router.catch_up(id)
                due = now >= links.look_at
                if due:
                    self._keep_up(now)
                over = self._closing is not None and self._closed(now)
                links.flush(now)
                if over:
                    return
                if due or now >= links.look_at:
                    links.settle(now)
                    if self._joining:
                        links.soon(self._hello_at)
                    if self._closing is not None:
                        links.soon(self._closing[0])
                if self._wakes:
                    for wake in self._wakes:
                        wake()
                    self._wakes.clear()
        except BaseException as error:
            self._receiver.broken(error)
            self._give_up(error)
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
        if before is not None and now - before >= wait + _STALL_SECONDS:
            self._links.pardon(now - before - wait)

    # --- what arrives ---------------------------------------------------------------------

    def _arrived(self, arrival: Arrival, now: float) -> None:
        try:
            if isinstance(arrival, Asked):
                self._asked(arrival)
            else:
                self._links.arrived(arrival, now)
        except CodecError as error:
            self._drop(arrival.peer, error)

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

    def _message(self, sender: str, blob: memoryview, arena: Sequence[Frame]) -> None:
        """Take a message that came by the lanes; one that makes no sense is dropped by itself."""
        try:
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
        except CodecError as error:
            self._drop(sender, error)

    def _line(self, id: str, number: int) -> Line | None:
        """Open a line to a member, from any thread; None if either end has too little room for more."""
        member = self.router.members.get(id)
        short = member is None or member.shortage or self.me.shortage
        return None if short else self._links.line(id, number)

    def _address_of(self, id: str) -> str | None:
        member = self.router.members.get(id)
        return None if member is None else member.address

    # --- joining --------------------------------------------------------------------------

    @property
    def _joining(self) -> bool:
        """Whether it is not known yet if the hub lets us in."""
        return self._at is not None and not self._joined.is_set()

    def _greeting(self, sender: str, kind: int, frame: Frame, now: float) -> None:
        if kind == HELLO and not self._has_time_for(frame, now):
            return
        (blob,) = read_blobs(frame, 1)
        message = unpack(blob)
        if kind == HELLO:
            if type(message) is Hello:
                self._hello(sender, message, now)
        elif kind == WELCOME and type(message) is Fenced and sender == self.hub_id:
            if self._left:
                self._let_go = True
            else:
                self._lose_hub(f"it had declared this process lost ({message.cause})")
        elif kind == WELCOME and self.hub_id is None and self._at is not None:
            if type(message) is Refused:
                what = f"the hub at {self._at} did not let {self.me.role} in: {message.reason}"
                self._give_up(UsageError(what))
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
        """Take a request to join: who is refused is told on its own connection, which costs nothing here.

        Who is not is let in once there is a connection to it, so that nothing that others send to
        a member is in vain from the start.
        """
        assert self._hub is not None
        if hello.member.id != sender or sender == self.me.id or self._closing is not None:
            return
        if sender in self._hub.members:
            self._links.greet(sender, _greeting_frame(self._hub.hello(hello)[0]))
        elif sender in self._newcomers or len(self._newcomers) >= MOST_NEWCOMERS:
            pass  # it asks again
        elif (refusal := self._hub.refusal(hello) or self._no_room()) is not None:
            self._turn_away(hello, refusal)
        else:
            self._newcomers[sender] = hello
            self._links.open(sender, hello.member.address, now)

    def _no_room(self) -> str | None:
        """Return why the run can take no more members; None if it can."""
        self._look_at_room()
        for member in (self.me, *self.router.members.values()):
            if member.shortage:
                return f"the run has no room for one more process: {member.name} has {member.shortage}"
        return None

    def _look_at_room(self) -> None:
        """Tell everybody when this process can have no more peers, and when it can again."""
        before = self.me.shortage
        shortage = self._transport.shortage(before=bool(before))
        if bool(shortage) != bool(before):
            if shortage:
                log.warning("%s takes on no more peers: it has %s", self.me.name or self.me.role, shortage)
            self.change(shortage=shortage)

    def _look_at_newcomers(self, now: float) -> None:
        """Let in those that are connected to, and turn away those that cannot be."""
        assert self._hub is not None
        for id, hello in list(self._newcomers.items()):
            cause = self._links.out_of_reach(id, now)
            if not self._links.is_up(id) and cause is None:
                continue
            del self._newcomers[id]
            answer, news = (None, None) if cause is not None else self._hub.hello(hello)
            if type(answer) is Welcome and news is not None:
                self._links.greet(id, _greeting_frame(answer))
                self._met(news.member)
                self._tell(news, but=id)
            else:
                self._links.drop(id)
                self._turn_away(hello, answer.reason if type(answer) is Refused else _far(hello, cause))

    def _turn_away(self, hello: Hello, reason: str) -> None:
        """Tell a process that it is not let in, and once the log."""
        member = hello.member
        if member.id not in self._turned_away:
            if len(self._turned_away) >= _MOST_REMEMBERED:
                del self._turned_away[next(iter(self._turned_away))]
            self._turned_away[member.id] = reason
            who, where = plain(member.name or member.role, 200), plain(member.about.get("host"), 200)
            log.warning("%s, from %s, was not let in: %s", who, where, reason)
        self._links.reply(member.id, _greeting_frame(Refused(plain(reason))))

    def _welcome(self, sender: str, welcome: Welcome) -> None:
        self.hub_id = sender
        self._links.rename(HUB, sender)
        self.roles, self.crew, self.expected = welcome.roles, welcome.crew, welcome.expected
        self.me = self.router.me = msgspec.structs.replace(self.me, name=welcome.name)
        for member in welcome.members:
            if member.id != self.me.id:
                self._met(member)
        if welcome.finish is not None:
            self._finish_told(welcome.finish)
        self._reached.set()
        self._joined.set()

    def _give_up(self, error: BaseException) -> None:
        """Have joining end with an error."""
        self._broken = error
        self._reached.set()
        self._joined.set()

    def _ask_to_join(self) -> None:
        self._may_ask = True
        self._links.soon(0.0)

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
            case Expected(numbers):
                self._expected_told(numbers)
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

    def _expected_told(self, numbers: Mapping[str, int]) -> None:
        self.expected = dict(numbers)
        self._receiver.changed()

    def _finish_told(self, reason: str) -> None:
        self._finishing = True
        self._receiver.finish_told(reason)

    def _met(self, member: Member) -> None:
        """A member is new, or offers or wants something else."""
        before = self.router.members.get(member.id)
        self.router.changed(member)
        self._room_at = 0.0  # it may have taken a connection, or soon will
        self._links.soon(0.0)
        if before is None:
            self._receiver.joined(member)
        self._receiver.changed()
        if before is None or (before.kinds, before.on) != (member.kinds, member.on):
            self._receiver.kinds_changed()

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
        member = self.router.members.get(id)
        if member is None:
            return
        if not left:
            self.lost[member.name] = cause
        if self._hub is not None:
            # It may be alive after all, and then has to know that it is out; one that left waits
            # to be let go.
            self._links.dismiss(id, _greeting_frame(Fenced(cause)))
        elif id == self.hub_id:
            # If it left in order, it waits to hear that everybody knows.
            self._links.retire(id)
        else:
            self._links.drop(id)
        self.lines.drop(id)
        self.router.removed(id, f"{member.name} {'left' if left else 'was lost'}: {cause}")
        self._receiver.gone(member, cause, left)
        self._receiver.changed()
        self._receiver.kinds_changed()

    def _tell(self, news: Any, but: str = "") -> None:
        """Tell all other members, as the hub."""
        if news is None:
            return
        blob = pack(news)
        for id in self.router.members:
            if id != but:
                self._links.push(id, CONTROL, [blob])

    # --- keeping up -----------------------------------------------------------------------

    def _keep_up(self, now: float) -> None:
        """Do what time asks for: greet, let the links probe, act on who is lost, tell who fell behind."""
        if self._joining:
            self._say_hello(now)
            self._judge_before_joining(now)
        elif now >= self._room_at:
            self._room_at = now + _ROOM_SECONDS
            self._look_at_room()
        self._links.keep_up(now)
        for id in list(self.router.members):
            if self._hub is not None or id == self.hub_id:
                self._judge(id, now)
        self.router.look_again()

    def _say_hello(self, now: float) -> None:
        if now >= self._hello_at:
            self._hello_at = now + _HELLO_SECONDS
            if self._links.is_up(HUB):
                self._reached.set()
            if self._may_ask:
                hello = Hello(self.run, VERSION, self.me)
                frame = pack_head(HELLO, 1, CONTROL, 0, (0, 0)) + pack_blobs([pack(hello)])
                self._links.say(HUB, frame)

    def _judge_before_joining(self, now: float) -> None:
        """A hub that was there and is gone is not waited for; one that is yet to come is."""
        standing = self._links.standing(HUB)
        cause = self._links.vanished(HUB, now)
        if standing.denied:
            self._give_up(UsageError(f"the hub at {self._at} was reached, but {standing.cause}"))
        elif cause is not None:
            what = f"the hub at {self._at} was lost before it let this process in: {cause}"
            self._give_up(HubLost(what, peer="the hub", cause=cause))

    def _judge(self, id: str, now: float) -> None:
        """Act on it where a member, or the hub, is lost."""
        cause = self._links.judge(id, now)
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

    # --- leaving --------------------------------------------------------------------------

    def _leave(self, reason: str, until: float) -> None:
        if self._closing is not None:
            return
        self._closing = until, reason
        self._links.soon(0.0)
        if self._hub is not None:
            self._tell(Gone(self.me.id, plain(reason), True))
            self._left = True

    def _closed(self, now: float) -> bool:
        """Whether everything that was sent has arrived, the farewell last; or it is time to go anyway."""
        assert self._closing is not None
        until, reason = self._closing
        if now >= until or self._let_go:
            return True
        if self._hub is None and not self._links.reachable(self.hub_id or ""):
            return True
        if not self._links.idle:
            return False
        # Somebody may take them whom this process has not heard of yet.
        if not self._left and not self._finishing and self.router.has_items_waiting:
            return False
        if not self._left:
            self._left = True
            if self.hub_id is not None:
                self._links.push(self.hub_id, CONTROL, [pack(Leaving(plain(reason)))])
            return False
        return True


def _far(hello: Hello, cause: str | None) -> str:
    """Say that the hub cannot connect to a newcomer, and what would help."""
    address = hello.member.address
    help = "; give an address of its machine that can be, engine worker --listen HOST[:PORT]"
    return f"it cannot be reached at {address}: {cause}{help if 'tcp://' in address else ''}"


def _greeting_frame(message: Welcome | Refused | Fenced) -> bytes:
    return pack_head(WELCOME, 1, CONTROL, 0, (0, 0)) + pack_blobs([pack(message)])


_FROM_HUB = (Changed, Gone, Finish, Expected)
_TO_HUB = (Changed, Report, Leaving, Finish)
