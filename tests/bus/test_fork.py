"""A bus in a forked child: what it says there, and that the parent's goes on."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from engine import Task
from engine.bus.bus import Bus, host, join
from engine.bus.zeromq import ZeroMQ
from engine.errors import Finishing

LONG = 60.0

pytestmark = pytest.mark.timeout(120)


def in_fork(work: Callable[[], Any]) -> str:
    """Return what `work` returns or raises in a fork of this process, as text."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # that a process with threads forks: it is the point
        child = os.fork()
    if not child:
        try:
            text = repr(work())
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    giving_up = threading.Timer(LONG / 2, os.kill, (child, signal.SIGKILL))
    giving_up.start()
    with open(reading, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(child, 0)
    giving_up.cancel()
    return text


def test_every_verb_of_a_bus_between_processes_says_so_in_a_fork() -> None:
    learner = host(ZeroMQ(), run="r", role="learner")
    collector = join(ZeroMQ(), at=learner.address, run="r", role="collector", timeout=LONG)
    learner.serve("learner_get", lambda: 5, thread="service")
    collector.declare("collector_data", "stream")
    collector.declare("collector_model", "state")
    assert collector.call("learner_get", timeout=LONG) == 5
    verbs: dict[str, Callable[[], Any]] = {
        "emit": lambda: collector.emit("collector_news", 1),
        "publish": lambda: collector.emit("collector_model", 1),
        "push": lambda: collector.push("collector_data", 1),
        "take": lambda: collector.take("collector_data"),
        "wait_for": lambda: collector.wait_for("learner_news"),
        "wait_for_peers": lambda: collector.wait_for_peers("learner"),
        "call": lambda: collector.call("learner_get"),
        "call_all": lambda: collector.call_all("learner_get"),
        "serve": lambda: collector.serve("collector_get", print),
        "on": lambda: collector.on("learner_news", print),
        "declare": lambda: collector.declare("collector_more", "state"),
        "report": lambda: collector.report(step=1),
        "tell_finish": lambda: learner.tell_finish("it is done"),
        "deliver": collector.deliver,
        "peers": collector.peers,
        "watch": lambda: collector.watch(lambda what, peer, cause: None),
        "ready": collector.ready,
        "task": lambda: Task(bus=collector).open(),
    }
    # With every lock held, as they may be by a thread that is not there in the child.
    with collector._gate.changed, learner._gate.changed:
        said = {name: in_fork(verb) for name, verb in verbs.items()}
    for name, text in said.items():
        assert text.startswith(f"UsageError: this bus belongs to process {os.getpid()}"), (name, text)
    assert in_fork(lambda: [collector.close(), learner.close()]) == "[None, None]"
    assert collector.call("learner_get", timeout=LONG) == 5
    assert (learner.told_to_finish, len(learner.peers())) == (None, 1)
    collector.close()
    learner.close()


def test_a_child_makes_a_bus_of_its_own() -> None:
    learner = host(ZeroMQ(), run="r", role="learner")
    learner.serve("learner_get", lambda: 5, thread="service")

    def work() -> Any:
        bus = join(ZeroMQ(), at=learner.address, run="r", role="collector", timeout=LONG)
        answer = bus.call("learner_get", timeout=LONG)
        bus.close()
        return answer

    assert in_fork(work) == "5"
    learner.close()


def test_a_child_of_a_running_middleware_emits_nothing_in_vain() -> None:
    with Task() as task:
        seen: list[int] = []
        said: list[str] = []
        task.on("main_news", seen.append)
        task.use(lambda ctx: said.append(in_fork(lambda: task.emit("main_news", 1))))
        task.use(lambda ctx: task.emit("main_news", 2))
        task.run(max_step=1)
        task.run(max_step=1)
    assert seen == [2, 2]
    assert all(one.startswith("UsageError: this bus belongs to process") for one in said)


def test_a_task_that_was_only_built_runs_in_a_child() -> None:
    task = Task()
    seen: list[int] = []
    task.on("main_news", seen.append)
    task.use(lambda ctx: task.emit("main_news", 2))

    def work() -> Any:
        with task:
            task.run(max_step=2)
        return seen

    assert in_fork(work) == "[2, 2]"


def test_emit_after_close_raises_as_push_does() -> None:
    learner = host(ZeroMQ(), run="r", role="learner")
    learner.declare("learner_data", "stream")
    learner.declare("learner_model", "state")
    learner.close()
    for work in (
        lambda: learner.push("learner_data", 1),
        lambda: learner.emit("learner_news", 1),
        lambda: learner.emit("learner_model", 1),
        lambda: learner.call("collector_get"),
    ):
        with pytest.raises(Finishing, match=r"the bus was closed; .* would be in vain"):
            work()
    alone = Bus()
    alone.close()
    alone.emit("main_news", 1)
    assert alone.wait_for("main_news") == 1
