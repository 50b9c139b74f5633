"""Shared memory between processes of one host: nothing but the offered value is ever taken for it."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bus import slots
from engine.bus.slots import Full, Offer, Reader, Torn, Unattachable, Writer

pytestmark = pytest.mark.skipif(not slots.available(), reason="needs memfd_create and /proc")

KIB = 1 << 10
MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def open_files() -> Counter[int]:
    """Count the open files of this process by inode."""
    found: Counter[int] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        # The descriptor that listed the folder is gone by now.
        with contextlib.suppress(FileNotFoundError):
            found[os.stat(f"/proc/self/fd/{fd}").st_ino] += 1
    return found


def mapped_slots() -> set[int]:
    """The inodes of the slots that this process has mapped."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {int(line.split()[4]) for line in lines if "memfd:engine-slot" in line}


@pytest.fixture(autouse=True)
def _no_slot_is_left() -> Iterator[None]:
    # By inode, since what other tests left may be closed meanwhile.
    before = mapped_slots()
    yield
    if mapped_slots() - before:
        gc.collect()
    assert mapped_slots() <= before


@pytest.fixture
def writer() -> Iterator[Writer]:
    writer = Writer()
    yield writer
    writer.close()


@pytest.fixture
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


def put(writer: Writer, value: bytes, *, ring: str | None = None) -> Offer:
    with writer.begin(len(value), ring=ring) as writing:
        writing.view[:] = value
        return writing.publish()


def same_slot(one: Offer, other: Offer) -> bool:
    return one.nonce == other.nonce


# A value goes there and back


@pytest.mark.parametrize("size", [0, 1, 7, 64 * KIB - 1, 64 * KIB, 64 * KIB + 1, 300_001])
def test_a_value_comes_out_as_it_went_in(writer: Writer, reader: Reader, size: int) -> None:
    value = random.Random(size).randbytes(size)
    offer = put(writer, value)
    assert offer.size == size
    assert reader.view(offer) == value
    assert reader.copy(offer) == value
    assert reader.still(offer)


def test_a_copy_lands_in_the_first_bytes_of_what_was_given(writer: Writer, reader: Reader) -> None:
    target = bytearray(b"-" * 6)
    reader.copy(put(writer, b"abcd"), memoryview(target))
    assert target == b"abcd--"


def test_a_copy_that_does_not_fit_is_refused(writer: Writer, reader: Reader) -> None:
    with pytest.raises(ValueError, match="4 bytes do not fit into 3"):
        reader.copy(put(writer, b"abcd"), memoryview(bytearray(3)))


def test_a_copy_is_ours_to_change(writer: Writer, reader: Reader) -> None:
    offer = put(writer, b"abcd")
    reader.copy(offer)[0] = 0
    assert reader.copy(offer) == b"abcd"


def test_a_view_is_read_only(writer: Writer, reader: Reader) -> None:
    view = reader.view(put(writer, b"abcd"))
    assert view.readonly
    assert not np.frombuffer(view, np.uint8).flags.writeable


def test_nobody_else_can_open_a_slot_for_writing(writer: Writer) -> None:
    offer = put(writer, b"abcd")
    if not fcntl.fcntl(offer.fd, fcntl.F_GET_SEALS) & slots._F_SEAL_FUTURE_WRITE:
        pytest.skip("the kernel is older than this seal")
    fd = os.open(f"/proc/{offer.pid}/fd/{offer.fd}", os.O_RDWR)
    try:
        with pytest.raises(OSError, match="not permitted"):
            os.truncate(fd, 0)
        with pytest.raises(OSError, match="not permitted"):
            os.pwrite(fd, b"x", 4096)
    finally:
        os.close(fd)


def test_an_offer_survives_being_sent_as_a_list(writer: Writer, reader: Reader) -> None:
    assert reader.view(Offer.parse(list(put(writer, b"abcd")))) == b"abcd"


# Slots are used again


def test_a_state_uses_three_slots_however_often_it_changes(writer: Writer) -> None:
    offers = [put(writer, bytes([n]) * 100_000, ring="learner_model") for n in range(20)]
    assert len({offer.nonce for offer in offers}) == 3
    assert writer.stats()["slots"] == 3


def test_the_newest_two_values_of_a_state_stay(writer: Writer, reader: Reader) -> None:
    offers = [put(writer, bytes([n]), ring="learner_model") for n in range(10)]
    assert [reader.copy(offer)[0] for offer in offers[-2:]] == [8, 9]
    with writer.begin(1, ring="learner_model") as writing:
        assert [reader.copy(offer)[0] for offer in offers[-2:]] == [8, 9]
        for old in offers[:-3]:
            with pytest.raises(Torn):
                reader.view(old)
        writing.publish()
    assert not reader.still(offers[-3])
    assert reader.still(offers[-1])


def test_an_item_stays_until_it_is_released(writer: Writer, reader: Reader) -> None:
    offers = [put(writer, bytes([n])) for n in range(5)]
    assert [reader.copy(offer)[0] for offer in offers] == [0, 1, 2, 3, 4]
    assert writer.release(offers[2])
    assert same_slot(put(writer, b"x"), offers[2])
    with pytest.raises(Torn):
        reader.view(offers[2])
    assert reader.copy(offers[3]) == b"\x03"


def test_a_second_release_changes_nothing(writer: Writer, reader: Reader) -> None:
    first = put(writer, b"1")
    assert writer.release(first)
    assert not writer.release(first)
    second = put(writer, b"2")
    assert same_slot(first, second)
    assert not writer.release(first)
    assert not same_slot(put(writer, b"3"), second)


def test_a_held_state_stays_until_as_many_releases(writer: Writer, reader: Reader) -> None:
    first = put(writer, b"0", ring="a_b")
    assert writer.hold(first)
    assert writer.hold(first)
    for _ in range(5):
        put(writer, b"x", ring="a_b")
    writer.release(first)
    put(writer, b"x", ring="a_b")
    assert reader.copy(first) == b"0"
    writer.release(first)
    for _ in range(5):
        put(writer, b"x", ring="a_b")
    assert not reader.still(first)
    assert not writer.hold(first)


def test_a_dropped_ring_gives_its_slots_to_others(writer: Writer) -> None:
    old = put(writer, b"x", ring="a_b")
    writer.drop("a_b")
    writer.drop("never_was")
    assert same_slot(put(writer, b"y"), old)


def test_a_small_value_does_not_take_a_slot_of_a_large_one(writer: Writer) -> None:
    large = put(writer, bytes(1 * MIB))
    writer.release(large)
    assert not same_slot(put(writer, b"small"), large)
    assert same_slot(put(writer, bytes(900 * KIB)), large)


def test_sizes_round_up_by_at_most_a_quarter() -> None:
    for size in [65537, 100_000, 131_072, 131_073, 7 * MIB, 16 * MIB, 16 * MIB + 1]:
        room = slots._room_for(size)
        assert size <= room <= 1.25 * size
        assert room % 4096 == 0
        assert slots._room_for(room) == room


# Bounds


def test_no_more_than_the_most_bytes_is_taken() -> None:
    writer = Writer(most_bytes=300 * KIB)
    offers = [put(writer, bytes(60 * KIB)) for _ in range(4)]
    with pytest.raises(Full, match="no slot for 61440 bytes"):
        writer.begin(60 * KIB)
    writer.release(offers[0])
    put(writer, bytes(60 * KIB))
    assert writer.stats()["bytes"] <= 300 * KIB
    writer.close()


def test_a_value_beyond_all_bounds_is_refused_and_costs_no_slot() -> None:
    writer = Writer(most_bytes=MIB)
    kept = put(writer, b"x")
    writer.release(kept)
    with pytest.raises(Full):
        writer.begin(2 * MIB)
    assert writer.stats() == {"slots": 1, "used": 0, "bytes": 68 * KIB}
    writer.close()


def test_no_more_than_the_most_slots_are_open() -> None:
    writer = Writer(most_slots=2)
    put(writer, b"a")
    second = put(writer, b"b")
    with pytest.raises(Full, match="2 of 2 slots"):
        writer.begin(1)
    writer.release(second)
    put(writer, bytes(MIB))
    assert writer.stats()["slots"] == 2
    writer.close()


def test_free_slots_make_way_for_another_size_longest_unused_first() -> None:
    clock = Clock()
    writer = Writer(most_bytes=4 * 68 * KIB, clock=clock)
    offers = [put(writer, b"x") for _ in range(4)]
    for offer in reversed(offers):
        clock.now += 1
        writer.release(offer)
    put(writer, bytes(128 * KIB))
    assert writer.stats()["slots"] == 3
    assert same_slot(put(writer, b"x"), offers[0])
    writer.close()


def test_a_far_too_large_slot_is_taken_before_a_value_is_refused() -> None:
    writer = Writer(most_bytes=2 * MIB)
    large = put(writer, bytes(1536 * KIB))
    other = put(writer, bytes(400 * KIB))
    writer.release(large)
    assert same_slot(put(writer, bytes(500 * KIB)), large)
    assert writer.release(other)
    writer.close()


def test_slots_that_nobody_needs_are_given_back() -> None:
    clock = Clock()
    writer, reader = Writer(idle_seconds=60, clock=clock), Reader()
    burst = [put(writer, bytes([n])) for n in range(6)]
    for offer in burst:
        reader.view(offer)
        writer.release(offer)
    for _ in range(10):
        clock.now += 10
        writer.release(put(writer, b"x"))
    assert writer.stats()["slots"] == 1
    late = put(writer, bytes(MIB))
    reader.view(late)
    assert reader.stats()["attached"] == 2, "readers let go of slots that were given back"
    writer.close()
    reader.close()


def test_a_view_of_a_slot_that_was_given_back_stays_readable_but_does_not_count(
    writer: Writer, reader: Reader
) -> None:
    offer = put(writer, b"abcd")
    view = reader.view(offer)
    writer.release(offer)
    assert reader.still(offer)
    writer.trim()
    assert not reader.still(offer)
    assert view == b"abcd"


def test_trimming_leaves_what_is_in_use(writer: Writer, reader: Reader) -> None:
    held, state = put(writer, b"h"), put(writer, b"s", ring="a_b")
    free = put(writer, b"f")
    writer.release(free)
    with writer.begin(MIB) as writing:
        writer.trim()
        assert writer.stats()["slots"] == 3
        writing.view[0] = 1
        writing.publish()
    assert reader.copy(held) == b"h"
    assert reader.copy(state) == b"s"


def test_a_reader_attaches_a_bounded_number_but_never_detaches_a_view(writer: Writer) -> None:
    reader = Reader(most_slots=2)
    offers = [put(writer, bytes([n])) for n in range(5)]
    shown = reader.view(offers[0])
    for offer in offers:
        assert reader.copy(offer)[0] == offers.index(offer)
    assert reader.stats()["attached"] == 2
    assert reader.still(offers[0])
    second = reader.view(offers[1])
    with pytest.raises(Unattachable, match="too much shared memory is in use"):
        reader.view(offers[2])
    second.release()
    assert reader.copy(offers[2])[0] == 2
    assert shown[0] == 0
    shown.release()
    reader.close()


def test_a_reader_detaches_what_was_used_longest_ago(writer: Writer) -> None:
    reader = Reader(most_slots=2)
    kept, other, new = (put(writer, value) for value in (b"kept", b"other", b"new"))
    for offer in (kept, other, kept, new):
        reader.view(offer)
    assert [reader.still(offer) for offer in (kept, other, new)] == [True, False, True]
    reader.close()


def test_a_reader_attaches_bounded_bytes(writer: Writer) -> None:
    reader = Reader(most_bytes=2 * MIB)
    for _ in range(5):
        reader.view(put(writer, bytes(900 * KIB)))
    assert 0 < reader.stats()["bytes"] <= 2 * MIB
    with pytest.raises(Unattachable, match="too much"):
        reader.view(put(writer, bytes(3 * MIB)))
    reader.close()


# Writings


def test_an_abandoned_slot_is_used_again_and_shows_nothing(writer: Writer, reader: Reader) -> None:
    old = put(writer, b"old")
    writer.release(old)
    with writer.begin(3) as writing:
        writing.view[:] = b"bad"
    with pytest.raises(Torn):
        reader.view(old)
    new = put(writer, b"new")
    assert same_slot(new, old)
    assert new.generation > old.generation
    assert reader.copy(new) == b"new"


def test_the_view_of_a_writing_ends_with_publish(writer: Writer) -> None:
    writing = writer.begin(3)
    view = writing.view
    writing.publish()
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    with pytest.raises(RuntimeError, match="published"):
        writing.publish()
    writing.abandon()


@pytest.mark.parametrize("wrap", [np.asarray, memoryview, lambda view: view[1:], lambda view: view.cast("b")])
@pytest.mark.parametrize("publish", [True, False])
def test_a_slot_that_an_array_can_still_write_to_is_given_up(
    writer: Writer, publish: bool, wrap: Callable[[memoryview], Any]
) -> None:
    writing = writer.begin(3)
    array = wrap(writing.view)
    if publish:
        with pytest.raises(BufferError, match="while something made from its view lives"):
            writing.publish()
    else:
        writing.abandon()
    assert writer.stats() == {"slots": 0, "used": 0, "bytes": 0}
    array[0] = 1
    del array


def test_a_negative_size_is_a_mistake(writer: Writer) -> None:
    with pytest.raises(ValueError, match="-1 bytes"):
        writer.begin(-1)


def test_after_close_nothing_begins_and_what_was_begun_is_not_published() -> None:
    writer = Writer()
    writing = writer.begin(3)
    view = writing.view
    writer.close()
    writer.close()
    view[:] = b"abc"
    with pytest.raises(Full, match="closed"):
        writing.publish()
    with pytest.raises(Full, match="closed"):
        writer.begin(1)
    other = Writer()
    unused = other.begin(3)
    other.close()
    unused.abandon()


def test_release_after_close_changes_nothing() -> None:
    writer = Writer()
    offer = put(writer, b"x")
    writer.close()
    assert not writer.release(offer)


def test_a_forked_process_cannot_write_to_the_slots_of_its_parent(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with pytest.raises(Full, match="forked"):
        writer.begin(1)


def test_a_system_that_gives_no_more_files_is_full_and_then_not(writer: Writer, reader: Reader) -> None:
    offer = put(writer, b"x")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(Full, match="the system gives no shared memory"):
            writer.begin(1)
        with pytest.raises(Unattachable, match="cannot be opened"):
            reader.view(offer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert writer.stats() == {"slots": 1, "used": 1, "bytes": 68 * KIB}
    assert reader.copy(offer) == b"x"
    put(writer, b"y")


def test_closing_leaves_no_file_open() -> None:
    writer, reader = Writer(), Reader()
    offers = [put(writer, bytes(size)) for size in (1, 100_000, 1)]
    for offer in offers:
        reader.view(offer)
    assert [open_files()[offer.inode] for offer in offers] == [3, 3, 3]
    writer.release(offers[0])
    writer.trim()
    assert open_files()[offers[0].inode] == 1
    writer.close()
    reader.close()
    assert [open_files()[offer.inode] for offer in offers] == [0, 0, 0]


# What readers keep


def test_what_is_attached_stays_readable_after_close(writer: Writer, reader: Reader) -> None:
    seen, unseen = put(writer, b"seen"), put(writer, b"unseen")
    reader.view(seen)
    writer.close()
    assert reader.copy(seen) == b"seen"
    with pytest.raises(Unattachable):
        reader.view(unseen)


def test_a_view_outlives_the_reader_and_the_writer() -> None:
    writer, reader = Writer(), Reader()
    offer = put(writer, b"abcd")
    array = np.frombuffer(reader.view(offer), np.uint8)
    reader.close()
    writer.close()
    assert array.tobytes() == b"abcd"
    assert not reader.still(offer)
    del array


def test_forgotten_processes_are_detached_once_no_view_shows_them(writer: Writer, reader: Reader) -> None:
    shown, other = put(writer, b"shown"), put(writer, b"other")
    view = reader.view(shown)
    reader.view(other)
    reader.forget(os.getpid() + 1)
    assert reader.stats()["attached"] == 2
    reader.forget(os.getpid())
    assert reader.stats()["attached"] == 1
    assert reader.still(shown)
    view.release()
    reader.forget(os.getpid())
    assert reader.stats() == {"attached": 0, "bytes": 0}


# Offers that are wrong


def wrong_offers(offer: Offer, fds: dict[str, int]) -> dict[str, Offer]:
    wrong = {
        "the pid of nobody": offer._replace(pid=(1 << 31) - 1),
        "a pid of zero": offer._replace(pid=0),
        "a negative pid": offer._replace(pid=-1),
        "a huge pid": offer._replace(pid=1 << 70),
        "another process": offer._replace(pid=os.getppid()),
        "a negative descriptor": offer._replace(fd=-1),
        "a descriptor that is closed": offer._replace(fd=900_000),
        "a huge descriptor": offer._replace(fd=1 << 70),
        "another inode": offer._replace(inode=offer.inode + 1),
        "a huge inode": offer._replace(inode=1 << 70),
        "another nonce": offer._replace(nonce=bytes(16)),
        "a short nonce": offer._replace(nonce=offer.nonce[:-1]),
        "a long nonce": offer._replace(nonce=offer.nonce + b"x"),
        "a negative size": offer._replace(size=-1),
        "a smaller size": offer._replace(size=offer.size - 1),
        "a larger size": offer._replace(size=offer.size + 1),
        "a size beyond the slot": offer._replace(size=1 << 40),
        "a size beyond all": offer._replace(size=1 << 80),
        "a negative generation": offer._replace(generation=-2),
        "no generation": offer._replace(generation=0),
        "an odd generation": offer._replace(generation=offer.generation + 1),
        "a float": offer._replace(size=4.0),  # type: ignore[arg-type]
        "a bool": offer._replace(fd=True),
        "a text": offer._replace(pid="1/../self"),  # type: ignore[arg-type]
        "a nonce that is text": offer._replace(nonce="x" * 16),  # type: ignore[arg-type]
    }
    for kind, fd in fds.items():
        wrong[kind] = offer._replace(fd=fd)
        wrong[f"{kind} with its inode"] = offer._replace(fd=fd, inode=os.fstat(fd).st_ino)
    return wrong


def test_a_wrong_offer_is_unattachable_and_nothing_else(writer: Writer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        plain = stack.enter_context(tempfile.TemporaryFile())
        offer = put(writer, b"abcd")
        content = os.pread(offer.fd, 1 << 20, 0)
        plain.write(content)
        plain.flush()
        unsealed = os.memfd_create("unsealed")
        stack.callback(os.close, unsealed)
        os.write(unsealed, content)
        empty = os.memfd_create("empty", os.MFD_ALLOW_SEALING)
        stack.callback(os.close, empty)
        fcntl.fcntl(empty, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        pipe = os.pipe()
        for end in pipe:
            stack.callback(os.close, end)
        folder = os.open(tmp_path, os.O_RDONLY)
        stack.callback(os.close, folder)
        device = os.open("/dev/zero", os.O_RDONLY)
        stack.callback(os.close, device)
        line = stack.enter_context(socket.socket())
        fds = {
            "a plain file": plain.fileno(),
            "an unsealed memfd": unsealed,
            "an empty memfd": empty,
            "a pipe": pipe[0],
            "the other end of a pipe": pipe[1],
            "a folder": folder,
            "a device": device,
            "a socket": line.fileno(),
        }
        watched = [os.fstat(fd).st_ino for fd in (offer.fd, *fds.values())]
        before = [open_files()[inode] for inode in watched]
        for name, wrong in wrong_offers(offer, fds).items():
            for known in (False, True):
                reader = Reader()
                if known:
                    reader.view(offer)
                for use in (reader.view, reader.copy):
                    with pytest.raises(Unattachable):
                        pytest.fail(f"{name} was taken: {bytes(use(wrong))!r}")
                reader.close()
        assert [open_files()[inode] for inode in watched] == before
        right = Reader()
        assert right.copy(offer) == b"abcd"
        right.close()


def test_an_offer_that_lies_about_the_size_is_unattachable(writer: Writer, reader: Reader) -> None:
    with pytest.raises(Unattachable, match="of another size"):
        reader.view(put(writer, b"abcd")._replace(size=60_000))


def test_a_generation_of_the_future_is_torn(writer: Writer, reader: Reader) -> None:
    offer = put(writer, b"abcd")
    with pytest.raises(Torn):
        reader.view(offer._replace(generation=offer.generation + 2))


@pytest.mark.parametrize(
    "fields", [None, 3, "abcdef", b"abcdef", [], [1] * 5, [1] * 6, [1] * 7, {}, [None] * 6]
)
def test_fields_that_are_no_offer_are_unattachable(fields: object) -> None:
    with pytest.raises(Unattachable):
        Offer.parse(fields)


def test_a_descriptor_that_was_used_again_is_not_taken_for_the_old_slot(reader: Reader) -> None:
    first = Writer()
    old = put(first, b"old")
    first.close()
    second = Writer()
    new = put(second, b"new")
    for wrong in (old, old._replace(fd=new.fd), old._replace(fd=new.fd, inode=new.inode)):
        with pytest.raises(Unattachable):
            reader.view(wrong)
    assert reader.copy(new) == b"new"
    second.close()


# Torn values


def marks(target: memoryview) -> set[int]:
    """The smallest and the largest byte: one, where the whole was filled with it."""
    array = np.frombuffer(target, np.uint8)
    return {int(array.min()), int(array.max())}


def pattern(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


@pytest.mark.parametrize("seed", range(15))
def test_whatever_the_order_a_value_is_read_whole_or_not_at_all(seed: int) -> None:
    """Halves of writes and halves of reads in any order, with holds, releases, trims and drops."""
    chance = random.Random(seed)
    clock = Clock()
    writer, reader = Writer(most_bytes=700 * KIB, clock=clock), Reader(most_slots=chance.choice([2, 3, 100]))
    offers: list[tuple[Offer, bytes]] = []
    pinned: dict[Offer, bytes] = {}
    newest: dict[str, list[tuple[Offer, bytes]]] = {"a_a": [], "b_b": []}
    writing: tuple[slots.Writing, bytes, str | None] | None = None
    reading: tuple[Offer, bytes, memoryview, bytes] | None = None
    taken = torn = 0

    def check(offer: Offer, value: bytes) -> None:
        nonlocal taken, torn
        try:
            got = bytes(reader.copy(offer))
        except (Torn, Unattachable):
            torn += 1
        else:
            assert got == value
            taken += 1

    for number in range(300):
        clock.now += chance.random() * 20
        step = chance.choice("wwwwwrrrrccph td".replace(" ", ""))
        if step == "w" and writing is None:
            size = chance.choice([2, 100, 5000, 70_000])
            ring = chance.choice([None, "a_a", "b_b"])
            try:
                begun = writer.begin(size, ring=ring)
            except Full:
                continue
            value = pattern(number, size)
            begun.view[: size // 2] = value[: size // 2]
            writing = (begun, value, ring)
        elif step == "w" and writing is not None:
            begun, value, ring = writing
            writing = None
            if chance.random() < 0.1:
                begun.abandon()
                continue
            half = len(value) // 2
            begun.view[half:] = value[half:]
            offer = begun.publish()
            offers.append((offer, value))
            if ring is None:
                pinned[offer] = value
            else:
                newest[ring] = [*newest[ring][-1:], (offer, value)]
        elif step == "r" and reading is None and offers:
            offer, value = chance.choice(offers[-8:])
            try:
                view = reader.view(offer)
            except (Torn, Unattachable):
                torn += 1
                continue
            reading = (offer, value, view, bytes(view[: len(view) // 2]))
        elif step == "r" and reading is not None:
            offer, value, view, first = reading
            reading = None
            whole = first + bytes(view[len(view) // 2 :])
            if reader.still(offer):
                assert whole == value
                taken += 1
            else:
                torn += 1
            view.release()
        elif step == "c" and offers:
            check(*chance.choice(offers[-8:]))
        elif step == "p" and pinned:
            offer = chance.choice(list(pinned))
            del pinned[offer]
            assert writer.release(offer)
        elif step == "h":
            for offer, value in [*pinned.items(), *newest["a_a"], *newest["b_b"]]:
                before = torn
                check(offer, value)
                assert torn == before, "what is kept can be read"
        elif step == "t":
            writer.trim(chance.choice([0, 30]))
        elif step == "d" and chance.random() < 0.3:
            ring = chance.choice(["a_a", "b_b"])
            writer.drop(ring)
            newest[ring] = []
    assert taken > 20
    assert torn > 5
    if reading is not None:
        reading[2].release()
    if writing is not None:
        writing[0].abandon()
    assert writer.stats()["bytes"] <= 700 * KIB
    writer.close()
    reader.close()


def test_threads_that_write_release_and_read_take_only_whole_values() -> None:
    writer, reader = Writer(), Reader()
    latest: list[tuple[Offer, int]] = []
    wrong: list[str] = []
    done = threading.Event()
    size = 256 * KIB

    def write(ring: str, first: int) -> None:
        for number in range(300):
            mark = (first + number) % 251
            with writer.begin(size, ring=ring) as writing:
                np.frombuffer(writing.view, np.uint8)[:] = mark
                offer = writing.publish()
            latest.append((offer, mark))
            held = put(writer, b"x")
            if not writer.release(held):
                wrong.append("a held item was gone")

    def read() -> None:
        target = memoryview(bytearray(size))
        while not done.is_set():
            for offer, mark in latest[-6:]:
                try:
                    reader.copy(offer, target)
                except Torn:
                    continue
                if marks(target) != {mark}:
                    wrong.append(f"{marks(target)} for {mark}")

    writers = [threading.Thread(target=write, args=(f"ring_{n}", 100 * n)) for n in range(2)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in [*writers, *readers]:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert wrong == []
    assert writer.stats()["slots"] <= 8
    writer.close()
    reader.close()


# Other processes

WRITE_AND_WAIT = """
import sys
from engine.bus.slots import Writer
writer = Writer()
def put(value):
    writing = writer.begin(len(value))
    writing.view[:] = value
    return writing.publish()
for value in (b"seen" * 50_000, b"unseen"):
    offer = put(value)
    print(offer.pid, offer.fd, offer.inode, offer.nonce.hex(), offer.generation, offer.size, flush=True)
sys.stdin.read()
"""

WRITE_FOREVER = """
import sys
import numpy as np
from engine.bus.slots import Writer
writer = Writer()
number = 0
while True:
    number += 1
    with writer.begin(1 << 20, ring="a_b") as writing:
        np.frombuffer(writing.view, np.uint8)[:] = number % 251
        offer = writing.publish()
    fields = (offer.pid, offer.fd, offer.inode, offer.nonce.hex(), offer.generation, offer.size)
    print(*fields, number % 251, flush=True)
"""


def read_offer(line: str) -> tuple[Offer, list[int]]:
    pid, fd, inode, nonce, generation, size, *rest = line.split()
    fields = [int(pid), int(fd), int(inode), bytes.fromhex(nonce), int(generation), int(size)]
    return Offer.parse(fields), [int(one) for one in rest]


@pytest.mark.slow
def test_a_value_stays_readable_after_its_writer_was_killed() -> None:
    reader = Reader()
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_AND_WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        seen, _ = read_offer(process.stdout.readline())
        unseen, _ = read_offer(process.stdout.readline())
        view = reader.view(seen)
        process.send_signal(signal.SIGKILL)
    assert view == b"seen" * 50_000
    assert reader.still(seen)
    assert reader.copy(seen) == b"seen" * 50_000
    with pytest.raises(Unattachable):
        reader.view(unseen)
    view.release()
    reader.forget(seen.pid)
    assert reader.stats()["attached"] == 0


@pytest.mark.slow
def test_a_writer_that_never_waits_is_never_read_torn() -> None:
    reader = Reader()
    whole = torn = 0
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_FOREVER], stdout=subprocess.PIPE, text=True, bufsize=1 << 16
    ) as process:
        assert process.stdout is not None
        target = memoryview(bytearray(1 << 20))
        while whole < 200 or whole + torn < 3000:
            line = process.stdout.readline()
            assert line, "the writer ended"
            offer, (mark,) = read_offer(line)
            try:
                reader.copy(offer, target)
            except Torn:
                torn += 1
                continue
            assert marks(target) == {mark}
            whole += 1
        process.kill()
    # Whatever the last write had got to, its slot says so.
    assert reader.stats()["attached"] <= 3
    reader.close()
