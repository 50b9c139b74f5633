"""The links to peers: two reliable lanes each, over a connection that may break.

`engine.bus.link` has the rules of one lane; here they meet the transport and the time.  No thread and no
membership: `Links` is told what the transport brought and what time it is, hands over every message that
was accepted, once and in order, and says of a peer why it counts as lost.  What follows from that is
for others to say.  Unknown senders are looked up; one that is no member any more is an *outsider*, which
is told so for a while, on its own connection.

How a loss is noticed: the transport says that a connection broke, or nothing answers.  A peer is lost
whose connection is refused, or does not come back, or that answers nothing for a while.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine.bus.lines import ANSWER_SECONDS
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
from engine.bus.transport import BULK, CONTROL, Down, Frame, Line, Received, Transport, Up
from engine.errors import CodecError

REFUSED_SECONDS, BROKEN_SECONDS, DEAF_SECONDS = 0.03, 1.5, 7.0
"""After these a peer is lost: nobody listens there; its connection does not come back; it answers nothing."""

HUB_SECONDS = 4.0
"""A hub whose connection broke is waited for so long, and so is anybody who was not reached yet."""

ACK_SECONDS, ACK_MESSAGES, ACK_BYTES = 0.005, 64, 4 << 20
"""An acknowledgement waits at most so for something to travel with."""

MOST_CONTROL_BYTES = 2 << 20
"""Of one frame of the control lane; a request to join has `SMALL_BYTES` at most."""

HUB = "the hub"
"""The key of the link to the hub, whose id is not known at first; the space tells it from any id."""

_MOST_OUTSIDERS, _OUTSIDE_SECONDS = 256, 60.0
_PING_SECONDS = 2.0
_AGAIN_SECONDS = 1.0  # between attempts at an address where nothing listened
_BLOCKED_SECONDS = 0.05  # the transport tells when there is room; this is for one that cannot
_LONGEST_WAIT = 0.25


class _Peer:
    """The link to one peer: lanes out, intakes in, and what is known of its health."""

    __slots__ = (
        "address",
        "again_at",
        "denied",
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
        "told",
        "up",
    )

    def __init__(self, key: str, address: str, now: float) -> None:
        self.key, self.address = key, address
        self.again_at = now + _AGAIN_SECONDS
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
        self.refused = self.denied = False
        self.told = False  # whether the transport said anything of why it is down
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


@dataclass(frozen=True, slots=True)
class _Outsider:
    """A process that is no member any more; with `key`, the link to it is kept as long as this is."""

    frame: bytes
    until: float
    key: str | None = None


class Standing(NamedTuple):
    """How it stands with a link; ``cause`` is empty while nothing is known but that it is not up."""

    up: bool
    cause: str = ""
    refused: bool = False
    denied: bool = False


class Links:
    """The links of one process, by the ids of its peers.

    `address_of` tells where a member is, and None of who is none; `accepted` takes (sender, message,
    frames that travelled with it), `greeted` a frame of those who join (sender, kind, frame, now).
    `patient` links wait `HUB_SECONDS` for a connection that broke, others `BROKEN_SECONDS`.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        address_of: Callable[[str], str | None],
        accepted: Callable[[str, memoryview, Sequence[Frame]], None],
        greeted: Callable[[str, int, Frame, float], None],
        patient: bool,
        clock: Callable[[], float],
    ) -> None:
        self._transport, self._clock = transport, clock
        self._address_of, self._accepted, self._greeted = address_of, accepted, greeted
        self._patient = patient
        self._peers: dict[str, _Peer] = {}
        self._ids: dict[str, str] = {}  # by the transport's key
        self._dirty: set[_Peer] = set()
        self._outsiders: dict[str, _Outsider] = {}
        self._blocked = False
        self.look_at = 0.0
        """When there is something to do for `keep_up` and `settle`; moved forward by what happens."""

    # --- who there is a link to -----------------------------------------------------------

    def open(self, id: str, address: str, now: float) -> None:
        """Begin a link; that to `HUB` takes what comes back on its own connection too."""
        self._peers[id] = _Peer(id, address, now)
        self._ids[id] = id
        self._transport.connect(id, address, answered=id == HUB)

    def _again(self, peer: _Peer, now: float) -> None:
        """Begin a connection anew that never came about: a transport may have let go of its end."""
        peer.again_at = now + _AGAIN_SECONDS
        self._transport.disconnect(peer.key)
        self._transport.connect(peer.key, peer.address, answered=peer.key == HUB)

    def rename(self, id: str, name: str) -> None:
        """It has become known which process is at the other end of a link."""
        peer = self._peers.pop(id)
        self._peers[name] = peer
        self._ids[peer.key] = name

    def greet(self, id: str, frame: bytes) -> None:
        """Tell a member that it is one, as often as its connection is new, until it is heard."""
        peer = self._peers[id]
        peer.greeting = frame
        if peer.up:
            self._transport.send(peer.key, CONTROL, [frame])

    def reply(self, id: str, frame: bytes) -> None:
        """Send a frame to a process without a link, on the connection that it made; it may be lost."""
        self._transport.reply(id, frame)

    def drop(self, id: str) -> None:
        """Let go of a link."""
        peer = self._forget(id)
        if peer is not None:
            self._transport.disconnect(peer.key)

    def dismiss(self, id: str, frame: bytes) -> None:
        """Let go of a link, and answer with a frame; for a while, also whatever still comes from there."""
        self.drop(id)
        self._outside(id, _Outsider(frame, self._clock() + _OUTSIDE_SECONDS))
        self._transport.reply(id, frame)

    def retire(self, id: str) -> None:
        """Expect nothing more of a peer, and for a while only acknowledge what came from it until now."""
        peer = self._forget(id)
        if peer is not None:
            frame = pack_head(ACK, 0, CONTROL, 0, peer.expected)
            self._outside(id, _Outsider(frame, self._clock() + _OUTSIDE_SECONDS, peer.key))
            self._transport.send(peer.key, CONTROL, [frame])

    def _forget(self, id: str) -> _Peer | None:
        peer = self._peers.pop(id, None)
        if peer is not None:
            self._dirty.discard(peer)
            self._ids.pop(peer.key, None)
        return peer

    def _outside(self, id: str, outsider: _Outsider) -> None:
        if len(self._outsiders) >= _MOST_OUTSIDERS:
            self._forget_outsider(next(iter(self._outsiders)))
        self._outsiders[id] = outsider

    def _forget_outsider(self, id: str) -> None:
        key = self._outsiders.pop(id).key
        if key is not None:
            self._transport.disconnect(key)

    def _tell_outsider(self, id: str) -> None:
        outsider = self._outsiders.get(id)
        if outsider is None:
            return
        if outsider.key is None:
            self._transport.reply(id, outsider.frame)
        else:
            self._transport.send(outsider.key, CONTROL, [outsider.frame])

    def _begin(self, id: str, now: float) -> _Peer | None:
        """Begin a link to a member, when it is first needed; None where he is none."""
        address = self._address_of(id)
        if address is not None:
            self.open(id, address, now)
        return self._peers.get(id)

    # --- frames out -----------------------------------------------------------------------

    def push(self, id: str, lane: int, frames: list[Frame]) -> None:
        """Put a message on a lane to a member; nothing happens where he is none."""
        peer = self._peers.get(id)
        if peer is None:
            peer = self._begin(id, self._clock())
            if peer is None:
                return
        peer.lanes[lane].push(frames)
        self._dirty.add(peer)

    def backlog(self, id: str) -> int:
        """How many bytes of small messages wait for a peer."""
        peer = self._peers.get(id)
        return peer.lanes[CONTROL].queued_bytes if peer is not None else 0

    def say(self, id: str, frame: bytes) -> None:
        """Send a frame past the lanes: it may be lost."""
        self._transport.send(self._peers[id].key, CONTROL, [frame])

    def line(self, id: str, number: int) -> Line | None:
        """Return a line of its own to a peer, see `Transport.line`; from any thread."""
        peer = self._peers.get(id)
        return None if peer is None else self._transport.line(peer.key, number, ANSWER_SECONDS)

    def flush(self, now: float) -> None:
        """Send what may go out."""
        if not self._dirty:
            return
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
            self.soon(now + FIRST_PROBE_SECONDS)
            if blocked:
                self.soon(now + _BLOCKED_SECONDS)
            else:
                self._dirty.discard(peer)

    # --- frames in ------------------------------------------------------------------------

    def arrived(self, arrival: Received | Up | Down, now: float) -> None:
        """Take what the transport brought; raises `CodecError` for what comes from no bus."""
        if type(arrival) is Received:
            self._received(arrival, now)
        elif type(arrival) is Up:
            self._up(arrival.peer, now)
        elif type(arrival) is Down:
            self._down(arrival, now)

    def _up(self, key: str, now: float) -> None:
        id = self._ids.get(key)
        peer = self._peers.get(id) if id is not None else None
        if peer is not None:
            peer.up, peer.refused = True, False
            for lane in peer.lanes:
                lane.connected(now)
            self._dirty.add(peer)
            self.look_at = now
            peer.met = True
            if peer.greeting is not None:
                self._transport.send(peer.key, CONTROL, [peer.greeting])

    def _down(self, down: Down, now: float) -> None:
        id = self._ids.get(down.peer)
        peer = self._peers.get(id) if id is not None else None
        if peer is not None:
            if peer.up:
                peer.down_at = now
            peer.up = False
            peer.refused, peer.denied = down.refused, down.denied
            peer.down_cause, peer.told = down.cause, True
            self.look_at = now
            for lane in peer.lanes:
                lane.broken()

    def _received(self, arrival: Received, now: float) -> None:
        frames = arrival.frames
        if not frames:
            raise CodecError("a message without frames")
        head = read_head(frames[0])
        if arrival.lane == CONTROL and (len(frames) != 1 or len(frames[0]) > MOST_CONTROL_BYTES):
            raise CodecError(f"{sum(map(len, frames))} bytes on the lane for what is small")
        if head.kind in (HELLO, WELCOME):
            self._greeted(self._ids.get(arrival.peer, arrival.peer), head.kind, frames[0], now)
            return
        peer = self._peers.get(arrival.peer)
        if peer is None:
            peer = self._begin(arrival.peer, now)
            if peer is None:
                self._tell_outsider(arrival.peer)
                return
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
            self.soon(now + ACK_SECONDS)
        if peer.owed >= ACK_MESSAGES or peer.owed_bytes >= ACK_BYTES:
            self.look_at = now
        if known is None:
            return
        for blob in blobs[known:] if known else blobs:
            self._accepted(arrival.peer, blob, frames[1:])

    # --- what time asks for ---------------------------------------------------------------

    def soon(self, at: float) -> None:
        """There will be something to do at that time."""
        if at < self.look_at:
            self.look_at = at

    def keep_up(self, now: float) -> None:
        """Probe where an answer is due, and let go of outsiders."""
        for peer in self._peers.values():
            if peer.refused and not peer.met and now >= peer.again_at:
                self._again(peer, now)
            for number, lane in enumerate(peer.lanes):
                epoch = lane.probe(now)
                if epoch is not None:
                    frame = pack_head(PROBE, 0, number, epoch, peer.expected)
                    self._transport.send(peer.key, number, [frame])
        for id, outsider in list(self._outsiders.items()):
            if now > outsider.until:
                self._forget_outsider(id)

    def settle(self, now: float) -> None:
        """Acknowledge what nothing else did that went out, and find out when to look again."""
        send = self._transport.send
        for peer in self._peers.values():
            if peer.owed_since is not None and (
                now >= peer.owed_since + ACK_SECONDS
                or peer.owed >= ACK_MESSAGES
                or peer.owed_bytes >= ACK_BYTES
            ):
                send(peer.key, CONTROL, [pack_head(ACK, 0, CONTROL, 0, peer.expected)])
                peer.owed, peer.owed_bytes, peer.owed_since = 0, 0, None
        self.look_at = self._next_look(now)

    def _next_look(self, now: float) -> float:
        """Until when there is nothing to do unless something happens."""
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
        return until

    def pardon(self, seconds: float) -> None:
        """Nobody looked at what came for so long: peers have as much more time to answer."""
        for peer in self._peers.values():
            peer.down_at += seconds
            for lane in peer.lanes:
                lane.pardon(seconds)

    # --- who is lost ----------------------------------------------------------------------

    def judge(self, id: str, now: float) -> str | None:
        """Return why a peer counts as lost, None where it does not; one that is silent is asked."""
        peer = self._peers.get(id)
        if peer is None:
            return None
        if not peer.up:
            if now < self._lost_at(peer):
                return None
            silent = "" if peer.refused else f", and nothing was heard of it for {now - peer.heard_at:.0f} s"
            return peer.down_cause + silent
        asked_at = peer.asked_at
        if asked_at is not None and now - asked_at > DEAF_SECONDS:
            return f"it has not answered for {DEAF_SECONDS:g} s"
        if now - peer.heard_at > _PING_SECONDS:
            peer.lanes[CONTROL].ask(now)
        return None

    def is_up(self, id: str) -> bool:
        """Whether a link is connected."""
        return id in self._peers and self._peers[id].up

    def standing(self, id: str) -> Standing:
        """Return how it stands with a link; from any thread."""
        peer = self._peers.get(id)
        if peer is None or peer.up or not peer.told:
            return Standing(peer is not None and peer.up)
        return Standing(False, peer.down_cause, peer.refused, peer.denied)

    def out_of_reach(self, id: str, now: float) -> str | None:
        """Return why no connection to a newcomer comes about; None if there is one, or may be soon."""
        peer = self._peers[id]
        if peer.up or not (peer.refused or now >= self._lost_at(peer)):
            return None
        return peer.down_cause

    def vanished(self, id: str, now: float) -> str | None:
        """Return why a peer that was there is lost, None where it is there, or is yet to come."""
        peer = self._peers[id]
        return peer.down_cause if peer.met and not peer.up and now >= self._lost_at(peer) else None

    def _lost_at(self, peer: _Peer) -> float:
        """When a peer that is down is lost, if nothing happens."""
        if not peer.met:
            return peer.down_at + HUB_SECONDS
        if peer.refused:
            return peer.down_at + REFUSED_SECONDS
        # Where its own connection to us still brings something, it is there.
        return max(peer.down_at, peer.heard_at) + (HUB_SECONDS if self._patient else BROKEN_SECONDS)

    def reachable(self, id: str) -> bool:
        """Whether there is a link to a peer, and nothing says that nobody listens there."""
        peer = self._peers.get(id)
        return peer is not None and not peer.refused

    @property
    def idle(self) -> bool:
        """Whether everything was acknowledged by all who can be reached."""
        # A connection that broke just now may come back; where nobody listens it will not.
        return all(lane.idle for peer in self._peers.values() if not peer.refused for lane in peer.lanes)
