"""Transports within one process: what tests and single-process runs link peers by.

A `Network` keeps the promises and the bad habits of a real one: what is under way when a link breaks
is lost, nothing is taken while a link is down or full, and whoever is gone refuses.  Tests break it
with `Network.cut`, `Network.mend` and `Network.kill`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bus.transport import BULK, CONTROL, NOTHING_LISTENS, Arrival, Down, Frame, Received, Up
from engine.errors import UsageError

SCHEME = "memory://"

_LARGE = 64 * 1024  # frames from here on come as views, as they do from a real transport
_AT_ONCE = 256


class Network:
    """Links the transports that it makes; all of it may be used from any thread.

    At most ``capacity`` frames of one sender wait untaken in each lane of a peer, control first.
    """

    def __init__(self, *, capacity: tuple[int, int] = (1000, 16)) -> None:
        self.capacity = capacity
        self._lock = threading.Lock()
        self._made: list[MemoryTransport] = []
        self._cuts: list[tuple[str, str]] = []

    def transport(self) -> MemoryTransport:
        """Return one more transport; it has a name and an address once it is started."""
        with self._lock:
            made = MemoryTransport(self, f"{SCHEME}{len(self._made)}", self._lock)
            self._made.append(made)
        return made

    def cut(self, one: str, other: str) -> None:
        """Break every link between two peers, by name or whole id, both ways, until `mend`.

        What is under way between them is lost.
        """
        with self._lock:
            self._cuts.append((one, other))
            for here, there in self._pairs(one, other):
                there._forget_from(here.me)
                for peer, link in here._links.items():
                    if link.address == there.address and there._open:
                        link.up = False
                        here._arrive(Down(peer, "the link was cut"))

    def mend(self, one: str, other: str) -> None:
        """Undo `cut`."""
        with self._lock:
            self._cuts = [cut for cut in self._cuts if set(cut) != {one, other}]
            for here, there in self._pairs(one, other):
                for peer, link in here._links.items():
                    if link.address == there.address and not link.up:
                        self._establish(here, peer, link)

    def kill(self, peer: str) -> None:
        """Let a peer, by name or whole id, vanish without a word, as if its process was killed."""
        with self._lock:
            gone = [one for one in self._made if one._open and _is(one.me, peer)]
            if not gone:
                raise UsageError(f"no open transport is named {peer!r}")
            for one in gone:
                self._vanish(one, "the peer was killed")

    def _pairs(self, one: str, other: str) -> list[tuple[MemoryTransport, MemoryTransport]]:
        return [
            (here, there)
            for here in self._made
            for there in self._made
            if (_is(here.me, one) and _is(there.me, other)) or (_is(here.me, other) and _is(there.me, one))
        ]

    def _is_cut(self, here: MemoryTransport, there: MemoryTransport) -> bool:
        return any(
            (_is(here.me, one) and _is(there.me, other)) or (_is(here.me, other) and _is(there.me, one))
            for one, other in self._cuts
        )

    def _at(self, address: str) -> MemoryTransport | None:
        return next((one for one in self._made if one._open and one.address == address), None)

    def _establish(self, here: MemoryTransport, peer: str, link: _Link) -> None:
        there = self._at(link.address)
        if there is None:
            here._arrive(Down(peer, NOTHING_LISTENS, refused=True))
        elif self._is_cut(here, there):
            here._arrive(Down(peer, "the link is cut"))
        else:
            link.up = True
            here._arrive(Up(peer))

    def _vanish(self, gone: MemoryTransport, cause: str) -> None:
        gone._open = False
        gone._links.clear()
        gone._forget_all()
        gone._changed.notify_all()
        for one in self._made:
            for peer, link in one._links.items():
                if link.address == gone.address:
                    link.up = False
                    one._arrive(Down(peer, cause, refused=True))


class MemoryTransport:
    """One end in a `Network`; see `engine.bus.transport.Transport`."""

    def __init__(self, network: Network, address: str, lock: threading.Lock) -> None:
        self.me = ""
        self.address = address
        self._network = network
        self._changed = threading.Condition(lock)
        self._open = False
        self._woken = False
        self._links: dict[str, _Link] = {}
        self._arrivals: deque[Arrival] = deque()
        self._untaken: Counter[tuple[str, int]] = Counter()
        self._refused: set[MemoryTransport] = set()  # whose send was refused: woken once there is room

    def start(self, me: str) -> str:
        with self._changed:
            if self.me:
                raise UsageError(f"this transport was started before, as {self.me!r}")
            self.me, self._open = me, True
        return self.address

    def shortage(self, *, before: bool = False) -> str:
        """There is always room."""
        return ""

    def check(self, address: str) -> None:
        if not address.startswith(SCHEME):
            raise UsageError(f"{address!r} is no address of a peer; one looks like {SCHEME}0")

    def connect(self, peer: str, address: str, *, answered: bool = False) -> None:
        with self._changed:
            link = self._links.get(peer)
            if not self._open or (link is not None and link.address == address):
                return
            link = self._links[peer] = _Link(address, answered)
            self._network._establish(self, peer, link)

    def disconnect(self, peer: str) -> None:
        with self._changed:
            if self._links.pop(peer, None) is not None:
                self._arrivals = deque(
                    one for one in self._arrivals if isinstance(one, Received) or one.peer != peer
                )

    def send(self, peer: str, lane: int, frames: Sequence[Frame]) -> bool:
        if lane not in (CONTROL, BULK) or not frames:
            raise UsageError(f"frames are sent in lane {CONTROL} or {BULK}, at least one, not {lane!r}")
        with self._changed:
            link = self._links.get(peer)
            there = None if link is None or not link.up else self._network._at(link.address)
            if there is None:
                return False
            key = self.me, lane
            if there._untaken[key] >= self._network.capacity[lane]:
                there._refused.add(self)
                return False
            # Copied, as a wire does it: the sender may change its memory once the peer has acknowledged.
            there._untaken[key] += 1
            there._arrive(Received(self.me, lane, [_owned(frame) for frame in frames]))
        return True

    def poll(self, timeout: float) -> list[Arrival]:
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._arrivals and not self._woken:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(left)
            self._woken = False
            taken = [self._arrivals.popleft() for _ in range(min(len(self._arrivals), _AT_ONCE))]
            for one in taken:
                if isinstance(one, Received):
                    self._untaken[one.peer, one.lane] -= 1
            if self._refused and taken:
                for sender in self._refused:
                    sender._wake()
                self._refused.clear()
        return taken

    def wake(self) -> None:
        with self._changed:
            self._wake()

    def line(self, peer: str, number: int, seconds: float) -> None:
        """There are none: within a process the lanes are quick."""
        return

    def reply(self, peer: str, frame: bytes) -> None:
        with self._changed:
            for one in self._network._made if self._open else ():
                if one._open and one.me == peer:
                    for name, link in one._links.items():
                        if link.address == self.address and link.up and link.answered:
                            one._untaken[name, CONTROL] += 1
                            one._arrive(Received(name, CONTROL, [frame]))

    def answer(self, line: bytes, frame: bytes) -> None:
        raise UsageError("nobody asks by a line here")

    def close(self, linger: float = 0.5) -> None:
        """Let go of everything; nothing waits here that `linger` could help."""
        with self._changed:
            if self._open:
                self._network._vanish(self, "the peer closed its transport")

    def _wake(self) -> None:
        self._woken = True
        self._changed.notify_all()

    def _arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        self._changed.notify_all()

    def _forget_from(self, sender: str) -> None:
        kept = (one for one in self._arrivals if not isinstance(one, Received) or one.peer != sender)
        self._arrivals = deque(kept)
        for lane in (CONTROL, BULK):
            self._untaken[sender, lane] = 0

    def _forget_all(self) -> None:
        self._arrivals.clear()
        self._untaken.clear()


@dataclass(slots=True, eq=False)
class _Link:
    address: str
    answered: bool = False
    up: bool = False


def _is(me: str, name: str) -> bool:
    return me == name or me.partition(":")[0] == name


def _owned(frame: Frame) -> Frame:
    owned = bytes(frame)
    return memoryview(owned) if len(owned) >= _LARGE else owned
