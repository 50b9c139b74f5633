"""The streams of one process: what it pushed and is not taken, what came and waits to be taken."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from engine.bus.gate import Gate
from engine.bus.router import Arrived
from engine.bus.slots import Torn, Unattachable
from engine.errors import CodecError, Overloaded, PeerLost, UsageError

if TYPE_CHECKING:
    from engine.bus.network import Network
    from engine.bus.values import Values

WhenFull: TypeAlias = Literal["block", "drop_oldest", "error"]

CAPACITY = 8
"""Items that wait, where nothing else was declared."""


@dataclass(eq=False)
class Taken:
    """An item that was taken: its value, who pushed it, and how long it was on its way.

    With ``view=True`` the arrays of ``value`` are looked at where they lie, until `release` (or the
    end of a ``with`` block), which also acknowledges the item.  With ``held=True`` only that.
    """

    value: Any
    sender: str
    seconds: float
    number: int = 0
    sender_id: str = ""
    """Which of those that bore the sender's name, one after the other."""
    _done: Callable[[], None] | None = field(default=None, repr=False)

    def release(self) -> None:
        """Acknowledge the item, and let go of its memory."""
        done, self._done = self._done, None
        if done is not None:
            self.value = None
            done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


@dataclass(eq=False, slots=True)
class Waiting:
    """An item that came and was not taken: a value of this process, or one that arrived."""

    sender: str
    sender_id: str
    number: int
    since: float
    value: Any
    arrived: Arrived | None


@dataclass(eq=False)
class Stream:
    """One stream as this process declared it, and what it knows of it."""

    name: str
    capacity: int = CAPACITY
    when_full: WhenFull = "block"
    declared: bool = False
    consuming: int | None = None
    """How many untaken items of each producer this process holds at most; None: it does not consume."""
    came: deque[Waiting] = field(default_factory=deque)
    outstanding: int = 0
    """Items that this process pushed and nobody took."""
    numbers: int = 0
    taken: int = 0
    dropped: int = 0

    def admit(self, gate: Gate, timeout: float | None, late: Callable[[], str]) -> None:
        """Wait for room for one more item, and count it as outstanding.

        Raises `Overloaded` at once where the stream was declared with ``when_full="error"``.
        """

        def room() -> bool | None:
            if self.when_full != "drop_oldest" and self.outstanding >= self.capacity:
                return None
            self.outstanding += 1
            return True

        if self.when_full == "error":
            with gate.changed:
                if room() is None:
                    raise Overloaded(f"{self.capacity} items of {self.name!r} wait already; {late()}")
            return
        gate.until(room, timeout, late, what=f"room in {self.name!r}", event=self.name, finishing=True)

    def keep(self) -> int | None:
        """How many items may wait at the producer before the oldest is dropped."""
        return self.capacity if self.when_full == "drop_oldest" else None

    def put(self, sender: str, value: Any) -> None:
        """Hand an item to this very process."""
        self.came.append(Waiting(sender, "", self.numbers, time.monotonic(), value, None))
        self.numbers += 1
        while self.when_full == "drop_oldest" and len(self.came) > self.capacity:
            self.came.popleft()
            self.dropped += 1
            self.outstanding -= 1

    def next(self, sender: str | None) -> Waiting | None:
        """Take the oldest item out, of `sender` if one is named."""
        for place, item in enumerate(self.came):
            if sender is None or item.sender == sender:
                del self.came[place]
                return item
        return None


class Streams:
    """All streams of one process; `network` and `values` are None while it is alone."""

    def __init__(self, gate: Gate) -> None:
        self.network: Network | None = None
        self.values: Values | None = None
        self.known: dict[str, Stream] = {}
        self._departed: dict[str, int] = {}  # who is gone and left items here: process ids
        self._gate, self._changed = gate, gate.changed

    def get(self, name: str) -> Stream:
        """Return a stream, made when it is first asked for."""
        with self._changed:
            return self.known.setdefault(name, Stream(name))

    def declare(self, name: str, capacity: int | None, when_full: WhenFull) -> None:
        """Say how many items wait, and what becomes of one more."""
        if when_full not in ("block", "drop_oldest", "error"):
            raise UsageError(f"when_full is 'block', 'drop_oldest' or 'error', not {when_full!r}")
        if capacity is not None and (isinstance(capacity, bool) or capacity < 1):
            raise UsageError(f"capacity counts items, at least 1, not {capacity!r}")
        settings = capacity or CAPACITY, when_full
        with self._changed:
            stream = self.get(name)
            if stream.declared and settings != (stream.capacity, stream.when_full):
                raise UsageError(f"the stream {name!r} was declared with other settings already")
            stream.capacity, stream.when_full = settings
            stream.declared = True

    def push(
        self,
        name: str,
        value: Any,
        timeout: float | None,
        sender: str,
        there: Callable[[], str],
        amount: int = 0,
    ) -> None:
        """Give an item to one consumer; see `Bus.push`."""
        stream = self.get(name)
        stream.admit(self._gate, timeout, lambda: self._nobody_took(stream, timeout, there()))
        network, values = self.network, self.values
        if network is None or values is None or stream.consuming is not None:
            with self._changed:
                stream.put(sender, value)
                self._changed.notify_all()
            return
        try:
            self._gate.check("a push")
            body = values.snapshot(value)
        except BaseException:
            self.settled(name, 1)
            raise
        now, keep = time.monotonic(), stream.keep()
        network.do(lambda: network.router.push(name, body, now, keep, amount))

    def _nobody_took(self, stream: Stream, timeout: float | None, there: str) -> str:
        text = f"nobody took an item of {stream.name!r}" + (
            "" if timeout is None else f" within {timeout:g} s"
        )
        network = self.network
        consumers = [] if network is None else network.consumers_of(stream.name)
        if consumers:
            return f"{text}: {stream.outstanding} of {stream.capacity} wait for {', '.join(consumers)}"
        return f"{text}: nobody consumes it; in the run are {there}"

    def take(
        self,
        name: str,
        sender: str | None,
        timeout: float | None,
        view: bool,
        there: Callable[[], str],
        held: bool = False,
    ) -> Taken:
        """Take the oldest item; see `Bus.take`."""
        stream = self.get(name)

        def late() -> str:
            who = f" of {sender}" if sender else ""
            return f"no item of {name!r}{who} came within {timeout:g} s; in the run are {there()}"

        def next_item() -> Waiting | None:
            item = stream.next(sender)
            if item is None:
                self._check_there(sender)
            return item

        while True:
            item = self._gate.until(
                next_item, timeout, late, what=f"an item of {name!r}", event=name, finishing=True
            )
            try:
                taken = self._opened(stream, item, view, held)
                if item.sender_id in self._departed:
                    self.gone(item.sender_id, self._departed[item.sender_id])
                return taken
            except Unattachable:
                self._have_sent_again(stream, item)
            except (CodecError, Torn):
                self._acknowledge(stream, item)  # nonsense: it is off everybody's hands
                self._drop(stream)

    def _have_sent_again(self, stream: Stream, item: Waiting) -> None:
        """Have an item come by socket, as its memory is out of reach; drop it where its producer is gone."""
        network = self.network
        assert network is not None

        def ask() -> None:
            if not network.router.resend(item.sender_id, stream.name, item.number):
                self._drop(stream)

        network.do(ask)

    def _drop(self, stream: Stream) -> None:
        with self._changed:
            stream.dropped += 1

    def _check_there(self, sender: str | None) -> None:
        """Raise `PeerLost` where a named sender, of whom nothing waits, is not in the run (any more)."""
        network = self.network
        if sender is not None and network is not None and not network.knows(sender):
            cause = network.lost.get(sender, "it is not in the run")
            raise PeerLost(f"nothing more comes of {sender}: {cause}", peer=sender, cause=cause)

    def _opened(self, stream: Stream, item: Waiting, view: bool, held: bool) -> Taken:
        value = item.value
        if item.arrived is not None:
            assert self.values is not None
            value = self.values.view(item.arrived)[0] if view else self.values.load(item.arrived)
        with self._changed:
            stream.taken += 1
        taken = Taken(value, item.sender, time.monotonic() - item.since, item.number, item.sender_id)
        if view or held:
            taken._done = lambda: self._acknowledge(stream, item)
        else:
            self._acknowledge(stream, item)
        return taken

    def _acknowledge(self, stream: Stream, item: Waiting) -> None:
        network = self.network
        if item.arrived is None:
            self.settled(stream.name, 1)
        elif network is not None:
            network.do(lambda: network.router.take(item.sender_id, stream.name, [item.number]))

    def gone(self, sender_id: str, pid: int) -> None:
        """A peer of this machine is gone: let go of its memory, once nothing in it is to be taken."""
        with self._changed:
            waits = any(item.sender_id == sender_id for stream in self.known.values() for item in stream.came)
            if waits:
                self._departed[sender_id] = pid
            else:
                self._departed.pop(sender_id, None)
        if not waits and self.values is not None:
            self.values.forget(pid)

    def came(self, name: str, item: Waiting) -> None:
        """An item came from a peer."""
        with self._changed:
            self.get(name).came.append(item)
            self._changed.notify_all()

    def settled(self, name: str, count: int) -> None:
        """Items that were pushed here were taken, or dropped."""
        with self._changed:
            self.known[name].outstanding -= count
            self._changed.notify_all()

    def waiting(self, name: str) -> int:
        """How many items came and were not taken, or were pushed here and not taken yet."""
        with self._changed:
            stream = self.known.get(name)
            if stream is None:
                return 0
            return len(stream.came) if stream.consuming is not None else stream.outstanding

    def stats(self) -> dict[str, dict[str, int]]:
        """Return the counts of every stream."""
        with self._changed:
            stats = {
                name: {
                    "outstanding": stream.outstanding,
                    "waiting": len(stream.came),
                    "taken": stream.taken,
                    "dropped": stream.dropped,
                }
                for name, stream in self.known.items()
            }
        if self.network is not None:
            for name, counts in self.network.router.counts().items():
                stats[name] |= {"pushed": counts.pushed, "acknowledged": counts.taken}
                stats[name]["dropped"] += counts.dropped
        return stats
