"""The overlapped mode: what each rule of the line means, one fact a test."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engine import OnlineContext, Task, parallel, repeat, serial
from engine.context import Context
from engine.errors import Abandoned, ConflictError, Finishing, MiddlewareError, UsageError
from engine.testing import record

pytestmark = pytest.mark.timeout(60)


def line(**more: Any) -> Task:
    return Task(OnlineContext(), async_mode=True, **more)


def named(name: str, fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A middleware of its own for each station, so that no two hold one object."""

    def station(ctx: Any) -> None:
        fn(ctx)

    station.__name__ = name
    return station


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


# --- slots ------------------------------------------------------------------------------


def test_stations_work_on_successive_iterations_at_the_same_time() -> None:
    meet = threading.Barrier(2)  # passes only when two stations are inside at once
    a: list[int] = []
    b: list[int] = []

    def first(ctx: Context) -> None:
        a.append(ctx.total_step)
        if ctx.total_step:
            meet.wait(10)

    def second(ctx: Context) -> None:
        b.append(ctx.total_step)
        if ctx.total_step < 4:
            meet.wait(10)

    with line() as task:
        ctx = task.use(first, second).run(max_step=5)
    assert (a, b, ctx.total_step) == ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], 5)


@pytest.mark.parametrize(("max_lag", "expected"), [(None, 3), (2, 3), (1, 2), (0, 1), (9, 3)])
def test_max_lag_bounds_the_iterations_in_flight(max_lag: int | None, expected: int) -> None:
    entered: list[int] = []
    most: list[int] = []
    left: list[int] = []

    def first(ctx: Context) -> Iterator[None]:
        entered.append(ctx.total_step)
        most.append(len(entered) - len(left))
        yield
        left.append(ctx.total_step)

    with line(max_lag=max_lag) as task:
        task.use(first, named("b", lambda ctx: None), named("c", lambda ctx: None)).run(max_step=8)
    assert max(most) == expected
    assert left == list(range(8))


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", True])
def test_max_lag_is_checked(wrong: Any) -> None:
    with pytest.raises(UsageError, match="max_lag"):
        line(max_lag=wrong)


def test_max_lag_without_the_mode_is_an_error_and_not_ignored() -> None:
    with pytest.raises(UsageError, match="async_mode=True"):
        Task(max_lag=1)


def test_nothing_runs_while_second_halves_and_handlers_do() -> None:
    inside: list[str] = []

    def busy(name: str) -> Callable[[Any], Iterator[None]]:
        def station(ctx: Any) -> Iterator[None]:
            inside.append(name)
            for _ in range(200):
                time.sleep(0)
            inside.remove(name)
            yield
            assert inside == []

        station.__name__ = name
        return station

    def handler() -> None:
        assert inside == []

    with line() as task:
        task.share(inside)
        task.on("task_tick", handler)
        task.use(busy("a"), busy("b"), named("c", lambda ctx: task.emit("task_tick"))).run(max_step=20)


def test_second_halves_run_on_the_thread_that_called_run_in_reverse_order() -> None:
    log: list[str] = []
    where: set[int] = set()

    def station(name: str) -> Callable[[Any], Iterator[None]]:
        def station(ctx: Any) -> Iterator[None]:
            yield
            where.add(threading.get_ident())
            log.append(f"{ctx.total_step}{name}")

        station.__name__ = name
        return station

    with line() as task:
        task.share(log, where).use(station("a"), station("b"), station("c")).run(max_step=2)
    assert log == ["0c", "0b", "0a", "1c", "1b", "1a"]
    assert where == {threading.get_ident()}


def test_torch_computes_with_the_callers_number_of_threads_in_stations_and_groups() -> None:
    torch = pytest.importorskip("torch")
    matrix = torch.ones(900, 900)

    def cores(ctx: Any) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        for _ in range(10):
            matrix @ matrix
        ctx.cores = (time.process_time() - cpu) / (time.perf_counter() - start)

    def inner(ctx: Any) -> None:
        cores(ctx)

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for member in (cores, parallel(inner)):
            with line() as task:
                ctx: Any = task.share(matrix).use(member).run(max_step=2)
            assert ctx.cores < 1.5
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        ("no_grad", (False, False)),
        ("inference_mode", (False, True)),
        ("enable_grad", (True, False)),
    ],
)
def test_stations_and_groups_compute_in_torchs_mode_that_surrounds_the_run(
    around: str, expected: tuple[bool, bool]
) -> None:
    import torch

    seen: list[tuple[bool, bool]] = []

    def look(ctx: Context) -> Iterator[None]:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        yield
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    def other(ctx: Context) -> None:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    def here(ctx: Context) -> None:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))

    with line() as task, getattr(torch, around)():
        task.use(look, parallel(other, here)).share(seen).run(max_step=2)
    assert set(seen) == {expected}
    assert len(seen) == 8
    assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == (True, False)


def test_torchs_mode_of_one_run_is_not_that_of_the_next() -> None:
    import torch

    seen: list[bool] = []

    def look(ctx: Context) -> None:
        seen.append(torch.is_grad_enabled())

    with line() as task:
        task.use(look)
        with torch.no_grad():
            task.run(max_step=1)
        task.run(max_step=1)
    assert seen == [False, True]


def test_first_halves_see_the_context_variables_of_the_caller() -> None:
    np = pytest.importorskip("numpy")
    seen: list[str] = []
    with line() as task, np.errstate(divide="raise"):
        task.use(lambda ctx: seen.append(np.geterr()["divide"])).run(max_step=1)
    assert seen == ["raise"]


def test_a_task_of_one_station_and_one_of_none_work() -> None:
    with line() as task:
        assert task.run(max_step=3).total_step == 3
        assert task.use(lambda ctx: setattr(ctx, "env_step", ctx.env_step + 2)).run(max_step=3).env_step == 6
        assert task.ctx.total_step == 6


def test_groups_and_hooks_work_inside_a_station() -> None:
    log: list[str] = []

    def add(ctx: Any) -> None:
        ctx.count = ctx.get("count", 0) + 1

    def publish(ctx: Any) -> None:
        ctx.metrics["count"] = ctx.count

    with line() as task:
        task.use(repeat(serial(add, record(log, "r")), times=3), named("second", publish))
        task.use(parallel(lambda ctx: setattr(ctx, "x", 1), lambda ctx: setattr(ctx, "y", 2)))
        hooked: list[str] = []
        task.before("repeat.*.add", lambda ctx: hooked.append(ctx.running)).measure()
        ctx = task.run(max_step=2)
    assert ctx.metrics["count"] == 3
    assert (ctx.x, ctx.y) == (1, 2)  # type: ignore[attr-defined]
    assert log == ["r>", "<r"] * 6
    assert hooked == ["repeat.serial.add"] * 6
    assert task.timings["repeat.serial.add"].calls == 6


# --- kept fields ------------------------------------------------------------------------


def test_a_station_behind_the_writer_sees_the_value_of_its_own_iteration() -> None:
    seen: list[tuple[int, int]] = []

    def collect(ctx: OnlineContext) -> None:
        ctx.env_step += 10

    with line() as task:
        task.use(collect, lambda ctx: seen.append((ctx.total_step, ctx.env_step))).run(max_step=4)
    assert seen == [(0, 10), (1, 20), (2, 30), (3, 40)]


def test_a_station_before_the_writer_sees_what_was_committed_when_its_slot_began() -> None:
    seen: list[tuple[int, int]] = []

    def learn(ctx: OnlineContext) -> None:
        ctx.train_iter += 1

    with line() as task:
        task.use(lambda ctx: seen.append((ctx.total_step, ctx.train_iter)), learn).run(max_step=5)
    assert seen == [(0, 0), (1, 0), (2, 1), (3, 2), (4, 3)]


def test_the_writer_itself_counts_exactly() -> None:
    with line() as task:
        task.use(
            named("a", lambda ctx: setattr(ctx, "env_step", ctx.env_step + 1)),
            named("b", lambda ctx: setattr(ctx, "env_episode", ctx.env_episode + 2)),
            named("c", lambda ctx: setattr(ctx, "train_iter", ctx.train_iter + 3)),
        )
        ctx: Any = task.run(max_step=7)
        ctx = task.run(max_step=3)
    assert (ctx.env_step, ctx.env_episode, ctx.train_iter, ctx.total_step) == (10, 20, 30, 10)


def test_a_field_may_be_written_in_second_halves() -> None:
    seen: list[int] = []

    def count(ctx: OnlineContext) -> Iterator[None]:
        yield
        ctx.train_iter += 1
        seen.append(ctx.train_iter)

    with line() as task:
        ctx: Any = task.use(count, named("b", lambda ctx: None), named("c", lambda ctx: None)).run(max_step=5)
    assert seen == [1, 2, 3, 4, 5]
    assert ctx.train_iter == 5


def test_an_iteration_that_passed_the_writer_unwritten_keeps_its_value() -> None:
    seen: list[int] = []

    def sometimes(ctx: OnlineContext) -> None:
        if ctx.total_step % 2:
            ctx.env_step += 1

    with line() as task:
        task.use(sometimes, named("b", lambda ctx: None), lambda ctx: seen.append(ctx.env_step))
        task.run(max_step=6)
    assert seen == [0, 1, 1, 2, 2, 3], "as in order"


def test_two_writing_stations_are_an_error_that_names_both() -> None:
    with line() as task, pytest.raises(ConflictError, match=r"'a' and 'b' both write.*env_step.*serial"):
        task.use(
            named("a", lambda ctx: setattr(ctx, "env_step", ctx.env_step + 1)),
            named("b", lambda ctx: setattr(ctx, "env_step", ctx.env_step + 1)),
        ).run(max_step=5)


def test_a_writer_that_shows_late_is_an_error_that_nobody_can_swallow() -> None:
    def swallow(ctx: Any) -> Iterator[None]:
        with contextlib.suppress(ConflictError):
            yield

    def late(ctx: OnlineContext) -> None:
        if ctx.total_step == 3:
            ctx.env_step += 1

    with line() as task, pytest.raises(ConflictError, match="'a' and 'late' both write"):
        task.use(swallow, named("a", lambda ctx: setattr(ctx, "env_step", ctx.env_step + 1)), late).run(9)


def test_a_field_written_in_both_halves_is_an_error() -> None:
    def both(ctx: OnlineContext) -> Iterator[None]:
        ctx.env_step += 1
        yield
        ctx.env_step += 1

    with line() as task, pytest.raises(ConflictError, match=r"'both'.*first half and in its second half"):
        task.use(both).run(max_step=2)


def test_members_of_one_station_may_write_one_field() -> None:
    def count(ctx: OnlineContext) -> None:
        ctx.env_step += 1

    with line() as task:
        ctx: Any = task.use(count, count, name="both").use(lambda ctx: None).run(max_step=3)
    assert ctx.env_step == 6


def test_the_count_of_iterations_belongs_to_the_task() -> None:
    with line() as task, pytest.raises(ConflictError, match="total_step, which the task counts"):
        task.use(lambda ctx: setattr(ctx, "total_step", 7)).run(max_step=3)


def test_a_kept_value_that_can_change_in_place_is_an_error() -> None:
    with line() as task, pytest.raises(MiddlewareError, match="can change in place"):
        task.use(lambda ctx: setattr(ctx, "env_step", [])).run(max_step=3)


def test_a_field_that_keep_names_reaches_the_iterations_behind() -> None:
    seen: list[Any] = []

    def second(ctx: Any) -> None:
        ctx.best = ctx.get("best", 0) + 1
        ctx.keep("best")

    with line() as task:
        ctx: Any = task.use(lambda ctx: seen.append(ctx.get("best")), second).run(max_step=5)
    assert seen == [None, None, 1, 2, 3]
    assert ctx.best == 5


# --- objects ----------------------------------------------------------------------------


class Weights:
    """Has state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def holding(name: str, held: Any) -> Callable[[Any], None]:
    def station(ctx: Any) -> None:
        assert held is not None

    station.__name__ = name
    return station


@pytest.mark.parametrize("held", [Weights(), [1], {"a": 1}, {1}], ids=lambda held: type(held).__name__)
def test_an_object_that_two_stations_reach_is_refused_before_the_first_slot(held: Any) -> None:
    ran: list[int] = []
    with line() as task:
        task.use(lambda ctx: ran.append(1)).use(holding("collect", held), holding("learn", held))
        with pytest.raises(ConflictError, match=r"'collect' and 'learn'.*both hold.*serial.*task\.share"):
            task.run(max_step=1)
    assert ran == []


def test_an_object_deep_inside_is_found_too() -> None:
    weights = Weights()

    class Crew:
        def __init__(self) -> None:
            self._inner = {"policy": (weights,)}

        def __call__(self, ctx: Any) -> None: ...

    with line() as task, pytest.raises(ConflictError, match=r"Weights \(crew\._inner\['policy'\]\[0\]\)"):
        task.use(Crew(), serial(holding("x", weights), name="learn")).run(max_step=1)


def test_share_allows_an_object_and_what_it_holds() -> None:
    class Pair:
        def __init__(self) -> None:
            self._parts = [Weights()]

    pair = Pair()
    with line() as task:
        task.share(pair).use(holding("a", pair), holding("b", pair)).run(max_step=2)


def test_one_station_may_hold_an_object_twice_and_locks_are_made_for_sharing() -> None:
    weights, lock, ready = Weights(), threading.Lock(), threading.Event()
    with line() as task:
        task.use(serial(holding("a", weights), holding("b", weights)), lambda ctx: None)
        task.use(holding("c", lock), holding("d", lock), holding("e", ready), holding("f", ready))
        task.run(max_step=2)


def test_in_order_members_may_share_what_they_like() -> None:
    weights = Weights()
    with Task() as task:
        task.use(holding("a", weights), holding("b", weights)).run(max_step=1)


# --- failures ---------------------------------------------------------------------------


def boom(at: int, error: BaseException | None = None) -> Callable[[Any], None]:
    def boom(ctx: Context) -> None:
        if ctx.total_step == at:
            raise error or ValueError("boom")

    return boom


def watcher(log: list[str], name: str, *, swallow: bool = False) -> Callable[[Any], Iterator[None]]:
    def watcher(ctx: Context) -> Iterator[None]:
        step = ctx.total_step
        try:
            yield
        except Exception as error:
            log.append(f"{step}{name} {type(error).__name__}")
            if not swallow:
                raise
        finally:
            log.append(f"{step}{name} finally")

    watcher.__name__ = name
    return watcher


def test_a_failure_reaches_its_own_second_halves_and_the_others_are_abandoned() -> None:
    log: list[str] = []
    with line() as task:
        task.use(watcher(log, "w"), boom(1), named("c", lambda ctx: None))
        with pytest.raises(ValueError, match="boom") as caught:
            task.run(max_step=9)
    # in that slot iteration 0 passes the last station, 1 fails, 2 has just entered
    assert log == ["0w finally", "1w ValueError", "1w finally", "2w Abandoned", "2w finally"]
    assert any("'boom', iteration 1, role 'main'" in note for note in caught.value.__notes__)
    assert task.ctx.total_step == 1


def test_an_abandoned_iteration_is_told_why() -> None:
    causes: list[Any] = []

    def watch(ctx: Context) -> Iterator[None]:
        try:
            yield
        except Abandoned as error:
            causes.append((ctx.total_step, str(error), type(error.__cause__)))

    with line() as task, pytest.raises(ValueError, match="boom"):
        task.use(watch, boom(0)).run(max_step=9)
    assert causes == [(1, "iteration 1 will not complete: ValueError stopped the line: boom", ValueError)]


def test_a_swallowed_failure_lets_the_line_go_on_and_the_iteration_counts() -> None:
    log: list[str] = []
    third: list[int] = []
    with line() as task:
        task.use(watcher(log, "w", swallow=True), boom(1), lambda ctx: third.append(ctx.total_step))
        ctx = task.run(max_step=4)
    assert third == [0, 2, 3]
    assert ctx.total_step == 4
    assert [entry for entry in log if "finally" in entry] == [f"{i}w finally" for i in (0, 1, 2, 3)]
    assert "1w ValueError" in log


def test_what_older_iterations_count_reaches_the_one_that_enters_after_a_swallowed_failure() -> None:
    counted: list[int] = []

    def learn(ctx: OnlineContext) -> None:
        ctx.train_iter += 1
        counted.append(ctx.train_iter)

    with line(max_lag=1) as task:
        # In the slot in which 1, the newest, fails and leaves, 0 is in learn.
        task.use(watcher([], "w", swallow=True), boom(1), learn).run(max_step=5)
    assert counted == [1, 2, 3, 4]


def test_two_iterations_that_leave_in_one_slot_both_count_in_their_second_halves() -> None:
    def count(ctx: OnlineContext) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield
        ctx.train_iter += 1

    with line() as task:
        ctx: Any = task.use(count, boom(1), named("c", lambda ctx: None)).run(max_step=5)
    assert ctx.train_iter == 5


def test_a_wish_and_a_wait_of_one_station_end_the_run_whoever_asks_meanwhile() -> None:
    done: list[int] = []
    waiting = threading.Event()

    def ask(ctx: Context) -> None:
        if ctx.total_step == 1:
            assert waiting.wait(10)
            for _ in range(50):
                assert ctx.total_step == 1 or ctx.finishing

    def wish(ctx: Context) -> None:
        if ctx.total_step == 0:
            ctx.finish("enough")
            waiting.set()
            task.wait_for("never_comes", timeout=None)
        done.append(ctx.total_step)

    with line() as task:
        task.use(ask, wish).run()
        assert (task.finish_reason, done) == ("enough", [1])


@pytest.mark.parametrize("how", ["fail", "finish"])
def test_threads_of_a_stations_own_are_told_to_end(how: str) -> None:
    def loop(ctx: Context) -> None:
        while not ctx.finishing:
            time.sleep(0)

    def helped(ctx: Context) -> None:
        if ctx.total_step == 1:
            thread = threading.Thread(target=loop, args=(ctx,))
            thread.start()
            thread.join()

    def end(ctx: Context) -> None:
        if ctx.total_step == 0 and how == "fail":
            raise ValueError("boom")
        ctx.finish("enough")

    with line() as task:
        task.use(helped, end)
        with pytest.raises(ValueError, match="boom") if how == "fail" else contextlib.nullcontext():
            task.run()


def test_the_second_ctrl_c_ends_stations_that_wait_for_a_verdict_too() -> None:
    asked = threading.Event()

    def busy(ctx: Context) -> None:
        if ctx.total_step == 2:
            assert asked.wait(10)
            os.kill(os.getpid(), signal.SIGINT)
            while task.finish_reason is None:  # two signals at once would be one
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.001)

    def asks(ctx: Context) -> None:
        while ctx.total_step == 1 and not ctx.finishing:
            asked.set()

    with line() as task:
        task.use(busy, asks, boom(0))
        with pytest.raises((KeyboardInterrupt, ValueError)):
            task.run()


def test_an_iteration_that_was_told_to_end_is_not_taken_for_complete() -> None:
    log: list[str] = []

    def loop(ctx: Context) -> None:
        while ctx.total_step == 0 and not ctx.finishing:
            time.sleep(0)

    with line() as task:
        task.use(watcher(log, "w"), boom(1), loop)
        with pytest.raises(ValueError, match="boom"):
            task.run()
    assert "0w Abandoned" in log
    assert task.ctx.total_step == 0


def test_who_writes_first_is_told_by_the_line_and_not_by_the_clock() -> None:
    second_is_done = threading.Event()

    def first(ctx: OnlineContext) -> None:
        if ctx.total_step == 1:
            assert second_is_done.wait(10)
            ctx.env_step += 1

    def second(ctx: OnlineContext) -> None:
        ctx.env_step += 1
        second_is_done.set()

    with line() as task, pytest.raises(ConflictError, match="'first' and 'second' both write"):
        task.use(first, second).run(max_step=5)


def test_two_failures_of_one_slot_are_both_told_the_older_iteration_first() -> None:
    with line() as task, pytest.raises(ValueError, match="older") as caught:
        task.use(boom(1, KeyError("younger")), boom(0, ValueError("older"))).run(max_step=4)
    assert any("was raised KeyError: 'younger'" in note for note in caught.value.__notes__)


def test_what_ending_an_iteration_raises_is_told_too() -> None:
    def clumsy(ctx: Context) -> Iterator[None]:
        try:
            yield
        finally:
            if ctx.total_step == 1:
                raise OSError("while cleaning up")

    with line() as task, pytest.raises(ValueError, match="boom") as caught:
        task.use(clumsy, boom(0)).run(max_step=4)
    assert any("OSError: while cleaning up" in note for note in caught.value.__notes__)


def test_counters_are_exact_after_a_failure_and_the_next_run_goes_on() -> None:
    steps = 0

    def collect(ctx: OnlineContext) -> None:
        nonlocal steps
        steps += 1
        ctx.env_step += 1

    fail = [True]

    def learn(ctx: OnlineContext) -> None:
        if ctx.total_step == 2 and fail.pop():
            raise ValueError("boom")
        ctx.train_iter += 1

    with line() as task:
        task.use(collect, learn)
        with pytest.raises(ValueError, match="boom"):
            task.run(max_step=9)
        assert (task.ctx.env_step, task.ctx.train_iter, task.ctx.total_step) == (steps, 2, 2)  # type: ignore[attr-defined]
        fail.append(False)
        ctx: Any = task.run(max_step=3)
    assert (ctx.env_step, ctx.train_iter, ctx.total_step) == (steps, 5, 5)


def test_an_unbounded_wait_and_a_loop_are_woken_by_another_stations_failure() -> None:
    ended: list[str] = []

    def wait(ctx: Context) -> None:
        try:
            task.wait_for("never_comes", timeout=None)
        except Abandoned:
            ended.append("wait")
            raise

    def loop(ctx: Context) -> None:
        while not ctx.finishing:
            time.sleep(0)
        ended.append("loop")

    with line() as task:
        task.share(ended).use(named("first", lambda ctx: None), loop, wait, boom(0))
        slots: list[int] = []
        task.replace("first", lambda ctx: slots.append(1))
        # iteration 0 is in boom only when 1 waits, 2 loops and 3 enters: they stand in the same slot
        task.replace("wait", named("wait", lambda ctx: wait(ctx) if ctx.total_step == 1 else None))
        task.replace("loop", named("loop", lambda ctx: loop(ctx) if ctx.total_step == 2 else None))
        with pytest.raises(ValueError, match="boom") as caught:
            task.run()
    assert sorted(ended) == ["loop", "wait"]
    assert not any("Abandoned" in note for note in caught.value.__notes__)


def test_a_bounded_wait_is_woken_by_a_failure_long_before_its_deadline() -> None:
    def wait(ctx: Context) -> None:
        if ctx.total_step == 1:
            task.wait_for("never_comes", timeout=50)

    start = time.monotonic()
    with line() as task, pytest.raises(ValueError, match="boom"):
        task.use(wait, boom(0)).run()
    assert time.monotonic() - start < 10


def test_a_loop_does_not_end_early_for_a_failure_that_is_swallowed() -> None:
    counted: list[int] = []
    failed = threading.Event()

    def collect(ctx: Context) -> Iterator[None]:
        count = 0
        while count < 100 and not ctx.finishing:
            count += 1
            if ctx.total_step == 1 and count == 50:
                failed.wait(10)  # the failure of the other station comes in the middle of the loop
        counted.append(count)
        with contextlib.suppress(ValueError):
            yield

    def learn(ctx: Context) -> None:
        if ctx.total_step == 0:
            failed.set()
            raise ValueError("boom")

    with line() as task:
        ctx = task.use(collect, learn).run(max_step=3)
    assert counted == [100, 100, 100]
    assert ctx.total_step == 3


def test_a_handler_that_fails_ends_the_line() -> None:
    log: list[str] = []

    def handler() -> None:
        raise ValueError("handler")

    with line() as task:
        task.on("task_tick", handler)
        task.use(watcher(log, "w"), named("emit", lambda ctx: ctx.total_step or task.emit("task_tick")))
        with pytest.raises(ValueError, match="handler") as caught:
            task.run(max_step=5)
    assert log == ["0w finally", "1w Abandoned", "1w finally"]
    assert any("task_tick" in note for note in caught.value.__notes__)


def test_an_error_leaves_no_cycle_that_keeps_the_context_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        with line() as task:
            task.use(watcher([], "w"), boom(1))
            with pytest.raises(ValueError, match="boom"):
                task.run(max_step=4)
        del task
        assert not [one for one in gc.get_objects() if type(one).__name__ == "_Iteration"]
    finally:
        gc.enable()


# --- finishing --------------------------------------------------------------------------


def test_finish_lets_the_iterations_in_flight_complete_and_none_enter() -> None:
    a: list[int] = []
    c: list[int] = []

    def stop(ctx: Context) -> None:
        if ctx.total_step == 2:
            ctx.finish("enough")

    with line() as task:
        task.use(lambda ctx: a.append(ctx.total_step), stop, lambda ctx: c.append(ctx.total_step))
        ctx = task.run()
        assert task.finish_reason == "enough"
    assert (a, c, ctx.total_step) == ([0, 1, 2, 3], [0, 1, 2, 3], 4)


def test_a_wish_to_finish_holds_for_its_own_station_at_once_and_for_others_from_the_next_slot() -> None:
    asked = threading.Event()
    own: list[bool] = []
    other: list[tuple[int, bool]] = []

    def ask(ctx: Context) -> None:
        if ctx.total_step == 1:
            ctx.finish()
            own.append(ctx.finishing)
            asked.set()

    def look(ctx: Context) -> None:
        if ctx.total_step == 0:
            assert asked.wait(10)
        other.append((ctx.total_step, ctx.finishing))

    with line() as task:
        task.use(ask, look).run()
    assert own == [True]
    assert other == [(0, False), (1, True)]


def test_of_two_wishes_in_one_slot_the_older_iteration_gives_the_reason() -> None:
    def wish(name: str, at: int) -> Callable[[Any], None]:
        return named(name, lambda ctx: ctx.finish(name) if ctx.total_step == at else None)

    with line() as task:
        task.use(wish("younger", 1), wish("older", 0)).run()
    assert task.finish_reason == "older"


def test_members_of_a_parallel_group_wish_for_their_station() -> None:
    seen: list[tuple[int, bool]] = []
    with line() as task:
        task.use(parallel(lambda ctx: ctx.finish("together"), lambda ctx: None))
        task.use(lambda ctx: seen.append((ctx.total_step, ctx.finishing))).run()
    assert task.finish_reason == "together"
    assert seen == [(0, True)]


def test_an_unbounded_wait_ends_when_the_task_finishes_and_older_iterations_complete() -> None:
    done: list[int] = []

    def wait(ctx: Context) -> None:
        if ctx.total_step == 2:
            task.wait_for("never_comes", timeout=None)

    def stop(ctx: Context) -> None:
        if ctx.total_step == 0:
            ctx.finish("now")

    with line() as task:
        task.use(named("a", lambda ctx: None), wait, stop, lambda ctx: done.append(ctx.total_step))
        ctx = task.run()
    assert (done, ctx.total_step) == ([0, 1], 2), "2 ended by Finishing, before it changed anything"


def test_finishing_raised_by_somebody_else_is_an_error() -> None:
    with line() as task, pytest.raises(Finishing, match="mine"):
        task.use(boom(0, Finishing("mine"))).run(max_step=2)


def test_max_step_completes_that_many_and_starts_no_more() -> None:
    a: list[int] = []
    with line() as task:
        task.use(lambda ctx: a.append(1), named("b", lambda ctx: None), named("c", lambda ctx: None))
        for _ in range(3):
            task.run(max_step=2)
    assert len(a) == 6
    assert task.ctx.total_step == 6


# --- interrupts -------------------------------------------------------------------------


def test_an_interrupt_ends_at_the_end_of_the_slot_and_the_next_run_goes_on() -> None:
    def pipeline(interrupt_at: int | None) -> tuple[list[int], list[int], list[str], int]:
        a: list[int] = []
        c: list[int] = []
        log: list[str] = []

        def second(ctx: Context) -> None:
            if ctx.total_step == interrupt_at:
                task.interrupt()

        with line() as task:
            task.use(watcher(log, "w"), lambda ctx: a.append(ctx.total_step), second)
            task.use(lambda ctx: c.append(ctx.total_step))
            if interrupt_at is not None:
                task.run(max_step=8)
                assert task.finish_reason == "interrupted"
                assert (a, c) == ([0, 1, 2, 3], [0, 1]), "the slot ended, and no other began"
                assert task.ctx.total_step == 2
            ctx = task.run(max_step=8 - task.ctx.total_step)
            return a, c, log, ctx.total_step

    assert pipeline(2) == pipeline(None)


def test_closing_ends_what_an_interrupt_left_in_flight() -> None:
    log: list[str] = []
    with line() as task:
        task.use(watcher(log, "w"), named("b", lambda ctx: task.interrupt()))
        task.run()
        assert log == ["0w finally"]
    assert log == ["0w finally", "1w Abandoned", "1w finally"]


def test_closing_tells_what_the_end_of_an_iteration_raised() -> None:
    def clumsy(ctx: Context) -> Iterator[None]:
        try:
            yield
        except Abandoned:
            raise OSError("clumsy") from None

    def interrupted() -> None:
        with line() as task:
            task.use(clumsy, named("b", lambda ctx: task.interrupt())).run()

    with pytest.raises(OSError, match="clumsy"):
        interrupted()


def test_ctrl_c_ends_at_the_end_of_the_slot_and_the_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[int] = []

    def second(ctx: Context) -> None:
        seen.append(ctx.total_step)
        if ctx.total_step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with line() as task:
        task.use(named("a", lambda ctx: None), second).run()
        assert task.finish_reason == "interrupted"
    assert seen[:4] == [0, 1, 2, 3]
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_ctrl_c_stops_stations_that_never_end() -> None:
    log: list[str] = []
    asked = threading.Event()

    def forever(ctx: Context) -> Iterator[None]:
        yield

    def spin(ctx: Context) -> None:
        if ctx.total_step == 0:
            os.kill(os.getpid(), signal.SIGINT)
            while not ctx.finishing:
                time.sleep(0)
            asked.set()
            os.kill(os.getpid(), signal.SIGINT)
        while True:
            time.sleep(0)

    with line() as task:
        task.use(watcher(log, "w"), spin)
        with pytest.raises(KeyboardInterrupt):
            task.run()
    assert asked.is_set()
    assert [entry for entry in log if "finally" in entry] == ["0w finally", "1w finally"]


# --- events and alterations -------------------------------------------------------------


def test_events_are_delivered_oldest_iteration_first_whichever_station_was_quicker() -> None:
    got: list[str] = []
    first_is_done = threading.Event()

    def first(ctx: Context) -> None:
        task.emit("task_said", f"{ctx.total_step} first")
        if ctx.total_step:
            first_is_done.set()

    def second(ctx: Context) -> None:
        if ctx.total_step < 2:
            assert first_is_done.wait(10)
            first_is_done.clear()
        task.emit("task_said", f"{ctx.total_step} second")

    with line() as task:
        task.on("task_said", got.append)
        task.use(first, second).run(max_step=3)
    assert got == ["0 first", "0 second", "1 first", "1 second", "2 first", "2 second"]


def test_alterations_wait_until_the_line_is_empty() -> None:
    log: list[str] = []

    def old(ctx: Context) -> None:
        log.append(f"{ctx.total_step} old")

    def alter(ctx: Context) -> None:
        if ctx.total_step == 1:
            task.replace("old", lambda ctx: log.append(f"{ctx.total_step} new"))
            task.remove("middle")
            task.insert(named("added", lambda ctx: None), after="alter")

    with line() as task:
        task.share(log).use(alter, named("middle", lambda ctx: None), old).run(max_step=5)
        assert task.names == ["alter", "added", "old"]
    # 2 entered in the slot before the wish was seen; then the line ran empty
    assert log == ["0 old", "1 old", "2 new", "3 new", "4 new"]


def test_an_alteration_that_makes_two_stations_share_is_refused() -> None:
    weights = Weights()
    with line() as task:
        task.on("task_alter", lambda: task.use(holding("late", weights)))
        task.use(named("alter", lambda ctx: task.emit("task_alter")), holding("early", weights))
        with pytest.raises(ConflictError, match="'early' and 'late'"):
            task.run(max_step=5)


# --- looking ----------------------------------------------------------------------------


def test_stations_tell_how_long_they_were_busy_and_waited() -> None:
    def slow(ctx: Context) -> None:
        time.sleep(0.01)

    with line() as task:
        task.use(named("quick", lambda ctx: None), slow)
        assert task.stations == []
        task.run(max_step=10)
        quick, busy = task.stations
    assert (quick.name, busy.name) == ("quick", "slow")
    assert busy.busy >= 0.1 > quick.busy
    assert quick.waiting > busy.waiting
    assert quick.busy + quick.waiting == pytest.approx(busy.busy + busy.waiting)


def test_in_order_there_are_no_stations() -> None:
    with Task() as task:
        task.use(lambda ctx: None).run(max_step=2)
        assert task.stations == []
        assert (task.async_mode, task.max_lag) == (False, None)
