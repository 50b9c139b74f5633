"""What errors of the bus say, and small rules of its verbs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from engine import Task
from engine.bus.bus import Bus, host, join
from engine.bus.codec import decode, encode
from engine.bus.gate import Gate
from engine.bus.keys import generate_keys
from engine.bus.memory import Network
from engine.bus.zeromq import ZeroMQ
from engine.errors import CodecError, DeadlineExceeded, UsageError

LONG = 60.0

pytestmark = pytest.mark.timeout(120)


def eventually(ready: Callable[[], Any], what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


class Town:
    """A launcher that hosts, and who joins it."""

    def __init__(self, **settings: Any) -> None:
        self.net = Network()
        self.hub = host(self.net.transport(), run="r", **settings)
        self.buses = [self.hub]

    def join(self, role: str, **settings: Any) -> Bus:
        bus = join(self.net.transport(), at=self.hub.address, run="r", role=role, timeout=LONG, **settings)
        self.buses.append(bus)
        return bus

    def close(self) -> None:
        for bus in reversed(self.buses):
            bus.close(linger=0.0)


@pytest.fixture
def town() -> Iterator[Town]:
    town = Town()
    yield town
    town.close()


def failing(ctx: Any) -> None:
    raise ValueError("the pole broke")


def test_the_note_of_an_error_names_the_role_of_the_bus(town: Town) -> None:
    for bus, role in ((town.join("collector"), "collector"), (Bus(), "main")):
        with Task(bus=bus) as task:
            task.use(failing)
            with pytest.raises(ValueError, match="the pole broke") as caught:
                task.run(max_step=1)
        assert caught.value.__notes__ == [f"raised in middleware 'failing', iteration 0, role '{role}'"]
    assert Task(role="actor").role == "actor"


WRONG = {"model": [1, 2, lambda: 3]}


@pytest.mark.parametrize(
    ("args", "kwargs", "path"),
    [
        ((WRONG,), {}, "value['model'][2]"),
        ((lambda: 3,), {}, "value"),
        ((5, WRONG), {}, "args[1]['model'][2]"),
        ((WRONG,), {"x": 1}, "args[0]['model'][2]"),
        ((), {"job": WRONG}, "kwargs['job']['model'][2]"),
        ((1,), {"job": lambda: 3}, "kwargs['job']"),
        (({"seen": {1, print}},), {}, "value['seen'], in the set"),
        ((frozenset([print]),), {}, "value, in the frozenset"),
        (((1, print),), {}, "value[1]"),
    ],
)
def test_what_cannot_be_sent_is_named_by_the_path_that_it_has(
    town: Town, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> None:
    learner, collector = town.join("learner"), town.join("collector")
    learner.serve("learner_get", lambda *args, **kwargs: 1, thread="inline")
    learner.on("collector_news", lambda *args, **kwargs: None)
    network = collector._network
    assert network is not None
    eventually(lambda: "collector_news" in network.router.listeners)
    for verb, name in ((collector.emit, "collector_news"), (collector.call, "learner_get")):
        with pytest.raises(CodecError) as caught:
            verb(name, *args, **kwargs)
        assert str(caught.value).startswith(f"{path}: a ")
    if len(args) == 1 and not kwargs:
        collector.declare("collector_data", "stream")
        with pytest.raises(CodecError) as caught:
            collector.push("collector_data", *args)
        assert str(caught.value).startswith(f"{path}: a ")


def test_no_address_holds_a_key() -> None:
    keys = generate_keys()
    hub = host(ZeroMQ(tcp="127.0.0.1", keys=keys), run="r")
    assert "tcp://127.0.0.1:" in hub.address
    bus = join(ZeroMQ(ipc=False, tcp="127.0.0.1", keys=keys), at=hub.address, run="r", role="collector")
    for text in (hub.address, bus.address, *(peer.address for peer in bus.peers())):
        assert "#" not in text
        assert keys.server_public not in text
    bus.close()
    hub.close()


def test_the_service_thread_says_that_it_would_wait_for_itself(town: Town) -> None:
    learner = town.join("learner")
    learner.serve("learner_get", lambda: 5, thread="service")
    learner.serve("learner_add", lambda x: x + learner.call("learner_get", timeout=LONG), thread="service")
    before = time.monotonic()
    for call in (learner.call, town.join("collector").call):
        with pytest.raises(UsageError if call == learner.call else Exception, match="would wait for itself"):
            call("learner_add", 1, timeout=LONG)
    raised: list[BaseException] = []

    def handle(x: int) -> None:
        try:
            learner.call("learner_get", timeout=LONG)
        except UsageError as error:
            raised.append(error)

    learner.on("learner_news", handle, thread="service")
    learner.emit("learner_news", 1)
    eventually(lambda: raised)
    assert time.monotonic() - before < LONG / 2
    assert learner.call("learner_get", timeout=LONG) == 5


@pytest.mark.parametrize("timeout", ["3", -1, True, float("nan"), [], 1j])
def test_a_timeout_that_is_no_number_of_seconds_is_a_usage_error(town: Town, timeout: Any) -> None:
    bus = town.join("collector")
    bus.declare("collector_data", "stream")
    verbs: list[Callable[[], Any]] = [
        lambda: bus.wait_for("learner_news", timeout=timeout),
        lambda: bus.push("collector_data", 1, timeout=timeout),
        lambda: bus.take("collector_data", timeout=timeout),
        lambda: bus.call("learner_get", timeout=timeout),
        lambda: bus.call_all("learner_get", timeout=timeout),
        lambda: bus.wait_for_peers("learner", timeout=timeout),
        lambda: join(town.net.transport(), at=town.hub.address, run="r", role="actor", timeout=timeout),
        lambda: Task(bus=Bus()).wait_for("learner_news", timeout=timeout),
    ]
    for verb in verbs:
        with pytest.raises(UsageError, match="takes timeout= in seconds, at least 0, or None, not"):
            verb()


def test_numbers_of_any_library_are_timeouts(town: Town) -> None:
    bus = town.join("collector")
    for timeout in (0, 0.01, np.float32(0.01), np.int64(0)):
        with pytest.raises(DeadlineExceeded):
            bus.wait_for("learner_news", timeout=timeout)


@pytest.mark.parametrize("timeout", [10**400, float("inf"), 1e30], ids=["huge", "inf", "1e30"])
def test_a_timeout_may_be_longer_than_any_clock_counts(town: Town, timeout: float) -> None:
    bus = town.join("collector")
    bus.declare("collector_data", "stream")
    bus.emit("collector_news", 1)
    bus.consume("collector_data")
    bus.push("collector_data", 2, timeout=timeout)
    bus.serve("collector_get", lambda: 3, thread="service")
    assert bus.take("collector_data", timeout=timeout).value == 2
    assert bus.call("collector_get", timeout=timeout) == 3
    answering = town.join("learner")
    answering.serve("learner_get", lambda: 4, thread="service")
    answering.ready()
    assert bus.call("learner_get", timeout=timeout) == 4
    assert len(bus.wait_for_peers("learner", timeout=timeout)) == 1


def test_lists_of_peers_leave_the_launcher_out(town: Town) -> None:
    learner, observer = town.join("learner"), town.join("observer")
    eventually(lambda: len(learner.peers()) == 2)
    with pytest.raises(DeadlineExceeded, match=r"; there are none$"):
        learner.wait_for_peers("collector", 1, timeout=0)
    with pytest.raises(DeadlineExceeded, match=r"no collector is in the run: there are learner_0$"):
        learner.wait_for("collector_news", timeout=0)
    with pytest.raises(DeadlineExceeded, match=r"; in the run are learner_0$"):
        learner.take("collector_data", timeout=0)
    with pytest.raises(DeadlineExceeded, match=r"; in the run are learner_0$"):
        observer.take("collector_data", timeout=0)
    assert {peer.role for peer in learner.peers()} == {"launcher", "observer"}


def test_who_is_not_admitted_is_never_a_member() -> None:
    town = Town(
        roles=("collector", "learner"),
        admit=lambda role, name, about: None if name or role == "collector" else f"no {role}, {about['x']}",
    )
    seen: list[str] = []
    town.hub.watch(lambda what, peer, cause: seen.append(f"{what} {peer.name}"))
    with pytest.raises(UsageError, match="did not let learner in: no learner, 3"):
        town.join("learner", about={"x": 3})
    town.join("learner", peer="learner_0")
    town.join("collector")
    assert seen == ["joined learner_0", "joined collector_0"]
    town.close()


def test_trees_of_arrays_arrive_as_they_were(town: Town) -> None:
    numpy_trees = pytest.importorskip("treetensor.numpy")
    torch_trees = pytest.importorskip("treetensor.torch")
    from treevalue.tree.common import create_storage

    learner, collector = town.join("learner"), town.join("collector")
    learner.serve("learner_echo", lambda x: x, thread="service")
    small = {"a": np.arange(3), "b": {"c": np.ones((2, 2), np.float32)}}
    large = {"a": np.arange(100_000), "b": {"c": np.zeros(0)}}
    for data in (small, large):
        tree = numpy_trees.array(data)
        back = collector.call("learner_echo", tree, timeout=LONG)
        assert type(back) is type(tree) is numpy_trees.ndarray
        assert type(back.b) is numpy_trees.ndarray
        for mine, its in ((tree.a, back.a), (tree.b.c, back.b.c)):
            assert type(its) is np.ndarray
            assert (its.dtype, its.shape) == (mine.dtype, mine.shape)
            assert (its == mine).all()
        back.a[:1] = 7  # it is the receiver's own
        assert tree.a[0] == 0
        assert np.sum(numpy_trees.array(back.json()).a) == 7 + np.sum(data["a"])
    mixed = torch_trees.Tensor(create_storage({"a": np.arange(3), "t": torch_trees.tensor([1.0, 2.0])}))
    back = decode(*_frames(encode(mixed)), copy=True)
    assert type(back) is torch_trees.Tensor
    assert type(back.a) is np.ndarray
    assert back.t.tolist() == [1.0, 2.0]
    wrong = numpy_trees.ndarray(create_storage({"a": create_storage({"b": print})}))
    with pytest.raises(CodecError, match=r"^value\.a\.b: a builtin"):
        encode(wrong)


def _frames(encoded: Any) -> tuple[bytes, bytes]:
    arena = bytearray(encoded.arena_size)
    encoded.write_into(arena)
    return encoded.skeleton, bytes(arena)


def test_a_tensor_arrives_without_its_graph(town: Town) -> None:
    torch = pytest.importorskip("torch")
    learner, collector = town.join("learner"), town.join("collector")
    learner.serve("learner_is", lambda x: [type(x).__name__, x.requires_grad, x.is_leaf], thread="service")
    weight = torch.nn.Parameter(torch.ones(3))
    half = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    for tensor in (weight, weight * 2, half):
        assert collector.call("learner_is", tensor, timeout=LONG) == ["Tensor", False, True]
    assert weight.requires_grad


def test_waits_of_others_go_on_while_the_service_thread_works(town: Town) -> None:
    """Two services that call each other's process do wait for each other: that is not the same thread."""
    learner, collector = town.join("learner"), town.join("collector")
    learner.serve("learner_get", lambda: 5, thread="service")
    collector.serve("collector_get", lambda: collector.call("learner_get", timeout=LONG), thread="service")
    results: list[Any] = []
    calling = threading.Thread(target=lambda: results.append(learner.call("collector_get", timeout=LONG)))
    calling.start()
    calling.join(LONG)
    assert results == [5]
