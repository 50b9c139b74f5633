"""T11 and T14 of the bus: how soon a death is known, and what broken connections lose."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq
from benchmarks.breaking import Breaker, Proxied
from benchmarks.bus_calls import begin, enter
from benchmarks.bus_values import fail, listening, wait_for_ack
from benchmarks.children import PATIENCE, Child
from benchmarks.measure import Goal, Part, Ratio, Sides

CALLS = 3


class Victim:
    """A peer that does not answer in time, and is killed."""

    def __init__(self, address: str) -> None:
        self._bus = enter(address)
        self._bus.serve("peer_ponder", time.sleep, thread="service")

    def close(self) -> None:
        self._bus.close(linger=0.2)


def deaths(quick: bool) -> Part:
    """T11: from a signal until the loss was told and every call of the peer failed."""
    rounds, stops = (3, 0) if quick else (7, 3)
    took: dict[str, list[float]] = {"peer lost": [], "calls failed": []}
    stopped: list[float] = []
    for number in range(rounds + stops):
        how = signal.SIGKILL if number < rounds else signal.SIGSTOP
        lost, failed = _death(how)
        if how == signal.SIGKILL:
            took["peer lost"].append(lost * 1e3)
            took["calls failed"].append(failed * 1e3)
        else:
            stopped.append(max(lost, failed))
    worst = [max(pair) for pair in zip(*took.values(), strict=True)]
    part = Part(
        [Goal("T11 SIGKILL until the peer is lost and its calls failed", Ratio(worst), 50, unit=" ms")],
        [Sides("ms after SIGKILL", took)],
    )
    if stopped:
        part.goals.append(Goal("T11 SIGSTOP until the same", Ratio(stopped), 5.5, unit=" s"))
        part.sides.append(Sides("s after SIGSTOP", {"peer lost, calls failed": stopped}))
    return part


def _death(how: signal.Signals) -> tuple[float, float]:
    from engine.errors import PeerLost

    bus = begin()
    told: dict[str, float] = {}
    lost = threading.Event()

    def watch(what: str, peer: Any, cause: str) -> None:
        if what == "lost":
            told["lost"] = time.perf_counter()
            lost.set()

    bus.watch(watch)
    failed: list[float] = []

    def ask() -> None:
        with contextlib.suppress(PeerLost):
            bus.call("peer_ponder", 60.0, timeout=60.0)
        failed.append(time.perf_counter())

    with contextlib.closing(bus), Child(Victim, bus.address) as child:
        child.ready()
        bus.wait_for_peers("peer")
        threads = [threading.Thread(target=ask, daemon=True) for _ in range(CALLS)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        pid = child.process.pid
        assert pid is not None
        start = time.perf_counter()
        os.kill(pid, how)
        try:
            if not lost.wait(30):
                raise TimeoutError("nobody told of the loss within 30 s")
            for thread in threads:
                thread.join(30)
        finally:
            child.process.kill()
    return told["lost"] - start, max(failed) - start


class Taker:
    """Counts what comes, and how often, by way of connections that break."""

    def __init__(self, address: str, keys: Any, acks: str, breaker: str) -> None:
        from engine.bus.bus import join

        self._context = zmq.Context()
        self._acks = self._context.socket(zmq.PUSH)
        self._acks.connect(acks)
        transport = Proxied(breaker, ipc=False, tcp="127.0.0.1", keys=keys)
        self._bus = join(transport, at=address, run="bench", role="peer")
        self._seen: list[int] = []
        self._until = listening(self._bus, {"launcher_tick": self._came, "task_events_missed": fail})
        self._bus.declare("launcher_item", "stream", capacity=64)
        self._bus.consume("launcher_item")
        self._bus.ready()

    def _came(self, number: int) -> None:
        self._seen.append(number)
        if len(self._seen) % 1000 == 0:
            self._acks.send(b"")

    def follow(self, count: int) -> tuple[int, int, int]:
        """Take events until the last has come; return how many are lost, came twice, or too late."""
        self._until(lambda: bool(self._seen) and self._seen[-1] >= count - 1)
        return _amiss(self._seen, count)

    def take(self, count: int) -> tuple[int, int, int]:
        """Take so many items, and what comes beyond."""
        seen = [self._bus.take("launcher_item", timeout=PATIENCE).value["number"] for _ in range(count)]
        with contextlib.suppress(TimeoutError):
            seen.append(self._bus.take("launcher_item", timeout=1.0).value["number"])
        return _amiss(seen, count)

    def close(self) -> None:
        self._bus.close(linger=1.0)
        self._context.destroy(linger=0)


def _amiss(seen: list[int], count: int) -> tuple[int, int, int]:
    once = set(seen)
    late = sum(after < before for before, after in itertools.pairwise(seen))
    return count - len(once), len(seen) - len(once), late


def breaks(quick: bool) -> Part:
    """T14: events and items while every connection is reset ten times a second."""
    from engine.bus.bus import host
    from engine.bus.keys import generate_keys

    events, items, every = (20_000, 200, 0.1) if quick else (1_000_000, 10_000, 0.1)
    keys = generate_keys()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        context = zmq.Context()
        stack.callback(context.destroy, linger=0)
        acks = context.socket(zmq.PULL)
        acks.bind(f"ipc://{folder}/acks")
        breaker = stack.enter_context(Child(Breaker, f"ipc://{folder}/breaker")).ready()
        bus = host(Proxied(f"ipc://{folder}/breaker", ipc=False, tcp="127.0.0.1", keys=keys), run="bench")
        stack.callback(bus.close)
        bus.declare("launcher_item", "stream", capacity=64)
        places = f"ipc://{folder}/acks", f"ipc://{folder}/breaker"
        child = stack.enter_context(Child(Taker, bus.address, keys, *places)).ready()
        bus.wait_for_peers("peer")

        def send_events() -> None:
            for number in range(events):
                if number % 1000 == 0 and number >= 20_000:
                    wait_for_ack(acks)
                bus.emit("launcher_tick", number)

        def push_items() -> None:
            for number in range(items):
                bus.push("launcher_item", {"number": number}, timeout=PATIENCE)

        goals: list[Goal] = []
        notes: list[str] = []

        def broken(what: str, method: str, count: int, send: Callable[[], None]) -> None:
            start = time.perf_counter()
            breaker.ask("begin", every)
            child.tell(method, count)
            send()
            lost, twice, late = child.answer(600)
            resets = breaker.ask("end")
            amiss = Ratio([float(lost + twice + late)])
            goals.append(Goal(f"T14 of {count} {what}, lost, come twice or out of order", amiss, 0.0))
            notes.append(
                f"T14: {count} {what} in {time.perf_counter() - start:.1f} s over encrypted TCP, with "
                f"{resets} connections reset until then: {lost} lost, {twice} came twice, {late} late."
            )

        broken("events", "follow", events, send_events)
        broken("items", "take", items, push_items)
    return Part(goals, [], notes)
