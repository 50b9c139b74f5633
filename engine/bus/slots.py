"""Values that processes of one host hand to each other through shared memory, without a lock in it.

A slot is a memfd: a page with a header, then room for one value.  Its writer is one process; peers
open it through ``/proc/<pid>/fd/<n>``.  There is no name to unlink, and what a peer has attached stays
readable after its writer is killed.  Slots are reused, since a new one costs a page fault for every
4 KiB and an old one costs what copying costs.

How a value cannot be mistaken for another:

- The header holds the slot's random ``nonce``.  A reader compares it with the offer's before it believes
  anything: a process of another container may have the same id, a descriptor may have been closed and
  used again.
- The header holds a generation that only grows: odd while a value is being written or after the slot was
  given up, even while one is there.  An offer names its generation, so a value that comes later in the
  same slot is not taken for it.  Whoever reads in place asks `Reader.still` *after* reading; what was
  read counts only if that is true.  Readers never wait and never hinder the writer.
- Between generation and value stands a fence on both sides, because large copies are done with stores
  that the processor may show to others out of order.
- A slot is sealed against shrinking, so that no reader can be killed by a mapping that lost its end, and,
  where the kernel knows how, against being written by anybody else.

An offer that cannot be used is not an error of the run: the value then travels as bytes.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import stat
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np

from engine.errors import EngineError

MOST_BYTES = 1 << 30
MOST_SLOTS = 128

_HEADER = 4096
_SMALLEST_ROOM = 1 << 16
_NONCE_BYTES = 16
_MAGIC = int.from_bytes(b"engslot1", "little")
_WORDS_BYTES = 32
# What the words of the header hold; the nonce comes after them.
_IS_MAGIC, _GENERATION, _SIZE, _GIVEN_UP = range(4)
_NONCE_AT = _WORDS_BYTES

# New in Linux 5.1; the fcntl module of Python 3.11 does not name it.
_F_SEAL_FUTURE_WRITE = 0x0010
_RING = 2
_TOO_MANY = 1 << 31


class Torn(EngineError):
    """What was offered is no longer there: the slot holds, or is getting, a later value."""


class Unattachable(EngineError):
    """An offer whose memory cannot be opened, or is not what the offer says; ask for the bytes instead."""


class Full(EngineError):
    """No slot can be had for a value of this size now; send its bytes instead."""


class Offer(NamedTuple):
    """Where a value lies; plain numbers and bytes, to be sent to a peer of the same host."""

    pid: int
    fd: int
    inode: int
    nonce: bytes
    generation: int
    size: int

    @classmethod
    def parse(cls, fields: object) -> Offer:
        """Return the offer that came as a sequence of fields; `Unattachable` if it cannot be one."""
        if not isinstance(fields, (list, tuple)) or len(fields) != len(cls._fields):
            raise Unattachable("no offer: it has other fields")
        return _checked(cls._make(fields))


def available() -> bool:
    """Whether this process can make slots and open them by way of /proc; tries it."""
    if not sys.platform.startswith("linux") or not hasattr(os, "memfd_create"):
        return False
    with contextlib.closing(Writer()) as writer, contextlib.closing(Reader()) as reader:
        try:
            with writer.begin(1) as writing:
                writing.view[0] = 1
                offer = writing.publish()
            return bytes(reader.view(offer)) == b"\x01"
        except (Full, Unattachable):
            return False


@dataclass(slots=True, eq=False)
class _Slot:
    memory: mmap.mmap
    words: memoryview[int]
    fd: int
    inode: int
    nonce: bytes
    room: int
    generation: int = 0
    pins: int = 0
    current: bool = False
    writing: bool = False
    used_at: float = 0.0
    gone: bool = False

    @property
    def free(self) -> bool:
        return not (self.pins or self.current or self.writing)


class Writing:
    """A slot that is being filled: write `view`, then `publish`.

    As a context manager it gives the slot back if the block is left without having published.
    """

    def __init__(self, writer: Writer, slot: _Slot, size: int, ring: str | None) -> None:
        shown = np.frombuffer(slot.memory, np.uint8, size, _HEADER)
        self.view: memoryview[int] = shown.data
        # All that is made from the view keeps this array alive, and nothing else does.
        self._shown = weakref.ref(shown)
        self._writer = writer
        self._slot = slot
        self._size = size
        self._ring = ring
        self._done = False

    def publish(self) -> Offer:
        """Make what was written the slot's value, take `view` back, and return the offer to send.

        Raises `BufferError`, and gives the slot up, if an array or buffer made from `view` still
        lives: it could change a value that others read.
        """
        if self._done:
            raise RuntimeError("this slot was published or abandoned already")
        if not self._finish():
            self._writer._give_up(self._slot)
            raise BufferError("the slot cannot be published while something made from its view lives")
        return self._writer._publish(self._slot, self._size, self._ring)

    def abandon(self) -> None:
        """Give the slot back without a value; nothing happens if it was published."""
        if self._done:
            return
        if self._finish():
            self._writer._abandon(self._slot)
        else:
            self._writer._give_up(self._slot)

    def _finish(self) -> bool:
        """Take the view back; False if something made from it lives."""
        self._done = True
        with contextlib.suppress(BufferError):
            self.view.release()
        return self._shown() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abandon()


class _Fence:
    """Calling it orders what this thread stored and loaded before against what it does after."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> None:
        # The release of the first and the acquisition of the second keep everything in order, on ARM
        # too; one pair alone would let both sides move into its middle.
        with self._lock:
            pass
        with self._lock:
            pass


class Writer:
    """The slots of this process; may be used from several threads, but not from a signal handler.

    A value begun with a `ring` name is a state: the newest two of its ring stay, an older one's slot is
    used again.  A value begun without is held until `release`.  At most `most_bytes` are in slots,
    free ones included; a free slot that nobody needed for `idle_seconds` is given back to the system.
    """

    def __init__(
        self,
        most_bytes: int = MOST_BYTES,
        *,
        most_slots: int = MOST_SLOTS,
        idle_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._most_slots = most_slots
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._fence = _Fence()
        self._slots: dict[bytes, _Slot] = {}
        self._rings: dict[str, deque[_Slot]] = {}
        self._bytes = 0
        self._making = 0
        self._trimmed_at = clock()
        self._closed = False
        self._pid = os.getpid()

    def begin(self, size: int, *, ring: str | None = None) -> Writing:
        """Return a slot with room for `size` bytes; raises `Full` if the bounds allow none."""
        if size < 0:
            raise ValueError(f"a value cannot have {size} bytes")
        if os.getpid() != self._pid:
            raise Full(f"the slots belong to process {self._pid}, which this one was forked from")
        room = _room_for(size)
        with self._lock:
            if self._closed:
                raise Full("the slots of this process were closed")
            self._trim_now_and_then()
            slot = self._reusable(size, room)
            if slot is None:
                self._bytes += _HEADER + room
                self._making += 1
            else:
                self._start(slot)
        if slot is None:
            slot = self._make(room)
        return Writing(self, slot, size, ring)

    def hold(self, offer: Offer) -> bool:
        """Keep a value until one more `release`; False if it is gone already."""
        with self._lock:
            slot = self._holding(offer)
            if slot is not None:
                slot.pins += 1
            return slot is not None

    def release(self, offer: Offer) -> bool:
        """Let go of a value once; False if nothing held it, as with an acknowledgement that comes twice."""
        with self._lock:
            slot = self._holding(offer)
            if slot is None or not slot.pins:
                return False
            slot.pins -= 1
            slot.used_at = self._clock()
            return True

    def drop(self, ring: str) -> None:
        """Let go of the values of a ring."""
        with self._lock:
            for slot in self._rings.pop(ring, ()):
                slot.current = False
                slot.used_at = self._clock()

    def trim(self, idle_seconds: float = 0.0) -> None:
        """Give slots back to the system that have been free for at least `idle_seconds`."""
        with self._lock:
            self._trim(idle_seconds)

    def stats(self) -> dict[str, int]:
        """Count slots, those in use, and bytes."""
        with self._lock:
            used = sum(not slot.free for slot in self._slots.values())
            return {"slots": len(self._slots), "used": used, "bytes": self._bytes}

    def close(self) -> None:
        """Let go of all slots; what peers have attached stays readable to them."""
        with self._lock:
            self._closed = True
            self._rings.clear()
            for slot in list(self._slots.values()):
                self._forget(slot)

    def _reusable(self, size: int, room: int) -> _Slot | None:
        """Return a free slot, or None where a new one may be made."""
        free = [slot for slot in self._slots.values() if slot.free]
        roomy = [slot for slot in free if slot.room >= size]
        fitting = [slot for slot in roomy if slot.room <= 2 * room]
        if fitting:
            # Of the smallest, the one freed last: the others may turn out not to be needed.
            return min(fitting, key=lambda slot: (slot.room, -slot.used_at))
        spare_bytes = self._most_bytes - self._bytes - _HEADER - room
        spare_slots = self._most_slots - len(self._slots) - self._making
        if spare_bytes >= 0 and spare_slots > 0:
            return None
        if roomy:
            return min(roomy, key=lambda slot: slot.room)
        idle = sorted(free, key=lambda slot: slot.used_at)
        going: list[_Slot] = []
        while idle and (spare_bytes < 0 or spare_slots <= 0):
            going.append(idle.pop(0))
            spare_bytes += _HEADER + going[-1].room
            spare_slots += 1
        if spare_bytes < 0 or spare_slots <= 0:
            raise Full(
                f"no slot for {size} bytes: {self._bytes} of {self._most_bytes} bytes "
                f"and {len(self._slots)} of {self._most_slots} slots are taken"
            )
        for slot in going:
            self._retire(slot)
        return None

    def _make(self, room: int) -> _Slot:
        try:
            slot = _new_slot(room)
        except BaseException as error:
            with self._lock:
                self._bytes -= _HEADER + room
                self._making -= 1
            if isinstance(error, OSError):
                raise Full(f"the system gives no shared memory of {room} bytes: {error}") from error
            raise
        with self._lock:
            self._making -= 1
            self._slots[slot.nonce] = slot
            self._start(slot)
            if self._closed:
                self._forget(slot)
                raise Full("the slots of this process were closed")
        return slot

    def _start(self, slot: _Slot) -> None:
        slot.writing = True
        # Odd, and greater than before, also where the last value was abandoned.
        slot.generation = (slot.generation + 1) | 1
        slot.words[_GENERATION] = slot.generation
        self._fence()

    def _publish(self, slot: _Slot, size: int, ring: str | None) -> Offer:
        with self._lock:
            if slot.gone:
                raise Full("the slots of this process were closed")
            slot.words[_SIZE] = size
            self._fence()
            slot.generation += 1
            slot.words[_GENERATION] = slot.generation
            slot.writing = False
            slot.used_at = self._clock()
            if ring is None:
                slot.pins = 1
            else:
                newest = self._rings.setdefault(ring, deque())
                newest.append(slot)
                slot.current = True
                if len(newest) > _RING:
                    oldest = newest.popleft()
                    oldest.current = False
                    oldest.used_at = slot.used_at
            return Offer(self._pid, slot.fd, slot.inode, slot.nonce, slot.generation, size)

    def _abandon(self, slot: _Slot) -> None:
        with self._lock:
            slot.writing = False
            slot.used_at = self._clock()

    def _give_up(self, slot: _Slot) -> None:
        with self._lock:
            if not slot.gone:
                self._retire(slot)

    def _holding(self, offer: Offer) -> _Slot | None:
        slot = self._slots.get(offer.nonce)
        if slot is None or slot.generation != offer.generation or slot.free:
            return None
        return slot

    def _trim_now_and_then(self) -> None:
        now = self._clock()
        if now - self._trimmed_at >= self._idle_seconds / 4:
            self._trimmed_at = now
            self._trim(self._idle_seconds)

    def _trim(self, idle_seconds: float) -> None:
        now = self._clock()
        for slot in [slot for slot in self._slots.values() if slot.free]:
            if now - slot.used_at >= idle_seconds:
                self._retire(slot)

    def _retire(self, slot: _Slot) -> None:
        """Let go of a slot and tell its readers to do the same."""
        slot.words[_GENERATION] = (slot.generation + 1) | 1
        slot.words[_GIVEN_UP] = 1
        self._forget(slot)

    def _forget(self, slot: _Slot) -> None:
        slot.gone = True
        del self._slots[slot.nonce]
        self._bytes -= _HEADER + slot.room
        slot.words.release()
        # While somebody still has the view of a writing, the memory stays, and goes with that view.
        with contextlib.suppress(BufferError):
            slot.memory.close()
        os.close(slot.fd)


@dataclass(slots=True, eq=False)
class _Attached:
    memory: mmap.mmap
    words: memoryview[int]
    room: int
    leaving: bool = False

    def let_go(self) -> bool:
        """Unmap, unless a view of it lives somewhere."""
        self.words.release()
        try:
            self.memory.close()
        except BufferError:
            self.words = _words(self.memory)
            return False
        return True


class Reader:
    """Opens what peers offer, and keeps it open for their next values.

    It may be used from several threads, but not from a signal handler.  At most `most_slots` slots and
    `most_bytes` bytes are attached; those that were used longest ago make way, but never one that a
    view still shows.
    """

    def __init__(self, most_bytes: int = 4 * MOST_BYTES, *, most_slots: int = 2 * MOST_SLOTS) -> None:
        self._most_bytes = most_bytes
        self._most_slots = most_slots
        self._lock = threading.Lock()
        self._fence = _Fence()
        self._attached: dict[tuple[int, int, int, bytes], _Attached] = {}

    def view(self, offer: Offer) -> memoryview[int]:
        """Return the value where it lies, read-only; what is read from it counts only if `still` says so.

        Raises `Torn` if a later value has taken its place, and `Unattachable` if the offer cannot be used.
        """
        _checked(offer)
        with self._lock:
            attached = self._attach(offer)
            if attached.words[_GENERATION] != offer.generation:
                raise Torn(f"{_named(offer)} holds, or is getting, a later value")
            self._fence()
            if offer.size != attached.words[_SIZE] or offer.size > attached.room:
                if not self._is_current(attached, offer):
                    raise Torn(f"{_named(offer)} got a later value")
                raise Unattachable(f"{_named(offer)} holds a value of another size")
            return memoryview(attached.memory)[_HEADER : _HEADER + offer.size]

    def still(self, offer: Offer) -> bool:
        """Whether all that was read before this call, from the view of this offer, was its value."""
        with self._lock:
            attached = self._attached.get(_key(offer))
            return attached is not None and self._is_current(attached, offer)

    def copy(self, offer: Offer, into: memoryview | None = None) -> memoryview:
        """Return a copy of the value, in the first bytes of `into` if that is given.

        Raises `Torn` if the value was replaced meanwhile (`into` then holds anything), and
        `Unattachable` like `view`.
        """
        source = self.view(offer)
        try:
            target = np.empty(offer.size, np.uint8).data if into is None else into.cast("B")[: offer.size]
            if len(target) < offer.size:
                raise ValueError(f"{offer.size} bytes do not fit into {len(target)}")
            # numpy lets other threads run while it copies.
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
            # Asked while the view is alive, since what a view shows is never detached.
            if not self.still(offer):
                raise Torn(f"{_named(offer)} got a later value while it was being copied")
        finally:
            source.release()
        return target

    def forget(self, pid: int) -> None:
        """Let go of what a process offered, once no view shows it."""
        with self._lock:
            for key, attached in self._attached.items():
                if key[0] == pid:
                    attached.leaving = True
            self._sweep()

    def stats(self) -> dict[str, int]:
        """Count what is attached."""
        with self._lock:
            total = sum(_HEADER + attached.room for attached in self._attached.values())
            return {"attached": len(self._attached), "bytes": total}

    def close(self) -> None:
        """Let go of everything; views that live on stay readable, but `still` is false from now on."""
        with self._lock:
            for attached in self._attached.values():
                attached.let_go()
            self._attached.clear()

    def _is_current(self, attached: _Attached, offer: Offer) -> bool:
        self._fence()
        return attached.words[_GENERATION] == offer.generation

    def _attach(self, offer: Offer) -> _Attached:
        key = _key(offer)
        attached = self._attached.pop(key, None)
        if attached is None:
            self._sweep()
            attached = _open(offer)
            if not self._make_way(attached.room):
                attached.let_go()
                raise Unattachable(f"too much shared memory is in use to attach {_named(offer)} as well")
        # The last of the dict is what was used last.
        self._attached[key] = attached
        return attached

    def _sweep(self) -> None:
        """Let go of slots that their writers gave up."""
        for key, attached in list(self._attached.items()):
            if (attached.leaving or attached.words[_GIVEN_UP]) and attached.let_go():
                del self._attached[key]

    def _make_way(self, room: int) -> bool:
        """Let go of what was used longest ago until the bounds allow `room` more; False if they do not."""
        if _HEADER + room > self._most_bytes:
            return False
        total = sum(_HEADER + attached.room for attached in self._attached.values()) + _HEADER + room
        for key, attached in list(self._attached.items()):
            if total <= self._most_bytes and len(self._attached) < self._most_slots:
                break
            if attached.let_go():
                del self._attached[key]
                total -= _HEADER + attached.room
        return total <= self._most_bytes and len(self._attached) < self._most_slots


def _room_for(size: int) -> int:
    """Round up to one of four sizes between each power of two and the next."""
    if size <= _SMALLEST_ROOM:
        return _SMALLEST_ROOM
    step = 1 << ((size - 1).bit_length() - 3)
    return -(-size // step) * step


def _words(memory: mmap.mmap) -> memoryview[int]:
    # Each word is loaded and stored as a whole this way; struct would do it byte by byte.
    return memoryview(memory)[:_WORDS_BYTES].cast("Q")


def _new_slot(room: int) -> _Slot:
    fd = os.memfd_create("engine-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, _HEADER + room)
        memory = mmap.mmap(fd, _HEADER + room)
        nonce = os.urandom(_NONCE_BYTES)
        memory[_NONCE_AT : _NONCE_AT + _NONCE_BYTES] = nonce
        words = _words(memory)
        words[_IS_MAGIC] = _MAGIC
        # An older kernel refuses a seal that it does not know; the other seals do not need it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _F_SEAL_FUTURE_WRITE)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        return _Slot(memory, words, fd, os.fstat(fd).st_ino, nonce, room)
    except BaseException:
        os.close(fd)
        raise


def _open(offer: Offer) -> _Attached:
    path = f"/proc/{offer.pid}/fd/{offer.fd}"
    try:
        # Looked at before it is opened: to open a pipe or a device can have consequences.
        _check_file(os.stat(path), offer)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            found = os.fstat(fd)
            _check_file(found, offer)
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise Unattachable(f"{_named(offer)} is not sealed")
            memory = mmap.mmap(fd, found.st_size, mmap.MAP_SHARED, mmap.PROT_READ)
        finally:
            os.close(fd)
    except OSError as error:
        # Files that are no memfd end here too: they have no seals to ask for.
        raise Unattachable(f"{_named(offer)} cannot be opened: {error}") from error
    attached = _Attached(memory, _words(memory), found.st_size - _HEADER)
    nonce = memory[_NONCE_AT : _NONCE_AT + _NONCE_BYTES]
    if attached.words[_IS_MAGIC] != _MAGIC or nonce != offer.nonce:
        attached.let_go()
        raise Unattachable(f"{_named(offer)} is other memory than the offer means")
    return attached


def _check_file(found: os.stat_result, offer: Offer) -> None:
    if (
        not stat.S_ISREG(found.st_mode)
        or found.st_ino != offer.inode
        or found.st_uid != os.geteuid()
        or found.st_size < _HEADER + offer.size
    ):
        raise Unattachable(f"{_named(offer)} is another file than the offer means")


def _checked(offer: Offer) -> Offer:
    """Return an offer whose fields have the right types and could be true; an offer comes from outside."""
    numbers = (offer.pid, offer.fd, offer.inode, offer.generation, offer.size)
    if (
        any(type(number) is not int or number < 0 for number in numbers)
        or not 0 < offer.pid < _TOO_MANY
        or offer.fd >= _TOO_MANY
        or type(offer.nonce) is not bytes
        or len(offer.nonce) != _NONCE_BYTES
        or offer.generation == 0
        or offer.generation % 2
    ):
        raise Unattachable("no offer: its fields make no sense")
    return offer


def _key(offer: Offer) -> tuple[int, int, int, bytes]:
    return offer.pid, offer.fd, offer.inode, offer.nonce


def _named(offer: Offer) -> str:
    return f"slot {offer.fd} of process {offer.pid}"
