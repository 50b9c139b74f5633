"""What every transport promises, and what those over ZeroMQ add."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import zmq
from proxy import Proxy

from engine.bus import zeromq
from engine.bus.keys import RunKeys, generate_keys
from engine.bus.memory import Network
from engine.bus.transport import BULK, CONTROL, Arrival, Down, Received, Transport, Up
from engine.bus.zeromq import Address, ZeroMQ, is_loopback, lock, parse_address, sweep
from engine.errors import PayloadTooLarge, UsageError

KEYS = generate_keys()
SECONDS = 60.0  # until a test gives up: a machine may be slow and loaded


class End:
    """A transport that is started, and what came to it."""

    def __init__(self, transport: Transport, me: str) -> None:
        self.transport, self.me = transport, me
        self.address = transport.start(me)
        self.arrived: list[Arrival] = []

    def connect(self, other: End) -> None:
        self.transport.connect(other.me, other.address)

    def send(self, other: End, lane: int, *frames: bytes | memoryview) -> bool:
        return self.transport.send(other.me, lane, frames)

    @property
    def received(self) -> list[Received]:
        return [one for one in self.arrived if isinstance(one, Received)]

    @property
    def news(self) -> list[Arrival]:
        return [one for one in self.arrived if not isinstance(one, Received)]

    @property
    def is_up(self) -> bool:
        return bool(self.news) and isinstance(self.news[-1], Up)

    @property
    def refused(self) -> bool:
        return any(isinstance(one, Down) and one.refused for one in self.arrived)


class World:
    """Makes ends that can reach each other."""

    def __init__(self, make: Callable[[], Transport]) -> None:
        self.make = make
        self.ends: list[End] = []

    def end(self, me: str) -> End:
        end = End(self.make(), me)
        self.ends.append(end)
        return end

    def pair(self) -> tuple[End, End]:
        """Two ends, the first connected to the second."""
        one, other = self.end("actor_0:1a"), self.end("learner_0:2b")
        one.connect(other)
        self.until(lambda: one.is_up)
        return one, other

    def until(self, true: Callable[[], Any], ends: Sequence[End] | None = None) -> None:
        """Poll the ends in turn until something holds."""
        deadline = time.monotonic() + SECONDS
        while not true():
            assert time.monotonic() < deadline, [end.arrived[-5:] for end in self.ends]
            for end in self.ends if ends is None else ends:
                end.arrived += end.transport.poll(0.002)

    def sent(self, one: End, other: End, lane: int, *frames: bytes | memoryview) -> None:
        """Send, as soon as it is taken."""
        self.until(lambda: one.send(other, lane, *frames))

    def close(self) -> None:
        for end in self.ends:
            end.transport.close(linger=0)


def over_tcp(keys: RunKeys = KEYS) -> ZeroMQ:
    return ZeroMQ(ipc=False, tcp="127.0.0.1", keys=keys)


MAKERS: dict[str, Callable[[], Callable[[], Transport]]] = {
    "memory": lambda: Network().transport,
    "ipc": lambda: ZeroMQ,
    "tcp": lambda: over_tcp,
}


@pytest.fixture(params=list(MAKERS))
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world of each transport."""
    made = World(MAKERS[request.param]())
    yield made
    made.close()


@pytest.fixture
def worlds() -> Iterator[Callable[[Callable[[], Transport]], World]]:
    """Makes worlds that are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(transport: Callable[[], Transport]) -> World:
            made = World(transport)
            stack.callback(made.close)
            return made

        yield make


# --- every transport ------------------------------------------------------------------------


def test_frames_arrive_as_they_were_sent_under_the_name_of_their_sender(world: World) -> None:
    one, other = world.pair()
    large = memoryview(bytes(range(256)) * 1024)
    world.sent(one, other, CONTROL, b"small")
    world.until(lambda: len(other.received) == 1)
    world.sent(one, other, BULK, b"head", large, b"", memoryview(b"view"))
    world.until(lambda: len(other.received) == 2)
    control, bulk = other.received
    assert (control.peer, control.lane, list(control.frames)) == ("actor_0:1a", CONTROL, [b"small"])
    assert (bulk.peer, bulk.lane, list(bulk.frames)) == ("actor_0:1a", BULK, [b"head", large, b"", b"view"])


def test_what_arrived_does_not_change_with_what_was_sent(world: World) -> None:
    one, other = world.pair()
    memory = bytearray(b"a" * (200 << 10))
    world.sent(one, other, BULK, b"head", memoryview(memory))
    world.until(lambda: other.received)
    memory[:] = b"z" * len(memory)
    frame = other.received[0].frames[1]
    assert frame == b"a" * len(memory)


def test_many_frames_arrive_in_order_in_each_lane(world: World) -> None:
    one, other = world.pair()
    for number in range(2000):
        world.sent(one, other, CONTROL, str(number).encode())
        if number % 10 == 0:
            world.sent(one, other, BULK, str(number).encode(), bytes(70_000))
    world.until(lambda: len(other.received) == 2200)
    for lane, numbers in (CONTROL, range(2000)), (BULK, range(0, 2000, 10)):
        assert [int(bytes(got.frames[0])) for got in other.received if got.lane == lane] == list(numbers)


def test_several_senders_are_told_apart(world: World) -> None:
    other = world.end("learner_0:2b")
    ones = [world.end(f"actor_{number}:1a") for number in range(4)]
    for one in ones:
        one.connect(other)
    world.until(lambda: all(one.is_up for one in ones))
    for number, one in itertools.product(range(10), ones):
        world.sent(one, other, CONTROL, str(number).encode())
    world.until(lambda: len(other.received) == 40)
    for one in ones:
        assert [got.frames[0] for got in other.received if got.peer == one.me] == [
            b"%d" % n for n in range(10)
        ]


def test_links_are_one_way(world: World) -> None:
    one, other = world.pair()
    assert not other.send(one, CONTROL, b"back")
    other.connect(one)
    world.until(lambda: other.is_up)
    world.sent(other, one, CONTROL, b"back")
    world.until(lambda: one.received)
    assert one.received[0].peer == "learner_0:2b"


def test_a_peer_may_be_called_otherwise_than_it_calls_itself(world: World) -> None:
    one, hub = world.end("actor_0:1a"), world.end("launcher_0:2b")
    one.transport.connect("hub", hub.address)
    world.until(lambda: one.arrived == [Up("hub")])
    world.until(lambda: one.transport.send("hub", CONTROL, [b"hello"]))
    world.until(lambda: hub.received)


def test_it_starts_once_only(world: World) -> None:
    one = world.end("actor_0:1a")
    assert one.transport.me == "actor_0:1a"
    assert one.address.isprintable()
    with pytest.raises(UsageError, match="started before"):
        one.transport.start("actor_0:1b")


def test_connecting_again_changes_nothing(world: World) -> None:
    one, other = world.pair()
    one.connect(other)
    world.sent(one, other, CONTROL, b"once")
    world.until(lambda: other.received)
    assert one.arrived == [Up("learner_0:2b")]


def test_nothing_is_taken_for_a_peer_that_was_never_connected(world: World) -> None:
    one = world.end("actor_0:1a")
    assert not one.transport.send("learner_0:2b", CONTROL, [b"lost"])


def test_who_closes_refuses_from_then_on(world: World) -> None:
    one, other = world.pair()
    other.transport.close()
    world.until(lambda: one.refused, [one])
    assert not one.send(other, CONTROL, b"lost")
    assert isinstance(one.news[0], Up)
    assert all(isinstance(news, Down) and news.peer == other.me and news.cause for news in one.news[1:])


def test_an_address_where_nobody_listens_refuses(world: World) -> None:
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    other.transport.close()
    one.connect(other)
    world.until(lambda: one.refused, [one])
    assert not one.send(other, CONTROL, b"lost")


@pytest.mark.parametrize(
    "address", ["", "nonsense", "tcp://", "ipc://relative", "memory://99", "tcp://h:1#k"]
)
def test_an_address_of_nonsense_refuses(world: World, address: str) -> None:
    one = world.end("actor_0:1a")
    one.transport.connect("learner_0:2b", address)
    world.until(lambda: one.refused)
    assert not one.transport.send("learner_0:2b", CONTROL, [b"lost"])


def test_who_is_disconnected_is_not_heard_of_again_until_connected(world: World) -> None:
    one, other = world.pair()
    one.transport.disconnect(other.me)
    assert not one.send(other, CONTROL, b"lost")
    one.transport.disconnect(other.me)
    one.connect(other)
    world.until(lambda: len(one.arrived) == 2)
    assert one.arrived == [Up(other.me)] * 2
    world.sent(one, other, CONTROL, b"again")
    world.until(lambda: other.received)


def test_what_a_peer_sent_is_not_lost_by_disconnecting_from_it(world: World) -> None:
    one, other = world.pair()
    other.connect(one)
    world.until(lambda: other.is_up)
    for number in range(400):
        world.until(lambda: other.send(one, CONTROL, b"%d" % number), [other])  # noqa: B023
    world.until(lambda: one.received, [one])
    one.transport.disconnect(other.me)
    world.until(lambda: len(one.received) == 400)


def test_a_peer_may_move_to_another_address(world: World) -> None:
    one, other = world.pair()
    moved = world.end("learner_0:3c")
    one.transport.connect(other.me, moved.address)
    world.until(lambda: one.arrived == [Up(other.me)] * 2)
    world.until(lambda: one.transport.send(other.me, CONTROL, [b"there"]))
    world.until(lambda: moved.received)
    assert not other.received


def test_a_sender_may_come_back_under_its_name(world: World) -> None:
    one, other = world.pair()
    world.sent(one, other, CONTROL, b"before")
    world.until(lambda: other.received)
    one.transport.close()
    again = world.end(one.me)
    again.connect(other)
    live = [other, again]
    world.until(lambda: again.is_up, live)
    world.until(lambda: again.send(other, CONTROL, b"after"), live)
    world.until(lambda: len(other.received) == 2, live)
    assert other.received[1].peer == one.me


def test_a_peer_that_does_not_poll_is_sent_only_so_much(world: World) -> None:
    one, other = world.pair()
    taken = 0
    for _ in range(2000):
        taken += one.send(other, BULK, b"%d" % taken, bytes(70_000))
    assert 0 < taken < 2000
    assert one.send(other, CONTROL, b"the other lane is free")
    world.until(lambda: len(other.received) == taken + 1)
    bulk = [got for got in other.received if got.lane == BULK]
    assert [got.frames[0] for got in bulk] == [b"%d" % number for number in range(taken)]


def test_poll_returns_once_what_was_not_taken_can_be(world: World) -> None:
    one, other = world.pair()
    while one.send(other, BULK, b"head", bytes(70_000)):
        pass
    returned = threading.Event()

    def wait() -> None:
        one.transport.poll(SECONDS)
        returned.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    world.until(returned.is_set, [other])
    waiting.join()
    world.sent(one, other, BULK, b"head", bytes(70_000))


def test_poll_waits_no_longer_than_told(world: World) -> None:
    one = world.end("actor_0:1a")
    assert one.transport.poll(0) == []
    assert one.transport.poll(0.01) == []


def test_waking_ends_a_poll_on_another_thread(world: World) -> None:
    one = world.end("actor_0:1a")
    polling, done = threading.Event(), threading.Event()

    def poll() -> None:
        while not done.is_set():
            polling.set()
            one.transport.poll(10 * SECONDS)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    assert polling.wait(SECONDS)
    done.set()
    one.transport.wake()
    thread.join(SECONDS)
    assert not thread.is_alive()


def test_many_wakes_are_one(world: World) -> None:
    one = world.end("actor_0:1a")
    for _ in range(100_000):
        one.transport.wake()
    assert one.transport.poll(SECONDS) == []
    assert one.transport.poll(0) == []
    one.transport.wake()
    assert one.transport.poll(SECONDS) == []


def test_wakes_of_many_threads_do_not_get_lost(world: World) -> None:
    one = world.end("actor_0:1a")
    queue: list[int] = []

    def work() -> None:
        for number in range(300):
            queue.append(number)
            one.transport.wake()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    seen = 0
    while seen < 1200:
        before = time.monotonic()
        one.transport.poll(SECONDS)
        assert time.monotonic() - before < SECONDS, "a wake was lost"
        seen = len(queue)
    for thread in threads:
        thread.join()


def test_a_closed_transport_does_nothing_and_can_be_closed_again(world: World) -> None:
    one, other = world.pair()
    one.transport.close()
    one.transport.close()
    one.transport.wake()
    one.connect(other)
    one.transport.disconnect(other.me)
    assert not one.send(other, CONTROL, b"lost")
    assert one.transport.poll(0) == []


def test_what_was_taken_before_closing_still_arrives(world: World) -> None:
    one, other = world.pair()
    for number in range(20):
        world.sent(one, other, CONTROL, b"%d" % number)
    one.transport.close(linger=SECONDS)
    world.until(lambda: len(other.received) == 20, [other])


def test_a_transport_that_never_started_can_be_closed(world: World) -> None:
    world.make().close()


# --- in memory ------------------------------------------------------------------------------


def test_a_cut_loses_what_is_under_way_and_both_are_told(worlds: Any) -> None:
    network = Network()
    world = worlds(network.transport)
    one, other = world.pair()
    other.connect(one)
    world.until(lambda: other.is_up)
    assert one.send(other, CONTROL, b"under way")
    network.cut("actor_0", "learner_0:2b")
    assert not one.send(other, CONTROL, b"lost")
    world.until(lambda: not one.is_up and not other.is_up)
    network.mend("learner_0:2b", "actor_0")
    world.until(lambda: one.is_up and other.is_up)
    assert one.send(other, CONTROL, b"after")
    world.until(lambda: other.received)
    assert [got.frames for got in other.received] == [[b"after"]]
    assert not one.refused
    assert not other.refused


def test_others_are_not_touched_by_a_cut(worlds: Any) -> None:
    network = Network()
    world = worlds(network.transport)
    _, other = world.pair()
    third = world.end("actor_1:3c")
    third.connect(other)
    network.cut("actor_0", "learner_0")
    assert third.send(other, CONTROL, b"here")
    world.until(lambda: other.received)


def test_who_connects_across_a_cut_is_up_once_it_is_mended(worlds: Any) -> None:
    network = Network()
    world = worlds(network.transport)
    network.cut("actor_0", "learner_0")
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    one.connect(other)
    world.until(lambda: one.news)
    assert not one.is_up
    network.mend("actor_0", "learner_0")
    world.until(lambda: one.is_up)


def test_who_is_killed_vanishes_and_refuses(worlds: Any) -> None:
    network = Network()
    world = worlds(network.transport)
    one, other = world.pair()
    other.connect(one)
    network.kill("learner_0")
    world.until(lambda: one.refused)
    assert not other.send(one, CONTROL, b"from beyond")
    assert not one.received
    with pytest.raises(UsageError, match="no open transport"):
        network.kill("learner_0")


# --- between processes ----------------------------------------------------------------------


def test_a_connection_that_was_reset_comes_back_and_carries_on_in_order(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    with Proxy(other.address) as proxy:
        one.transport.connect(other.me, proxy.address)
        world.until(lambda: one.is_up)
        for number in range(5):
            world.sent(one, other, CONTROL, b"%d" % number)
            world.until(lambda: any(got.frames == [b"%d" % number] for got in other.received))  # noqa: B023
            told = len(one.news)
            proxy.reset()
            world.until(lambda: len(one.news) > told and one.is_up)  # noqa: B023
    assert [got.frames[0] for got in other.received] == [b"0", b"1", b"2", b"3", b"4"]
    assert proxy.resets >= 10  # two lanes


def test_a_reset_amid_a_stream_leaves_whole_messages_in_order(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    with Proxy(other.address) as proxy:
        one.transport.connect(other.me, proxy.address)
        world.until(lambda: one.is_up)
        for number in range(300):
            if number % 30 == 15:
                proxy.reset()
            world.sent(one, other, BULK, b"%d" % number, bytes(100_000), b"end")

        def last_came() -> bool:
            one.send(other, BULK, b"300", b"", b"last")  # again, where a reset took it
            return bool(other.received) and other.received[-1].frames[-1] == b"last"

        world.until(last_came)
    numbers = [int(bytes(got.frames[0])) for got in other.received]
    numbers = numbers[: numbers.index(300) + 1]
    assert numbers == sorted(set(numbers))
    assert all(len(got.frames) == 3 for got in other.received)


def test_where_nobody_listens_any_more_refuses_until_somebody_does(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    with Proxy(other.address) as proxy:
        one.transport.connect(other.me, proxy.address)
        world.until(lambda: one.is_up)
        proxy.block()
        world.until(lambda: one.refused)
        proxy.unblock()
        world.until(lambda: one.is_up)
        world.sent(one, other, CONTROL, b"back")
        world.until(lambda: other.received)


@pytest.mark.slow
def test_a_silent_network_is_noticed_by_heartbeats(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    with Proxy(other.address) as proxy:
        one.transport.connect(other.me, proxy.address)
        world.until(lambda: one.is_up)
        proxy.freeze()
        world.until(lambda: not one.is_up)
        proxy.thaw()
        world.until(lambda: one.is_up)


CHILD = """
import sys
from engine.bus.keys import load_keys
from engine.bus.zeromq import ZeroMQ
tcp = sys.argv[1] == "tcp"
keys = load_keys(sys.argv[2]) if tcp else None
transport = ZeroMQ(ipc=not tcp, tcp="127.0.0.1" if tcp else None, keys=keys)
print(transport.start("learner_0:2b"), flush=True)
while True:
    transport.poll(10)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ipc", "tcp"])
def test_the_death_of_a_process_is_told_as_a_refusal(kind: str, worlds: Any, tmp_path: Path) -> None:
    KEYS.save(tmp_path / "keys")
    command = [sys.executable, "-c", CHILD, kind, str(tmp_path / "keys")]
    environ = {**os.environ, "TMPDIR": "/tmp"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as child:
        try:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            world = worlds(lambda: ZeroMQ(keys=KEYS))
            one = world.end("actor_0:1a")
            one.transport.connect("learner_0:2b", address)
            world.until(lambda: one.is_up)
            child.send_signal(signal.SIGKILL)
            world.until(lambda: one.refused)
        finally:
            child.kill()
    path = parse_address(address).path
    if path is not None:
        os.utime(Path(path).parent, (0, 0))
        assert sweep(Path(path).parent.parent) >= 1
        assert not Path(path).parent.exists()


# --- who is let in --------------------------------------------------------------------------


def test_a_socket_file_is_preferred_and_needs_no_keys(worlds: Any) -> None:
    world = worlds(lambda: ZeroMQ(tcp="127.0.0.1", keys=KEYS))
    other = world.end("learner_0:2b")
    assert parse_address(other.address).path
    assert parse_address(other.address).host == "127.0.0.1"
    world.make = ZeroMQ
    one = world.end("actor_0:1a")
    one.connect(other)
    world.until(lambda: one.is_up)


def test_a_socket_file_that_is_not_on_this_host_is_passed_by(worlds: Any) -> None:
    world = worlds(lambda: ZeroMQ(tcp="127.0.0.1", keys=KEYS))
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    _, tcp = other.address.split()
    one.transport.connect(other.me, f"ipc:///nowhere/learner_0.sock {tcp}")
    world.until(lambda: one.is_up)


def test_a_socket_file_in_a_directory_open_to_others_is_not_trusted(worlds: Any) -> None:
    world = worlds(ZeroMQ)
    one, other = world.end("actor_0:1a"), world.end("learner_0:2b")
    path = parse_address(other.address).path
    assert path is not None
    Path(path).parent.chmod(0o755)
    one.connect(other)
    world.until(lambda: one.refused)


def test_an_address_as_people_write_it_reaches_a_peer_with_the_same_keys(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, hub = world.end("actor_0:1a"), world.end("launcher_0:2b")
    one.transport.connect("hub", f"tcp://localhost:{parse_address(hub.address).port}")
    world.until(lambda: one.is_up)


def test_who_has_no_keys_of_the_run_is_not_let_in(worlds: Any) -> None:
    world = worlds(over_tcp)
    other = world.end("learner_0:2b")
    strangers = generate_keys()
    knows_server = RunKeys(
        KEYS.server_public, KEYS.server_secret, strangers.client_public, strangers.client_secret
    )
    ones = []
    for number, keys in enumerate((strangers, knows_server)):
        world.make = lambda keys=keys: ZeroMQ(keys=keys)
        ones.append(world.end(f"actor_{number}:1a"))
    ones[0].transport.connect(other.me, f"tcp://127.0.0.1:{parse_address(other.address).port}")
    ones[1].connect(other)
    world.until(lambda: all(one.news for one in ones))
    for one in ones:
        assert isinstance(one.news[0], Down)
        assert "keys" in one.news[0].cause
        assert not one.send(other, CONTROL, b"let me in")
    assert other.transport.denied >= 1
    assert not other.received
    world.make = lambda: ZeroMQ()
    keyless = world.end("actor_9:1a")
    keyless.connect(other)
    world.until(lambda: keyless.news)
    assert "keys" in keyless.news[0].cause


@contextlib.contextmanager
def raw(address: str, identity: bytes = b"") -> Iterator[Any]:
    """A socket of somebody who is no transport."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        if identity:
            dealer.routing_id = identity
        dealer.connect(address)
        yield dealer


def test_frames_without_encryption_reach_nobody_by_tcp(worlds: Any) -> None:
    world = worlds(over_tcp)
    one, other = world.pair()
    with raw(f"tcp://127.0.0.1:{parse_address(other.address).port}", b"cactor_0:1a") as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send(b"let me in")
        world.until(lambda: monitor.poll(1))
        dealer.disable_monitor()
        monitor.close()
    world.sent(one, other, CONTROL, b"here")
    world.until(lambda: other.received)
    assert [got.frames for got in other.received] == [[b"here"]]
    assert other.transport.dropped == 0


IDENTITIES = [b"", b"x", b"c", b"xactor_0:1a", b"c" + b"a" * 129, b"c\xff\xfe", b"b with spaces", b"c\x00"]


@pytest.mark.parametrize("identity", IDENTITIES)
def test_frames_of_somebody_who_is_no_peer_are_dropped_and_counted(worlds: Any, identity: bytes) -> None:
    world = worlds(ZeroMQ)
    one, other = world.pair()
    with raw(f"ipc://{parse_address(other.address).path}", identity) as dealer:
        dealer.send_multipart([b"one", b"two"])
        dealer.send(b"three")
        world.until(lambda: other.transport.dropped == 2)
    world.sent(one, other, CONTROL, b"here")
    world.until(lambda: other.received)
    assert [got.frames for got in other.received] == [[b"here"]]


def test_a_flood_of_malformed_messages_does_not_hold_up_what_comes_after(worlds: Any) -> None:
    world = worlds(ZeroMQ)
    other = world.end("learner_0:2b")
    with raw(f"ipc://{parse_address(other.address).path}", b"cactor_0:1a") as dealer:
        for _ in range(600):
            dealer.send_multipart([b"noise"] * (zeromq.MAX_FRAMES + 1))
        dealer.send(b"here")
        started = time.monotonic()
        while not other.received:
            other.arrived += other.transport.poll(SECONDS)
        assert time.monotonic() - started < SECONDS, "it slept while there was something to take"
    assert other.transport.dropped == 600


@pytest.mark.parametrize("letter", [b"c", b"b"])
def test_a_message_of_too_many_frames_is_dropped_and_counted(worlds: Any, letter: bytes) -> None:
    world = worlds(ZeroMQ)
    other = world.end("learner_0:2b")
    with raw(f"ipc://{parse_address(other.address).path}", letter + b"actor_0:1a") as dealer:
        dealer.send_multipart([b"frame"] * 5000)
        dealer.send_multipart([b"frame"] * zeromq.MAX_FRAMES)
        world.until(lambda: other.received)
    assert other.transport.dropped == 1
    assert list(other.received[0].frames) == [b"frame"] * zeromq.MAX_FRAMES


def test_many_strangers_do_not_fill_the_memory_of_names(worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "_KNOWN_IDS", 4)
    world = worlds(ZeroMQ)
    _, other = world.pair()
    for number in range(10):
        with raw(f"ipc://{parse_address(other.address).path}", b"x%d" % number) as dealer:
            dealer.send(b"noise")
            world.until(lambda: other.transport.dropped > number)  # noqa: B023
    assert len(other.transport._senders) <= 4


def test_who_sends_too_large_a_frame_is_disconnected(worlds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeromq, "MAX_FRAME_BYTES", 100_000)
    world = worlds(ZeroMQ)
    one, other = world.pair()
    with raw(f"ipc://{parse_address(other.address).path}", b"bactor_1:1a") as dealer:
        monitor = dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.send(bytes(100_001))
        world.until(lambda: monitor.poll(1))
        dealer.disable_monitor()
        monitor.close()
    with pytest.raises(PayloadTooLarge, match="100001 bytes"):
        one.send(other, BULK, bytes(100_001))
    with pytest.raises(PayloadTooLarge, match="65 frames"):
        one.send(other, BULK, *[b""] * 65)
    world.sent(one, other, BULK, bytes(100_000))
    world.until(lambda: other.received)


# --- what is left behind --------------------------------------------------------------------


def test_closing_leaves_no_socket_no_directory_and_no_descriptor(tmp_path: Path, worlds: Any) -> None:
    before = set(os.listdir("/proc/self/fd"))
    tmp_path.chmod(0o700)
    world = worlds(lambda: ZeroMQ(ipc=tmp_path / "s", tcp="127.0.0.1", keys=KEYS))
    one = world.end("actor_0:1a")
    directory = Path(parse_address(one.address).path or "").parent
    assert directory.stat().st_mode & 0o777 == 0o700
    world.make = ZeroMQ
    other = world.end("learner_0:2b")
    own = Path(parse_address(other.address).path or "").parent
    assert own.stat().st_mode & 0o777 == 0o700
    other.connect(one)
    world.until(lambda: other.is_up)
    world.close()
    assert not directory.exists()
    assert not own.exists()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_a_directory_that_was_there_is_shared_and_stays(tmp_path: Path, worlds: Any) -> None:
    directory = Path(f"/tmp/engine-test-{os.getpid()}")
    directory.mkdir(mode=0o700)
    try:
        world = worlds(lambda: ZeroMQ(ipc=directory))
        world.pair()
        assert sorted(path.name for path in directory.iterdir()) == ["actor_0_1a.sock", "learner_0_2b.sock"]
        world.close()
        assert list(directory.iterdir()) == []
    finally:
        directory.rmdir()


def test_a_directory_open_to_others_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError, match="closed to others"):
        ZeroMQ(ipc=tmp_path).start("actor_0:1a")


def test_a_path_too_long_for_a_socket_is_replaced_by_a_short_one(tmp_path: Path, worlds: Any) -> None:
    world = worlds(lambda: ZeroMQ(ipc=tmp_path / ("long" * 30)))
    one, _ = world.pair()
    path = parse_address(one.address).path
    assert path is not None
    assert len(path) <= 107
    assert list(tmp_path.iterdir()) == []


def test_a_port_in_use_is_told_and_nothing_is_left(worlds: Any) -> None:
    world = worlds(over_tcp)
    one = world.end("actor_0:1a")
    taken = f"127.0.0.1:{parse_address(one.address).port}"
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(UsageError, match=r"cannot listen at tcp://127\.0\.0\.1:.*in use"):
        ZeroMQ(tcp=taken, keys=KEYS).start("learner_0:2b")
    assert set(os.listdir("/proc/self/fd")) <= before


def test_only_what_nobody_uses_is_swept(tmp_path: Path, worlds: Any) -> None:
    world = worlds(ZeroMQ)
    one = world.end("actor_0:1a")
    used = Path(parse_address(one.address).path or "").parent
    for name in ("engine-bus-old", "engine-bus-new", "engine-bus-full", "other"):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
    (tmp_path / "engine-bus-new" / "x").mkdir()
    (tmp_path / "engine-bus-used").symlink_to(used)
    assert sweep(tmp_path) == 2
    assert used.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"engine-bus-new", "engine-bus-used", "other"}


def test_the_directory_of_a_launcher_is_swept_once_it_is_gone(tmp_path: Path) -> None:
    left, alive, fresh, strange = (tmp_path / f"engine-{word * 6}" for word in ("0a", "0b", "0c", "0d"))
    for directory in (left, alive, fresh, strange, tmp_path / "engine-notes"):
        directory.mkdir()
        (directory / "learner_0.json").write_text("{}")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(directory / "learner_0.sock"))  # nothing listens there
    (strange / "thesis.txt").write_text("of the user's own")
    for directory in (left, alive, strange):
        os.utime(directory, (0, 0))
    descriptor = lock(alive)
    try:
        assert sweep(tmp_path) == 1
    finally:
        os.close(descriptor)
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("engine-0b0b0b0b0b0b", "engine-0c0c0c0c0c0c", "engine-0d0d0d0d0d0d", "engine-notes"),
    ]
    assert sweep(tmp_path) == 1, "its launcher has ended"


def test_who_makes_a_directory_removes_those_of_the_killed(
    tmp_path: Path, worlds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / "engine-bus-old"
    left.mkdir()
    os.utime(left, (0, 0))
    strange = tmp_path / f"engine-bus-{'x' * 100}"
    strange.mkdir()
    here = os.getcwd()
    os.chdir(strange)  # a path too long for a socket, but for this
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("s")
    os.chdir(here)
    os.utime(strange, (0, 0))
    (tmp_path / "engine-bus-file").write_text("")
    worlds(ZeroMQ).end("actor_0:1a")
    assert not left.exists()
    assert strange.exists()


# --- places and addresses -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"ipc": False}, "nobody could reach"),
        ({"tcp": "127.0.0.1"}, "needs keys"),
        ({"tcp": "10.0.0.7"}, "needs keys"),
        ({"tcp": "0.0.0.0", "keys": KEYS}, "names no host"),
        ({"tcp": "*:80", "keys": KEYS}, "names no host"),
        ({"tcp": "[::]:80", "keys": KEYS}, "names no host"),
        ({"tcp": "127.0.0.1:99999", "keys": KEYS}, "no host:port"),
        ({"tcp": "127.0.0.1:80:80", "keys": KEYS}, "no host:port"),
    ],
)
def test_a_place_that_cannot_be_is_refused_at_once(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ZeroMQ(**options)


@pytest.mark.parametrize("me", ["", "with space", "a" * 129, "übung", "line\nbreak"])
def test_a_name_that_others_would_not_accept_is_refused(me: str) -> None:
    with pytest.raises(UsageError, match="cannot name a peer"):
        ZeroMQ().start(me)


@pytest.mark.parametrize(
    ("place", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1:80", True),
        ("localhost:80", True),
        ("[::1]:80", True),
        ("10.0.0.7:80", False),
        ("0.0.0.0", False),
        ("host.example", False),
    ],
)
def test_loopback_is_told_from_the_rest(place: str, loopback: bool) -> None:
    assert is_loopback(place) is loopback


@pytest.mark.parametrize(
    "address",
    [
        Address("/run/x/learner_0.sock"),
        Address(host="127.0.0.1", port=41233),
        Address("/run/a b#c%d/s.sock", "::1", 1),
        Address(host="node-7.cluster", port=65535),
    ],
)
def test_an_address_survives_being_written_and_read(address: Address) -> None:
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "127.0.0.1:80",
        "tcp://127.0.0.1",
        "tcp://:80",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:70000",
        "tcp://127.0.0.1:80#short",
        "tcp://a:1 tcp://b:2",
        "tcp://[::1:80",
        "tcp://a:1/path",
        "ipc://relative/path",
        "ipc:///" + "x" * 107,
        "ipc:///a%00b",
        "ipc:///a%0ab",
        "ipc:///a ipc:///b",
        "udp://a:1",
        "tcp://a:1\ntcp://b:1",
        "tcp://a:1" + " " * 1000,
        "tcp://ü:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_address(text)
