"""T1, T2, T9 and T10 of the bus: remote calls, alone and beside what is in their way."""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from benchmarks.children import Child
from benchmarks.measure import Goal, Part, Ratio, Sides, take_turns

PAYLOAD = b"x" * 64
MODEL = "launcher_model"


def spread(call: Callable[[], object], times: int, pause: float = 0.0) -> tuple[float, float]:
    """The median and the 99th percentile of a call's duration, in microseconds."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        took.append((time.perf_counter() - start) * 1e6)
        if pause:
            time.sleep(pause)
    took.sort()
    return statistics.median(took), took[min(len(took) - 1, int(0.99 * len(took)))]


class Turns:
    """Sides that give a median and a 99th percentile each round."""

    def __init__(self, calls: dict[str, Callable[[], tuple[float, float]]], rounds: int, unit: str) -> None:
        self.p99 = Sides(f"{unit}, 99th percentile", {name: [] for name in calls})

        def side(name: str) -> Callable[[int], float]:
            def run(_: int) -> float:
                p50, p99 = calls[name]()
                self.p99.numbers[name].append(p99)
                return p50

            return run

        for call in calls.values():
            call()
        self.p50 = take_turns({name: side(name) for name in calls}, rounds, f"{unit}, median")


def begin(**settings: Any) -> Any:
    """Host a run on this machine."""
    from engine.bus.bus import host
    from engine.bus.zeromq import ZeroMQ

    return host(ZeroMQ(), run="bench", **settings)


def enter(address: str, **settings: Any) -> Any:
    """Join it, as a peer that is ready."""
    from engine.bus.bus import join
    from engine.bus.zeromq import ZeroMQ

    bus = join(ZeroMQ(), at=address, run="bench", role="peer", **settings)
    bus.ready()
    return bus


class Server:
    """A peer that answers calls, and can be kept busy."""

    def __init__(self, address: str) -> None:
        self._bus = enter(address)
        self._bus.serve("peer_echo", same, thread="inline")
        self._bus.serve("peer_echo_service", same, thread="service")

    def compute(self, seconds: float) -> int:
        """Compute in Python for so long, on the main thread."""
        count = 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number in range(1000):
                count += number
        return count

    def close(self) -> None:
        self._bus.close(linger=0.2)


class RawServer(Server):
    """A ROUTER that echoes, on a thread."""

    def __init__(self, place: str) -> None:
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.linger = 0
        router.bind(place)
        self._thread = threading.Thread(target=echo, args=(router,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._context.term()


class NanoServer(RawServer):
    """An NNG replier that echoes."""

    def __init__(self, place: str) -> None:
        import pynng

        self._socket = pynng.Rep0(listen=place)

        def serve() -> None:
            with contextlib.suppress(pynng.Closed):
                while True:
                    self._socket.send(self._socket.recv())

        threading.Thread(target=serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()


def same(value: Any) -> Any:
    """Return what came."""
    return value


def echo(router: Any) -> None:
    """Send back what comes, until the context ends; then close the socket, on its own thread."""
    with router, contextlib.suppress(zmq.ContextTerminated):
        while True:
            router.send_multipart(router.recv_multipart())


def dealer(context: Any, place: str) -> Callable[[], None]:
    """A call of a raw ROUTER."""
    socket = context.socket(zmq.DEALER)
    socket.connect(place)

    def call() -> None:
        socket.send(PAYLOAD)
        socket.recv()

    return call


def calls(quick: bool) -> Part:
    """T1, T2: how long a call takes."""
    rounds, times = (3, 300) if quick else (9, 2000)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        bus = begin()
        stack.callback(bus.close)
        place = f"ipc://{folder / 'raw'}"
        stack.enter_context(Child(Server, bus.address)).ready()
        stack.enter_context(Child(RawServer, place)).ready()
        raw = dealer(context, place)
        bus.wait_for_peers("peer")
        ways: dict[str, Callable[[], object]] = {
            "raw": raw,
            "inline": lambda: bus.call("peer_echo", PAYLOAD),
            "service": lambda: bus.call("peer_echo_service", PAYLOAD),
        }
        if importlib.util.find_spec("pynng"):
            import pynng

            place = f"ipc://{folder / 'nng'}"
            stack.enter_context(Child(NanoServer, place)).ready()
            asking = stack.enter_context(pynng.Req0(dial=place))

            def nng() -> None:
                asking.send(PAYLOAD)
                asking.recv()

            ways["nng"] = nng
        if importlib.util.find_spec("ray"):
            ways["ray"] = stack.enter_context(ray_actor())
        turns = Turns(
            {name: lambda way=way: spread(way, times) for name, way in ways.items()},  # type: ignore[misc]
            rounds,
            "µs: a call of 64 B",
        )
    goals = [
        Goal("T1 call, inline / raw, median", turns.p50.ratio("inline", "raw"), 1.5),
        Goal("T1 call, inline / raw, 99th percentile", turns.p99.ratio("inline", "raw"), 2.0),
        Goal("T2 call, inline / raw, median", turns.p50.ratio("inline", "raw"), 2.0),
        Goal("T2 call, service thread / raw, median", turns.p50.ratio("service", "raw"), 3.0),
    ]
    for other, title, inline, service in (
        ("nng", "pynng req/rep", 1.5, 2.2),
        ("ray", "a Ray actor call", 0.2, 0.3),
    ):
        if other in ways:
            goals += [
                Goal(f"T2 call, inline / {title}", turns.p50.ratio("inline", other), inline),
                Goal(f"T2 call, service thread / {title}", turns.p50.ratio("service", other), service),
            ]
    notes = [
        "T1 and T2: small calls take the direct way by default, so one figure is held against both goals."
    ]
    return Part(goals, [turns.p50, turns.p99], notes)


@contextlib.contextmanager
def ray_actor() -> Any:
    """A call of an actor of Ray."""
    import ray

    class Echo:
        def echo(self, value: Any) -> Any:
            return value

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        actor = ray.remote(Echo).remote()
        yield lambda: ray.get(actor.echo.remote(PAYLOAD))
    finally:
        ray.shutdown()


def busy(quick: bool) -> Part:
    """T10: calls of a process whose main thread computes in Python."""
    rounds, times = (3, 50) if quick else (5, 300)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        bus = begin()
        stack.callback(bus.close)
        place = f"ipc://{folder / 'raw'}"
        ours = stack.enter_context(Child(Server, bus.address)).ready()
        theirs = stack.enter_context(Child(RawServer, place)).ready()
        raw = dealer(context, place)
        bus.wait_for_peers("peer")

        def loaded(child: Child, call: Callable[[], object]) -> tuple[float, float]:
            seconds = 0.002 * times + 1.0
            child.tell("compute", seconds)
            time.sleep(0.1)
            figures = spread(call, times, 0.002)
            child.answer()
            return figures

        turns = Turns(
            {
                "raw": lambda: loaded(theirs, raw),
                "service": lambda: loaded(ours, lambda: bus.call("peer_echo_service", PAYLOAD)),
                "inline": lambda: loaded(ours, lambda: bus.call("peer_echo", PAYLOAD)),
            },
            rounds,
            "µs: a call into a busy process",
        )
    p99 = Ratio([number / 1e3 for number in turns.p99.numbers["service"]])
    goals = [
        Goal("T10 call into a busy process, service thread, 99th percentile", p99, 5.0, unit=" ms"),
        Goal("T10 the same / raw in a thread there, median", turns.p50.ratio("service", "raw")),
    ]
    return Part(goals, [turns.p50, turns.p99])


class Streamed:
    """A peer that copies each version of a large state into memory of its own, and answers calls."""

    def __init__(self, address: str, acks: str, shared: bool) -> None:
        self._context = zmq.Context()
        ack = self._context.socket(zmq.PUSH)
        ack.connect(acks)
        self._bus = bus = enter(address, shared=shared)
        own = np.zeros(LARGE, np.uint8)
        told = threading.Event()

        def apply(value: Any) -> None:
            np.copyto(own, value)
            ack.send(b"")

        bus.serve("peer_echo", same, thread="inline")
        bus.declare(MODEL, "state")
        bus.on(MODEL, apply, view=True)
        self._over = False

        def live() -> None:
            bus.attach(finishing=lambda: False, notify=told.set)
            while not self._over:
                told.wait(0.5)
                told.clear()
                bus.deliver()

        self._thread = threading.Thread(target=live, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over = True
        self._thread.join(5)
        self._bus.close(linger=0.2)
        self._context.destroy(linger=0)


class RawStreamed:
    """The same with raw sockets: one that echoes, and another for what is large."""

    def __init__(self, place: str, bulk: str, acks: str) -> None:
        self._context = zmq.Context()
        router = self._context.socket(zmq.ROUTER)
        router.bind(place)
        pull = self._context.socket(zmq.PULL)
        pull.bind(bulk)
        ack = self._context.socket(zmq.PUSH)
        ack.connect(acks)
        router.linger = ack.linger = 0
        own = np.zeros(LARGE, np.uint8)

        def take() -> None:
            with pull, ack, contextlib.suppress(zmq.ContextTerminated):
                while True:
                    frame = pull.recv(copy=False)
                    np.copyto(own, np.frombuffer(frame.buffer, np.uint8))
                    ack.send(b"")

        threading.Thread(target=take, daemon=True).start()
        threading.Thread(target=echo, args=(router,), daemon=True).start()

    def close(self) -> None:
        self._context.term()


LARGE = 16 << 20


def beside(quick: bool) -> Part:
    """T9: calls while large states stream to the same peer."""
    rounds, times = (3, 60) if quick else (5, 300)
    value = np.random.default_rng(0).integers(0, 255, LARGE, np.uint8)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        ways: dict[str, Callable[[], object]] = {}
        streams: dict[str, tuple[Callable[[], object], Any]] = {}
        for name, shared in (("bus", False), ("bus, shared memory", True)):
            bus = begin(shared=shared)
            stack.callback(bus.close)
            acks = context.socket(zmq.PULL)
            acks.bind(f"ipc://{folder}/acks-{shared}")
            stack.enter_context(Child(Streamed, bus.address, f"ipc://{folder}/acks-{shared}", shared)).ready()
            bus.declare(MODEL, "state")
            bus.wait_for_peers("peer")
            ways[name] = lambda bus=bus: bus.call("peer_echo", PAYLOAD)  # type: ignore[misc]
            streams[name] = (lambda bus=bus: bus.emit(MODEL, value), acks)  # type: ignore[misc]
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{folder}/acks")
        place, bulk = f"ipc://{folder}/raw", f"ipc://{folder}/bulk"
        stack.enter_context(Child(RawStreamed, place, bulk, f"ipc://{folder}/acks")).ready()
        ways["raw"] = dealer(context, place)
        push = context.socket(zmq.PUSH)
        push.connect(bulk)
        streams["raw"] = (lambda: push.send(value, copy=False), acks)

        def idle(name: str) -> tuple[float, float]:
            return spread(ways[name], times)

        def loaded(name: str) -> tuple[float, float]:
            over = threading.Event()
            publish, acks = streams[name]

            def stream() -> None:
                while not over.is_set():
                    publish()
                    if not acks.poll(30_000):
                        raise TimeoutError(f"{name}: a large state was not applied within 30 s")
                    acks.recv()

            thread = threading.Thread(target=stream)
            thread.start()
            try:
                time.sleep(0.05)
                return spread(ways[name], times)
            finally:
                over.set()
                thread.join()

        sides: dict[str, Callable[[], tuple[float, float]]] = {}
        for name in ways:
            sides[f"{name}, idle"] = lambda name=name: idle(name)  # type: ignore[misc]
            sides[f"{name}, beside 16 MB"] = lambda name=name: loaded(name)  # type: ignore[misc]
        turns = Turns(sides, rounds, "µs: a call of 64 B")
    goals = []
    for name in ("bus", "bus, shared memory"):
        goals += [
            Goal(
                f"T9 call beside states of 16 MB, {name} / raw on a second socket, 99th percentile",
                turns.p99.ratio(f"{name}, beside 16 MB", "raw, beside 16 MB"),
                2.0,
            ),
            Goal(
                f"T9 the same, {name}, beside / idle, median",
                turns.p50.ratio(f"{name}, beside 16 MB", f"{name}, idle"),
                1.5,
            ),
        ]
    goals.append(Goal("T9 raw, beside / idle, median", turns.p50.ratio("raw, beside 16 MB", "raw, idle")))
    return Part(goals, [turns.p50, turns.p99])
