"""What one process of a run counts, in memory that others can read even after it was killed.

A meter counts amounts, such as env steps, where they arise: made by an environment, handed over to be sent,
pushed into a stream, dropped there, still waiting there; and, by sender, what a consumer took and whether it
used it.  No term is worked out from the others, so that a reader can check whether they add up.

It is one shared memory file of 8-byte words.  What belongs together is written into the slot that is not
current, and then made current by the store of one word: a process that is killed at any moment leaves counts
that belong together.  The file has no name.  A process of the same host opens it by way of /proc, and
believes it only if it finds the nonce there that the meter's owner has told.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import mmap
import os
import secrets
import stat
import sys
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

_MAGIC = int.from_bytes(b"engmeter", "little")
_IS_MAGIC, _NONCE, _KEY, _HAS_ENV, _STEPPED, _ACTIVE, _ROWS = range(7)
_MARK, _HELD, _SENT, _PUSHED, _DROPPED, _WAITING, _ITEMS, _FIRST_ITEM = range(8)
_MOST_ITEMS = 512
_SLOT = _FIRST_ITEM + 2 * _MOST_ITEMS
_SLOTS_AT = 8
_ROWS_AT = _SLOTS_AT + 2 * _SLOT
_FIELDS = 8
_ROW = 2 + 2 * _FIELDS
MOST_ROWS = 8192
METER = "meter"
"""Under which a process says, among what it tells of itself, where its meter is."""
_WORDS = _ROWS_AT + MOST_ROWS * _ROW
_WORD_MASK = (1 << 64) - 1


def key_of(name: str) -> int:
    """Return the number by which a meter knows a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


class Row(NamedTuple):
    """What a process has counted of one other, by the name or id of that."""

    received: int = 0
    """The amount that was taken from its stream, and used."""
    unused: int = 0
    """The amount that was taken and not used: the iteration did not come so far."""
    next: int = 0
    """The number behind the highest that was taken."""
    recent: int = 0
    """Which of the 64 numbers before `next` were taken; bit 0 is the highest of them."""
    given: int = 0
    """Jobs that were given to it."""
    counted: int = 0
    """Jobs whose result was counted."""
    open: int = 0
    """Jobs that were given and have no result yet."""
    lost: int = 0
    """Jobs that can have no result any more."""

    def has(self, number: int) -> bool:
        """Whether the item of that number was taken."""
        behind = self.next - 1 - number
        return behind >= 64 or (behind >= 0 and bool(self.recent >> behind & 1))


@dataclass(frozen=True)
class Reading:
    """A meter, as it was at one moment."""

    key: int = 0
    stepped: int | None = None
    """What the environment has made; None if no environment counts here."""
    mark: int = 0
    """What it had made when something was handed over last."""
    held: int = 0
    """What was handed over and not pushed yet."""
    sent: int = 0
    """What the task has given to the stream; it comes there a moment later."""
    pushed: int = 0
    dropped: int = 0
    waiting: int = 0
    """The amount of all items that were pushed and not acknowledged."""
    items: tuple[tuple[int, int], ...] | None = ()
    """Those items, each with number and amount; None if they are more than a meter lists."""
    rows: dict[int, Row] = field(default_factory=dict)

    def made(self) -> dict[str, Any]:
        """Return what the process made and sent in plain values, for those that cannot read its meter."""
        made = {name: getattr(self, name) for name in _MADE}
        return {**made, "items": None if self.items is None else [list(item) for item in self.items]}

    @property
    def used(self) -> bool:
        """Whether anything was counted here that the process made itself."""
        return bool(self.stepped or self.mark or self.held or self.pushed)


_MADE = ("key", "stepped", "mark", "held", "sent", "pushed", "dropped", "waiting")


class Meter:
    """What this process counts.  With `shared`, other processes can open it by what `offer` says."""

    def __init__(self, *, shared: bool = False) -> None:
        self._fd: int | None = None
        if shared and sys.platform.startswith("linux"):
            with contextlib.suppress(OSError):  # then it is for this process only, which tells of it
                self._fd = os.memfd_create("engine-meter", os.MFD_CLOEXEC)
                os.ftruncate(self._fd, 8 * _WORDS)
        self._words = _mapped(-1 if self._fd is None else self._fd, mmap.PROT_READ | mmap.PROT_WRITE)
        self._nonce = secrets.randbits(64)
        self._words[_IS_MAGIC], self._words[_NONCE] = _MAGIC, self._nonce
        self._lock = threading.Lock()
        self._producer = [0] * _FIRST_ITEM
        self._items: list[tuple[int, int]] = []
        self._rows: dict[str, tuple[int, Row]] = {}

    @property
    def offer(self) -> list[int | str] | None:
        """Where others on this host find it, in plain values; None if they cannot."""
        return None if self._fd is None else [self._fd, f"{self._nonce:016x}"]

    def name(self, id: str) -> None:
        """Say under which id others count what comes from this process."""
        self._words[_KEY] = key_of(id)

    def read(self) -> Reading:
        """Return what was counted until now."""
        return _read(self._words)

    def close(self) -> None:
        """Let go of the descriptor; what others have opened stays readable to them."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)

    # --- what this process makes and sends ------------------------------------------------

    def steps(self) -> memoryview[int]:
        """Return the cell that an environment adds its steps to, as it begins them."""
        self._words[_HAS_ENV] = 1
        return self._words[_STEPPED : _STEPPED + 1]

    def handed(self, amount: int) -> None:
        """What was made until now was handed over to be sent: this amount of it is there."""
        with self._lock:
            self._producer[_MARK] = self._words[_STEPPED]
            self._producer[_HELD] += amount
            self._commit()

    def sent(self, amount: int) -> None:
        """So much was given to the stream, whose outbox will count it."""
        with self._lock:
            self._producer[_SENT] += amount
            self._commit()

    def moved(self, items: Iterable[tuple[int, int]], *, pushed: int = 0, dropped: int = 0) -> None:
        """An outbox took in, or dropped, so much, or was acknowledged; `items` are those it has now."""
        with self._lock:
            self._producer[_HELD] -= pushed
            self._producer[_PUSHED] += pushed
            self._producer[_DROPPED] += dropped
            self._items = list(items)
            self._commit()

    def _commit(self) -> None:
        words, items = self._words, self._items
        active = 1 - words[_ACTIVE]
        producer = self._producer
        producer[_WAITING] = sum(amount for _, amount in items)
        producer[_ITEMS] = len(items)
        at = _SLOTS_AT + active * _SLOT
        for index, value in enumerate(producer):
            words[at + index] = value & _WORD_MASK
        if len(items) <= _MOST_ITEMS:
            at += _FIRST_ITEM
            for index, (number, amount) in enumerate(items):
                words[at + 2 * index], words[at + 2 * index + 1] = number, amount
        words[_ACTIVE] = active

    # --- what this process takes from others; from one thread -------------------------------

    def took(self, sender: str, number: int, amount: int) -> None:
        """An item of a sender was taken; nothing has used it yet."""
        row = self._row(sender)
        if number >= row.next:
            recent, following = row.recent << (number + 1 - row.next) | 1, number + 1
        else:
            recent, following = row.recent | 1 << (row.next - 1 - number), row.next
        new = row._replace(unused=row.unused + amount, next=following, recent=recent & _WORD_MASK)
        self._put(sender, new)

    def used(self, sender: str, amount: int) -> None:
        """So much of what was taken from a sender has come to its use."""
        row = self._row(sender)
        self._put(sender, row._replace(received=row.received + amount, unused=row.unused - amount))

    def jobs(self, name: str, *, given: int = 0, counted: int = 0, lost: int = 0, open: int) -> None:
        """So many more jobs were given to another, have a result, or are lost; `open` are without one now."""
        row = self._row(name)
        new = row._replace(
            given=row.given + given, counted=row.counted + counted, lost=row.lost + lost, open=open
        )
        self._put(name, new)

    def _row(self, name: str) -> Row:
        return self._rows[name][1] if name in self._rows else Row()

    def _put(self, name: str, row: Row) -> None:
        words = self._words
        place = self._rows[name][0] if name in self._rows else len(self._rows)
        new = name not in self._rows
        self._rows[name] = place, row
        if place >= MOST_ROWS:
            return  # a reader finds more rows than there can be, and knows that it does not see all
        at = _ROWS_AT + place * _ROW
        active = 1 - words[at + 1]
        for index, value in enumerate(row):
            words[at + 2 + active * _FIELDS + index] = value & _WORD_MASK
        words[at + 1] = active
        if new:
            words[at] = key_of(name)
            words[_ROWS] = len(self._rows)


class Opened:
    """The meter of another process of this host; raises `LookupError` where it is not to be had."""

    def __init__(self, pid: object, offer: object) -> None:
        if not (
            isinstance(pid, int)
            and isinstance(offer, Sequence)
            and len(offer) == 2
            and isinstance(offer[0], int)
            and isinstance(offer[1], str)
        ):
            raise LookupError("no meter was offered")
        try:
            fd = os.open(f"/proc/{pid}/fd/{offer[0]}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise LookupError(f"the meter cannot be opened: {error}") from None
        try:
            about = os.fstat(fd)
            if not stat.S_ISREG(about.st_mode) or about.st_size != 8 * _WORDS:
                raise LookupError("what was offered is no meter")
            self._words = _mapped(fd, mmap.PROT_READ)
        except OSError as error:
            raise LookupError(f"the meter cannot be mapped: {error}") from None
        finally:
            os.close(fd)
        if self._words[_IS_MAGIC] != _MAGIC or f"{self._words[_NONCE]:016x}" != offer[1]:
            raise LookupError("what was offered is the meter of another process")

    def read(self) -> Reading:
        """Return what the process has counted until now, or until its end."""
        return _read(self._words)


def heard(made: object) -> Reading | None:
    """Return what `Reading.made` told; None for anything else: programs report what they like."""
    try:
        return msgspec.convert(made, Reading)
    except msgspec.ValidationError:
        return None


class _Mapping(ctypes.c_uint64 * _WORDS):  # type: ignore[misc]
    """Mapped words; a class, so that their end can be noticed."""


def _mapped(fd: int, access: int) -> memoryview[int]:
    """Map a file, or with -1 memory of this process, until nothing refers to it.

    The mmap module would keep a descriptor of each, and a launcher has many processes.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    flags = mmap.MAP_SHARED if fd >= 0 else mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = library.mmap(None, ctypes.c_size_t(8 * _WORDS), access, flags, fd, ctypes.c_long(0))
    if address is None or address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "no memory can be mapped")
    words = _Mapping.from_address(address)
    unmap = weakref.finalize(words, library.munmap, ctypes.c_void_p(address), ctypes.c_size_t(8 * _WORDS))
    unmap.atexit = False  # threads may still count while the interpreter ends
    return memoryview(words).cast("B").cast("Q")


def _read(words: memoryview[int]) -> Reading:
    at = _SLOTS_AT + words[_ACTIVE] * _SLOT
    mark, held, sent, pushed, dropped, waiting, count = (words[at + index] for index in range(_FIRST_ITEM))
    items = None
    if count <= _MOST_ITEMS:
        first = at + _FIRST_ITEM
        items = tuple((words[first + 2 * i], words[first + 2 * i + 1]) for i in range(count))
    rows = {}
    for place in range(min(words[_ROWS], MOST_ROWS)):
        row = _ROWS_AT + place * _ROW
        begin = row + 2 + words[row + 1] * _FIELDS
        rows[words[row]] = Row(*words[begin : begin + _FIELDS])
    return Reading(
        key=words[_KEY],
        stepped=words[_STEPPED] if words[_HAS_ENV] else None,
        mark=_signed(mark),
        held=_signed(held),
        sent=sent,
        pushed=pushed,
        dropped=dropped,
        waiting=waiting,
        items=items,
        rows=rows,
    )


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word
