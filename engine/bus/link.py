"""Reliable lanes over connections that lose what is under way when they break.

Pure: no socket, no clock.  The sender numbers its messages and keeps them until they are
acknowledged; the receiver accepts the number it expects and nothing else (go-back-N, as in any
textbook on transport protocols).  What was lost is found by a *probe*, which is sent down the same
lane when a connection is new, or when no acknowledgement came for a while: its answer says what the
receiver expects after everything that was sent before the probe, so the sender knows from where to
repeat.  Small messages that wait for the same peer travel in one frame.

Every frame begins with a head: what it is, the number of its first message, and which numbers its
sender expects next on both lanes of the other direction; so an answer acknowledges what it answers.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from engine.bus.transport import BULK, CONTROL, Frame
from engine.errors import CodecError

DATA, ACK, PROBE, PROBED, HELLO, WELCOME = range(1, 7)

_HEAD = struct.Struct("<2sBBHBxQQQ")  # magic, version, kind, count, lane, number, expected on either lane
_MAGIC, _VERSION = b"eb", 1
_LENGTH = struct.Struct("<I")
HEAD_SIZE = _HEAD.size

FRAME_BYTES = 64 << 10
"""Small messages are packed into frames of about this size."""

FIRST_PROBE_SECONDS, LAST_PROBE_SECONDS = 0.1, 1.0

_MOST_PROBES = 64


class Head(NamedTuple):
    """The head of a frame."""

    kind: int
    messages: int
    lane: int
    number: int
    expected: tuple[int, int]


def pack_head(kind: int, count: int, lane: int, number: int, expected: Sequence[int]) -> bytes:
    """Return the head of a frame as bytes."""
    return _HEAD.pack(_MAGIC, _VERSION, kind, count, lane, number, expected[CONTROL], expected[BULK])


def read_head(frame: Frame) -> Head:
    """Return the head of a frame; raises `CodecError` for bytes that have none."""
    try:
        magic, version, kind, count, lane, number, control, bulk = _HEAD.unpack_from(frame)
    except struct.error:
        raise CodecError(f"a frame of {len(frame)} bytes is no frame of the bus") from None
    if magic != _MAGIC or not DATA <= kind <= WELCOME or lane > BULK:
        raise CodecError("a frame that does not come from a bus")
    if version != _VERSION:
        raise CodecError(f"a frame of the bus's format {version}, where {_VERSION} is spoken")
    return Head(kind, count, lane, number, (control, bulk))


def pack_blobs(blobs: Sequence[bytes], head: bytes = b"") -> bytes:
    """Join small messages, each behind its length, all of them behind a head."""
    parts = [head]
    for blob in blobs:
        parts += (_LENGTH.pack(len(blob)), blob)
    return b"".join(parts)


def read_blobs(frame: Frame, count: int) -> list[memoryview]:
    """Return the small messages of a frame; raises `CodecError` where lengths do not fit."""
    view = memoryview(frame).cast("B")
    at, end = HEAD_SIZE, len(view)
    blobs = []
    for _ in range(count):
        if at + _LENGTH.size > end:
            raise CodecError("a frame ends before its last message")
        (length,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if at + length > end:
            raise CodecError("a frame ends inside a message")
        blobs.append(view[at : at + length])
        at += length
    return blobs


class Sending(NamedTuple):
    """What goes down a lane next: so many messages from ``number`` on, in these frames."""

    number: int
    messages: int
    frames: list[Frame]


class Lane:
    """The sending end of one lane to one peer: in order, exactly once, whatever the connection loses.

    At most `window` messages or `window_bytes` bytes are under way (but always one).
    """

    def __init__(self, *, window: int, window_bytes: int) -> None:
        self._window, self._window_bytes = window, window_bytes
        self._kept: deque[tuple[Sequence[Frame], int]] = deque()  # unacknowledged, the oldest first
        self._base = 0  # the number of the oldest that is kept
        self._next = 0  # the number of the next to go out
        self._flying = 0  # bytes from base to next
        self.queued_bytes = 0
        self.up = False
        self._fenced = False  # whether nothing goes out before the probe is answered
        self._probes: dict[int, int] = {}  # not answered: how far was sent before each
        self._epoch = 0
        self._wait = FIRST_PROBE_SECONDS
        self._probe_at: float | None = None
        self.asked_at: float | None = None
        """Since when the peer owes an answer; None while it owes none."""

    @property
    def idle(self) -> bool:
        """Whether everything was acknowledged."""
        return not self._kept

    @property
    def waiting(self) -> bool:
        """Whether something could go out that has not."""
        return self._next - self._base < len(self._kept)

    def push(self, frames: Sequence[Frame]) -> None:
        """Keep a message until it is acknowledged; `next` sends it."""
        size = sum(map(len, frames)) if len(frames) != 1 else len(frames[0])
        self._kept.append((frames, size))
        self.queued_bytes += size

    def connected(self, now: float) -> None:
        """The connection is new: ask first what became of what was under way."""
        self.up = True
        self._probes.clear()  # an answer to one of those would say nothing of what was lost just now
        if self._next > self._base:
            self._fenced = True
            self._probe_at = now
            self._wait = FIRST_PROBE_SECONDS
        else:
            self._fenced = False

    def broken(self) -> None:
        """The connection broke."""
        self.up = False

    def next(self, now: float, *, pack: bool) -> Sending | None:
        """Return what may go out now, and count it as sent; several messages in one frame if `pack`."""
        place = self._next - self._base
        if not self.up or self._fenced or place >= len(self._kept) or self._full():
            return None
        if self._probe_at is None:
            self._probe_at = now + self._wait
        first = self._next
        frames, size = self._kept[place]
        self._advance(size)
        if not pack or len(frames) != 1:
            return Sending(first, 1, list(frames))
        blobs, total = [frames[0]], size
        while len(self._kept) > self._next - self._base and not self._full():
            frames, size = self._kept[self._next - self._base]
            if len(frames) != 1 or total + size > FRAME_BYTES or len(blobs) >= 512:
                break
            blobs.append(frames[0])
            total += size
            self._advance(size)
        return Sending(first, len(blobs), blobs)

    def not_taken(self, sending: Sending) -> None:
        """The transport did not take what `next` returned last: it goes out again."""
        for number in range(sending.number, sending.number + sending.messages):
            self._flying -= self._kept[number - self._base][1]
        self._next = sending.number

    def acknowledged(self, expected: int, now: float) -> None:
        """The peer has everything below `expected`; numbers that were not sent are ignored."""
        if not self._base < expected <= self._next:
            return
        while self._base < expected:
            _, size = self._kept.popleft()
            self._base += 1
            self._flying -= size
            self.queued_bytes -= size
        self._wait = FIRST_PROBE_SECONDS
        self.asked_at = None
        if self._next == self._base:
            self._fenced = False  # nothing was lost after all
        if not self._probes and not self._fenced:
            self._probe_at = now + self._wait if self._next > self._base else None

    def probe(self, now: float) -> int | None:
        """Return the number of a probe to send now, or None."""
        if not self.up or self._probe_at is None or now < self._probe_at:
            return None
        self._epoch += 1
        if len(self._probes) >= _MOST_PROBES:
            del self._probes[next(iter(self._probes))]
        self._probes[self._epoch] = self._next
        if self.asked_at is None:
            self.asked_at = now
        self._wait = min(2 * self._wait, LAST_PROBE_SECONDS)
        self._probe_at = now + self._wait
        return self._epoch

    def ask(self, now: float) -> None:
        """Probe at once, even where nothing is under way: is anybody there?"""
        if self._probe_at is None:
            self._probe_at = now

    def probed(self, epoch: int, expected: int, now: float) -> None:
        """A probe was answered: what was sent before it and is not acknowledged was lost.

        Where answers take longer than the time between probes, an older probe's counts as well, but
        not once something is repeated because of another: the answer may be from before that.
        """
        sent = self._probes.get(epoch)
        if sent is None or expected > self._next:
            return
        self.acknowledged(expected, now)
        if self._base <= expected < sent:
            for number in range(expected, self._next):
                self._flying -= self._kept[number - self._base][1]
            self._next = expected
            self._probes.clear()
        else:
            self._probes = {one: far for one, far in self._probes.items() if one > epoch}
        self._fenced = False
        self.asked_at = None
        self._wait = FIRST_PROBE_SECONDS
        self._probe_at = now + self._wait if self._next > self._base else None

    def heard(self) -> None:
        """Something came from the peer: it is there."""
        self.asked_at = None

    def pardon(self, seconds: float) -> None:
        """Nobody looked for an answer for so long: the peer has so much more time for it."""
        if self.asked_at is not None:
            self.asked_at += seconds

    def due(self) -> float | None:
        """When `probe` will have something to say; None while nothing is under way."""
        return self._probe_at if self.up else None

    def _advance(self, size: int) -> None:
        self._next += 1
        self._flying += size

    def _full(self) -> bool:
        flying = self._next - self._base
        return flying > 0 and (flying >= self._window or self._flying >= self._window_bytes)


class Intake:
    """The receiving end of one lane from one peer."""

    def __init__(self) -> None:
        self.expected = 0

    def accept(self, number: int, count: int) -> int | None:
        """Return how many of `count` messages from `number` on are known already; None where none is new.

        What lies beyond a gap is left: the sender will find out and repeat it.
        """
        if not number <= self.expected < number + count:
            return None
        known = self.expected - number
        self.expected = number + count
        return known
