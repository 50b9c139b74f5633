"""Bytes that no bus sent, at the sockets of a run that goes on."""

from __future__ import annotations

import random
import resource
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import zmq

from engine.bus import links
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.keys import generate_keys
from engine.bus.link import ACK, DATA, HELLO, PROBE, PROBED, WELCOME, pack_blobs, pack_head
from engine.bus.message import (
    VERSION,
    Call,
    Cancel,
    Changed,
    Event,
    Failure,
    Fenced,
    Finish,
    Gone,
    Held,
    Hello,
    Item,
    Leaving,
    Member,
    Missed,
    Notice,
    Pull,
    Refused,
    Reply,
    Report,
    Resend,
    State,
    Taken,
    Welcome,
    pack,
)
from engine.bus.zeromq import ZeroMQ, curve_pair, parse_address

LONG = 60.0

KINDS = [DATA, ACK, PROBE, PROBED, HELLO, WELCOME]


class Run:
    """A hub, a learner and a collector that work while they are shot at."""

    def __init__(self, stack: ExitStack, *, tcp: bool = False) -> None:
        self.keys = keys = generate_keys()

        def transport() -> ZeroMQ:
            return ZeroMQ(ipc=False, tcp="127.0.0.1", keys=keys) if tcp else ZeroMQ()

        def joined(role: str) -> Bus:
            bus = join(transport(), at=self.hub.address, run="r", role=role, timeout=LONG)
            stack.callback(bus.close, linger=0.2)
            return bus

        self.hub = host(transport(), run="r")
        stack.callback(self.hub.close, linger=0.2)
        self.learner, self.collector = joined("learner"), joined("collector")
        self.learner.serve("learner_echo", lambda x: x, thread="inline")
        self.learner.consume("collector_data", capacity=4)
        self.collector.ready()
        self.learner.ready()
        self.learner.wait_for_peers("collector", timeout=LONG)
        self.buses = [self.hub, self.learner, self.collector]
        self.pushed = self.taken = 0

    def work(self, rounds: int = 1) -> None:
        """Do a little of everything, and find it right."""
        for _ in range(rounds):
            self.pushed += 1
            self.collector.push("collector_data", {"n": self.pushed, "x": np.arange(20_000)}, timeout=LONG)
            assert self.collector.call("learner_echo", self.pushed, timeout=LONG) == self.pushed
            assert self.learner.take("collector_data", timeout=LONG).value["n"] == self.pushed

    def check(self) -> None:
        """Everybody is still there, and nobody else."""
        self.work(5)
        for bus in self.buses:
            assert len(bus.peers()) == 2
            assert bus.stats()["lost"] == {}
            assert bus.told_to_finish is None
            assert bus._network is not None
            assert bus._network.alive


class Gun:
    """A plain socket that sends what it likes to one inbox."""

    def __init__(self, address: str, routing_id: bytes, **options: bytes) -> None:
        place = parse_address(address)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set(zmq.LINGER, 0 if place.path is None else 5000)
        self._socket.set(zmq.ROUTING_ID, routing_id)
        self._socket.set(zmq.SNDTIMEO, 200)
        for name, value in options.items():
            self._socket.set(getattr(zmq, name), value)
        self._socket.connect(f"ipc://{place.path}" if place.path else f"tcp://{place.host}:{place.port}")

    def shoot(self, *frames: bytes) -> bool:
        try:
            self._socket.send_multipart(frames)
        except zmq.Again:
            return False
        return True

    def __enter__(self) -> Gun:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()
        self._context.term()


def some_member(rng: random.Random, id: str) -> Member:
    """Return one whom the hub refuses: whoever has a role and an address would simply have joined."""
    about: dict[str, Any] = {"x": ["y"] * rng.randrange(10)}
    return Member(
        id, "", rng.choice(["Collector", "no role", ""]), rng.choice(["ipc:///nowhere", "", "x://"]), about
    )


def messages(rng: random.Random, id: str) -> list[Any]:
    """Return one message of each kind, well formed and made up."""
    member, skeleton, offer = some_member(rng, id), rng.randbytes(20), (1, 2, 3, b"x" * 16, 4, 5)
    return [
        Hello("r", rng.choice([VERSION, 9]), member),
        Welcome("r", "collector_7", [], {}, [member], "stop"),
        Refused("because"),
        Fenced("because"),
        Changed(member),
        Gone(id, "because", False),
        Report(id, {"x": 1}),
        Leaving("because"),
        Finish("because"),
        Event("learner_news", skeleton, b""),
        Missed(5),
        Notice("learner_model", 7, 10, skeleton, offer),
        Pull("learner_model"),
        State("learner_model", 8, 10, skeleton),
        Item("collector_data", 9, 0.5, 10, skeleton, offer),
        Resend("collector_data", 1),
        Taken("collector_data", [1, 2, 3]),
        Call(1, "learner_echo", 1000, 10, skeleton),
        Call(rng.randrange(10), "learner_echo", 1000, 0, skeleton, rng.randrange(5)),
        Held(1),
        Reply(1, 10, skeleton),
        Failure(1, "KeyError", "x", "y", False),
        Cancel(1),
    ]


def frames(rng: random.Random, id: str) -> list[bytes]:
    """Return the frames of one message that is wrong in one way or another."""
    blob = pack(rng.choice(messages(rng, id)))
    if rng.random() < 0.3:
        blob = blob[: rng.randrange(len(blob))]
    if rng.random() < 0.3 and blob:
        place = rng.randrange(len(blob))
        blob = blob[:place] + rng.randbytes(1) + blob[place + 1 :]
    count = rng.choice([1, 1, 1, 0, 2, 65535])
    numbers = [rng.choice([0, 1, 5, 2**63, rng.randrange(100)]) for _ in range(3)]
    head = pack_head(rng.choice(KINDS), count, rng.choice([0, 1]), numbers[0], (numbers[1], numbers[2]))
    frame = head + pack_blobs([blob])
    match rng.randrange(6):
        case 0:
            return [rng.randbytes(rng.randrange(200))]
        case 1:
            return [frame[: rng.randrange(len(frame))]]
        case 2:
            return [frame, *(rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 100)))]
        case 3:
            return [frame + bytes(rng.choice([10, 100_000]))]
        case 4:
            return [blob]
        case _:
            return [frame]


def strangers(rng: random.Random, run: Run) -> list[bytes]:
    """Routing ids of nobody, of no form at all, and of the hub itself."""
    assert run.hub._network is not None
    assert run.collector._network is not None
    return [
        b"cstranger:1",
        b"bstranger:1",
        b"xstranger:1",
        b"c",
        rng.randbytes(9),
        b"chub",
        b"c" + b"y" * 250,
        b"lstranger:1/1",
        b"l" + run.collector._network.me.id.encode() + b"/77",
        b"l/",
    ]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def fire(run: Run, seed: int, shots: int) -> int:
    rng = random.Random(seed)
    fired = 0
    for bus in run.buses:
        for routing_id in strangers(rng, run):
            with Gun(bus.address, routing_id) as gun:
                name = routing_id[1:].decode("latin1")
                fired += sum(gun.shoot(*frames(rng, name)) for _ in range(shots))
            run.work()
    return fired


def test_a_run_goes_on_under_fire(stack: ExitStack) -> None:
    run = Run(stack)
    assert fire(run, 1, 40) > 500
    run.check()
    assert all(bus.stats()["dropped"] for bus in run.buses)


@pytest.mark.slow
def test_old_frames_under_the_name_of_a_member_do_not_harm_the_lanes(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The inbox takes the liar for the member: its own connection has to time out to be made anew.
    monkeypatch.setattr(links, "BROKEN_SECONDS", 1000.0)
    monkeypatch.setattr(links, "DEAF_SECONDS", 1000.0)
    run = Run(stack)
    rng = random.Random(2)
    assert run.collector._network is not None
    member = run.collector._network.me
    run.work()  # so that what is shot has a number that was there before
    for _ in range(3):
        with Gun(run.learner.address, b"c" + member.id.encode()) as gun:
            replayed = pack_head(DATA, 1, 0, 0, (0, 0)) + pack_blobs([pack(Event("learner_news", b"", b""))])
            for frame in (replayed, replayed[:-3], pack_head(DATA, 3, 0, 0, (0, 0)), rng.randbytes(100)):
                gun.shoot(frame)
        with Gun(run.hub.address, b"c" + member.id.encode()) as gun:
            hello = pack(Hello("r", VERSION, member))
            gun.shoot(pack_head(HELLO, 1, 0, 0, (0, 0)) + pack_blobs([hello]))
        run.work(3)
    run.check()


def test_who_has_no_keys_or_others_reaches_nothing(stack: ExitStack) -> None:
    run = Run(stack, tcp=True)
    key = run.keys.server_public.encode()
    public, secret = (one.encode() for one in curve_pair())
    wrong = {"CURVE_SERVERKEY": key, "CURVE_PUBLICKEY": public, "CURVE_SECRETKEY": secret}
    options: list[dict[str, bytes]] = [{}, wrong]
    rng = random.Random(3)
    before = [bus.stats()["dropped"] for bus in run.buses]
    for bus in run.buses:
        for one in options:
            with Gun(bus.address, b"cstranger:1", **one) as gun:
                for _ in range(20):
                    gun.shoot(*frames(rng, "stranger:1"))
            run.work()
    run.check()
    assert [bus.stats()["dropped"] for bus in run.buses] == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_goes_on_under_fire_for_long_and_does_not_grow(stack: ExitStack) -> None:
    run = Run(stack)
    fire(run, 10, 200)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(11, 25):
        fire(run, seed, 300)
    run.check()
    threads = threading.active_count()
    large = bytes(65 << 20)
    with Gun(run.hub.address, b"bstranger:2") as gun:
        for _ in range(3):
            gun.shoot(large)
            run.work()
    run.check()
    assert threading.active_count() == threads
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 << 10  # KiB; what is shot takes 65 MiB at either end


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_many_who_want_to_join_at_once_do_not_keep_anybody_out(stack: ExitStack) -> None:
    run = Run(stack)
    rng = random.Random(4)
    over = threading.Event()

    def flood() -> None:
        with Gun(run.hub.address, b"cstranger:1") as gun:
            while not over.is_set():
                blob = pack(Hello("other", VERSION, some_member(rng, "stranger:1")))
                gun.shoot(pack_head(HELLO, 1, 0, 0, (0, 0)) + pack_blobs([blob]))

    thread = threading.Thread(target=flood, daemon=True)
    thread.start()
    try:
        late = join(ZeroMQ(), at=run.hub.address, run="r", role="collector", timeout=LONG)
        stack.callback(late.close, linger=0.2)
        run.work(20)
        Gate().until(lambda: len(run.hub.peers()) == 3 or None, LONG, lambda: "not let in", what="it")
    finally:
        over.set()
        thread.join(LONG)
