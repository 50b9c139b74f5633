"""Reliable lanes over a wire that loses, delays and repeats."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bus.link import (
    DATA,
    FIRST_PROBE_SECONDS,
    HEAD_SIZE,
    Intake,
    Lane,
    Sending,
    pack_blobs,
    pack_head,
    read_blobs,
    read_head,
)
from engine.errors import CodecError


class Wire:
    """One lane from here to there and back, over connections that break; time passes by `tick`."""

    def __init__(self, *, pack: bool, window: int = 8, window_bytes: int = 400) -> None:
        self.lane = Lane(window=window, window_bytes=window_bytes)
        self.intake = Intake()
        self.pack = pack
        self.now = 0.0
        self.pushed: list[bytes] = []
        self.got: list[bytes] = []
        self.there: deque[Sending | int] = deque()  # frames on their way; an int is a probe
        self.back: deque[tuple[int | None, int]] = deque()  # answers: which probe, what is expected
        self.old: list[Sending] = []

    def push(self, size: int) -> None:
        blob = len(self.pushed).to_bytes(4, "big") + bytes(size)
        self.pushed.append(blob)
        self.lane.push([blob])

    def send(self, *, taken: bool = True) -> None:
        sending = self.lane.next(self.now, pack=self.pack)
        if sending is None:
            return
        if taken:
            self.there.append(sending)
            self.old.append(sending)
        else:
            self.lane.not_taken(sending)

    def probe(self) -> None:
        number = self.lane.probe(self.now)
        if number is not None:
            self.there.append(number)

    def deliver(self) -> None:
        if self.there:
            frame = self.there.popleft()
            if isinstance(frame, int):
                self.back.append((frame, self.intake.expected))
            else:
                self.arrive(frame)

    def arrive(self, frame: Sending) -> None:
        known = self.intake.accept(frame.number, frame.messages)
        if known is not None:
            self.got += [bytes(blob) for blob in frame.frames[known:]]
        self.back.append((None, self.intake.expected))

    def answer(self) -> None:
        if self.back:
            probe, expected = self.back.popleft()
            self.lane.heard()
            self.lane.acknowledged(expected, self.now)
            if probe is not None:
                self.lane.probed(probe, expected, self.now)

    def lose(self) -> None:
        """The connection breaks, and what is under way there is lost."""
        self.there.clear()

    def check(self) -> None:
        assert self.got == self.pushed[: len(self.got)]

    def settle(self) -> int:
        """Let a good connection do its work; return how many rounds it took."""
        if not self.lane.up:
            self.lane.connected(self.now)
        for round_ in range(10_000):
            if self.lane.idle:
                return round_
            self.now += FIRST_PROBE_SECONDS
            self.send()
            self.probe()
            self.deliver()
            self.answer()
            self.check()
        raise AssertionError("it does not end")


OPS = ["push", "large", "send", "refuse", "probe", "deliver", "answer", "lose", "down", "up", "tick", "again"]


@settings(max_examples=400, deadline=None, derandomize=True)
@given(st.booleans(), st.lists(st.sampled_from(OPS), max_size=120), st.randoms(use_true_random=False))
def test_nothing_is_lost_doubled_or_reordered(pack: bool, ops: list[str], rng: random.Random) -> None:
    wire = Wire(pack=pack)
    for op in ops:
        match op:
            case "push":
                wire.push(rng.randrange(60))
            case "large":
                wire.push(1000)
            case "send":
                wire.send()
            case "refuse":
                wire.send(taken=False)
            case "probe":
                wire.probe()
            case "deliver":
                wire.deliver()
            case "answer":
                wire.answer()
            case "lose":
                wire.lose()  # before anybody is told of it
            case "down":
                wire.lose()
                wire.lane.broken()
            case "up":
                wire.lane.connected(wire.now)
            case "tick":
                wire.now += rng.choice([0.01, 0.1, 1.0])
            case "again" if wire.old:
                wire.arrive(rng.choice(wire.old))
        wire.check()
    wire.settle()
    assert wire.got == wire.pushed
    assert wire.lane.queued_bytes == 0


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_it_ends_over_a_wire_that_breaks_again_and_again(seed: int) -> None:
    rng = random.Random(seed)
    wire = Wire(pack=True)
    for _ in range(100):
        wire.push(rng.randrange(100))
    wire.lane.connected(wire.now)
    for _ in range(3000):
        wire.now += rng.choice([0.0, 0.05])
        rng.choice([wire.send, wire.send, wire.deliver, wire.deliver, wire.answer, wire.probe])()
        if rng.random() < 0.01:
            wire.lose()
            if rng.random() < 0.5:
                wire.back.clear()
            wire.lane.broken()
            wire.lane.connected(wire.now)
        wire.check()
    wire.settle()
    assert wire.got == wire.pushed


def test_nothing_leaves_before_the_connection_is_there() -> None:
    lane = Lane(window=8, window_bytes=100)
    lane.push([b"a"])
    assert lane.next(0.0, pack=True) is None
    lane.connected(0.0)
    assert lane.next(0.0, pack=True) is not None


def test_small_messages_travel_in_one_frame_and_large_ones_alone() -> None:
    lane = Lane(window=100, window_bytes=1 << 20)
    lane.connected(0.0)
    for blob in (b"a", b"b", bytes(60_000), bytes(60_000), b"c"):
        lane.push([blob])
    counts = []
    while (sending := lane.next(0.0, pack=True)) is not None:
        counts.append((sending.number, sending.messages))
    assert counts == [(0, 3), (3, 2)]


def test_the_window_bounds_messages_and_bytes_but_lets_one_out() -> None:
    lane = Lane(window=2, window_bytes=100)
    lane.connected(0.0)
    for size in (1000, 1, 1, 1):
        lane.push([bytes(size)])
    assert lane.next(0.0, pack=True) == Sending(0, 1, [bytes(1000)])
    assert lane.next(0.0, pack=True) is None
    lane.acknowledged(1, 0.0)
    sending = lane.next(0.0, pack=True)
    assert sending is not None
    assert sending.messages == 2
    assert lane.next(0.0, pack=True) is None
    assert lane.waiting


def test_a_deaf_peer_is_seen_by_since_when_it_owes_an_answer() -> None:
    lane = Lane(window=8, window_bytes=100)
    lane.connected(0.0)
    lane.ask(5.0)
    assert lane.due() == 5.0
    assert lane.probe(5.0) is not None
    assert lane.asked_at == 5.0
    for now in (6.0, 7.0, 8.0):
        lane.probe(now)
    assert lane.asked_at == 5.0
    lane.pardon(2.0)
    assert lane.asked_at == 7.0
    lane.heard()
    assert [lane.asked_at] == [None]


def test_answers_that_take_longer_than_the_time_between_probes_count() -> None:
    wire = Wire(pack=True)
    wire.push(1)
    wire.lane.connected(0.0)
    wire.send()
    wire.lose()
    answers: deque[tuple[float, int]] = deque()  # each takes five seconds
    for tenth in range(1, 200):
        wire.now = tenth / 10
        number = wire.lane.probe(wire.now)
        if number is not None:
            answers.append((wire.now + 5.0, number))
        if answers and answers[0][0] <= wire.now:
            wire.lane.probed(answers.popleft()[1], 0, wire.now)
    assert wire.lane.next(wire.now, pack=True) == Sending(0, 1, [wire.pushed[0]])


def test_a_new_connection_after_which_everything_is_acknowledged_is_not_held_up() -> None:
    lane = Lane(window=8, window_bytes=100)
    lane.connected(0.0)
    lane.push([b"a"])
    lane.next(0.0, pack=True)
    lane.connected(0.1)
    lane.acknowledged(1, 0.1)
    lane.push([b"b"])
    assert lane.next(0.2, pack=True) == Sending(1, 1, [b"b"])


@pytest.mark.parametrize("expected", [2, 10**18])
def test_acknowledgements_of_what_was_never_sent_are_left(expected: int) -> None:
    lane = Lane(window=8, window_bytes=100)
    lane.connected(0.0)
    lane.push([b"a"])
    assert lane.next(0.0, pack=False) is not None
    lane.acknowledged(expected, 0.0)
    number = lane.probe(FIRST_PROBE_SECONDS)
    assert number is not None
    lane.probed(number, expected, 0.2)
    assert not lane.idle


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"eb",
        bytes(HEAD_SIZE),
        b"xx" + pack_head(DATA, 1, 0, 0, (0, 0))[2:],
        pack_head(DATA, 1, 2, 0, (0, 0)),
        pack_head(0, 1, 0, 0, (0, 0)),
        pack_head(99, 1, 0, 0, (0, 0)),
        b"eb\x07" + pack_head(DATA, 1, 0, 0, (0, 0))[3:],
    ],
)
def test_bytes_that_are_no_head_are_refused(frame: bytes) -> None:
    with pytest.raises(CodecError):
        read_head(frame)


def test_messages_of_a_frame_come_apart_again() -> None:
    head = pack_head(DATA, 3, 1, 7, (5, 6))
    frame = head + pack_blobs([b"one", b"", b"three"])
    assert read_head(frame) == (DATA, 3, 1, 7, (5, 6))
    assert [bytes(blob) for blob in read_blobs(frame, 3)] == [b"one", b"", b"three"]
    for end in range(HEAD_SIZE, len(frame)):
        with pytest.raises(CodecError, match="ends"):
            list(read_blobs(frame[:end], 3))
