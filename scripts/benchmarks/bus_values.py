"""T3, T4, T5, T7 and T8 of the bus: events, states and items between processes, and what they weigh."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import mmap
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from benchmarks.bus_calls import begin, enter
from benchmarks.children import PATIENCE, Child
from benchmarks.measure import Goal, Part, Ratio, take_turns, timed

Side = Callable[[int], float]

TICK, MODEL, ROLLOUT = "launcher_tick", "launcher_model", "peer_rollout"
WINDOW, STEP = 4000, 500


def listening(
    bus: Any, handlers: dict[str, Callable[..., None]], *, view: bool = False
) -> Callable[..., None]:
    """Subscribe; return what delivers, on this thread, until `done()`."""
    told = threading.Event()
    for event, handler in handlers.items():
        bus.on(event, handler, view=view)

    def notify() -> None:
        if not told.is_set():
            told.set()

    bus.attach(finishing=lambda: False, notify=notify)

    def until(done: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > end:
                raise TimeoutError("not everything that was sent has come")
            told.wait(0.5)
            told.clear()
            bus.deliver()

    return until


def fail(**about: Any) -> None:
    """Something that must not happen has happened."""
    raise RuntimeError(f"events were missed: {about}")


def wait_for_ack(acks: Any) -> None:
    """Wait for one acknowledgement on a raw socket."""
    if not acks.poll(PATIENCE * 1000):
        raise TimeoutError(f"no acknowledgement came within {PATIENCE:g} s")
    acks.recv()


# --- events -------------------------------------------------------------------------------------


class Listener:
    """Counts events of the bus, and messages of a raw publisher."""

    def __init__(self, address: str, place: str, acks: str) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.set(zmq.RCVHWM, 0)
        self._sub.connect(place)
        self._sub.subscribe(b"")
        self._acks = self._context.socket(zmq.PUSH)
        self._acks.connect(acks)
        self._bus = enter(address)
        self._count = 0
        self._until = listening(self._bus, {TICK: self._came, "task_events_missed": fail})

    def _came(self, payload: bytes) -> None:
        self._count += 1
        if self._count % STEP == 0:
            self._acks.send(b"")

    def receive(self, count: int) -> None:
        """Take so many events of the bus."""
        self._count = 0
        self._until(lambda: self._count >= count)

    def receive_raw(self, count: int) -> None:
        """Take so many messages."""
        for _ in range(count):
            self._sub.recv()

    def close(self) -> None:
        self._bus.close(linger=0.2)
        self._context.destroy(linger=0)


def events(quick: bool) -> Part:
    """T3: small events, as many as can be."""
    rounds, count = (3, 4_000) if quick else (7, 40_000)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        pub = context.socket(zmq.XPUB)
        pub.set(zmq.XPUB_NODROP, 1)
        pub.bind(f"ipc://{folder}/pub")
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{folder}/acks")
        bus = begin()
        stack.callback(bus.close)
        child = stack.enter_context(
            Child(Listener, bus.address, f"ipc://{folder}/pub", f"ipc://{folder}/acks")
        ).ready()
        bus.wait_for_peers("peer")
        if not pub.poll(10_000):
            raise TimeoutError("nobody subscribed to the raw publisher")

        def through_bus(payload: bytes) -> Side:
            def side(_: int) -> float:
                child.tell("receive", count)
                start = time.perf_counter()
                acknowledged = 0
                for number in range(0, count, STEP):
                    while number - acknowledged >= WINDOW:
                        wait_for_ack(acks)
                        acknowledged += STEP
                    for _ in range(STEP):
                        bus.emit(TICK, payload)
                child.answer()
                took = time.perf_counter() - start
                for _ in range((count - acknowledged) // STEP):
                    wait_for_ack(acks)
                return count / took

            return side

        def through_socket(_: int) -> float:
            child.tell("receive_raw", count)
            payload = b"x" * 64
            start = time.perf_counter()
            for _ in range(count):
                pub.send(payload)
            child.answer()
            return count / (time.perf_counter() - start)

        measured = take_turns(
            {
                "bus, 64 B": through_bus(b"x" * 64),
                "bus, 1 KB": through_bus(b"x" * 1000),
                "raw PUB/SUB, 64 B": through_socket,
            },
            rounds,
            "events/s",
        )
    raw = "raw PUB/SUB, 64 B"
    goals = [
        Goal("T3 events of 1 KB / raw messages of 64 B", measured.ratio("bus, 1 KB", raw), 0.11, True),
        Goal("T3 events of 64 B, many in a frame / raw", measured.ratio("bus, 64 B", raw), 0.25, True),
    ]
    return Part(goals, [measured])


# --- states -------------------------------------------------------------------------------------

ARRAYS = 8


class Follower:
    """Has each version of a large value in memory of its own, or looks at it: by the bus, and by hand."""

    def __init__(self, address: str, place: str, acks: str, memory: str, size: int) -> None:
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.connect(place)
        self._sub.subscribe(b"")
        self._acks = self._context.socket(zmq.PUSH)
        self._acks.connect(acks)
        with Path(memory).open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
        self._slot = np.frombuffer(self._memory, np.uint8)
        self._own = [np.zeros(size // ARRAYS, np.uint8) for _ in range(ARRAYS)]
        self._whole = np.zeros(size, np.uint8)
        self._look = False
        self._versions = 0
        self._bus = enter(address)
        self._bus.declare(MODEL, "state")
        self._until = listening(self._bus, {MODEL: self._came}, view=True)

    def _came(self, value: list[Any]) -> None:
        if self._look:
            touch(value)
        else:
            for own, one in zip(self._own, value, strict=True):
                np.copyto(own, one)
        self._versions += 1
        self._acks.send(b"")

    def by_bus(self, count: int, look: bool) -> None:
        """Follow so many versions of the bus's state."""
        self._look = look
        before = self._versions
        self._acks.send(b"")  # ready
        self._until(lambda: self._versions >= before + count)

    def by_slot(self, count: int, look: bool) -> None:
        """Follow so many that lie in shared memory, with a notice for each."""
        self._acks.send(b"")
        for _ in range(count):
            self._sub.recv()
            if look:
                touch(np.split(self._slot, ARRAYS))
            else:
                np.copyto(self._whole, self._slot)
            self._acks.send(b"")

    def by_socket(self, count: int, look: bool) -> None:
        """Follow so many that come through a socket."""
        self._acks.send(b"")
        for _ in range(count):
            frame = self._sub.recv(copy=False)
            np.copyto(self._whole, np.frombuffer(frame.buffer, np.uint8))
            self._acks.send(b"")

    def close(self) -> None:
        self._bus.close(linger=0.2)
        self._context.destroy(linger=0)


def states(quick: bool) -> Part:
    """T4, T5: weights to k processes of this host."""
    rounds, versions = (3, 3) if quick else (5, 8)
    part = Part([])
    for size, crowds in ((16 << 20, (1, 2) if quick else (1, 2, 4, 8)), (7 << 20, (1,) if quick else (1, 4))):
        for crowd in crowds:
            _to(crowd, size, rounds, versions, part)
    return part


def _to(crowd: int, size: int, rounds: int, versions: int, part: Part) -> None:
    megabytes = size >> 20
    value = [np.full(size // ARRAYS, number, np.uint8) for number in range(ARRAYS)]
    whole = np.concatenate(value)
    target = np.zeros_like(whole)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shared = Path("/dev/shm") if Path("/dev/shm").is_dir() else folder
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=shared))) / "slot"
        memory.write_bytes(bytes(size))
        with memory.open("r+b") as file:
            slot = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        pub = context.socket(zmq.XPUB)
        pub.set(zmq.XPUB_VERBOSE, 1)  # every subscriber is told of
        pub.bind(f"ipc://{folder}/pub")
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{folder}/acks")
        bus = begin()
        stack.callback(bus.close)
        bus.declare(MODEL, "state")
        places = (bus.address, f"ipc://{folder}/pub", f"ipc://{folder}/acks", str(memory), size)
        children = [stack.enter_context(Child(Follower, *places)) for _ in range(crowd)]
        for child in children:
            child.ready()
        bus.wait_for_peers("peer", crowd)
        for _ in range(crowd):
            if not pub.poll(10_000):
                raise TimeoutError("nobody subscribed to the raw publisher")
            pub.recv()

        def everybody() -> None:
            for _ in range(crowd):
                wait_for_ack(acks)

        def by_slot() -> None:
            np.copyto(slot, whole)
            pub.send(b"notice")

        def follow(method: str, look: bool, publish: Callable[[], object]) -> Side:
            def side(_: int) -> float:
                for child in children:
                    child.tell(method, versions, look)
                everybody()
                start = time.perf_counter()
                for _ in range(versions):
                    publish()
                    everybody()
                took = time.perf_counter() - start
                for child in children:
                    child.answer()
                return took / versions * 1e3

            return side

        def by_bus() -> None:
            bus.emit(MODEL, value)

        sides = {
            "memcpy": timed(lambda: np.copyto(target, whole), versions, 1e3),
            "bus, copied": follow("by_bus", False, by_bus),
            "slot by hand, copied": follow("by_slot", False, by_slot),
            "PUB/SUB": follow("by_socket", False, lambda: pub.send(whole, copy=False)),
            "bus, looked at": follow("by_bus", True, by_bus),
            "slot by hand, looked at": follow("by_slot", True, by_slot),
        }
        if importlib.util.find_spec("ray"):
            sides["Ray put, looked at"] = stack.enter_context(ray_put(whole, crowd))
        for side in sides.values():
            side(0)
        measured = take_turns(sides, rounds, f"ms: {megabytes} MB to {crowd}")
    to = f"{megabytes} MB to {crowd}"
    part.sides.append(measured)
    part.goals.append(
        Goal(f"T4 {to}: copied / slot by hand", measured.ratio("bus, copied", "slot by hand, copied"), 1.3)
    )
    rate = Ratio([crowd * number for number in measured.ratio("memcpy", "bus, copied").rounds])
    if crowd == 1:
        part.goals.append(Goal(f"T4 {to}: copying rate / memcpy's", rate, 0.35, True))
    if crowd >= 4:
        part.goals += [
            Goal(f"T4 {to}: copying rate, all together / memcpy's", rate, 0.5, True),
            Goal(f"T4 {to}: copied / PUB/SUB", measured.ratio("bus, copied", "PUB/SUB"), 0.7),
        ]
    part.goals.append(Goal(f"T5 {to}: looked at / memcpy", measured.ratio("bus, looked at", "memcpy"), 2.0))
    if "Ray put, looked at" in measured.numbers:
        ratio = measured.ratio("bus, looked at", "Ray put, looked at")
        part.goals.append(Goal(f"T5 {to}: looked at / Ray", ratio, 0.5))


@contextlib.contextmanager
def ray_put(whole: Any, crowd: int) -> Any:
    """Put into Ray's store, and have so many actors look at it."""
    import ray

    class Looker:
        def look(self, value: Any) -> int:
            return int(value[0]) + int(value[-1])

    ray.init(num_cpus=crowd + 1, include_dashboard=False, log_to_driver=False)
    try:
        actors = [ray.remote(Looker).remote() for _ in range(crowd)]

        def put() -> None:
            reference = ray.put(whole)
            ray.get([actor.look.remote(reference) for actor in actors])

        yield timed(put, 4, 1e3)
    finally:
        ray.shutdown()


# --- bytes --------------------------------------------------------------------------------------


def codec(quick: bool) -> Part:
    """T7: the weights of a small convolutional net to bytes and back."""
    import torch

    from engine.bus.codec import decode, encode

    rounds, times = (3, 20) if quick else (7, 200)
    shapes = {"conv1": (32, 4, 8, 8), "conv2": (64, 32, 4, 4), "conv3": (64, 64, 3, 3), "fc": (512, 3136)}
    weights: dict[str, Any] = {}
    for name, shape in (*shapes.items(), ("head", (6, 512)), ("value", (1, 512))):
        weights[f"{name}.weight"] = np.ones(shape, np.float32)
        weights[f"{name}.bias"] = np.ones(shape[0], np.float32)
    tensors = {name: torch.from_numpy(value) for name, value in weights.items()}
    size = sum(value.nbytes for value in weights.values())

    def ours(value: dict[str, Any]) -> Callable[[], object]:
        # What the transport and the slots do in between is a copy of the whole, which nothing saves.
        encoded = encode(value)
        arena = np.zeros(encoded.arena_size + 64, np.uint8)
        arena = arena[-arena.ctypes.data % 64 :][: encoded.arena_size]
        encoded.write_into(arena.data)

        def both() -> object:
            return decode(encode(value).skeleton, arena.data, copy=False, own=True)

        return both

    def aside() -> object:
        buffers: list[pickle.PickleBuffer] = []
        data = pickle.dumps(weights, protocol=5, buffer_callback=buffers.append)
        return pickle.loads(data, buffers=buffers)

    def saved() -> object:
        file = io.BytesIO()
        torch.save(tensors, file)
        file.seek(0)
        return torch.load(file, weights_only=True)

    measured = take_turns(
        {
            "codec, arrays": timed(ours(weights), times),
            "codec, tensors": timed(ours(tensors), times),
            "pickle 5, buffers aside": timed(aside, times),
            "torch.save and load": timed(saved, max(3, times // 50)),
        },
        rounds,
        f"µs: {size / 1e6:.2f} MB there and back",
    )
    goals = [
        Goal("T7 codec, arrays", Ratio(measured.numbers["codec, arrays"]), 100, unit=" µs"),
        Goal("T7 arrays / pickle 5", measured.ratio("codec, arrays", "pickle 5, buffers aside"), 1.5),
        Goal("T7 tensors / torch.save", measured.ratio("codec, tensors", "torch.save and load"), 0.01),
    ]
    return Part(goals, [measured])


# --- items --------------------------------------------------------------------------------------


class Consumer:
    """Takes items of a stream with and without shared memory, and what raw sockets bring."""

    def __init__(self, addresses: dict[str, str], place: str, acks: str) -> None:
        self._context = zmq.Context()
        self._pull = self._context.socket(zmq.PULL)
        self._pull.bind(place)
        self._acks = self._context.socket(zmq.PUSH)
        self._acks.connect(acks)
        self._buses = {name: enter(address, shared=name == "shared") for name, address in addresses.items()}
        for bus in self._buses.values():
            bus.declare(ROLLOUT, "stream")
            bus.consume(ROLLOUT)

    def take(self, name: str, count: int) -> None:
        """Take so many items of a bus."""
        bus = self._buses[name]
        for _ in range(count):
            with bus.take(ROLLOUT, view=True, timeout=PATIENCE) as taken:
                touch(taken.value.values())
            self._acks.send(b"")

    def pull(self, count: int) -> None:
        """Take so many pickles."""
        for _ in range(count):
            head, *frames = self._pull.recv_multipart(copy=False)
            rollout = pickle.loads(head.buffer, buffers=[frame.buffer for frame in frames])
            touch(rollout.values())
            self._acks.send(b"")

    def close(self) -> None:
        for bus in self._buses.values():
            bus.close(linger=0.2)
        self._context.destroy(linger=0)


def touch(arrays: Iterable[Any]) -> int:
    """Look at both ends of every array."""
    return sum(int(one.flat[0]) + int(one.flat[-1]) for one in arrays)


def items(quick: bool) -> Part:
    """T8: a batch of experience of 28.9 MB, until it was taken."""
    rounds, times = (3, 2) if quick else (7, 5)
    rollout: dict[str, Any] = {"obs": np.ones((128, 8, 84, 84, 4), np.uint8)}
    rollout |= {name: np.ones((128, 8), np.float32) for name in ("action", "reward", "done", "logp")}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{folder}/acks")
        push = context.socket(zmq.PUSH)
        push.connect(f"ipc://{folder}/items")
        buses = {name: begin(shared=name == "shared") for name in ("shared", "sockets")}
        for bus in buses.values():
            stack.callback(bus.close)
            bus.declare(ROLLOUT, "stream")
        addresses = {name: bus.address for name, bus in buses.items()}
        places = f"ipc://{folder}/items", f"ipc://{folder}/acks"
        child = stack.enter_context(Child(Consumer, addresses, *places)).ready()

        def through(begin: tuple[Any, ...], send: Callable[[], object]) -> Side:
            def side(_: int) -> float:
                child.tell(*begin, times)
                start = time.perf_counter()
                for _ in range(times):
                    send()
                    wait_for_ack(acks)
                took = time.perf_counter() - start
                child.answer()
                return took / times * 1e3

            return side

        def aside() -> None:
            buffers: list[pickle.PickleBuffer] = []
            data = pickle.dumps(rollout, protocol=5, buffer_callback=buffers.append)
            push.send_multipart([data, *buffers], copy=False)

        sides = {
            "bus, shared memory": through(("take", "shared"), lambda: buses["shared"].push(ROLLOUT, rollout)),
            "bus, sockets": through(("take", "sockets"), lambda: buses["sockets"].push(ROLLOUT, rollout)),
            "pickle 5, buffers aside": through(("pull",), aside),
            "pickle": through(("pull",), lambda: push.send(pickle.dumps(rollout, protocol=5), copy=False)),
        }
        for side in sides.values():
            side(0)
        measured = take_turns(sides, rounds, "ms: 28.9 MB")
    aside_, whole = "pickle 5, buffers aside", "pickle"
    goals = [
        Goal("T8 item of 28.9 MB, sockets / pickle 5", measured.ratio("bus, sockets", aside_), 1.2),
        Goal("T8 the same / pickle in one piece", measured.ratio("bus, sockets", whole), 0.15),
        Goal("T8 with shared memory / pickle 5", measured.ratio("bus, shared memory", aside_), 0.7),
    ]
    return Part(goals, [measured])
