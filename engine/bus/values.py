"""Values on their way between processes: one copy when they leave, one or none when they arrive.

What is sent is copied at once, so that the sender may change its arrays: into shared memory where
that is to be had and the value is large, else into memory of its own.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bus import slots
from engine.bus.codec import LIMITS, Encoded, Limits, decode, decode_call, encode, encode_call
from engine.bus.router import Arrived
from engine.bus.slots import Offer, Torn, Unattachable
from engine.bus.transport import Frame

SHARED_FROM = 64 << 10
"""From so many bytes on, shared memory is quicker than a frame."""

_MOST_IDLE = 3  # pieces of memory that are kept for what is sent next

FRAME_BYTES = 32 << 20
"""Larger arrays travel in several frames: what asks whether a peer is alive passes between them."""


class Snapshot:
    """A value as it was when it was sent; see `router.Body`."""

    __slots__ = ("_arena", "_free", "_offer", "_reader", "size", "skeleton")

    def __init__(
        self,
        skeleton: bytes,
        size: int,
        arena: Frame | None,
        offer: Offer | None = None,
        reader: Callable[[Offer], Frame] | None = None,
        free: Callable[[Offer], None] | None = None,
    ) -> None:
        self.skeleton, self.size = skeleton, size
        self._arena, self._offer, self._reader, self._free = arena, offer, reader, free

    def offer(self) -> tuple[Any, ...] | None:
        """Where it lies in shared memory, if it does."""
        return self._offer

    def frames(self) -> list[Frame]:
        """Its arrays, as frames that nobody changes; raises `Torn`, see `router.Body`."""
        if not self.size:
            return []
        if self._arena is None:
            assert self._offer is not None
            assert self._reader is not None
            self._arena = self._reader(self._offer)
        arena = memoryview(self._arena)
        return [arena[at : at + FRAME_BYTES] for at in range(0, self.size, FRAME_BYTES)]

    def release(self) -> None:
        """Let go of its memory."""
        if self._offer is not None and self._free is not None:
            self._free(self._offer)
            self._free = None


class _Arenas:
    """Memory for what is sent, used again once nothing refers to it: new memory costs its page faults."""

    def __init__(self) -> None:
        self._idle: deque[NDArray[np.uint8]] = deque(maxlen=_MOST_IDLE)  # lets go of the oldest

    def take(self, size: int) -> memoryview:
        """Return memory of that size, which is given back when the last view of it is gone."""
        if size < SHARED_FROM:
            return memoryview(bytearray(size))
        memory = np.empty(0, np.uint8)
        for _ in range(len(self._idle)):
            try:
                memory = self._idle.popleft()
            except IndexError:
                break  # another thread took it
            if size <= memory.size <= 2 * size:
                break
            self._idle.append(memory)
        if not size <= memory.size <= 2 * size:
            memory = np.empty(size + size // 8, np.uint8)
        shown = memory[:size]
        # All that is made from this array keeps it alive: lanes and sockets that have not sent it.
        weakref.finalize(shown, self._idle.append, memory).atexit = False
        return shown.data


class Values:
    """Makes snapshots of values, and values of what arrived; from any thread."""

    def __init__(self, *, shared: bool, limits: Limits = LIMITS) -> None:
        self._limits = limits
        self._arenas = _Arenas()
        shared = shared and slots.available()
        self._writer = slots.Writer() if shared else None
        self._reader = slots.Reader() if shared else None

    def flat_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, bytes]:
        """Copy the arguments of an event: their skeleton, and their arrays as bytes."""
        encoded = encode_call(args, kwargs, self._limits)
        return encoded.skeleton, b"".join(encoded.chunks()) if encoded.arena_size else b""

    def snapshot_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Snapshot:
        """Copy the arguments of a call."""
        return self._own_snapshot(encode_call(args, kwargs, self._limits))

    def snapshot_reply(self, value: Any) -> Snapshot:
        """Copy what a call returned."""
        return self._own_snapshot(encode(value, self._limits))

    def snapshot(self, value: Any, *, ring: str | None = None) -> Snapshot:
        """Copy a value, into shared memory where that is worth it.

        With `ring`, the name of a state, older versions make way for newer ones by themselves;
        else its memory is kept until `Snapshot.release`.  Raises `CodecError` for what cannot be sent.
        """
        encoded = encode(value, self._limits)
        size = encoded.arena_size
        if self._writer is not None and size >= SHARED_FROM:
            try:
                with self._writer.begin(size, ring=ring) as writing:
                    encoded.write_into(writing.view)
                    offer = writing.publish()
                free = self._release if ring is None else None
                return Snapshot(encoded.skeleton, size, None, offer, self._own, free)
            except slots.Full:
                pass  # then as where there is no shared memory
        return self._own_snapshot(encoded)

    def _own_snapshot(self, encoded: Encoded) -> Snapshot:
        """Copy a value into memory of our own."""
        size = encoded.arena_size
        if not size:
            return Snapshot(encoded.skeleton, 0, None)
        arena = self._arenas.take(size)
        encoded.write_into(arena)
        return Snapshot(encoded.skeleton, size, arena)

    def attachable(self, fields: tuple[Any, ...]) -> bool:
        """Whether offered memory can be read from here."""
        if self._reader is None:
            return False
        try:
            self._reader.view(Offer.parse(fields)).release()
        except Unattachable:
            return False
        except Torn:
            return True  # it can be; whoever reads it will ask for what is newer
        return True

    def load(self, arrived: Arrived, *, again: bool = False) -> Any:
        """Return a value with memory of its own: that which the frames came in, where that will do.

        So a value whose memory may be looked at again is loaded with `again`.  Raises `Torn` where its
        shared memory holds something newer by now, and `CodecError` for what is no value.
        """
        if arrived.offer is None:
            memory = _joined(arrived.arena)
        else:
            memory = self._copied(arrived.offer)
        copy = again and arrived.offer is None
        return decode(arrived.skeleton, memory, self._limits, copy=copy, own=True)

    def load_call(self, arrived: Arrived) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a call or an event; raises as `load` does."""
        return decode_call(arrived.skeleton, _joined(arrived.arena), self._limits)

    def view(self, arrived: Arrived) -> tuple[Any, Callable[[], bool]]:
        """Return a value whose arrays are looked at where they lie, and what tells whether they still do.

        Raises as `load` does.
        """
        if arrived.offer is None:
            value = decode(arrived.skeleton, _joined(arrived.arena), self._limits, copy=False)
            return value, _always
        assert self._reader is not None
        offer, reader = Offer.parse(arrived.offer), self._reader
        memory = reader.view(offer)
        return decode(arrived.skeleton, memory, self._limits, copy=False), lambda: reader.still(offer)

    def forget(self, pid: int) -> None:
        """Let go of the memory that a process of this machine offered."""
        if self._reader is not None:
            self._reader.forget(pid)

    def stats(self) -> dict[str, int]:
        """Return how much shared memory is in use."""
        return {} if self._writer is None else self._writer.stats()

    def close(self) -> None:
        """Let go of all memory; values that were loaded stay good."""
        if self._writer is not None:
            self._writer.close()
        if self._reader is not None:
            self._reader.close()

    def _copied(self, fields: tuple[Any, ...]) -> memoryview:
        assert self._reader is not None
        return self._reader.copy(Offer.parse(fields))

    def _own(self, offer: Offer) -> Frame:
        return self._copied(tuple(offer))

    def _release(self, offer: Offer) -> None:
        assert self._writer is not None
        self._writer.release(offer)


def _joined(arena: Sequence[Frame]) -> Frame | None:
    if not arena:
        return None
    return arena[0] if len(arena) == 1 else b"".join(arena)


def _always() -> bool:
    return True
