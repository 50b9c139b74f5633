"""What carries frames between processes: the contract that every transport keeps.

A transport belongs to one thread, the bus's own, except for `wake` and `line`.  Its links are one-way: what
a peer sends comes in at the inbox, what goes to a peer leaves by a connection of its own.  It may
lose what is under way when a connection breaks; `engine.bus.link` repairs that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Frame: TypeAlias = bytes | memoryview

CONTROL, BULK = 0, 1
"""Lanes: small frames in a hurry, and large ones, which must not stand in their way."""


NOTHING_LISTENS = "nothing listens there"


@dataclass(frozen=True, slots=True)
class Received:
    """Frames that a peer sent, in order within its lane; their memory is the receiver's."""

    peer: str
    lane: int
    frames: Sequence[Frame]


@dataclass(frozen=True, slots=True)
class Up:
    """The connection to a peer is established."""

    peer: str


@dataclass(frozen=True, slots=True)
class Down:
    """The connection to a peer broke, or could not be made; the transport goes on trying.

    ``refused`` says that nothing listens there (any more), ``denied`` that the peer does not accept the
    keys of this process, which no further attempt changes.
    """

    peer: str
    cause: str
    refused: bool = False
    denied: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A frame that a peer sent on a line of its own; `Transport.answer` goes back on it."""

    peer: str
    line: bytes
    frame: Frame


Arrival: TypeAlias = Received | Up | Down | Asked


class Line(Protocol):
    """A connection of its own to a peer, for a thread that waits for each answer; see `engine.bus.lines`."""

    def send(self, frame: bytes) -> bool:
        """Send at once; False where it is not connected."""
        ...

    def receive(self) -> Frame | None:
        """Return what came back, or None after a short while."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Transport(Protocol):
    """Carries frames to peers and from them."""

    me: str
    """The name of this incarnation, like ``collector_1:9f3c2a1b``; peers see it as the sender."""

    def start(self, me: str) -> str:
        """Open the inbox; return the address by which others reach it."""
        ...

    def shortage(self, *, before: bool = False) -> str:
        """Return what there is too little of to connect to more peers; empty if there is room.

        After a shortage `before`, a little more room is wanted.
        """
        ...

    def check(self, address: str) -> None:
        """Raise `UsageError` for what can never be the address of a peer that is reached from here."""
        ...

    def connect(self, peer: str, address: str, *, answered: bool = False) -> None:
        """Begin to connect to a peer, both lanes; nothing happens if that was asked before.

        With `answered`, what the peer sends back with `reply` arrives too, from `peer`.
        """
        ...

    def disconnect(self, peer: str) -> None:
        """Let go of the connection to a peer and of what waits in it."""
        ...

    def send(self, peer: str, lane: int, frames: Sequence[Frame]) -> bool:
        """Send without waiting; False where nothing was taken: not connected, or too much waits already.

        What memoryviews show may not change until the peer has acknowledged the frames.
        """
        ...

    def poll(self, timeout: float) -> list[Arrival]:
        """Return what came, waiting at most `timeout` seconds for the first; `wake` ends the wait."""
        ...

    def wake(self) -> None:
        """Let `poll` return; from any thread."""
        ...

    def line(self, peer: str, number: int, seconds: float) -> Line | None:
        """Return a new line to a connected peer, which waits `seconds` for an answer; None if there are none.

        From any thread; its number is given to no other.
        """
        ...

    def reply(self, peer: str, frame: bytes) -> None:
        """Send a frame back on the connection that a peer made to this process; lost if there is none.

        It reaches a peer to which no connection can be made from here.
        """
        ...

    def answer(self, line: bytes, frame: bytes) -> None:
        """Send a frame back on a line; lost without a word where nobody is there."""
        ...

    def close(self, linger: float = 0.5) -> None:
        """Send what waits for at most `linger` seconds, then let go of everything."""
        ...
