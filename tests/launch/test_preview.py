"""What each role would run is shown, and nothing is started for it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from engine.config import Settings
from engine.context import OnlineContext
from engine.launch.plan import Plan, make_plan
from engine.launch.preview import pipelines
from engine.recipes.roles import COLLECT_AND_LEARN, COLLECTOR, LEARNER
from engine.recipes.target import Target, resolve
from engine.task import Task

ROLES = (COLLECTOR, LEARNER)


class Nothing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nothing can be configured."""


def act(ctx: OnlineContext) -> None:
    raise AssertionError("nothing is run")


def asking(config: Nothing, *, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Any = None) -> Task:
    """The collector has as many members as the learner says while it is built."""
    task = Task(OnlineContext(), bus=bus)
    if "learner" in roles:
        bus.serve("learner_get_count", lambda: 3, thread="service")
        return task.use(act)
    return task.use(*[act for _ in range(bus.call("learner_get_count"))])


def expecting(config: Nothing, *, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Any = None) -> Task:
    """The collector is built from what the learner sends once it runs."""
    task = Task(OnlineContext(), bus=bus)
    if "collector" in roles:
        bus.declare("learner_model", "state")
        bus.wait_for("learner_model")
    return task.use(act)


def impatient(config: Nothing, *, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Any = None) -> Task:
    """The learner does not wait for what only comes when the collector runs."""
    task = Task(OnlineContext(), bus=bus)
    if "learner" in roles:
        bus.take("collector_numbers", timeout=0.01)
    return task.use(act)


LET_GO: list[threading.Event] = []


def slow(config: Nothing, *, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Any = None) -> Task:
    """The learner computes until it is let go."""
    if "learner" in roles:
        LET_GO[-1].wait(60)
    return Task(OnlineContext(), bus=bus).use(act)


class Closed:
    """Something that a task owns."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


OPENED: list[Closed] = []


def failing(config: Nothing, *, roles: frozenset[str] = COLLECT_AND_LEARN, bus: Any = None) -> Task:
    """The learner cannot be built."""
    if "learner" in roles:
        bus.wait_for_peers("collector")
        raise ValueError("two is not enough")
    OPENED.append(Closed())
    return Task(OnlineContext(), bus=bus).own(OPENED[-1]).use(act)


def plan_of(recipe: Callable[..., Any]) -> Plan:
    return make_plan(Target(f"{__name__}:{recipe.__name__}", recipe, Nothing(), Settings()))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = set(threading.enumerate()) - before
    for thread in left:
        thread.join(30)
    assert [thread.name for thread in left if thread.is_alive()] == []


def names_in(text: str) -> list[str]:
    """The words that stand where the branches of a tree end."""
    return [line.partition("─ ")[2].split()[0] for line in text.splitlines()]


@pytest.mark.parametrize(
    ("target", "collector", "learner"),
    [
        ("ppo/cartpole", "send_trajectories", "receive_trajectories"),
        ("impala/cartpole", "send_trajectories", "receive_trajectories"),
        ("dqn/cartpole", "send_rows", "receive_rows"),
        ("dqn/cartpole_prioritized", "send_rows", "receive_rows"),
    ],
)
def test_a_role_has_what_it_exchanges_and_the_members_of_the_other_it_has_not(
    target: str, collector: str, learner: str
) -> None:
    shown = pipelines(make_plan(resolve(target, [])))
    assert list(shown) == ["collector", "learner"]
    names = {role: names_in(text) for role, text in shown.items()}
    assert (names["collector"][:2], names["collector"][-1]) == (["collect", "follow_model"], collector)
    assert names["learner"][:3] == ["receive", "measure_progress", learner]
    assert names["learner"].index("train") < names["learner"].index("publish_model")
    assert {"train", "publish_weights"}.isdisjoint(names["collector"])
    assert {"collector", "publish_weights"}.isdisjoint(names["learner"])


def test_actors_fetch_and_send_and_the_league_receives_and_broadcasts() -> None:
    shown = pipelines(make_plan(resolve("league/rock_paper_scissors", []), {"actor": 2}))
    assert names_in(shown["actor"]) == [
        "collect", "wait_for_league", "actor_0", "fetch_job", "play_match", "send_result", "count_games",
    ]  # fmt: skip
    assert names_in(shown["league"])[:3] == ["learn", "receive_results", "broadcast_jobs"]


def test_a_program_of_the_users_own_is_shown_also_a_role_that_only_others_take() -> None:
    plan = make_plan(resolve("programs:add", ["until=7"]), {"collector": 0}, elastic=True)
    assert pipelines(plan) == {"collector": "└─ push", "learner": "└─ total"}


def test_stations_are_shown_where_roles_are_overlapped() -> None:
    shown = pipelines(make_plan(resolve("impala/cartpole", ["async_mode=true"])))
    assert "station 2: learn (serial)" in shown["learner"]


def test_a_role_may_ask_another_while_it_is_built() -> None:
    assert names_in(pipelines(plan_of(asking))["collector"]) == ["act", "act#2", "act#3"]


def test_a_role_that_waits_for_what_comes_while_they_run_says_so_in_time() -> None:
    shown = pipelines(plan_of(expecting), timeout=0.2)
    assert shown["collector"] == (
        "(not known before it runs: the bus was closed; the wait for 'learner_model' ends)"
    )
    assert shown["learner"] == "└─ act"


def test_a_role_that_gives_up_waiting_is_no_mistake() -> None:
    shown = pipelines(plan_of(impatient))
    assert shown["learner"].startswith("(not known before it runs: no item of 'collector_numbers' came")
    assert shown["collector"] == "└─ act"


def test_a_role_that_is_built_for_long_is_not_waited_for() -> None:
    LET_GO.append(threading.Event())
    try:
        shown = pipelines(plan_of(slow), timeout=0.2)
    finally:
        LET_GO[-1].set()
    assert shown == {
        "collector": "└─ act",
        "learner": "(not known: it was still being built after 0.2 s)",
    }


def test_what_a_recipe_raises_is_raised_with_the_role_and_the_others_are_closed() -> None:
    OPENED.clear()
    with pytest.raises(ValueError, match="two is not enough") as caught:
        pipelines(plan_of(failing))
    assert caught.value.__notes__ == ["raised while learner was built"]
    assert [one.closed for one in OPENED] == [True]


WATCHED = """
import os, sys, tempfile

import engine.bus.zeromq, engine.recipes.experiment  # whose packages write as they please when imported
from engine.cli.main import call

tempfile.gettempdir()
seen = []


def hook(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.mkdir",
                 "socket.bind", "socket.connect", "tempfile.mkstemp", "tempfile.mkdtemp"):
        if not str(args[0]).endswith("/ldconfig"):  # a CUDA build of torch looks for its libraries
            seen.append((event, args))
    elif event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if args[0] != os.devnull:
            seen.append((event, args))


sys.addaudithook(hook)
for words in sys.argv[1:]:
    assert call(["launch", *words.split(), "--dry-run"]) == 0
print(seen, file=sys.stderr)
"""


def test_neither_process_nor_socket_nor_file_is_made() -> None:
    targets = [
        "ppo/cartpole env.vectorization=process",
        "impala/cartpole",
        "dqn/cartpole",
        "league/rock_paper_scissors --role actor=2",
        "programs:add",
    ]
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, *targets],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == "[]\n"
    assert done.stdout.count("\nlearner:\n") == 4
