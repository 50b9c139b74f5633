"""Groups and the onion, by example; tests/test_onion.py checks random mixes."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from engine import OnlineContext, Task, branch, parallel, repeat, serial
from engine.context import Context
from engine.errors import ConflictError, Finishing, MiddlewareError, UsageError
from engine.pipeline import name_of


def say(log: list[str], word: str) -> Any:
    def say(ctx: Context) -> None:
        log.append(word)

    return say


def wrap(log: list[str], word: str) -> Any:
    def wrap(ctx: Context) -> Iterator[None]:
        log.append(f"{word}>")
        try:
            yield
        except ValueError as error:
            log.append(f"{word}!{error}")
            raise
        finally:
            log.append(f"<{word}")

    return wrap


def fail(message: str = "boom") -> Any:
    def fail(ctx: Context) -> None:
        raise ValueError(message)

    return fail


def test_second_halves_run_in_reverse() -> None:
    log: list[str] = []
    assert serial(wrap(log, "a"), say(log, "x"), wrap(log, "b"), say(log, "y"))(Context()) is None
    assert log == ["a>", "x", "b>", "y", "<b", "<a"]


def test_second_halves_of_a_group_run_when_the_group_ends() -> None:
    log: list[str] = []
    serial(wrap(log, "a"), serial(wrap(log, "b"), say(log, "x")), say(log, "y"))(Context())
    assert log == ["a>", "b>", "x", "<b", "y", "<a"]


def test_outer_middleware_sees_inner_error() -> None:
    log: list[str] = []
    with pytest.raises(ValueError, match="boom") as caught:
        serial(wrap(log, "a"), wrap(log, "b"), fail(), say(log, "never"))(Context())
    assert log == ["a>", "b>", "b!boom", "<b", "a!boom", "<a"]
    assert caught.value.__notes__ == ["raised in middleware 'fail', iteration 0"]


def test_a_swallowed_error_skips_the_rest_and_is_gone() -> None:
    log: list[str] = []

    def swallow(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            log.append("swallowed")

    serial(wrap(log, "a"), serial(swallow, fail(), say(log, "never")), say(log, "after"))(Context())
    assert log == ["a>", "swallowed", "after", "<a"]


def test_a_second_half_may_replace_the_error_and_the_cause_stays() -> None:
    def translate(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            raise KeyError("new") from error

    with pytest.raises(KeyError) as caught:
        serial(translate, fail())(Context())
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__notes__ == ["raised in middleware 'translate', iteration 0"]


@pytest.mark.parametrize("error", [StopIteration("s"), GeneratorExit("g"), KeyboardInterrupt("k")])
def test_unusual_errors_pass_second_halves_with_their_own_type(error: BaseException) -> None:
    log: list[str] = []

    def raise_it(ctx: Context) -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        serial(wrap(log, "a"), wrap(log, "b"), raise_it)(Context())
    assert caught.value is error
    assert log == ["a>", "b>", "<b", "<a"]


def test_second_yield_is_an_error_naming_the_middleware() -> None:
    def twice(ctx: Context) -> Iterator[None]:
        yield
        yield

    with pytest.raises(MiddlewareError, match="'twice' yielded twice"):
        serial(twice)(Context())


def test_second_yield_after_an_error_is_an_error_with_the_cause() -> None:
    def twice(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError:
            yield

    with pytest.raises(MiddlewareError, match="yielded twice") as caught:
        serial(twice, fail())(Context())
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_returned_value_is_an_error_naming_the_middleware() -> None:
    def late(ctx: Context) -> Any:
        yield
        return 3

    def early(ctx: Context) -> Any:
        if ctx.total_step < 0:
            yield
        return 4

    for middleware in (lambda ctx: 5, late, early):
        with pytest.raises(MiddlewareError, match=f"'{name_of(middleware)}' returned int"):
            serial(middleware)(Context())


def test_a_forgotten_outer_call_is_explained() -> None:
    def outer(option: int) -> Any:
        return lambda ctx: None

    with pytest.raises(MiddlewareError, match="outer function"):
        serial(outer)(Context())


@pytest.mark.parametrize("wrong", [3, Context, None, "name", (x for x in ())])
def test_what_cannot_be_called_with_ctx_is_refused_while_building(wrong: object) -> None:
    with pytest.raises(MiddlewareError):
        serial(wrong)


def test_wrong_signatures_and_coroutines_are_refused_while_building() -> None:
    async def later(ctx: Context) -> None: ...

    for wrong in (later, lambda: None, lambda ctx, buffer: None):
        with pytest.raises(MiddlewareError):
            serial(wrong)


def test_a_generator_that_does_not_reach_its_yield_is_plain() -> None:
    log: list[str] = []

    def maybe(ctx: Context) -> Iterator[None]:
        log.append("in")
        if ctx.total_step > 5:
            yield
            log.append("out")

    serial(maybe, say(log, "x"))(Context())
    assert log == ["in", "x"]


def test_names_are_snake_case() -> None:
    class DQNLearner:
        def __call__(self, ctx: Context) -> None: ...

    def push(ctx: Context, size: int) -> None: ...

    assert name_of(DQNLearner()) == "dqn_learner"
    assert name_of(functools.partial(push, size=3)) == "push"
    assert name_of(lambda ctx: None) == "lambda"
    assert serial(push_one := DQNLearner(), push_one).names == ("dqn_learner", "dqn_learner#2")


def test_repeat_counts_or_asks_after_each_pass() -> None:
    def count(ctx: Any) -> None:
        ctx.n = ctx.get("n", 0) + 1

    ctx = OnlineContext()
    repeat(count, times=3)(ctx)
    assert ctx.n == 3  # type: ignore[attr-defined]
    repeat(count, until=lambda ctx: ctx.n >= 10)(ctx)
    assert ctx.n == 10  # type: ignore[attr-defined]
    repeat(count, times=0)(ctx)
    assert ctx.n == 10  # type: ignore[attr-defined]


def test_repeat_until_ends_when_finishing_and_times_does_not() -> None:
    def count(ctx: Any) -> None:
        ctx.n = ctx.get("n", 0) + 1
        ctx.finish("enough")

    ctx = OnlineContext()
    repeat(count, until=lambda ctx: False)(ctx)
    assert ctx.n == 1  # type: ignore[attr-defined]
    repeat(count, times=4)(ctx)
    assert ctx.n == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [{}, {"times": 1, "until": bool}, {"times": -1}, {"times": 1.5}, {"until": 3}, {"times": True}]
)
def test_repeat_checks_its_options_while_building(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="repeat takes"):
        repeat(fail(), **options)


def test_branch_runs_one_side() -> None:
    log: list[str] = []
    choose = branch(lambda ctx: ctx.env_step > 0, say(log, "then"), say(log, "otherwise"))
    choose(OnlineContext())
    choose(OnlineContext(env_step=1))
    branch(lambda ctx: False, say(log, "never"))(OnlineContext())
    assert log == ["otherwise", "then"]


def test_parallel_members_run_at_the_same_time_and_merge_in_order() -> None:
    meet = threading.Barrier(2, timeout=10)

    def left(ctx: Any) -> None:
        meet.wait()
        ctx.left = 1
        ctx.metrics["l"] = 1

    def right(ctx: Any) -> None:
        meet.wait()
        assert ctx.get("left") is None, "members do not see each other's writes"
        ctx.right = 2
        ctx.metrics["r"] = 2

    ctx = OnlineContext()
    ctx.metrics["before"] = 0
    parallel(left, right)(ctx)
    assert (ctx.left, ctx.right, ctx.metrics) == (1, 2, {"before": 0, "l": 1, "r": 2})  # type: ignore[attr-defined]


def test_parallel_refuses_two_writers_of_one_field_and_merges_nothing() -> None:
    def one(ctx: Any) -> None:
        ctx.x = 1

    def two(ctx: Any) -> None:
        ctx.y, ctx.x = 1, 1

    ctx = OnlineContext()
    with pytest.raises(ConflictError, match=r"'one' and 'two' both write ctx\.x"):
        parallel(one, two)(ctx)
    assert ctx.get("x") is None
    assert ctx.get("y") is None


def test_parallel_refuses_two_writers_of_one_metric() -> None:
    def one(ctx: Any) -> None:
        ctx.metrics["loss"] = 1

    def two(ctx: Any) -> None:
        ctx.metrics["loss"] = 2

    with pytest.raises(ConflictError, match="metrics"):
        parallel(one, two)(OnlineContext())


def test_parallel_raises_the_earliest_listed_error_and_notes_the_others() -> None:
    meet = threading.Barrier(2, timeout=10)

    def slow(ctx: Any) -> None:
        meet.wait()
        raise ValueError("first")

    def fast(ctx: Any) -> None:
        meet.wait()
        raise KeyError("second")

    with pytest.raises(ValueError, match="first") as caught:
        parallel(slow, fast)(OnlineContext())
    assert any("KeyError" in note and "'fast'" in note for note in caught.value.__notes__)


def test_parallel_runs_second_halves_and_leaves_no_thread() -> None:
    log: list[str] = []
    before = threading.active_count()
    parallel(wrap(log, "a"), say(log, "x"))(OnlineContext())
    assert sorted(log) == ["<a", "a>", "x"]
    assert threading.active_count() == before


def test_a_second_yield_is_told_even_if_the_generator_will_not_close() -> None:
    def stubborn(ctx: Context) -> Iterator[None]:
        for _ in range(2):
            with contextlib.suppress(GeneratorExit):
                yield
        yield

    with pytest.raises(MiddlewareError, match="'stubborn' yielded twice") as caught:
        serial(stubborn)(Context())
    assert "ignored GeneratorExit" in caught.value.__notes__[0]


def test_writes_pass_through_nested_parallels() -> None:
    def a(ctx: Any) -> None:
        ctx.a = 1

    def b(ctx: Any) -> None:
        ctx.b = 2

    def c(ctx: Any) -> None:
        ctx.a = 3

    ctx: Any = OnlineContext()
    parallel(serial(parallel(a, b)), lambda ctx: None)(ctx)
    assert (ctx.a, ctx.b) == (1, 2)
    with pytest.raises(ConflictError, match=r"'serial' and 'c' both write ctx\.a"):
        parallel(serial(parallel(a, b)), c)(OnlineContext())


def test_parallel_merges_changed_and_deleted_metrics_and_fields() -> None:
    def change(ctx: Any) -> None:
        ctx.metrics["changed"] = 2

    def delete(ctx: Any) -> None:
        del ctx.metrics["deleted"]
        del ctx.field

    ctx: Any = OnlineContext()
    ctx.metrics.update(changed=1, deleted=1, same=1)
    ctx.field = 1
    parallel(change, delete, lambda ctx: None)(ctx)
    assert ctx.metrics == {"changed": 2, "same": 1}
    assert ctx.get("field") is None


def test_a_wait_that_ends_does_not_hide_an_error_beside_it() -> None:
    def wait(ctx: Context) -> None:
        raise Finishing("the wait ends")

    with pytest.raises(ValueError, match="boom"):
        parallel(wait, fail())(OnlineContext())


def test_swallowed_errors_leave_no_context_to_the_garbage_collector() -> None:
    contexts: list[weakref.ref[Context]] = []

    def swallow(ctx: Context) -> Iterator[None]:
        contexts.append(weakref.ref(ctx))
        with contextlib.suppress(ValueError):
            yield

    def through(ctx: Context) -> Iterator[None]:
        yield

    gc.disable()
    try:
        with Task() as task:
            task.use(swallow, through, serial(fail()), parallel(fail()))
            task.around(through).measure().run(max_step=5)
        assert [one() is None for one in contexts] == [True] * 4 + [False]
    finally:
        gc.enable()
