"""The bus between real processes, which are killed and whose connections break."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.keys import RunKeys, generate_keys, load_keys
from engine.bus.zeromq import ZeroMQ
from engine.errors import PeerLost

LONG = 120.0
ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


# --- what runs in the other process -----------------------------------------------------------


def collect(at: str, key_file: str) -> None:
    """Be a collector that does what it is called to, until the run ends."""
    bus = join(_transport(key_file), at=at, run="r", role="collector", timeout=LONG)
    bus.declare("collector_data", "stream", capacity=16)
    log: list[float] = []
    bus.on("learner_model", lambda model: log.append(float(model[-1])), view=True)

    def emit(count: int) -> None:
        for number in range(count):
            bus.emit("collector_news", number)

    def push(count: int, size: int) -> None:
        for number in range(count):
            bus.push("collector_data", {"n": number, "x": np.full(size, number)}, timeout=LONG)

    def begin(work: Callable[..., None], *args: int) -> None:
        threading.Thread(target=work, args=args, daemon=True).start()

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    bus.serve("collector_emit", lambda *args: begin(emit, *args), thread="inline")
    bus.serve("collector_push", lambda *args: begin(push, *args), thread="inline")
    bus.serve("collector_seen", lambda: list(log), thread="inline")
    bus.serve("collector_die", die, thread="service")
    bus.ready()
    while bus.told_to_finish is None:
        Gate().until(lambda: bus.pending or bus.told_to_finish, LONG, lambda: "nothing came", what="work")
        bus.deliver()
    bus.close()


def _transport(key_file: str) -> ZeroMQ:
    keys: RunKeys | None = load_keys(Path(key_file)) if key_file else None
    return ZeroMQ() if keys is None else ZeroMQ(ipc=False, tcp="127.0.0.1", keys=keys)


# --- what tests run -----------------------------------------------------------------------------


class Fleet:
    """A learner that hosts a run in this process, and collectors in others."""

    def __init__(self, stack: ExitStack, key_file: str = "") -> None:
        self._stack, self._key_file = stack, key_file
        self.learner = host(_transport(key_file), run="r", role="learner")
        stack.callback(self.learner.close)
        self.learner.ready()
        self.processes: list[subprocess.Popen[bytes]] = []

    def collector(self, at: str | None = None) -> str:
        """Start one; return its name once it is ready."""
        command = [sys.executable, __file__, at or self.learner.address, self._key_file]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(command, env=environment, cwd=ROOT)
        self.processes.append(process)
        self._stack.callback(self._end, process)
        names = self.learner.wait_for_peers("collector", len(self.processes), timeout=LONG)
        pid_of = {peer.about["pid"]: peer.name for peer in self.learner.peers()}
        assert len(names) == len(self.processes)
        return pid_of[process.pid]

    def finish(self) -> None:
        """End the run; every process ends by itself, and well."""
        self.learner.tell_finish("the test is over")
        for process in self.processes:
            assert process.wait(LONG) == 0

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def eventually(ready: Callable[[], Any], what: str) -> None:
    Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


def counted(bus: Bus) -> list[int]:
    log: list[int] = []
    bus.on("collector_news", log.append)
    return log


def delivered(bus: Bus, ready: Callable[[], Any]) -> None:
    def look() -> Any:
        bus.deliver()
        return ready()

    eventually(look, "delivery")


def test_a_killed_process_is_noticed_and_its_calls_fail(stack: ExitStack) -> None:
    fleet = Fleet(stack)
    name = fleet.collector()
    with pytest.raises(PeerLost, match="nothing listens there") as caught:
        fleet.learner.call("collector_die", timeout=LONG)
    assert caught.value.peer == name
    assert list(fleet.learner.stats()["lost"]) == [name]


def test_what_a_killed_process_sent_through_shared_memory_can_be_taken(stack: ExitStack) -> None:
    fleet = Fleet(stack)
    fleet.learner.consume("collector_data", capacity=4)
    fleet.collector()
    fleet.learner.call("collector_push", 4, 100_000, timeout=LONG)
    eventually(lambda: fleet.learner.waiting("collector_data") == 4, "the arrival of all")
    fleet.processes[0].kill()
    eventually(lambda: fleet.learner.stats()["lost"], "the loss")
    for number in range(4):
        value = fleet.learner.take("collector_data", timeout=LONG).value
        assert value["n"] == number
        assert (value["x"] == number).all()


def test_weights_reach_several_processes_through_shared_memory(stack: ExitStack) -> None:
    fleet = Fleet(stack)
    fleet.learner.declare("learner_model", "state")
    for _ in range(2):
        fleet.collector()
    for version in range(1, 201):
        fleet.learner.emit("learner_model", np.full(200_000, version))
    fleet.collector()

    def latest() -> bool:
        members = fleet.learner._network.router.members  # type: ignore[union-attr]
        assert len(members) == 3
        return bool(fleet.learner.call("collector_seen", timeout=LONG)[-1:] == [200.0])

    eventually(latest, "the last version")
    fleet.finish()


def test_a_stopped_process_that_goes_on_in_time_has_lost_nothing(stack: ExitStack) -> None:
    fleet = Fleet(stack)
    log = counted(fleet.learner)
    fleet.collector()
    fleet.learner.call("collector_emit", 20_000, timeout=LONG)
    delivered(fleet.learner, lambda: len(log) > 1000)
    fleet.processes[0].send_signal(signal.SIGSTOP)
    timer = threading.Timer(1.0, fleet.processes[0].send_signal, [signal.SIGCONT])
    timer.start()
    delivered(fleet.learner, lambda: len(log) == 20_000)
    timer.join()
    assert log == list(range(20_000))
    fleet.finish()


def test_nothing_is_lost_or_doubled_while_encrypted_connections_are_reset(
    stack: ExitStack, tmp_path: Path
) -> None:
    from proxy import Proxy  # beside this file, which runs as a program too

    key_file = tmp_path / "run.key"
    generate_keys().save(key_file)
    fleet = Fleet(stack, str(key_file))
    log = counted(fleet.learner)
    missed: list[int] = []
    fleet.learner.on("task_events_missed", lambda peer, count: missed.append(count))
    fleet.learner.consume("collector_data", capacity=16)
    proxy = stack.enter_context(Proxy(fleet.learner.address))
    name = fleet.collector(at=proxy.address)
    events, items = 100_000, 1000
    over, rng = threading.Event(), random.Random(1)

    def break_connections() -> None:
        while not over.wait(rng.uniform(0.05, 0.3)):
            proxy.reset()

    breaker = threading.Thread(target=break_connections, daemon=True)
    fleet.learner.call("collector_emit", events, timeout=LONG)
    fleet.learner.call("collector_push", items, 3000, timeout=LONG)
    breaker.start()
    taken: list[int] = []
    try:
        while len(taken) < items:
            item = fleet.learner.take("collector_data", timeout=LONG)
            assert item.sender == name
            assert (item.value["x"] == item.value["n"]).all()
            taken.append(item.value["n"])
            fleet.learner.deliver()
        delivered(fleet.learner, lambda: len(log) + sum(missed) >= events)
    finally:
        over.set()
        breaker.join(LONG)
    assert proxy.resets > 5
    assert taken == list(range(items))
    assert len(log) + sum(missed) == events
    assert log == sorted(set(log))
    assert fleet.learner.stats()["lost"] == {}
    fleet.finish()


FULL = """
import threading
from engine.bus.transport import CONTROL
from engine.bus.zeromq import ZeroMQ

slow, quick = ZeroMQ(), ZeroMQ()
quick.start("quick:1")
quick.connect("slow:1", slow.start("slow:1"))
while not quick.poll(60):
    pass
while quick.send("slow:1", CONTROL, [bytes(10_000)]) or quick.poll(0.3):
    pass
quick.close(0)
threading.Event().wait(2.5)  # longer than the time between two heartbeats
print(len(slow.poll(1)) > 0)
slow.close()
"""


def test_an_inbox_that_is_full_when_its_sender_dies_does_not_take_the_process_with_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", FULL], env=environment, capture_output=True, timeout=LONG)
    assert (done.returncode, done.stdout.strip()) == (0, b"True"), done.stderr


if __name__ == "__main__":
    collect(*sys.argv[1:])
