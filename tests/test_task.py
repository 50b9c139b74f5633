"""The Task in order: running, finishing, failing, hooks, alteration, events."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from engine import Context, OnlineContext, Task, parallel, serial
from engine.bus.bus import Bus
from engine.errors import (
    ConflictError,
    DeadlineExceeded,
    Finishing,
    MiddlewareError,
    UnknownName,
    UsageError,
)
from engine.pipeline import Timing


def count(ctx: Any) -> None:
    ctx.env_step += 1


def say(log: list[str], word: str) -> Any:
    def say(ctx: Context) -> None:
        log.append(word)

    return say


# --- running ----------------------------------------------------------------------------


def test_run_returns_the_last_context_and_goes_on() -> None:
    with Task(OnlineContext()) as task:
        task.use(count)
        ctx = task.run(max_step=3)
        assert (ctx.total_step, ctx.env_step) == (3, 3)  # type: ignore[attr-defined]
        again = task.run(max_step=2)
        assert (again.total_step, again.env_step) == (5, 5)  # type: ignore[attr-defined]
        assert again is not ctx
        assert task.finish_reason is None


def test_every_argument_is_optional() -> None:
    with Task() as task:
        assert task.use(lambda ctx: None).run(max_step=2).total_step == 2


def test_each_iteration_has_a_new_context_and_metrics() -> None:
    seen: list[Context] = []
    with Task() as task:
        task.use(seen.append)  # type: ignore[arg-type]
        task.use(lambda ctx: ctx.metrics.update(x=1))
        ctx = task.run(max_step=3)
    assert len({id(one) for one in seen}) == 3
    assert [one.total_step for one in seen] == [1, 2, 3], "each counts itself when it is complete"
    assert ctx.metrics == {"x": 1}


def test_total_step_is_the_number_of_iterations_before_this_one() -> None:
    seen: list[int] = []
    with Task() as task:
        task.use(lambda ctx: seen.append(ctx.total_step)).run(max_step=3)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
def test_max_step_is_checked(wrong: Any) -> None:
    with Task() as task, pytest.raises(UsageError, match="max_step"):
        task.use(count).run(max_step=wrong)


def test_a_task_runs_only_while_it_is_open() -> None:
    task = Task().use(lambda ctx: None)
    with pytest.raises(UsageError, match="with task"):
        task.run(max_step=1)
    task.open()
    assert task.run(max_step=1).total_step == 1
    task.close()
    with pytest.raises(UsageError, match="not open"):
        task.run(max_step=1)


def test_nothing_to_run_without_end_is_an_error() -> None:
    with Task() as task, pytest.raises(UsageError, match="nothing to run"):
        task.run()


def test_two_tasks_live_in_one_process_and_one_may_run_inside_the_other() -> None:
    with Task(OnlineContext()) as outer, Task(OnlineContext()) as inner:
        inner.use(count)
        outer.use(lambda ctx: inner.run(max_step=2) and None)
        outer.run(max_step=3)
        assert (outer.ctx.total_step, inner.ctx.env_step) == (3, 6)  # type: ignore[attr-defined]


def test_owned_resources_close_in_reverse_even_after_an_error() -> None:
    log: list[str] = []

    class Resource:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def close(self) -> None:
            log.append(self.name)
            if self.fails:
                raise OSError(self.name)

    def leave() -> None:
        with Task() as task:
            task.own(Resource("a"), Resource("b", fails=True), Resource("c"))
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom") as caught:
        leave()
    assert log == ["c", "b", "a"]
    assert any("closing the task raised OSError" in note for note in caught.value.__notes__)


# --- names ------------------------------------------------------------------------------


def test_names_are_unique_and_may_be_given() -> None:
    with Task() as task:
        task.use(count, count).use(count, name="mine").use(count, count, name="both")
        assert task.names == ["count", "count#2", "mine", "both"]
        assert [node.name for node in task.graph()[3].members] == ["both.count", "both.count#2"]
        with pytest.raises(UsageError, match="already"):
            task.use(count, name="mine")
        with pytest.raises(UsageError, match="snake_case"):
            task.use(count, name="Not A Name")
        task.remove("count#2").use(count)
        assert "count#2" not in task.names, "a name is not given again"


def test_use_takes_all_of_its_arguments_or_none() -> None:
    with Task() as task:
        with pytest.raises(MiddlewareError):
            task.use(count, 3)
        assert task.names == []


# --- failing ----------------------------------------------------------------------------


def test_an_error_keeps_its_type_and_says_where() -> None:
    class Oops(Exception): ...

    class Collector:
        def __init__(self) -> None:
            self.pipeline = serial(count, serial(self.step, name="inner"))

        def step(self, ctx: Any) -> None:
            if ctx.total_step == 2:
                raise Oops("here")

        def __call__(self, ctx: Any) -> None:
            self.pipeline(ctx)

    with Task(OnlineContext(), role="learner") as task:
        task.use(Collector())
        with pytest.raises(Oops) as caught:
            task.run(max_step=5)
        assert caught.value.__notes__ == [
            "raised in middleware 'collector.inner.step', iteration 2, role 'learner'"
        ]
        assert task.ctx.total_step == 2, "a failed iteration is not counted"
        with pytest.raises(Oops):
            task.run(max_step=1)


def test_an_error_inside_a_nested_task_names_both_places() -> None:
    def fail(ctx: Context) -> None:
        raise ValueError

    with Task(role="inner") as inner, Task(role="outer") as outer:
        inner.use(fail)
        outer.use(lambda ctx: inner.run(max_step=1) and None)
        with pytest.raises(ValueError) as caught:
            outer.run(max_step=1)
    assert [note.rpartition("role ")[2] for note in caught.value.__notes__] == ["'inner'", "'outer'"]


def test_a_swallowed_error_does_not_end_the_run() -> None:
    def guard(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            ctx.metrics["failed"] = 1

    def fail(ctx: Context) -> None:
        raise ValueError

    with Task() as task:
        assert task.use(guard, fail).run(max_step=3).metrics == {"failed": 1}
        assert task.ctx.total_step == 3


# --- finishing --------------------------------------------------------------------------


def test_finish_completes_the_iteration_and_starts_no_new_one() -> None:
    log: list[str] = []

    def stop(ctx: Context) -> Iterator[None]:
        if ctx.total_step == 1:
            ctx.finish("enough")
            assert ctx.finishing
        yield
        log.append("out")

    with Task() as task:
        task.use(stop, say(log, "x"))
        assert task.run(max_step=10).total_step == 2
        assert log == ["x", "out", "x", "out"]
        assert task.finish
        assert task.finish_reason == "enough"
        assert task.run(max_step=1).total_step == 3, "run clears the wish to finish"
        assert not task.finish


def test_finish_may_be_set_from_outside_while_it_runs() -> None:
    with Task() as task:
        task.use(lambda ctx: setattr(task, "finish", True) if ctx.total_step == 4 else None)
        assert task.run().total_step == 5
        assert task.finish_reason == "task.finish was set"


def test_an_unbounded_wait_ends_with_finishing_and_the_run_ends_well() -> None:
    log: list[str] = []

    def wait(ctx: Context) -> None:
        threading.Timer(0.05, lambda: setattr(task, "finish", True)).start()
        try:
            task.wait_for("never_comes", timeout=None)
        except Finishing:
            log.append("finishing")
            raise

    with Task() as task:
        task.use(wait, say(log, "not reached"))
        assert task.run().total_step == 0
    assert log == ["finishing"]


INTERRUPTED = """
import os, signal
from engine import Task, OnlineContext
def step(ctx):
    if ctx.total_step == 3:
        os.kill(os.getpid(), signal.SIGINT)
        {second}
    ctx.env_step += 1
before = signal.getsignal(signal.SIGINT)
with Task(OnlineContext()) as task:
    task.use(step)
    ctx = task.run(max_step=100)
    print(ctx.env_step, task.finish_reason, signal.getsignal(signal.SIGINT) is before)
    print(task.run(max_step=2).env_step)
"""


@pytest.mark.parametrize(
    ("second", "expected"), [("", "4 interrupted True\n6\n"), ("os.kill(os.getpid(), signal.SIGINT)", "")]
)
def test_the_first_interrupt_ends_the_iteration_and_the_second_is_immediate(
    second: str, expected: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(second=second)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == expected
    assert "Ctrl-C once more stops at once" in done.stderr
    assert ("KeyboardInterrupt" in done.stderr) is bool(second)


NESTED = """
import os, signal
from engine import Task
def step(ctx):
    if ctx.total_step == 1:
        os.kill(os.getpid(), signal.SIGINT)
with Task() as inner, Task() as outer:
    inner.use(step)
    outer.use(lambda ctx: print(inner.run(max_step=5).total_step))
    print(outer.run(max_step=5).total_step, inner.finish_reason, outer.finish_reason)
"""


def test_an_interrupt_ends_the_tasks_around_a_nested_one_too() -> None:
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60)
    assert done.stdout == "2\n1 interrupted interrupted\n", done.stderr


def test_a_run_on_another_thread_leaves_signals_alone() -> None:
    seen: list[Any] = []
    before = signal.getsignal(signal.SIGINT)
    with Task() as task:
        task.use(lambda ctx: seen.append(signal.getsignal(signal.SIGINT)))
        thread = threading.Thread(target=task.run, args=(1,))
        thread.start()
        thread.join(10)
    assert seen == [before]


# --- alteration -------------------------------------------------------------------------


def test_alteration_takes_effect_at_the_next_boundary() -> None:
    log: list[str] = []

    def alter(ctx: Context) -> None:
        log.append("alter")
        if ctx.total_step == 0:
            task.insert(say(log, "new"), after="alter").remove("say#2")
            task.replace("say", say(log, "replaced"))

    with Task() as task:
        task.use(alter, say(log, "old"), say(log, "gone"))
        task.run(max_step=2)
    assert log == ["alter", "old", "gone", "alter", "new", "replaced"]


def test_alteration_of_an_unknown_name_names_the_nearest() -> None:
    with Task() as task:
        task.use(count)
        with pytest.raises(UnknownName, match="did you mean 'count'"):
            task.remove("cuont")
        with pytest.raises(UsageError, match="before= or after="):
            task.insert(count)
        task.use(serial(count))
        with pytest.raises(UnknownName, match="as a whole"):
            task.remove("serial.count")


# --- hooks ------------------------------------------------------------------------------


def test_hooks_surround_halves_without_touching_code() -> None:
    log: list[str] = []

    def middle(ctx: Context) -> Iterator[None]:
        log.append("first")
        yield
        log.append("second")

    def around(ctx: Context) -> Iterator[None]:
        log.append(f"({ctx.running}")
        yield
        log.append(")")

    with Task() as task:
        task.use(middle, say(log, "x"))
        task.before("middle", say(log, "before")).after("middle", say(log, "after"))
        task.around(around, "mid*")
        task.run(max_step=1)
    assert log == ["before", "(middle", "first", ")", "after", "x", "(middle", "second", ")"]


def test_hooks_reach_the_members_of_a_class_by_full_name() -> None:
    log: list[str] = []

    class Collector:
        def __init__(self) -> None:
            self.pipeline = serial(say(log, "step"))

        def __call__(self, ctx: Context) -> None:
            self.pipeline(ctx)
            self.pipeline(ctx)

    collector = Collector()
    with Task() as task, Task() as other:
        task.use(collector).before("collector.say", say(log, "hook"))
        other.use(collector)
        task.run(max_step=1)
        other.run(max_step=1)
    assert log == ["hook", "step", "hook", "step", "step", "step"], "hooks belong to one task"


@pytest.mark.parametrize("where", ["after", "around, leaving the first half", "around, entering the second"])
def test_the_middleware_sees_the_error_of_its_hook(where: str) -> None:
    log: list[str] = []
    entered: list[int] = []

    def middle(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            log.append("saw")
            raise

    def fail(ctx: Context) -> None:
        raise ValueError

    def around(ctx: Context) -> Iterator[None]:
        entered.append(1)
        if "entering" in where and len(entered) == 2:
            fail(ctx)
        yield
        if "leaving" in where:
            fail(ctx)

    with Task() as task:
        task.use(middle)
        if where == "after":
            task.after("middle", fail)
        else:
            task.around(around)
        with pytest.raises(ValueError):
            task.run(max_step=1)
        assert log == ["saw"]


def test_a_wrapper_that_yields_twice_is_named() -> None:
    def twice(ctx: Context) -> Iterator[None]:
        yield
        yield

    with (
        Task(OnlineContext()) as task,
        pytest.raises(MiddlewareError, match=r"'count \(around: twice\)' yielded twice"),
    ):
        task.use(count).around(twice).run(max_step=1)


def test_hooks_leave_unusual_errors_their_type() -> None:
    def stop(ctx: Context) -> None:
        raise StopIteration("mine")

    with Task() as task, pytest.raises(StopIteration, match="mine"):
        task.use(stop).before("stop", lambda ctx: None).run(max_step=1)


def test_hooks_reach_a_class_after_its_pipeline_or_the_context_was_replaced() -> None:
    log: list[str] = []

    class Crew:
        def __init__(self) -> None:
            self.pipeline = serial(say(log, "x"))

        def __call__(self, ctx: Context) -> None:
            self.pipeline(ctx)

    crew = Crew()
    with Task() as task:
        task.use(crew).before("crew.say", say(log, "hook")).run(max_step=1)
        task.ctx = Context()
        task.run(max_step=1)
        assert log == ["hook", "x"] * 2
        log.clear()
        before = weakref.ref(crew.pipeline)
        crew.pipeline = serial(say(log, "y"))
        assert before() is not None, "what was compiled for a group is never taken for another"
        task.run(max_step=1)
    assert log == ["y"]


def test_a_hook_on_an_unknown_name_names_the_nearest() -> None:
    with Task() as task:
        task.use(count)
        with pytest.raises(UnknownName, match="did you mean 'count'"):
            task.before("coutn", say([], "x"))
        with pytest.raises(UsageError, match="yields once"):
            task.around(say([], "x"))
        task.before("nothing.yet.*", say([], "x"))


def test_measuring_counts_calls_and_seconds_of_both_halves() -> None:
    now = [0.0]

    def slow(ctx: Context) -> Iterator[None]:
        now[0] += 1
        yield
        now[0] += 2

    def inner(ctx: Context) -> None:
        now[0] += 10

    with Task() as task:
        task.use(slow, serial(inner, name="group")).measure(clock=lambda: now[0])
        task.run(max_step=2)
        assert task.timings == {
            "slow": Timing(2, 6.0),
            "group": Timing(2, 20.0),
            "group.inner": Timing(2, 20.0),
        }


# --- sharing ----------------------------------------------------------------------------


def test_parallel_members_that_hold_one_changing_object_are_refused() -> None:
    class Buffer:
        def __init__(self) -> None:
            self.items: list[int] = []

    def user(buffer: Buffer, name: str) -> Any:
        def use_it(ctx: Context) -> None:
            buffer.items.append(1)

        use_it.__name__ = name
        return use_it

    buffer = Buffer()
    with Task() as task:
        task.use(parallel(user(buffer, "left"), user(buffer, "right")))
        with pytest.raises(ConflictError, match=r"'parallel\.left' and 'parallel\.right'.*Buffer"):
            task.run(max_step=1)
    with Task() as task:
        task.use(parallel(user(Buffer(), "left"), user(Buffer(), "right"))).run(max_step=1)


def test_parallel_members_may_hold_the_task_and_what_cannot_change() -> None:
    log: list[int] = []
    with Task() as task:
        task.on("a_b", log.append)
        task.use(parallel(lambda ctx: task.emit("a_b", 1), lambda ctx: task.emit("a_b", 2)))
        task.run(max_step=1)
    assert sorted(log) == [1, 2]


# --- events -----------------------------------------------------------------------------


def test_handlers_run_on_the_running_thread_at_the_next_boundary() -> None:
    log: list[Any] = []

    def emit(ctx: Context) -> Iterator[None]:
        if ctx.total_step == 0:
            task.emit("learner_model", 7, version=1)
        log.append("body")
        yield
        log.append("out")

    def handler(value: int, version: int) -> None:
        log.append((value, version, threading.current_thread() is threading.main_thread()))

    with Task() as task:
        task.on("learner_model", handler)
        task.use(emit).run(max_step=2)
    assert log == ["body", "out", (7, 1, True), "body", "out"]


def test_events_from_another_thread_and_between_runs_are_delivered() -> None:
    log: list[int] = []
    with Task() as task:
        task.on("a_b", log.append)
        task.emit("a_b", 1)
        thread = threading.Thread(target=task.emit, args=("a_b", 2))
        thread.start()
        thread.join(10)
        task.use(lambda ctx: log.append(0)).run(max_step=1)
    assert log == [1, 2, 0]


def test_an_event_of_the_last_iteration_is_delivered_before_run_returns() -> None:
    log: list[int] = []
    with Task() as task:
        task.on("a_b", log.append)
        task.use(lambda ctx: task.emit("a_b", ctx.total_step)).run(max_step=2)
        assert log == [0, 1]


def test_a_handler_error_ends_the_run_with_its_type_and_loses_no_other() -> None:
    log: list[int] = []

    def broken(value: int) -> None:
        raise KeyError(value)

    def also_broken(value: int) -> None:
        raise ValueError(value)

    with Task() as task:
        task.on("a_b", broken)
        task.on("a_b", also_broken)
        task.on("a_b", log.append)
        task.use(lambda ctx: task.emit("a_b", 5))
        with pytest.raises(KeyError) as caught:
            task.run(max_step=3)
        notes = "\n".join(caught.value.__notes__)
        assert "broken" in notes
        assert "'a_b'" in notes
        assert "ValueError: 5" in notes
        assert "iteration 0" in notes
        assert log == [5]


def test_an_event_before_a_run_leaves_the_context_to_be_run() -> None:
    seen: list[Any] = []
    ctx: Any = Context()
    ctx.mine = 1
    with Task(ctx) as task:
        task.on("a_b", lambda: setattr(task, "finish", True))
        task.use(lambda ctx: seen.append(ctx.get("mine")))
        task.emit("a_b")
        assert task.run(max_step=1) is ctx
        task.run(max_step=1)
        assert seen == [1], "a handler finished the first run before it began"

        def fail() -> None:
            raise KeyError

        task.on("c_d", fail)
        task.ctx.total_step = 0
        task.emit("c_d")
        with pytest.raises(KeyError) as caught:
            task.run(max_step=1)
        assert "before the first iteration" in caught.value.__notes__[-1]


def test_a_waiting_thread_gets_an_event_that_a_boundary_delivers_first() -> None:
    got: list[Any] = []
    bus, registered = Bus(), threading.Event()

    def finishing() -> bool:  # asked by an unbounded wait once it is under way
        registered.set()
        return False

    bus.attach(finishing=finishing, notify=lambda: None)
    waiting = threading.Thread(target=lambda: got.append(bus.wait_for("a_b", timeout=None)))
    waiting.start()
    assert registered.wait(30)
    with bus._gate.changed:  # the thread cannot wake before the boundary
        bus.emit("a_b", 1)
        bus.deliver()
    waiting.join(30)
    assert got == [1]


def test_wait_for_returns_what_was_emitted_once_each() -> None:
    with Task() as task:
        task.emit("a_b", 1)
        task.emit("a_b", 2, 3)
        task.emit("a_b")
        assert [task.wait_for("a_b", timeout=1) for _ in range(3)] == [1, (2, 3), None]
        with pytest.raises(DeadlineExceeded, match="within 0 s") as caught:
            task.wait_for("a_b", timeout=0)
        assert isinstance(caught.value, TimeoutError)


def test_wait_for_is_woken_by_another_thread() -> None:
    with Task() as task:
        thread = threading.Timer(0.02, task.emit, args=("a_b", 4))
        thread.start()
        assert task.wait_for("a_b", timeout=30) == 4


def test_a_bus_belongs_to_one_open_task() -> None:
    bus = Bus()
    with Task(bus=bus), pytest.raises(UsageError, match="another open task"):
        Task(bus=bus).open()
    with Task(bus=bus) as task:
        task.use(count)


def test_emitting_on_the_bus_itself_reaches_the_boundary() -> None:
    bus, log = Bus(), []
    with Task(bus=bus) as task:
        bus.on("a_b", log.append)
        task.use(lambda ctx: bus.emit("a_b", 1)).run(max_step=1)
    assert log == [1]


def test_no_thread_is_left_behind() -> None:
    before = threading.enumerate()
    with Task() as task:
        task.use(parallel(lambda ctx: None, lambda ctx: None)).run(max_step=2)
    assert threading.enumerate() == before


def test_one_group_used_twice_is_hooked_under_both_names() -> None:
    log: list[str] = []
    group = serial(say(log, "x"))
    with Task() as task:
        task.use(group, group)
        task.before("serial#2.say", say(log, "second"))
        task.run(max_step=1)
    assert log == ["x", "second", "x"]


def test_an_event_reaches_every_thread_that_waits_for_it() -> None:
    got: list[int] = []
    ready = threading.Barrier(3, timeout=10)
    with Task() as task:

        def wait() -> None:
            ready.wait()
            got.append(task.wait_for("a_b", timeout=10))

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        ready.wait()
        task.emit("a_b", 7)
        for thread in threads:
            thread.join(10)
        task.emit("a_c", version=3)
        assert task.wait_for("a_c", timeout=1) == {"version": 3}
    assert got == [7, 7]


def test_what_is_shared_on_purpose_may_be_held_by_parallel_members() -> None:
    rows: list[int] = []
    with Task() as task:
        task.use(parallel(lambda ctx: rows.append(1), lambda ctx: rows.append(2)))
        with pytest.raises(ConflictError, match=r"task\.share"):
            task.run(max_step=1)
        task.share(rows)
        task.run(max_step=1)
    assert sorted(rows) == [1, 2]
