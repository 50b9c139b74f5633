"""The overlapped mode on random pipelines: the same as in order, and nothing lost whatever happens."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import Context, Task, parallel, repeat, serial
from engine import executor as executor_module
from engine.context import kept
from engine.testing import jitter

STATIONS = 4


@dataclass(eq=False)
class Kept(Context):
    """One kept field a station."""

    k0: int = kept(0)
    k1: int = kept(0)
    k2: int = kept(0)
    k3: int = kept(0)


# --- the same as in order ---------------------------------------------------------------


@dataclass(frozen=True)
class Spec:
    """What one station does."""

    form: str
    writes_in: str
    """The half that writes its kept field."""
    every: int
    """In which iterations it does."""
    keeps: bool
    """Whether it has a further field survive by `ctx.keep`."""


specs = st.builds(
    Spec,
    form=st.sampled_from(["plain", "yielding", "class", "serial", "repeat", "parallel"]),
    writes_in=st.sampled_from(["first", "second"]),
    every=st.integers(1, 3),
    keeps=st.booleans(),
)


def station(index: int, spec: Spec) -> Callable[[Any], Any]:
    """A middleware with objects and fields of its own, which reads what earlier stations wrote."""
    seen: list[int] = []
    kept_field, kept_by_name, field = f"k{index}", f"kept_by_{index}", f"f{index}"

    def write(ctx: Any) -> None:
        if ctx.total_step % spec.every == 0:
            setattr(ctx, kept_field, getattr(ctx, kept_field) + 1 + len(seen))

    def first(ctx: Any) -> None:
        seen.append(ctx.total_step)
        earlier = sum(ctx.get(f"f{i}", 0) + (ctx.get(f"first{i}", 0)) for i in range(index))
        setattr(ctx, field, earlier * 3 + len(seen))
        if spec.writes_in == "first":
            write(ctx)
            setattr(ctx, f"first{index}", getattr(ctx, kept_field))  # later stations may read it
        if spec.keeps:
            setattr(ctx, kept_by_name, ctx.get(kept_by_name, 0) + index + 1)
            ctx.keep(kept_by_name)
        ctx.metrics[field] = getattr(ctx, field)

    def second(ctx: Any) -> None:
        ctx.metrics[f"second{index}"] = len(seen)
        if spec.writes_in == "second":
            write(ctx)

    def yielding(ctx: Any) -> Iterator[None]:
        first(ctx)
        yield
        # how many first halves have run by now depends on the mode; how many second halves does not
        seen_now, seen[:] = list(seen), seen[: ctx.total_step + 1]
        second(ctx)
        seen[:] = seen_now

    if spec.writes_in == "second" or spec.form == "yielding":
        return yielding

    class Member:
        def __init__(self) -> None:
            self.pipeline = serial(first)

        def __call__(self, ctx: Any) -> None:
            self.pipeline(ctx)

    forms: dict[str, Callable[[], Any]] = {
        "plain": lambda: first,
        "class": Member,
        "serial": lambda: serial(first, lambda ctx: None),
        "repeat": lambda: repeat(first, times=1),
        "parallel": lambda: parallel(first, lambda ctx: None),
    }
    made: Callable[[Any], Any] = forms[spec.form]()
    return made


def contexts(members: list[Spec], runs: list[int], *, seed: int | None = None, **mode: Any) -> list[Any]:
    """Run the pipeline and return what every context held at its end, in order."""
    ended: list[dict[str, Any]] = []

    def look(ctx: Any) -> Iterator[None]:
        yield
        ended.append({name: value for name, value in vars(ctx).items() if not name.startswith("_")})

    with Task(Kept(), **mode) as task:
        task.use(look)
        for index, spec in enumerate(members):
            task.use(station(index, spec))
        if seed is not None:
            jitter(task, seed=seed)
        for steps in runs:
            ctx = task.run(max_step=steps)
        last = {name: getattr(ctx, name) for name in ("total_step", "k0", "k1", "k2", "k3")}
    return [*ended, last]


@given(
    st.lists(specs, max_size=STATIONS),
    st.lists(st.integers(0, 6), min_size=1, max_size=3),
    st.sampled_from([None, 0, 1, 2]),
    st.integers(0, 2**16),
)
@settings(max_examples=300, deadline=None)
@pytest.mark.timeout(300)
def test_stations_with_fields_and_objects_of_their_own_give_the_contexts_of_order(
    members: list[Spec], runs: list[int], max_lag: int | None, seed: int
) -> None:
    expected = contexts(members, runs)
    assert contexts(members, runs, seed=seed, async_mode=True, max_lag=max_lag) == expected


@given(st.lists(specs, min_size=1, max_size=STATIONS), st.integers(0, 8))
@settings(max_examples=100, deadline=None)
def test_with_one_iteration_in_flight_stations_may_read_each_others_kept_fields(
    members: list[Spec], steps: int
) -> None:
    def everything(log: list[Any]) -> Callable[[Any], None]:
        return lambda ctx: log.append([ctx.total_step, ctx.k0, ctx.k1, ctx.k2, ctx.k3])

    def seen(**mode: Any) -> list[Any]:
        logs: list[list[Any]] = [[] for _ in range(len(members) + 1)]
        with Task(Kept(), **mode) as task:
            for index, spec in enumerate(members):
                task.use(everything(logs[index]), station(index, spec), name=f"s{index}")
            task.use(everything(logs[-1])).run(max_step=steps)
        return logs

    firsts = [spec for spec in members if spec.writes_in == "first"]
    if len(firsts) == len(members):  # in a serial group second halves run with the group, in both modes
        assert seen(async_mode=True, max_lag=0) == seen()


# --- whatever happens -------------------------------------------------------------------


class Boom(Exception):
    pass


@dataclass
class Story:
    """What happened in one random run."""

    entered: Counter[str]
    left: Counter[str]
    raised: set[str]
    swallowed: set[str]


def chaos(choose: random.Random) -> tuple[Task, Story, Callable[[], None]]:
    """A random pipeline that fails, swallows, finishes, is interrupted and altered at random places."""
    story = Story(Counter(), Counter(), set(), set())
    lock = threading.Lock()  # of the story alone, which all stations write
    calm = choose.random() < 0.2
    task = Task(Kept(), async_mode=True, max_lag=choose.choice([None, None, 0, 1, 2]))
    made = 0

    def fail(where: str) -> None:
        with lock:
            story.raised.add(where)
        raise Boom(where)

    def member() -> Callable[[Any], Any]:
        nonlocal made
        made += 1
        name, dice = f"m{made}", random.Random(choose.random())
        kind = dice.choice(["plain", "yielding", "yielding", "group"])
        danger = 0.0 if calm else dice.choice([0.0, 0.0, 0.1, 0.4])
        on_error = dice.choice(["pass", "pass", "swallow", "replace"])

        def act(ctx: Any, where: str) -> None:
            roll = dice.random()
            if roll < danger:
                fail(where)
            elif roll < danger + 0.02:
                ctx.finish(where)
            elif roll < danger + 0.04:
                task.interrupt()
            elif roll < danger + 0.08:
                task.emit("task_alter", dice.random())
            elif roll < danger + 0.12:
                for _ in range(dice.randrange(30)):
                    if ctx.finishing:
                        break

        def plain(ctx: Any) -> None:
            act(ctx, f"{name} {ctx.total_step}")

        def yielding(ctx: Any) -> Iterator[None]:
            where = f"{name} {ctx.total_step}"
            act(ctx, f"{where} in")
            with lock:
                story.entered[where] += 1
            try:
                yield
                act(ctx, f"{where} out")
            except Boom as error:
                if on_error == "swallow":
                    with lock:
                        story.swallowed.add(str(error))
                elif on_error == "replace":
                    with lock:
                        story.swallowed.add(str(error))
                    fail(f"{where} instead")
                else:
                    raise
            finally:
                with lock:
                    story.left[where] += 1

        return {"plain": plain, "yielding": yielding}.get(kind) or serial(yielding, plain)

    def alter(roll: float) -> None:
        """Called between slots: one change at a random place."""
        names = task.names
        place = names[int(roll * 97) % len(names)]
        what = int(roll * 1009) % 4
        if what == 0 and len(names) < 6:
            task.insert(member(), after=place)
        elif what == 1 and len(names) > 1:
            task.remove(place)
        elif what == 2:
            task.replace(place, member())
        elif len(names) < 6:
            task.use(member())

    for _ in range(choose.randrange(1, 5)):
        task.use(member())
    task.on("task_alter", alter)
    # The members' closures share the story, its lock and the makers of further members.
    task.share(story, lock, task, member, alter, fail, choose)
    if choose.random() < 0.3:
        jitter(task, seed=choose.randrange(2**16))

    def run() -> None:
        with task:
            for _ in range(choose.randrange(1, 4)):
                task.run(max_step=choose.randrange(1, 8))

    return task, story, run


def watched(run: Callable[[], None], seconds: float = 30.0) -> BaseException | None:
    """Run in a thread of its own; fail the test if it has not ended after `seconds`."""
    outcome: list[BaseException | None] = []

    def body() -> None:
        try:
            run()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)

    thread = threading.Thread(target=body, name="watched", daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "it hangs"
    return outcome[0]


def told(error: BaseException | None) -> str:
    if error is None:
        return ""
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block", range(10))
def test_nothing_hangs_is_lost_or_left_whatever_happens_at_random_places(block: int) -> None:
    before = set(threading.enumerate())
    for case in range(300):
        task, story, run = chaos(random.Random(f"{block} {case}"))
        error = watched(run)
        where = f"block {block}, case {case}"
        assert error is None or isinstance(error, Boom), (where, error)
        assert story.left == story.entered, (where, "every finally runs exactly once")
        assert max(story.left.values(), default=1) == 1 or len(task.names) == 0, where
        lost = {one for one in story.raised - story.swallowed if one not in told(error)}
        assert not lost, (where, lost, told(error))
        assert not error or str(error) not in story.swallowed, where
        assert set(threading.enumerate()) <= before, where


@pytest.mark.timeout(300)
def test_unbounded_waits_end_whichever_station_fails_or_finishes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_module, "_GRACE", 0.01)
    choose = random.Random(7)
    for case in range(120):
        count = choose.randrange(2, 5)
        culprit = choose.randrange(1, count)
        waiting = choose.randrange(culprit)  # an earlier station, so a later iteration
        at = choose.randrange(3)
        how = choose.choice(["fail", "finish"])
        form = choose.choice(["wait", "loop", "parallel", "bounded"])
        if form == "bounded" and how == "finish":
            form = "wait"  # a bounded wait runs to its deadline when the task finishes
        with Task(Kept(), async_mode=True) as task:

            def culprit_acts(ctx: Any, how: str = how, at: int = at) -> None:
                if ctx.total_step == at and how == "fail":
                    raise Boom("culprit")
                if ctx.total_step == at:
                    ctx.finish("culprit")

            same_slot = at + culprit - waiting

            def waits(ctx: Any, form: str = form, at: int = same_slot, task: Task = task) -> None:
                if ctx.total_step != at:
                    return
                if form == "loop":
                    while not ctx.finishing:
                        time.sleep(0)
                else:
                    task.wait_for("never_comes", timeout=20 if form == "bounded" else None)

            def outside(ctx: Any) -> Iterator[None]:
                yield

            task.use(outside)
            for index in range(count):
                member: Any = lambda ctx: None  # noqa: E731
                if index == culprit:
                    member = culprit_acts
                elif index == waiting:
                    member = parallel(waits) if form == "parallel" else waits
                task.use(member)
            error = watched(task.run)
            where = (case, count, culprit, waiting, how, form)
            if how == "fail":
                assert isinstance(error, Boom), where
            else:
                assert error is None, where
                assert task.finish_reason == "culprit", where
