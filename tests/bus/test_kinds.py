"""An event that is one kind here and another there is told at both ends, and names both."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from engine import Task
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.kinds import clashes
from engine.bus.memory import Network
from engine.bus.message import Member
from engine.errors import UsageError

LONG = 60.0

pytestmark = pytest.mark.timeout(120)


def eventually(ready: Callable[[], Any], what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


class Town:
    def __init__(self) -> None:
        self.net = Network()
        self.learner = host(self.net.transport(), run="r", role="learner", roles=("collector",))
        self.buses = [self.learner]
        self.collector = self.join()

    def join(self) -> Bus:
        bus = join(self.net.transport(), at=self.learner.address, run="r", role="collector", timeout=LONG)
        self.buses.append(bus)
        return bus


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    for bus in reversed(town.buses):
        bus.close(linger=0.0)


def use(bus: Bus, kind: str) -> None:
    """Make use of an event as one kind."""
    if kind == "heard":
        bus.on("collector_data", print)
    elif kind == "emitted":
        bus.emit("collector_data", 1)
    elif kind == "pushed":
        bus.push("collector_data", 1)
    elif kind == "consumed":
        bus.consume("collector_data")
    else:
        bus.declare("collector_data", kind)  # type: ignore[arg-type]


MEANS = {
    "event": "an event",
    "emitted": "an event",
    "state": "a state",
    "stream": "a stream",
    "pushed": "a stream",
    "consumed": "a stream",
    "heard": "listened to with on()",
}


@pytest.mark.parametrize("first", MEANS)
@pytest.mark.parametrize("second", ["event", "state", "stream", "heard"])
def test_every_pair_of_kinds_passes_or_is_told_at_both_ends(town: Town, first: str, second: str) -> None:
    same = MEANS[first] == MEANS[second]
    either = {first, second}
    if "heard" in either and not either & {"stream", "pushed", "consumed"}:
        same = True  # a listener takes events and states
    ends = (town.collector, first, town.learner, second), (town.learner, second, town.collector, first)
    raised = []
    for bus, kind in ((town.collector, first), (town.learner, second)):
        try:
            use(bus, kind)
        except UsageError as error:  # it was known already
            raised.append(str(error))
    if same:
        for bus in (town.collector, town.learner):  # everything was announced, and heard of, by then
            bus.serve(f"{bus.role}_get", lambda: 1, thread="service")
        assert town.collector.call("learner_get", timeout=LONG) == 1
        assert town.learner.call("collector_get", timeout=LONG) == 1
        assert not town.learner._gate.clashes
        assert not town.collector._gate.clashes
        assert raised == []
        return
    for bus, here, other, there in ends:
        eventually(partial(getattr, bus._gate, "clashes"), f"the clash at {bus.peer}")
        text = f"'collector_data' is {MEANS[here]} in {bus.peer} and {MEANS[there]} in {other.peer}: "
        with pytest.raises(UsageError, match="nothing of it passes") as caught:
            bus.deliver()
        assert str(caught.value).startswith(text)
        for verb in (bus.push, bus.emit):
            with pytest.raises(UsageError, match="collector_data"):
                verb("collector_data", 1)
        with pytest.raises(UsageError, match="collector_data"):
            bus.on("collector_data", print)
        with pytest.raises(UsageError, match="collector_data"):
            bus.take("collector_data")


def test_waits_under_way_end(town: Town) -> None:
    raised: list[str] = []

    def wait(work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except UsageError as error:
                raised.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    waiting = [
        wait(lambda: town.learner.take("collector_data", timeout=LONG)),
        wait(lambda: town.learner.take("collector_data", timeout=LONG)),
        wait(lambda: town.collector.wait_for("learner_news", timeout=LONG)),
    ]
    eventually(lambda: "collector_data" in town.learner._kinds)
    eventually(lambda: "learner_news" in town.collector._mailbox.heard)
    # Each of these may be told of the clash itself, if the other end was quicker.
    with contextlib.suppress(UsageError):
        town.collector.emit("collector_data", 1)
    with contextlib.suppress(UsageError):
        town.learner.declare("learner_news", "stream")
    for thread in waiting:
        thread.join(LONG)
        assert not thread.is_alive()
    assert len(raised) == 3


def test_a_run_under_way_goes_on_where_one_newcomer_is_mistaken(
    town: Town, caplog: pytest.LogCaptureFixture
) -> None:
    for bus in (town.learner, town.collector):
        bus.declare("learner_model", "state")
    eventually(lambda: all(peer.role for peer in town.learner.peers()))
    assert town.collector._network is not None
    eventually(lambda: town.collector._network.router.members[town.collector._network.hub_id].kinds)  # type: ignore[union-attr,index]
    late = town.join()
    with pytest.raises(UsageError, match="is a stream in collector_1 and a state in collector_0"):
        late.declare("learner_model", "stream")
    told = [one for one in caplog.records if one.levelno == logging.ERROR]
    eventually(
        lambda: len([one for one in caplog.records if "learner_0 and a stream" in one.getMessage()]) == 1
    )
    assert told
    town.learner.emit("learner_model", 7)
    assert town.collector.wait_for("learner_model", timeout=LONG) == 7
    town.learner.deliver()
    town.collector.deliver()


def test_a_task_ends_with_it_and_a_peer_that_is_gone_is_not_held_against_anybody(town: Town) -> None:
    with Task(bus=town.collector, role="collector") as task:
        task.bus.declare("collector_data", "stream")
        town.learner.on("collector_data", print)
        with pytest.raises(UsageError, match="'collector_data' is a stream in collector_0 and listened to"):
            task.use(lambda ctx: None).run()
    town.learner.off("collector_data")
    eventually(lambda: not town.collector._gate.clashes)
    town.collector.declare("collector_data", "stream")


def test_the_many_go_on_and_the_few_fail() -> None:
    def member(name: str, **kinds: Any) -> Member:
        return Member(f"{name}:1", name, name.partition("_")[0], "", kinds=kinds)

    state = [member(f"collector_{number}", learner_model="state") for number in range(2)]
    stream = member("actor_0", learner_model="stream")
    assert clashes(state[0], [state[1], stream]).raised == {}
    assert list(clashes(state[0], [state[1], stream]).told) == ["learner_model"]
    (text,) = clashes(stream, state).raised.values()
    assert text.startswith("'learner_model' is a stream in actor_0 and a state in collector_0: ")
    assert list(clashes(state[0], [stream]).raised) == ["learner_model"]
    assert clashes(state[0], [state[1]]) == ({}, {})
