"""Random mixes of middleware against a simple interpreter of what the onion means."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine import OnlineContext, Task, serial
from engine.context import Context


class Boom(Exception):
    pass


@dataclass(frozen=True)
class Plain:
    raises: bool


@dataclass(frozen=True)
class Yielding:
    raises_in: bool
    on_error: str  # "pass", "swallow", "replace"
    raises_out: bool
    yields: bool


@dataclass(frozen=True)
class Nested:
    members: tuple[Any, ...]


leaves = st.one_of(
    st.builds(Plain, st.booleans().map(lambda b: b)),
    st.builds(Plain, st.just(False)),
    st.builds(
        Yielding,
        raises_in=st.sampled_from([False, False, False, True]),
        on_error=st.sampled_from(["pass", "swallow", "replace"]),
        raises_out=st.sampled_from([False, False, True]),
        yields=st.sampled_from([True, True, True, False]),
    ),
)
trees = st.recursive(
    leaves, lambda inner: st.builds(Nested, st.lists(inner, max_size=4).map(tuple)), max_leaves=12
)
pipelines = st.lists(trees, max_size=7).map(tuple)


def interpret(members: tuple[Any, ...], log: list[str], path: str = "") -> None:
    """What a pipeline means: each yielding member is a `with` block around all that follows."""
    if not members:
        return
    first, rest = members[0], members[1:]
    here = f"{path}/{len(rest)}"
    if isinstance(first, Nested):
        interpret(first.members, log, here)
        interpret(rest, log, path)
    elif isinstance(first, Plain):
        log.append(f"{here} plain")
        if first.raises:
            raise Boom(here)
        interpret(rest, log, path)
    else:
        log.append(f"{here} in")
        if first.raises_in:
            raise Boom(here)
        if not first.yields:
            interpret(rest, log, path)
            return
        try:
            interpret(rest, log, path)
        except Boom as error:
            log.append(f"{here} sees {error}")
            if first.on_error == "pass":
                raise
            if first.on_error == "replace":
                raise Boom(f"{here} new") from error
        else:
            log.append(f"{here} out")
            if first.raises_out:
                raise Boom(f"{here} out")


def build(members: tuple[Any, ...], log: list[str], path: str = "") -> list[Any]:
    """The same pipeline, of real middleware."""

    def make(spec: Any, here: str) -> Callable[[Context], Any]:
        if isinstance(spec, Nested):
            return serial(*build(spec.members, log, here))
        if isinstance(spec, Plain):

            def plain(ctx: Context) -> None:
                log.append(f"{here} plain")
                if spec.raises:
                    raise Boom(here)

            return plain

        def yielding(ctx: Context) -> Iterator[None]:
            log.append(f"{here} in")
            if spec.raises_in:
                raise Boom(here)
            if not spec.yields:
                return
            try:
                yield
            except Boom as error:
                log.append(f"{here} sees {error}")
                if spec.on_error == "pass":
                    raise
                if spec.on_error == "replace":
                    raise Boom(f"{here} new") from error
            else:
                log.append(f"{here} out")
                if spec.raises_out:
                    raise Boom(f"{here} out")

        return yielding

    return [make(spec, f"{path}/{len(members) - index - 1}") for index, spec in enumerate(members)]


def outcome(run: Callable[[], object]) -> str | None:
    try:
        run()
    except Boom as error:
        return str(error)
    return None


@given(pipelines)
@settings(max_examples=400, deadline=None)
def test_a_group_called_directly_means_what_the_interpreter_says(members: tuple[Any, ...]) -> None:
    expected: list[str] = []
    seen: list[str] = []
    want = outcome(lambda: interpret(members, expected))
    got = outcome(lambda: serial(*build(members, seen))(OnlineContext()))
    assert (got, seen) == (want, expected)


@given(pipelines.filter(bool))
@settings(max_examples=300, deadline=None)
def test_a_task_means_the_same_with_and_without_hooks_and_timing(members: tuple[Any, ...]) -> None:
    expected: list[str] = []
    want = outcome(lambda: interpret(members, expected))

    def through(ctx: Context) -> Iterator[None]:
        yield

    for variant in ("bare", "hooks", "timing", "both"):
        seen: list[str] = []
        with Task(OnlineContext()) as task:
            task.use(*build(members, seen))
            if variant in ("hooks", "both"):
                task.before("*", lambda ctx: None).after("*", lambda ctx: None).around(through)
            if variant in ("timing", "both"):
                task.measure()
            got = outcome(lambda task=task: task.run(max_step=1))
        assert (variant, got, seen) == (variant, want, expected)
