"""Every env step that is exchanged is told of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any

import pytest

from engine.bus.bus import Bus, host, join
from engine.bus.memory import Network
from engine.context import OnlineContext
from engine.errors import DeadlineExceeded, UsageError
from engine.middleware.functional.exchange import TRAJECTORIES, Receiver, Sent


def until(condition: Callable[[], object]) -> None:
    """Wait for what the threads of a bus do."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def item(steps: int) -> dict[str, Any]:
    return {"columns": {}, "env_step": steps, "env_episode": 0, "version": 0, "metrics": {}}


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture
def buses(network: Network) -> Iterator[dict[str, Bus]]:
    """The buses of a run with two collectors, by name."""
    with ExitStack() as stack:
        hub = host(network.transport(), run="r", crew={"collector": 2})
        stack.callback(hub.close)
        found = {"hub": hub}
        for name in ("learner_0", "collector_0", "collector_1"):
            role = name.partition("_")[0]
            bus = join(network.transport(), at=hub.address, run="r", role=role, peer=name, timeout=60)
            stack.callback(bus.close)
            bus.declare(TRAJECTORIES, "stream", capacity=2)
            bus.ready()
            found[bus.peer] = bus
        found["learner_0"].wait_for_peers("collector", 2, timeout=60)
        yield found


def told(buses: dict[str, Bus], name: str) -> dict[str, Any]:
    """What a process said last of itself."""
    return next(peer.report for peer in buses["hub"].peers() if peer.name == name)


def taken(buses: dict[str, Bus]) -> dict[str, tuple[int, int]]:
    """What the learner has received, and left unlearned, by sender."""
    rows = buses["learner_0"].meter.read().rows
    keys = {bus.meter.read().key: name for name, bus in buses.items()}
    return {keys[key]: (row.received, row.unused) for key, row in rows.items()}


def receiver(bus: Bus, timeout: float) -> Receiver:
    policy: Any = SimpleNamespace(version=0)
    return Receiver(policy, bus, lockstep=True, capacity=2, most=1, timeout=timeout)


def test_what_was_sent_and_received_is_told_by_both_sides(buses: dict[str, Bus]) -> None:
    receive, ctx = receiver(buses["learner_0"], 60), OnlineContext()
    for number in range(2):
        collector = buses[f"collector_{number}"]
        collector.meter.steps()[0] += 10 + number
        sent = Sent(collector)
        sent.handed(6 + number)
        sent.push(item(4 + number), 4 + number, 60)
    receive.take(ctx)
    assert taken(buses) == {"collector_0": (4, 0), "collector_1": (5, 0)}
    assert ctx.env_step == 9
    until(lambda: not buses["collector_1"].meter.read().waiting)
    read = buses["collector_1"].meter.read()
    assert (read.stepped, read.mark, read.held, read.pushed) == (11, 11, 2, 5)
    until(lambda: "made" in told(buses, "collector_1"))
    assert told(buses, "collector_1")["stepped"] == 11


def test_what_an_unfinished_iteration_took_counts_as_unlearned(buses: dict[str, Bus]) -> None:
    receive, ctx = receiver(buses["learner_0"], 0.2), OnlineContext()
    Sent(buses["collector_0"]).push(item(4), 4, 60)
    until(lambda: buses["learner_0"].waiting(TRAJECTORIES) == 1)
    with pytest.raises(DeadlineExceeded, match="of collector_1 came within"):
        receive.take(ctx)
    assert taken(buses) == {"collector_0": (0, 4)}
    assert ctx.env_step == 0


def test_a_collector_that_the_run_lost_before_the_first_item_is_not_waited_for(
    network: Network, buses: dict[str, Bus]
) -> None:
    hub, learner, ctx = buses["hub"], buses["learner_0"], OnlineContext()
    hub.declare_lost("collector_1", "killed")
    until(lambda: len([peer for peer in learner.peers() if peer.role == "collector"]) == 1)
    Sent(buses["collector_0"]).push(item(4), 4, 60)
    with pytest.raises(DeadlineExceeded, match="2 of role 'collector' were expected"):
        receiver(learner, 0.2).take(ctx)  # it may come yet, or be started again
    wait = threading.Timer(0.2, lambda: hub.expect("collector", 1))
    wait.start()
    receiver(learner, 60).take(ctx)
    assert ctx.env_step == 4
    wait.join()
    transport = network.transport()
    with closing(join(transport, at=hub.address, run="r", role="learner", timeout=60)) as late:
        assert late.wait_for_peers("collector", None, timeout=0.2) == ["collector_0"]


def test_only_the_host_of_a_run_says_how_many_it_expects(buses: dict[str, Bus]) -> None:
    with pytest.raises(UsageError, match="only the process that hosts the run"):
        buses["learner_0"].expect("collector", 1)
