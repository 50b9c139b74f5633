"""What the network brings, put where the task's threads find it.  Runs on the network's thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from engine.bus.calls import Calls
from engine.bus.gate import Gate
from engine.bus.mailbox import Letter, Mailbox
from engine.bus.message import Call, Event, Failure, Member
from engine.bus.names import FINISH, LEFT, LOST
from engine.bus.router import Arrived
from engine.bus.streams import Streams, Waiting
from engine.bus.transport import Frame
from engine.bus.values import Values

if TYPE_CHECKING:
    from engine.bus.network import Network


@dataclass(frozen=True)
class Peer:
    """Another process of the run; ``report`` is what it last said of itself (known to the hub alone)."""

    name: str
    role: str
    address: str
    about: dict[str, Any]
    report: dict[str, Any]
    ready: bool

    @classmethod
    def of(cls, member: Member) -> Peer:
        """Return a member as users see it."""
        return cls(
            member.name, member.role, member.address, dict(member.about), dict(member.report), member.ready
        )


Watcher: TypeAlias = Callable[[str, Peer, str], None]


class Inflow:
    """The `Receiver` of a bus."""

    def __init__(self, gate: Gate, mailbox: Mailbox, streams: Streams, calls: Calls) -> None:
        self.told_to_finish: str | None = None
        self.finish: Callable[[str], None] | None = None
        """What to call when the whole run is asked to finish."""
        self.compare_kinds: Callable[[], None] = _nothing
        """Compares the kinds of events here with those of other processes."""
        self.watchers: list[Watcher] = []
        self._gate, self._mailbox, self._streams, self._calls = gate, mailbox, streams, calls

    def called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        """Somebody calls a method of ours."""
        self._calls.called(sender, call, arena)

    def replied(self, number: int, outcome: Arrived | Failure, server: str = "") -> None:
        """A call of ours has ended."""
        self._calls.replied(number, outcome, server)

    def settled(self, name: str, count: int) -> None:
        """Items that were pushed here were taken, or dropped."""
        self._streams.settled(name, count)

    def event(self, sender: Member, event: Event) -> None:
        """An event came."""
        arrived = Arrived(event.skeleton, len(event.arena), None, [event.arena] if event.arena else ())
        self._mailbox.post(Letter(event.name, sender=sender.name, sender_id=sender.id, arrived=arrived))

    def missed(self, sender: Member, count: int) -> None:
        """A peer could not send so many events, as this process did not read."""
        self._mailbox.missed(sender.name, count)

    def state(self, sender: Member, name: str, version: int, value: Arrived) -> None:
        """A new version of a state came."""
        self._mailbox.post(Letter(name, (), None, sender.name, sender.id, version, arrived=value, state=True))

    def item(self, sender: Member, name: str, number: int, age: float, value: Arrived) -> None:
        """An item of a stream came."""
        since = time.monotonic() - age
        self._streams.came(name, Waiting(sender.name, sender.id, number, since, None, value))

    def cancelled(self, sender: Member, number: int) -> None:
        """Nobody waits for a call any more."""
        self._calls.services.cancel(sender.id, number)

    def joined(self, member: Member) -> None:
        """A peer is new."""
        self._watched("joined", member, "")

    def kinds_changed(self) -> None:
        """What a process announces of the kinds of its events has changed."""
        self.compare_kinds()

    def changed(self) -> None:
        """Who is there has changed."""
        self._gate.wake()

    def gone(self, member: Member, cause: str, left: bool) -> None:
        """A peer left, or was lost."""
        about = {"peer": member.name, "role": member.role}
        self._mailbox.post(Letter(LEFT, (), about) if left else Letter(LOST, (), {**about, "cause": cause}))
        pid = member.about.get("pid")
        if isinstance(pid, int):
            self._streams.gone(member.id, pid)
        self._watched("left" if left else "lost", member, cause)

    def finish_told(self, reason: str) -> None:
        """The whole run is asked to finish."""
        if self.told_to_finish is not None:
            return
        self.told_to_finish = reason
        self._mailbox.post(Letter(FINISH, (reason,)))
        if self.finish is not None:
            self.finish(reason)
        self._gate.wake()

    def broken(self, error: BaseException) -> None:
        """The network is of no use any more: whoever waits, and the task at its next boundary, is told."""
        self._gate.fail(error)
        self._mailbox.look()

    def _watched(self, what: str, member: Member, cause: str) -> None:
        for watcher in list(self.watchers):
            try:
                watcher(what, Peer.of(member), cause)
            except Exception as error:  # on a thread that others need: the task is told
                error.add_note(f"raised in a watcher of peers, told that {member.name} {what}")
                self.broken(error)


def _nothing() -> None:
    """There is nothing to compare with before this process has joined."""


class Outflow:
    """Opens what came, and tells the network what was used: the `Opener` of a mailbox."""

    def __init__(self, network: Network, values: Values) -> None:
        self._network, self._values = network, values

    def load(self, arrived: Arrived) -> Any:
        """Return a value of its own."""
        return self._values.load(arrived, again=True)

    def load_call(self, arrived: Arrived) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of an event."""
        return self._values.load_call(arrived)

    def view(self, arrived: Arrived) -> tuple[Any, Callable[[], bool]]:
        """Return a value where it lies, and what tells whether it still does."""
        return self._values.view(arrived)

    def read(self, sender_id: str, name: str) -> None:
        """A state that was pulled was used."""
        router = self._network.router
        self._network.do(lambda: router.read(sender_id, name))

    def pull(self, sender_id: str, name: str) -> None:
        """A state cannot be read any more where it was offered."""
        router = self._network.router
        self._network.do(lambda: router.pull(sender_id, name))

    def dropped(self) -> None:
        """Something that came made no sense."""
        self._network.dropped += 1
