"""Several processes that serve one method: turns, one by name, all at once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine import Task
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.memory import Network
from engine.bus.turns import Turns
from engine.bus.zeromq import ZeroMQ
from engine.errors import (
    CodecError,
    DeadlineExceeded,
    NoSuchService,
    PeerLost,
    RemoteError,
    UsageError,
)

LONG = 60.0

pytestmark = pytest.mark.timeout(180)


def eventually(ready: Callable[[], Any], what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


class Town:
    """A learner that hosts, and collectors that serve; over memory, or sockets with the direct way."""

    def __init__(self, make: Callable[[], Any], net: Network | None) -> None:
        self.make, self.net = make, net
        self.learner = host(make(), run="r", role="learner")
        self.buses = [self.learner]

    def collectors(self, count: int, serve: Callable[[Bus], None]) -> list[Bus]:
        made = []
        for _ in range(count):
            bus = join(self.make(), at=self.learner.address, run="r", role="collector", timeout=LONG)
            serve(bus)
            bus.ready()
            made.append(bus)
        self.buses += made
        count = sum(bus.role == "collector" for bus in self.buses)
        self.learner.wait_for_peers("collector", count, timeout=LONG)
        eventually(self._all_know_all, "that every process knows the servers that the hub knows")
        return made

    def _all_know_all(self) -> bool:
        hub = self.learner._network
        assert hub is not None
        for bus in self.buses:
            assert bus._network is not None
            known = bus._network.router.servers
            for method, ids in hub.router.servers.items():
                others = {id for id in ids if hub.name_of(id) != bus.peer}
                if not others <= set(known.get(method, ())):
                    return False
        return True


@pytest.fixture(params=["memory", "sockets"])
def town(request: pytest.FixtureRequest) -> Iterator[Town]:
    net = Network() if request.param == "memory" else None
    town = Town(ZeroMQ if net is None else net.transport, net)
    yield town
    for bus in reversed(town.buses):
        bus.close(linger=0.2)


def named(bus: Bus) -> None:
    bus.serve("collector_get_name", lambda: bus.peer, thread="service")


def test_calls_are_spread_evenly_and_in_turn(town: Town) -> None:
    town.collectors(3, named)
    answers = [town.learner.call("collector_get_name", timeout=LONG) for _ in range(30)]
    assert answers == ["collector_0", "collector_1", "collector_2"] * 10


def test_calls_that_waited_go_to_the_first_server_and_those_after_them_are_spread(town: Town) -> None:
    network = town.learner._network
    assert network is not None
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(town.learner.call("collector_get_name", timeout=LONG)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(network.router._asked) == 6, "that all six wait")
    town.collectors(1, named)
    for thread in threads:
        thread.join(LONG)
    assert answers == ["collector_0"] * 6
    assert not network.router.turns._under_way
    town.collectors(1, named)
    after = [town.learner.call("collector_get_name", timeout=LONG) for _ in range(10)]
    assert after == ["collector_0", "collector_1"] * 5


def test_a_server_that_takes_long_gets_fewer_calls(town: Town) -> None:
    free = threading.Event()

    def serve(bus: Bus) -> None:
        def name() -> str:
            if bus.peer == "collector_0":
                free.wait(LONG)
            return bus.peer

        bus.serve("collector_get_name", name, thread="service")

    town.collectors(3, serve)
    held = threading.Thread(target=lambda: town.learner.call("collector_get_name", timeout=LONG))
    held.start()
    network = town.learner._network
    assert network is not None
    eventually(lambda: network.router.turns._under_way, "the first call")
    answers = Counter(town.learner.call("collector_get_name", timeout=LONG) for _ in range(10))
    free.set()
    held.join(LONG)
    assert answers == {"collector_1": 5, "collector_2": 5}
    assert not network.router.turns._under_way


def test_callers_of_one_role_begin_with_different_servers() -> None:
    servers = ("a:1", "b:1", "c:1")
    first = [Turns(f"actor_{number}").next("league_get_job", servers) for number in range(3)]
    assert first == ["a:1", "b:1", "c:1"]
    assert [Turns("main").next("league_get_job", servers) for _ in range(2)] == ["a:1", "a:1"]


def test_one_is_called_by_name(town: Town) -> None:
    collectors = town.collectors(3, named)
    learner = town.learner
    for _ in range(3):
        assert learner.call("collector_get_name", peer="collector_1", timeout=LONG) == "collector_1"
    assert collectors[0].call("collector_get_name", peer="collector_2", timeout=LONG) == "collector_2"
    # It serves the method itself: by name, and before others.
    assert collectors[0].call("collector_get_name", peer="collector_0", timeout=LONG) == "collector_0"
    assert collectors[0].call("collector_get_name", timeout=LONG) == "collector_0"


def test_a_name_that_is_not_there_or_does_not_serve_is_told(town: Town) -> None:
    collectors = town.collectors(2, named)
    learner = town.learner
    with pytest.raises(PeerLost, match="collector_7 cannot be called: it is not in the run"):
        learner.call("collector_get_name", peer="collector_7", timeout=LONG)
    collectors[1].unserve("collector_get_name")
    eventually(lambda: len(learner._network.router.servers["collector_get_name"]) == 1)  # type: ignore[union-attr]
    with pytest.raises(NoSuchService, match="collector_1 does not serve 'collector_get_name'"):
        learner.call("collector_get_name", peer="collector_1", timeout=LONG)
    with pytest.raises(NoSuchService, match="collector_1 does not serve 'collector_get_name'"):
        collectors[1].call("collector_get_name", peer="collector_1", timeout=LONG)
    with pytest.raises(PeerLost, match="collector_0 cannot be called"):
        Bus().call("collector_get_name", peer="collector_0")
    with pytest.raises(NoSuchService, match="main does not serve 'collector_get_name'"):
        Bus().call("collector_get_name", peer="main")
    with pytest.raises(UsageError, match="peer="):
        learner.call("collector_get_name", peer=1)  # type: ignore[arg-type]


def test_one_called_by_name_that_dies_ends_the_call(town: Town) -> None:
    begun, free = threading.Event(), threading.Event()

    def serve(bus: Bus) -> None:
        bus.serve("collector_wait", lambda: [begun.set(), free.wait(LONG)], thread="service")

    collectors = town.collectors(2, serve)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            town.learner.call("collector_wait", peer="collector_1", timeout=LONG)
        except PeerLost as error:
            raised.append(error)

    calling = threading.Thread(target=work)
    calling.start()
    assert begun.wait(LONG)
    network = collectors[1]._network
    assert network is not None
    network.close("it has enough", 0.1)
    calling.join(LONG)
    free.set()
    assert [error.peer for error in raised] == ["collector_1"]  # type: ignore[attr-defined]


def test_all_are_called_at_once_and_told_apart(town: Town) -> None:
    together = threading.Barrier(3)

    def serve(bus: Bus) -> None:
        def work(x: Any, *, factor: int) -> Any:
            together.wait(LONG)  # passes only if all are asked before one has answered
            if bus.peer == "collector_1":
                raise ZeroDivisionError("by nothing")
            return x * factor

        bus.serve("collector_work", work, thread="service")

    town.collectors(3, serve)
    results = town.learner.call_all("collector_work", np.arange(3000), factor=2, timeout=LONG)
    assert list(results) == ["collector_0", "collector_1", "collector_2"]
    error = results["collector_1"]
    assert isinstance(error, RemoteError)
    assert isinstance(error, ZeroDivisionError)
    assert error.peer == "collector_1"
    assert "by nothing" in str(error)
    for name in ("collector_0", "collector_2"):
        assert (results[name] == np.arange(3000) * 2).all()


def test_all_includes_the_process_that_calls(town: Town) -> None:
    collectors = town.collectors(2, named)
    eventually(lambda: len(collectors[0].peers()) == 2)
    network = collectors[0]._network
    assert network is not None
    eventually(lambda: network.router.servers.get("collector_get_name"))
    everybody = {"collector_0": "collector_0", "collector_1": "collector_1"}
    assert collectors[0].call_all("collector_get_name", timeout=LONG) == everybody
    alone = Bus()
    alone.serve("main_get_name", lambda: 1 / 0)
    assert list(map(type, alone.call_all("main_get_name").values())) == [ZeroDivisionError]
    with Task() as task:
        task.serve("main_add", lambda x, y: x + y)
        assert task.call_all("main_add", 1, y=2) == {"main": 3}
        assert task.call("main_add", 1, y=3, peer="main") == 4


def test_one_of_all_that_dies_or_is_late_is_an_error_of_its_own(town: Town) -> None:
    begun, free = threading.Event(), threading.Event()

    def serve(bus: Bus) -> None:
        def work() -> str:
            if bus.peer == "collector_1":
                begun.set()
                free.wait(LONG)
            if bus.peer == "collector_2":
                free.wait(LONG)
            return bus.peer

        bus.serve("collector_work", work, thread="service")

    collectors = town.collectors(3, serve)

    def die() -> None:
        begun.wait(LONG)
        network = collectors[1]._network
        if town.net is not None and network is not None:
            town.net.kill(network.me.id)
        elif network is not None:
            network.close("it has enough", 0.1)

    dying = threading.Thread(target=die)
    dying.start()
    results = town.learner.call_all("collector_work", timeout=1.5)
    free.set()
    dying.join(LONG)
    assert results["collector_0"] == "collector_0"
    assert isinstance(results["collector_1"], PeerLost)
    assert results["collector_1"].peer == "collector_1"
    assert isinstance(results["collector_2"], DeadlineExceeded)
    assert "not answered by collector_2 within 1.5 s" in str(results["collector_2"])
    # What was late is not taken for the answer to another call.
    eventually(lambda: town.learner.call("collector_work", peer="collector_2", timeout=LONG) == "collector_2")


def test_a_call_of_all_ends_with_the_run_and_takes_its_end_for_no_result() -> None:
    results: list[Any] = []
    called = threading.Event()

    def fail(ctx: Any) -> None:
        if ctx.total_step == 0:
            assert called.wait(LONG)
            raise ZeroDivisionError("of another station")

    def call(ctx: Any) -> None:
        if ctx.total_step == 1:
            called.set()
            results.append(task.call_all("main_get_name", timeout=LONG))  # answered when nothing runs

    with Task(async_mode=True) as task:
        task.serve("main_get_name", lambda: "main")
        task.use(call, fail)
        with pytest.raises(ZeroDivisionError, match="of another station"):
            task.run(max_step=3)
    assert results == []


def test_all_of_none_is_told_as_a_call_is(town: Town) -> None:
    collectors = town.collectors(1, named)
    with pytest.raises(NoSuchService, match=r"did you mean 'collector_get_name'"):
        town.learner.call_all("collector_get_nam", timeout=LONG)
    with pytest.raises(DeadlineExceeded, match=r"nothing has served 'actor_get_name' within 0\.1 s"):
        town.learner.call_all("actor_get_name", timeout=0.1)
    with pytest.raises(NoSuchService, match="serves 'main_get_name'"):
        Bus().call_all("main_get_name")
    with pytest.raises(CodecError, match="a lambda"):
        town.learner.call_all("collector_get_name", lambda: 1, timeout=LONG)
    assert collectors[0].call_all("collector_get_name") == {"collector_0": "collector_0"}


def test_two_that_call_all_of_each_other_do_not_lock(town: Town) -> None:
    (collector,) = town.collectors(1, lambda bus: None)
    learner = town.learner
    results: list[Any] = []

    def work(me: Bus, other: str) -> None:
        with Task(bus=me, role=me.role) as task:
            me.serve(f"{me.role}_get", lambda: me.peer)
            task.use(lambda ctx: results.append(task.call_all(f"{other}_get", timeout=LONG)))
            task.use(lambda ctx: results.append(task.call(f"{other}_get", timeout=LONG)))
            task.run(max_step=20)
            eventually(lambda: (me.deliver(), len(results) == 80)[1], "the other's last call")

    threads = [
        threading.Thread(target=work, args=(learner, "collector")),
        threading.Thread(target=work, args=(collector, "learner")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert len(results) == 80


def test_a_method_of_the_own_role_that_is_not_served_fails_as_fast_as_anothers(town: Town) -> None:
    (collector,) = town.collectors(1, named)
    before = time.monotonic()
    town.learner.ready()
    with pytest.raises(NoSuchService, match=r"learner_0 does not serve 'learner_get_job'"):
        town.learner.call("learner_get_job", timeout=LONG)
    with pytest.raises(NoSuchService, match=r"did you mean 'collector_get_name'"):
        collector.call("collector_get_nam", timeout=LONG)
    assert time.monotonic() - before < LONG / 2
