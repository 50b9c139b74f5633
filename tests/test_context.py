"""Contexts: kept fields, fields of one iteration, copies."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine import OnlineContext, Task
from engine.context import Context, kept, next_context, view, writes
from engine.errors import EngineError, MiddlewareError, UnknownField


@dataclass
class MyContext(OnlineContext):
    best: float = kept(0.0)
    note: str = "none"
    seen: list[int] = field(default_factory=list)


def test_kept_fields_survive_and_the_rest_starts_anew() -> None:
    ctx = MyContext()
    ctx.best, ctx.note, ctx.env_step = 3.5, "changed", 7
    ctx.seen.append(1)
    ctx.custom = 1  # type: ignore[attr-defined]
    fresh = next_context(ctx)
    assert (fresh.best, fresh.note, fresh.env_step, fresh.seen) == (3.5, "none", 7, [])
    assert fresh is not ctx
    assert fresh.get("custom") is None


def test_a_field_nobody_wrote_is_an_error_with_the_nearest_name() -> None:
    ctx = OnlineContext()
    with pytest.raises(UnknownField, match="did you mean 'env_step'") as caught:
        _ = ctx.env_stp  # type: ignore[attr-defined]
    assert isinstance(caught.value, AttributeError)
    assert isinstance(caught.value, EngineError)
    assert not hasattr(ctx, "batch"), "declared, but not written in this iteration"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_get_reads_softly() -> None:
    ctx = OnlineContext()
    assert ctx.get("batch") is None
    assert ctx.get("batch", 3) == 3
    ctx.batch = "b"
    assert ctx.get("batch", 3) == "b"
    assert ctx.get("env_step", 9) == 0


def test_keep_holds_for_the_rest_of_the_run() -> None:
    ctx = OnlineContext()
    ctx.keep("epsilon")
    ctx.epsilon = 0.5  # type: ignore[attr-defined]
    third = next_context(next_context(ctx))
    assert third.epsilon == 0.5  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [[1], {"a": 1}, {1}, np.zeros(2), (1, [2]), bytearray(b"x")])
def test_kept_fields_refuse_values_that_change_in_place(value: object) -> None:
    ctx = MyContext()
    ctx.best = value  # type: ignore[assignment]
    with pytest.raises(MiddlewareError, match=r"ctx\.best"):
        next_context(ctx)
    ctx = MyContext()
    ctx.held = value  # type: ignore[attr-defined]
    with pytest.raises(MiddlewareError, match=r"ctx\.held"):
        ctx.keep("held")


@pytest.mark.parametrize("value", [1, 2.5, "x", None, (1, 2), frozenset({1}), np.float64(3.0), np.int64(3)])
def test_kept_fields_take_immutable_values(value: object) -> None:
    ctx = MyContext()
    ctx.best = value  # type: ignore[assignment]
    assert next_context(ctx).best is value


def test_the_link_to_the_task_stays_out_of_copies_and_pickles() -> None:
    with Task(OnlineContext()) as task:
        ctx = task.use(lambda ctx: None).run(max_step=1)
        assert ctx._task is task
        for other in (copy.copy(ctx), copy.deepcopy(ctx), pickle.loads(pickle.dumps(ctx))):
            assert other._task is None
            assert other.total_step == 1


def test_a_detached_context_tests_a_middleware_in_two_lines() -> None:
    def finish_at_ten(ctx: OnlineContext) -> None:
        if ctx.env_step >= 10:
            ctx.finish("ten")

    ctx = OnlineContext(env_step=10)
    finish_at_ten(ctx)
    assert ctx.finishing


def test_repr_of_a_context_with_unwritten_fields_works() -> None:
    assert "env_step=3" in repr(OnlineContext(env_step=3))
    assert "best=0.0" in repr(MyContext())


def test_a_kept_field_written_through_a_subclass_default_is_kept() -> None:
    ctx = Context(total_step=4)
    assert next_context(ctx).total_step == 4


def test_a_copy_of_a_view_is_a_context_of_its_own() -> None:
    ctx = OnlineContext(env_step=3)
    seen = view(ctx)
    for other in (copy.copy(seen), copy.deepcopy(seen), pickle.loads(pickle.dumps(seen))):
        other.env_step = 9
        assert type(other) is OnlineContext
    assert writes(seen) == set()
    assert seen.env_step == 3


def test_a_context_class_that_forgot_to_be_a_dataclass_is_told_so() -> None:
    class Forgetful(OnlineContext):
        best: float = kept(0.0)

    with pytest.raises(MiddlewareError, match="write @dataclass above it"):
        Task(Forgetful())
