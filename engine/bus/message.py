"""What processes say to each other: typed messages and their bytes.  Pure.

A message is one msgpack array that begins with its kind.  Values travel as the codec's skeleton
inside the message; what is large follows in frames of its own, or lies in shared memory that the
message offers.  Everything is checked against its type while it is parsed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from engine.errors import CodecError, UsageError

VERSION = 3
"""Of the protocol; peers of another one are refused."""

SMALL_BYTES = 64 << 10
"""What is larger keeps off the control lane."""

MOST_FACTS, MOST_FACTS_BYTES = 256, 16 << 10
"""What a process says of itself: so many values, and bytes."""

Name: TypeAlias = Annotated[str, Meta(max_length=200)]
Number: TypeAlias = Annotated[int, Meta(ge=0)]
Offered: TypeAlias = Annotated[tuple[Any, ...], Meta(max_length=16)]
"""Where a value lies in shared memory: the fields of `slots.Offer`."""


class Member(Struct, array_like=True):
    """A process of the run, as everybody knows it.

    ``id`` is that of this incarnation; ``name`` is its seat, like ``collector_1``, which the hub gives
    where it is empty, and which a process that takes its place may bear again.  ``kinds``
    are those of the events that it declared or emitted.  ``shortage`` says what it has too little of to be
    given more peers.
    """

    id: Name
    name: Name
    role: Name
    address: Annotated[str, Meta(max_length=1000)]
    about: dict[str, Any] = {}
    ready: bool = False
    on: Annotated[list[Name], Meta(max_length=4096)] = []
    serves: Annotated[list[Name], Meta(max_length=4096)] = []
    consumes: dict[Name, int] = {}
    report: dict[str, Any] = {}
    shortage: Annotated[str, Meta(max_length=200)] = ""
    kinds: Annotated[dict[Name, Literal["event", "state", "stream"]], Meta(max_length=4096)] = {}


# --- joining and membership -----------------------------------------------------------------


class Hello(Struct, array_like=True, tag=1):
    """Somebody wants to join: at the hub, until it answers."""

    run: str
    version: int
    member: Member


class Welcome(Struct, array_like=True, tag=2):
    """The hub lets somebody in, and says who is there and which roles there are."""

    run: str
    name: Name
    roles: list[Name]
    crew: dict[Name, int]
    members: list[Member]
    finish: str | None
    expected: dict[Name, int] = {}


class Refused(Struct, array_like=True, tag=3):
    """The hub does not let somebody in."""

    reason: str


class Changed(Struct, array_like=True, tag=4):
    """A member is new, or what it offers or wants has changed."""

    member: Member


class Gone(Struct, array_like=True, tag=5):
    """A member left, or was lost for a cause."""

    id: Name
    cause: str
    left: bool


class Report(Struct, array_like=True, tag=6):
    """A member's latest words about itself."""

    id: Name
    report: dict[str, Any]


class Leaving(Struct, array_like=True, tag=7):
    """A member leaves in order."""

    reason: str


class Finish(Struct, array_like=True, tag=8):
    """Every task of the run is asked to finish."""

    reason: str


class Fenced(Struct, array_like=True, tag=9):
    """The receiver was declared lost, and is no member any more."""

    cause: str


class Expected(Struct, array_like=True, tag=10):
    """How many of each role the run expects to be there from now on."""

    numbers: dict[Name, int]


# --- events, states, streams, calls ---------------------------------------------------------


class Event(Struct, array_like=True, tag=20):
    """A small broadcast; what is in it is [args, kwargs]."""

    name: Name
    skeleton: bytes
    arena: bytes


class Missed(Struct, array_like=True, tag=21):
    """So many events could not be sent to the receiver, which did not keep up."""

    count: Number


class Notice(Struct, array_like=True, tag=22):
    """A new version of a state; its value is here, offered in shared memory, or to be pulled."""

    name: Name
    version: Number
    size: Number
    skeleton: bytes | None
    offer: Offered | None


class Pull(Struct, array_like=True, tag=23):
    """Send the value of a state: the latest there is."""

    name: Name


class State(Struct, array_like=True, tag=24):
    """The value of a state that was pulled; its arrays follow."""

    name: Name
    version: Number
    size: Number
    skeleton: bytes


class Item(Struct, array_like=True, tag=25):
    """An item of a stream, for this consumer; its arrays follow or are offered."""

    name: Name
    number: Number
    age: float
    size: Number
    skeleton: bytes
    offer: Offered | None


class Resend(Struct, array_like=True, tag=26):
    """The offered item cannot be reached: send its arrays."""

    name: Name
    number: Number


class Taken(Struct, array_like=True, tag=27):
    """The consumer has taken items."""

    name: Name
    numbers: list[Number]


class Call(Struct, array_like=True, tag=28):
    """Call a method; the skeleton is that of [args, kwargs].

    ``line`` is the number of the line that it was sent on first, 0 for none: it may come twice.
    """

    number: Number
    method: Name
    milliseconds: Number
    size: Number
    skeleton: bytes
    line: Number = 0


class Reply(Struct, array_like=True, tag=29):
    """What a call returned."""

    number: Number
    size: Number
    skeleton: bytes


class Failure(Struct, array_like=True, tag=30):
    """Why a call did not return: ``refused`` says that it did not run."""

    number: Number
    kind: str
    message: str
    traceback: str
    refused: bool


class Cancel(Struct, array_like=True, tag=31):
    """Nobody waits for a call any more."""

    number: Number


class Held(Struct, array_like=True, tag=32):
    """The answer to a call on a line is too large for it: ask by the lanes."""

    number: Number


Message: TypeAlias = (
    Hello
    | Welcome
    | Refused
    | Changed
    | Gone
    | Report
    | Leaving
    | Finish
    | Fenced
    | Expected
    | Event
    | Missed
    | Notice
    | Pull
    | State
    | Item
    | Resend
    | Taken
    | Call
    | Reply
    | Failure
    | Cancel
    | Held
)

PEER_LOST = ""
"""The kind of a `Failure` that nobody sent: whoever was called is gone.  No type has this name."""

_MOST_TEXT = 2000

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """Return a message's bytes."""
    return _encoder.encode(message)


def plain(text: object, most: int = _MOST_TEXT) -> str:
    """Return any text, an error's as well, as one that can be sent: of no undue length, and UTF-8."""
    try:
        words = str(text)
    except Exception as error:  # an error's own __str__ may do anything
        words = f"a {type(text).__name__} whose text fails with {type(error).__name__}"
    if len(words) > most:
        words = f"{words[: most // 2]} ... {words[-most // 2 :]}"
    return words.encode("utf-8", "backslashreplace").decode()


def unpack(data: bytes | memoryview) -> Message:
    """Return the message in `data`; raises `CodecError` for anything else."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError(f"bytes that are no message of the bus: {error}") from None


def check_small(values: dict[str, Any], what: str) -> None:
    """Raise `UsageError` unless these are small plain values, which everybody may be told."""
    try:
        size = len(msgspec.msgpack.encode(values))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{what} takes plain values (numbers, text, lists, dicts): {error}") from None
    if size > MOST_FACTS_BYTES or len(values) > MOST_FACTS:
        raise UsageError(
            f"{what} takes {MOST_FACTS} values and {MOST_FACTS_BYTES} bytes at most, not {len(values)} of "
            f"{size} bytes"
        )
