"""Whole buses in one process, over links that tests cut, mend and kill."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from engine.bus import links, mailbox, network, router
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.link import HELLO, pack_blobs, pack_head
from engine.bus.memory import Network
from engine.bus.message import VERSION, Changed, Finish, Gone, Hello, Member, Refused, Report, pack
from engine.bus.services import Where
from engine.bus.transport import CONTROL
from engine.errors import (
    CodecError,
    DeadlineExceeded,
    EngineError,
    Finishing,
    HubLost,
    NoSuchService,
    Overloaded,
    PayloadTooLarge,
    PeerLost,
    RemoteError,
    UsageError,
)

LONG = 60.0  # for what is expected to come; a loaded machine takes its time


class Town:
    """A network, the buses on it, and threads; all of it ends with the test."""

    def __init__(self) -> None:
        self.net = Network()
        self.buses: list[Bus] = []
        self.threads: list[threading.Thread] = []
        self.hub = self._keep(host(self.net.transport(), run="r"))

    def join(self, role: str, **settings: Any) -> Bus:
        number = sum(bus.role == role for bus in self.buses)
        settings = {"run": "r", "timeout": LONG, "peer": f"{role}_{number}", **settings}
        settings = {"at": self.hub.address, **settings}
        return self._keep(join(self.net.transport(), role=role, **settings))

    def _keep(self, bus: Bus) -> Bus:
        self.buses.append(bus)
        return bus

    def run(self, work: Callable[[], Any]) -> Outcome:
        outcome = Outcome(work)
        self.threads.append(outcome)
        outcome.start()
        return outcome

    def close(self) -> None:
        for bus in reversed(self.buses):
            bus.close(linger=0.2)
        for thread in self.threads:
            thread.join(LONG)
            assert not thread.is_alive()


class Outcome(threading.Thread):
    """Work on a thread of its own; `get` returns what came of it, or raises it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._result = self._work()
        except BaseException as error:
            self._error = error

    def get(self) -> Any:
        self.join(LONG)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error
        return self._result


def eventually(ready: Callable[[], Any], what: str = "it") -> Any:
    """Return what `ready` returns first that is true."""
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


def delivered(bus: Bus, ready: Callable[[], Any]) -> Any:
    """Deliver until `ready` returns something true."""

    def look() -> Any:
        bus.deliver()
        return ready()

    return eventually(look)


def listens(sender: Bus, event: str) -> None:
    """Wait until `sender` knows that somebody listens."""
    peers = sender._network
    assert peers is not None
    eventually(lambda: event in peers.router.listeners)


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    try:
        yield town
    finally:
        town.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is lost because a link is down."""
    monkeypatch.setattr(links, "BROKEN_SECONDS", 1000.0)
    monkeypatch.setattr(links, "HUB_SECONDS", 1000.0)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is down means a loss almost at once, to the hub."""
    monkeypatch.setattr(links, "BROKEN_SECONDS", 0.05)


# --- joining ----------------------------------------------------------------------------------


def test_members_are_named_and_know_each_other(town: Town) -> None:
    learner, first = town.join("learner"), town.join("collector", about={"gpu": 3}, peer=None)
    second = town.join("collector", peer=None)
    assert [bus.peer for bus in town.buses] == ["launcher_0", "learner_0", "collector_0", "collector_1"]
    for bus in town.buses:
        bus.ready()
    assert learner.wait_for_peers("collector", 2, timeout=LONG) == ["collector_0", "collector_1"]
    assert second.wait_for_peers("learner", timeout=LONG) == ["learner_0"]
    (peer,) = [peer for peer in learner.peers() if peer.name == first.peer]
    assert (peer.role, peer.about["gpu"], peer.about["pid"]) == ("collector", 3, os.getpid())


def test_the_hub_refuses_with_its_reason() -> None:
    net = Network()
    hub = host(net.transport(), run="r", roles=("collector", "learner"))

    def refused(match: str, **settings: Any) -> None:
        settings = {"run": "r", "role": "collector", **settings}
        with pytest.raises(UsageError, match=match):
            join(net.transport(), at=hub.address, timeout=LONG, **settings)

    one = join(net.transport(), at=hub.address, run="r", role="collector", peer="collector_1", timeout=LONG)
    refused("this is run 'r', not 's'", run="s")
    refused("did you mean 'collector'", role="colector")
    refused("collector_1 is taken", peer="collector_1")
    refused("named like 'collector_0'", peer="learner_7")
    refused("about takes plain values", about={"x": object()})
    refused("about takes 256 values and 16384 bytes", about={"x": "y" * 20_000})
    assert one.roles == ["collector", "launcher", "learner"]
    with pytest.raises(UsageError, match="did you mean 'collector'"):
        one.on("colector_news", print)
    one.close()
    hub.close()


def test_nobody_at_the_address_is_said() -> None:
    net = Network()
    with pytest.raises(DeadlineExceeded, match=r"no hub answered at memory://9 within 0\.1 s"):
        join(net.transport(), at="memory://9", run="r", role="collector", timeout=0.1)


def test_a_hub_that_is_gone_before_it_let_somebody_in_is_not_waited_for(town: Town) -> None:
    mute = town.net.transport()
    at = mute.start("launcher:1")
    joining = town.run(lambda: town.join("collector", at=at))
    eventually(lambda: mute.poll(0.01), "a knock")
    mute.close()
    with pytest.raises(HubLost, match=r"was lost before it let this process in: "):
        joining.get()


def test_a_wait_for_peers_says_who_is_there(town: Town) -> None:
    learner = town.join("learner")
    with pytest.raises(DeadlineExceeded, match=r"2 of role 'collector' .*; there are none$"):
        learner.wait_for_peers("collector", 2, timeout=0.1)


# --- leaving and losing -----------------------------------------------------------------------


def test_whoever_leaves_is_named_with_its_reason(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    seen: list[tuple[str, str, str]] = []
    learner.watch(lambda what, peer, cause: seen.append((what, peer.name, cause)))
    log: list[dict[str, Any]] = []
    learner.on("task_peer_left", lambda **about: log.append(about))
    eventually(lambda: len(learner.peers()) == 2)
    collector.close("it is done")
    delivered(learner, lambda: log)
    assert log == [{"peer": "collector_0", "role": "collector"}]
    assert ("left", "collector_0", "it is done") in seen
    assert town.hub.stats()["lost"] == {}


def test_a_killed_peer_is_lost_everywhere(town: Town) -> None:
    learner, _ = town.join("learner"), town.join("collector")
    log: list[dict[str, Any]] = []
    learner.on("task_peer_lost", lambda **about: log.append(about))
    eventually(lambda: len(learner.peers()) == 2)
    town.net.kill("collector_0")
    delivered(learner, lambda: log)
    assert log == [{"peer": "collector_0", "role": "collector", "cause": "the peer was killed"}]
    assert [peer.name for peer in learner.peers()] == ["launcher_0"]
    assert town.hub.stats()["lost"] == {"collector_0": "the peer was killed"}


@pytest.mark.usefixtures("hasty")
def test_a_process_that_comes_back_learns_that_it_is_out(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.on("collector_news", print)
    listens(collector, "collector_news")
    town.net.cut("collector_0", "launcher")
    eventually(lambda: "collector_0" in learner.stats()["lost"])
    collector.emit("collector_news", "is anybody there?")
    town.net.mend("collector_0", "launcher")
    with pytest.raises(HubLost, match=r"launcher_0, .* had declared this process lost"):
        collector.wait_for("learner_news", timeout=LONG)
    with pytest.raises(HubLost):
        collector.deliver()
    assert not learner.pending or learner._mailbox.wanted("collector_news")
    assert learner.stats()["dropped"] == 0
    assert town.join("collector", peer="collector_0").peer == "collector_0"


@pytest.mark.usefixtures("hasty")
def test_a_peer_that_answers_nothing_is_lost(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_PING_SECONDS", 0.05)
    collector = town.join("collector")
    held = threading.Event()
    inner = collector._network
    assert inner is not None

    def hold() -> None:
        held.wait(LONG)

    inner.do(hold)
    monkeypatch.setattr(links, "DEAF_SECONDS", 0.5)
    eventually(lambda: town.hub.stats()["lost"])
    monkeypatch.setattr(links, "DEAF_SECONDS", 1000.0)
    held.set()
    assert town.hub.stats()["lost"] == {"collector_0": "it has not answered for 0.5 s"}


def test_members_whose_hub_dies_say_so(town: Town) -> None:
    learner = town.join("learner")
    town.join("collector")
    waiting = town.run(lambda: learner.take("collector_data", timeout=LONG))
    town.net.kill("launcher")
    with pytest.raises(
        HubLost, match="launcher_0, which holds the run together, was lost: the peer was killed"
    ):
        waiting.get()
    with pytest.raises(HubLost):
        learner.deliver()
    with pytest.raises(HubLost):
        learner.push("learner_data", 1)
    with pytest.raises(HubLost):
        learner.call("collector_get")
    assert learner.peers() == []


def test_a_hub_that_closes_is_lost_unless_the_run_was_told_to_finish(town: Town) -> None:
    learner = town.join("learner")
    other = host(town.net.transport(), run="s")
    collector = join(town.net.transport(), at=other.address, run="s", role="collector", timeout=LONG)
    other.tell_finish("enough")
    eventually(lambda: collector.told_to_finish)
    other.close()
    town.hub.close("it was stopped")
    with pytest.raises(HubLost, match="it left: it was stopped"):
        learner.wait_for("launcher_news", timeout=LONG)
    eventually(lambda: not collector.peers())
    collector.deliver()
    with pytest.raises(Finishing):
        collector.push("collector_data", 1)
    collector.close()


def test_the_hub_can_declare_somebody_lost_and_nobody_else_can(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    eventually(lambda: len(learner.peers()) == 2)
    with pytest.raises(UsageError, match="only the process that hosts"):
        learner.declare_lost("collector_0", "I do not like it")
    town.hub.declare_lost("collector_0", "its process is gone")
    eventually(lambda: learner.stats()["lost"] == {"collector_0": "its process is gone"})
    with pytest.raises(HubLost, match="its process is gone"):
        collector.wait_for("learner_news", timeout=LONG)


def test_nobody_can_speak_for_another(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    eventually(lambda: len(collector.peers()) == 2)
    inner, there = collector._network, learner._network
    assert inner is not None
    assert there is not None
    hub = town.hub._network
    assert hub is not None
    lie = Member(there.me.id, "learner_9", "learner", "memory://7", on=["x_y"])

    def lies() -> None:
        for to in (there.me.id, hub.me.id):
            for message in (Gone(there.me.id, "lies", False), Changed(lie), Report(there.me.id, {"x": 1})):
                inner._links.push(to, CONTROL, [pack(message)])
        inner._links.push(there.me.id, CONTROL, [pack(Finish("lies"))])

    inner.do(lies)
    collector.report(told="the truth")
    eventually(lambda: any(peer.report.get("told") for peer in town.hub.peers()))
    (seen,) = [peer for peer in town.hub.peers() if peer.role == "learner"]
    assert (seen.name, seen.report) == ("learner_0", {})
    assert town.hub.stats()["lost"] == {}
    assert learner.told_to_finish is None


def test_reports_reach_the_hub_and_must_be_plain(town: Town) -> None:
    collector = town.join("collector")
    with pytest.raises(UsageError, match="report takes plain values"):
        collector.report(loss=np.float32(1))
    with pytest.raises(UsageError, match="report takes plain values"):
        collector.report(text="\udc80")
    collector.report(loss=1.5)
    eventually(lambda: town.hub.peers()[0].report == {"loss": 1.5})


# --- finishing --------------------------------------------------------------------------------


def test_everybody_is_told_to_finish_and_late_joiners_too(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")

    def push() -> None:
        for n in range(20):
            learner.push("learner_data", n, timeout=LONG)

    waits = [
        town.run(lambda: learner.take("collector_data", timeout=LONG)),
        town.run(lambda: learner.wait_for_peers("collector", 9, timeout=LONG)),
        town.run(push),
        town.run(lambda: learner.wait_for("collector_news", timeout=None)),
    ]
    collector.tell_finish("enough \udc80 " + "x" * 10_000)
    for wait in waits:
        with pytest.raises(Finishing):
            wait.get()
    late = town.join("collector")
    for bus in (*town.buses, late):
        eventually(partial(getattr, bus, "told_to_finish"))
        assert bus.told_to_finish is not None
        assert bus.told_to_finish.startswith("enough \\udc80 x")
    assert late.wait_for("task_finish", timeout=LONG).startswith("enough")


# --- events -----------------------------------------------------------------------------------


def test_events_come_in_order_and_none_is_lost_or_doubled_over_links_that_break(
    town: Town, patient: None
) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    log: list[int] = []
    collector.on("learner_news", log.append)
    listens(learner, "learner_news")
    rng = random.Random(5)
    for number in range(3000):
        learner.emit("learner_news", number)
        if rng.random() < 0.01:
            town.net.cut("learner_0", "collector_0")
            town.net.mend("learner_0", "collector_0")
    delivered(collector, lambda: len(log) >= 3000)
    assert log == list(range(3000))


def test_a_handlers_own_codec_error_ends_the_task_as_any_other(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.declare("learner_model", "state")
    learner.on("collector_news", lambda _: learner.emit("learner_model", print))
    listens(collector, "collector_news")
    collector.emit("collector_news", 1)
    with pytest.raises(CodecError, match="builtin_function"):
        delivered(learner, lambda: False)
    assert learner.stats()["dropped"] == 0


def test_events_for_a_peer_that_never_delivers_are_counted(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "MOST_PENDING", 5)
    learner, collector = town.join("learner"), town.join("collector")
    log: list[Any] = []
    collector.on("learner_news", log.append)
    collector.on("task_events_missed", lambda **about: log.append(about))
    collector.serve("collector_count", lambda: None, thread="inline")
    listens(learner, "learner_news")
    for number in range(20):
        learner.emit("learner_news", number)
    learner.call("collector_count", timeout=LONG)  # comes after them
    collector.deliver()
    assert log == [0, 1, 2, 3, 4, {"peer": "learner_0", "count": 15}]
    learner.emit("learner_news", 20)
    delivered(collector, lambda: len(log) == 7)
    assert log[6] == 20


def test_events_for_a_peer_whose_link_is_down_are_counted_beyond_a_bound(
    town: Town, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "MOST_BACKLOG_BYTES", 2000)
    learner, collector = town.join("learner"), town.join("collector")
    log: list[int] = []
    missed: list[int] = []
    collector.on("learner_news", log.append)
    collector.on("task_events_missed", lambda peer, count: missed.append(count))
    listens(learner, "learner_news")
    town.net.cut("learner_0", "collector_0")
    for number in range(500):
        learner.emit("learner_news", number)
    town.net.mend("learner_0", "collector_0")
    delivered(collector, lambda: len(log) + sum(missed) >= 500)
    assert log == list(range(len(log)))
    assert 0 < len(log) < 500
    assert sum(missed) == 500 - len(log)


def test_an_event_that_is_too_large_names_what_to_do(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    collector.on("learner_news", print)
    listens(learner, "learner_news")
    with pytest.raises(PayloadTooLarge, match="declare it with kind='state'"):
        learner.emit("learner_news", np.zeros(100_000))


# --- states -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_the_latest_state_reaches_everybody_and_who_comes_late(town: Town, shared: bool, size: int) -> None:
    learner = town.join("learner")
    learner.declare("learner_model", "state")

    def listen() -> tuple[Bus, list[float]]:
        bus = town.join("collector", shared=shared)
        log: list[float] = []
        bus.on("learner_model", lambda model: log.append(float(model.sum())))
        return bus, log

    early, seen = listen()
    listens(learner, "learner_model")
    for version in range(1, 51):
        learner.emit("learner_model", np.full(size, version, np.float64))
    late, seen_late = listen()
    for bus, log in ((early, seen), (late, seen_late)):
        delivered(bus, partial(lambda log: log and log[-1] == 50.0 * size, log))
        assert log == sorted(set(log))
    assert late.wait_for("learner_model", timeout=LONG).shape == (size,)


def test_two_publishers_of_one_state_do_not_hold_up_each_other(town: Town) -> None:
    learners = [town.join("learner", shared=False), town.join("learner", shared=False)]
    collector = town.join("collector", shared=False)
    log: list[tuple[int, int]] = []
    collector.on("learner_model", lambda model: log.append((int(model[0]), int(model[1]))))

    def publish(number: int, version: int) -> None:
        model = np.zeros(50_000, np.int64)
        model[:2] = number, version
        learners[number].emit("learner_model", model)

    for learner in learners:
        learner.declare("learner_model", "state")
        listens(learner, "learner_model")
    for version in range(20):
        publish(0, version)
        publish(1, version)

    def seen(number: int) -> bool:
        publish(number, 99)  # again: the other's may have come after it
        return (number, 99) in log

    delivered(collector, partial(seen, 0))
    delivered(collector, partial(seen, 1))


def test_a_view_that_was_overwritten_is_shown_again(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.declare("learner_model", "state")
    log: list[int] = []

    def publish(version: int) -> None:
        learner.emit("learner_model", np.full(100_000, version))

    def look(model: Any) -> None:
        assert not model.flags.writeable
        if not log:
            for version in (2, 3, 4):  # more than the ring holds
                publish(version)
        log.append(int(model[-1]))
        if model[0] != model[-1]:
            raise RuntimeError("this saw half of one and half of another")

    collector.on("learner_model", look, view=True)
    listens(learner, "learner_model")
    publish(1)
    delivered(collector, lambda: log and log[-1] == 4)
    assert len(log) >= 2


# --- streams ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [True, False])
def test_items_are_taken_once_and_in_order_over_links_that_break(
    town: Town, patient: None, shared: bool
) -> None:
    learner, collector = town.join("learner"), town.join("collector", shared=shared)
    learner.consume("collector_data", capacity=4)
    rng = random.Random(3)
    number = 300

    def push() -> None:
        for n in range(number):
            size = 20_000 if n % 10 == 0 else 10
            collector.push("collector_data", {"n": n, "x": np.full(size, n)}, timeout=LONG)

    pushing = town.run(push)
    taken = []
    for _ in range(number):
        item = learner.take("collector_data", timeout=LONG)
        assert item.sender == "collector_0"
        assert (item.value["x"] == item.value["n"]).all()
        taken.append(item.value["n"])
        if rng.random() < 0.05:
            town.net.cut("learner_0", "collector_0")
            town.net.mend("learner_0", "collector_0")
    pushing.get()
    assert taken == list(range(number))
    eventually(lambda: collector.waiting("collector_data") == 0)
    counts = collector.stats()["streams"]["collector_data"]
    assert (counts["pushed"], counts["acknowledged"], counts["dropped"]) == (number, number, 0)
    eventually(lambda: collector.stats()["shared"].get("used", 0) == 0)


def test_items_of_a_killed_consumer_go_to_another(town: Town) -> None:
    learners, collector = [town.join("learner"), town.join("learner")], town.join("collector")
    learners[0].consume("collector_data", capacity=8)
    for n in range(6):
        collector.push("collector_data", n, timeout=LONG)
    assert learners[0].take("collector_data", timeout=LONG).value == 0
    eventually(lambda: collector.waiting("collector_data") == 5)
    town.net.kill("learner_0")
    learners[1].consume("collector_data", capacity=8)
    assert [learners[1].take("collector_data", timeout=LONG).value for _ in range(5)] == [1, 2, 3, 4, 5]
    eventually(lambda: collector.waiting("collector_data") == 0)


def test_what_a_producer_pushed_before_it_left_can_be_taken(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.consume("collector_data", capacity=2)
    eventually(lambda: collector._network.consumers_of("collector_data"))  # type: ignore[union-attr]
    for n in range(4):
        collector.push("collector_data", np.full(50_000, n), timeout=LONG)
    closing = town.run(lambda: collector.close("done", linger=LONG))
    values = [learner.take("collector_data", timeout=LONG).value]  # so that there is room for the last
    values += [learner.take("collector_data", timeout=LONG).value]
    closing.get()
    eventually(lambda: not any(peer.role == "collector" for peer in learner.peers()))
    values += [learner.take("collector_data", timeout=LONG).value for _ in range(2)]
    assert [int(value[-1]) for value in values] == [0, 1, 2, 3]
    with pytest.raises(PeerLost, match="nothing more comes of collector_0"):
        learner.take("collector_data", sender="collector_0", timeout=LONG)


def test_what_was_pushed_before_a_close_reaches_who_was_not_known_as_a_consumer_yet(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    for number in range(50):
        name = f"collector_items_{number}"
        learner.consume(name)
        collector.push(name, number, timeout=LONG)
    collector.close(linger=LONG)
    for number in range(50):
        assert learner.take(f"collector_items_{number}", timeout=LONG).value == number


def test_a_full_stream_says_who_should_have_taken(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    collector.declare("collector_data", "stream", capacity=2)
    collector.push("collector_data", 0)
    collector.push("collector_data", 1)
    with pytest.raises(DeadlineExceeded, match=r"nobody consumes it; in the run are collector_0, learner_0$"):
        collector.push("collector_data", 2, timeout=0.05)
    learner.consume("collector_data")
    eventually(lambda: "collector_data" in learner._network.me.consumes)  # type: ignore[union-attr]
    eventually(lambda: learner.waiting("collector_data") == 2)
    with pytest.raises(DeadlineExceeded, match="2 of 2 wait for learner_0"):
        collector.push("collector_data", 2, timeout=0.05)
    with pytest.raises(DeadlineExceeded, match="no item of 'learner_data' came within"):
        learner.take("learner_data", timeout=0.05)


def test_items_that_are_looked_at_in_place_stay_until_they_are_released(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.consume("collector_data", capacity=1)
    collector.push("collector_data", np.arange(50_000), timeout=LONG)
    with learner.take("collector_data", view=True, timeout=LONG) as item:
        assert not item.value.flags.writeable
        assert int(item.value[-1]) == 49_999
        assert collector.waiting("collector_data") == 1
    eventually(lambda: collector.waiting("collector_data") == 0)


# --- calls ------------------------------------------------------------------------------------


def test_remote_errors_bring_type_and_traceback(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")

    def fail(kind: str) -> None:
        raise {"KeyError": KeyError, "OSError": OSError, "EngineError": EngineError, "PeerLost": PeerLost}[
            kind
        ]("no such\udc80 thing")

    collector.serve("collector_fail", fail, thread="inline")
    kinds: list[type[Exception]] = [KeyError, OSError]
    for builtin in kinds:
        with pytest.raises(builtin, match="no such") as caught:
            learner.call("collector_fail", builtin.__name__, timeout=LONG)
        assert isinstance(caught.value, RemoteError)
        assert (caught.value.kind, caught.value.peer) == (builtin.__name__, "collector_0")
        assert "in fail" in caught.value.__notes__[0]
    for kind in ("EngineError", "PeerLost"):
        with pytest.raises(RemoteError, match=f"{kind}: no such") as engines:
            learner.call("collector_fail", kind, timeout=LONG)
        assert not isinstance(engines.value, PeerLost)


def test_handlers_cannot_stop_the_threads_that_others_need(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")

    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def leave() -> None:
        raise SystemExit(3)

    def odd() -> None:
        raise Odd

    wheres: tuple[Where, ...] = ("inline", "service")
    for where in wheres:
        collector.serve(f"collector_leave_{where}", leave, thread=where)
        collector.serve(f"collector_odd_{where}", odd, thread=where)
        collector.serve(f"collector_get_{where}", lambda: 5, thread=where)
        collector.serve(f"collector_lambda_{where}", lambda: print, thread=where)
        for method, kind in (("leave", "SystemExit"), ("odd", "Odd"), ("lambda", "CodecError")):
            with pytest.raises(RemoteError, match=kind):
                learner.call(f"collector_{method}_{where}", timeout=LONG)
        assert learner.call(f"collector_get_{where}", timeout=LONG) == 5


def test_a_handler_on_the_buss_own_thread_cannot_wait(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.serve("learner_get", lambda: 1, thread="inline")
    collector.serve("collector_get", lambda: collector.call("learner_get"), thread="inline")
    with pytest.raises(RemoteError, match="must not wait"):
        learner.call("collector_get", timeout=LONG)


def test_calls_end_at_their_deadline_and_with_their_server(town: Town) -> None:
    learner = town.join("learner")
    collector = town.join("collector")
    collector.ready()
    collector.serve("collector_get", print)  # on a thread that never runs a task
    with pytest.raises(DeadlineExceeded, match=r"'collector_get' was not answered within 0\.05 s"):
        learner.call("collector_get", timeout=0.05)
    eventually(lambda: not collector.stats()["calls"])
    waiting = town.run(lambda: learner.call("collector_get", timeout=LONG))
    eventually(lambda: collector.stats()["calls"])
    town.net.kill("collector_0")
    with pytest.raises(PeerLost, match="collector_0 was lost: the peer was killed") as caught:
        waiting.get()
    assert (caught.value.peer, caught.value.cause) == (
        "collector_0",
        "collector_0 was lost: the peer was killed",
    )
    with pytest.raises(DeadlineExceeded, match=r"no collector is in the run: there are learner_0$"):
        learner.call("collector_get", timeout=0.05)


def test_what_nobody_serves_is_told_with_the_nearest_name(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    collector.serve("collector_get_job", print)
    collector.ready()
    with pytest.raises(NoSuchService, match="did you mean 'collector_get_job'"):
        learner.call("collector_get_jib", timeout=LONG)


def test_too_many_calls_are_refused_at_once(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "MOST_CALLS", 2)
    learner, collector = town.join("learner"), town.join("collector")
    collector.serve("collector_get", lambda: 1)
    calls = [town.run(lambda: learner.call("collector_get", timeout=LONG)) for _ in range(2)]
    eventually(lambda: collector.stats()["calls"] == 2)
    with pytest.raises(Overloaded, match="2 calls of learner_0 wait at collector_0"):
        learner.call("collector_get", timeout=LONG)
    collector.deliver()
    assert [call.get() for call in calls] == [1, 1]


def test_two_tasks_that_call_each_other_do_not_lock(town: Town) -> None:
    buses = [town.join("collector"), town.join("collector")]
    for bus in buses:
        bus.serve(f"collector_get_{bus.peer[-1]}", partial(int, bus.peer[-1]))
    done = threading.Event()

    def work(me: Bus, other: str) -> list[int]:
        me.runs_on(threading.get_ident())
        answers = [me.call(f"collector_get_{other}", timeout=LONG) for _ in range(50)]
        if done.is_set():
            me.tell_finish("both are done")
        done.set()
        with pytest.raises(Finishing):
            me.take("collector_nothing", timeout=LONG)  # answers the other meanwhile
        return answers

    works = [town.run(lambda: work(buses[0], "1")), town.run(lambda: work(buses[1], "0"))]
    assert [one.get() for one in works] == [[1] * 50, [0] * 50]


def test_a_service_answers_while_the_task_works(town: Town) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    threads: list[str] = []

    def echo(x: Any) -> Any:
        threads.append(threading.current_thread().name)
        return x

    wheres: tuple[Where, ...] = ("service", "inline")
    for where in wheres:
        collector.serve(f"collector_{where}", echo, thread=where)
        array = np.arange(200_000)
        assert (learner.call(f"collector_{where}", array, timeout=LONG) == array).all()
    assert threads == ["engine-service", "engine-bus"]


# --- what must not bring it down --------------------------------------------------------------


def test_a_watcher_that_fails_ends_the_task_and_not_the_network(town: Town) -> None:
    learner = town.join("learner")

    def fail(what: str, peer: Any, cause: str) -> None:
        raise KeyError("a mistake")

    learner.watch(fail)
    learner.serve("learner_get", lambda: 1, thread="inline")
    collector = town.join("collector")
    with pytest.raises(KeyError, match="a mistake"):
        learner.wait_for("collector_news", timeout=LONG)
    with pytest.raises(KeyError):
        learner.deliver()
    assert collector.call("learner_get", timeout=LONG) == 1


def test_a_flood_of_requests_to_join_is_not_looked_at(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = town.hub._network
    assert inner is not None
    frame = network._greeting_frame(Refused("x"))  # any: it is dropped before it is parsed
    monkeypatch.setattr(network, "MOST_HELLOS", 5)
    inner._hellos = 5.0
    now = inner._hellos_at = inner._clock()
    assert [inner._has_time_for(frame, now) for _ in range(7)] == [True] * 5 + [False] * 2
    assert inner._has_time_for(frame, now + 0.5)
    assert not inner._has_time_for(bytes(100_000), now + 10)


def test_a_hub_that_is_spoken_to_in_its_own_name_goes_on(town: Town) -> None:
    inner = town.hub._network
    assert inner is not None
    liar = town.net.transport()
    liar.start(inner.me.id)
    liar.connect("hub", town.hub.address)
    eventually(lambda: liar.poll(0.01))
    blob = pack(Hello("r", VERSION, inner.me))
    head = pack_head(HELLO, 1, CONTROL, 0, (0, 0))
    assert liar.send("hub", CONTROL, [head + pack_blobs([blob])])
    assert town.join("collector").peer == "collector_0"
    liar.close()


def test_arrays_larger_than_a_frame_arrive(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.bus.values.FRAME_BYTES", 100_000)
    learner, collector = town.join("learner", shared=False), town.join("collector", shared=False)
    learner.consume("collector_data")
    collector.push("collector_data", np.arange(100_000), timeout=LONG)
    assert (learner.take("collector_data", timeout=LONG).value == np.arange(100_000)).all()


# --- closing ----------------------------------------------------------------------------------


def test_a_bus_can_be_closed_twice_or_alone_and_then_waits_end(town: Town) -> None:
    alone = Bus()
    alone.close()
    alone.close()
    learner = town.join("learner")
    waiting = town.run(lambda: learner.take("collector_data", timeout=LONG))
    eventually(lambda: "collector_data" in learner._streams.known)
    learner.close()
    learner.close()
    with pytest.raises(Finishing, match="the bus was closed"):
        waiting.get()
    with pytest.raises(Finishing):
        learner.push("learner_data", 1)
    with pytest.raises(Finishing):
        learner.emit("learner_news", 1)
    learner.tell_finish("nobody hears it")
    assert not learner._network._commands  # type: ignore[union-attr]


def test_close_returns_within_its_linger_where_peers_are_unreachable(town: Town, patient: None) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.on("collector_news", print)
    listens(collector, "collector_news")
    town.net.cut("collector_0", "learner_0")
    town.net.cut("collector_0", "launcher")
    collector.emit("collector_news", 1)
    closing = town.run(lambda: collector.close(linger=0.3))
    closing.get()
    assert not collector._network.alive  # type: ignore[union-attr]


def test_what_was_sent_before_a_close_arrives_although_the_link_breaks_just_then(
    town: Town, patient: None
) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    log: list[int] = []
    learner.on("collector_news", log.append)
    listens(collector, "collector_news")
    for number in range(50):
        collector.emit("collector_news", number)
    town.net.cut("collector_0", "learner_0")
    closing = town.run(lambda: collector.close(linger=LONG))
    town.net.mend("collector_0", "learner_0")
    closing.get()
    delivered(learner, lambda: len(log) == 50)
    assert town.hub.stats()["lost"] == {}


def test_nothing_is_left_of_closed_buses() -> None:
    def once() -> None:
        town = Town()
        learner, collector = town.join("learner"), town.join("collector")
        learner.consume("collector_data")
        learner.serve("learner_get", lambda: 1, thread="service")
        collector.push("collector_data", np.zeros(100_000), timeout=LONG)
        assert learner.take("collector_data", timeout=LONG).value.shape == (100_000,)
        assert collector.call("learner_get", timeout=LONG) == 1
        learner.declare("learner_model", "state")
        learner.emit("learner_model", np.zeros(100_000))
        town.close()

    def left() -> tuple[int, int, int]:
        gc.collect()
        with open("/proc/self/maps") as maps:
            mapped = sum("engine-slot" in line for line in maps)
        return threading.active_count(), len(os.listdir("/proc/self/fd")), mapped

    once()
    before = left()
    for _ in range(3):
        once()
    eventually(lambda: left() <= before, "the end of threads, files and memory")
    assert left()[2] == 0
