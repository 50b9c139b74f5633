"""The walk: what middleware hold, by path."""

from __future__ import annotations

import datetime
import functools
import logging
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from engine.context import next_context
from engine.state import graph
from engine.state.graph import shared, walk
from engine.testing import CountingActor, CountingPolicy, FakeClock
from engine.tree import as_tree

HISTORY: list[int] = []


def paths(**roots: Any) -> dict[str, str]:
    return {found.path: found.kind for found in walk(roots)}


class Counter:
    def __init__(self, start: int, tags: tuple[str, ...] = ()) -> None:
        self.start = start
        self.tags = tags
        self.count = start

    def __call__(self, ctx: Any) -> None:
        self.count += 1


def closure(buffer: Any) -> Any:
    def inner(ctx: Any) -> None:
        buffer.append(1)

    return inner


def test_closures_attributes_containers_and_defaults_are_walked() -> None:
    def with_default(ctx: Any, memory: list[int] = [1]) -> None: ...  # noqa: B006

    assert paths(push=closure([])) == {"push.buffer": "data"}
    assert paths(count=Counter(1)) == {"count": "data"}
    assert paths(take=with_default) == {"take.memory": "data"}
    nested = closure({"a": [np.zeros(2)]})
    assert paths(push=nested) == {
        "push.buffer": "data",
        "push.buffer['a']": "data",
        "push.buffer['a'][0]": "data",
    }


def test_partials_bound_methods_and_slots_are_walked() -> None:
    class Slotted:
        __slots__ = ("rows",)

        def __init__(self) -> None:
            self.rows: list[int] = []

        def step(self, ctx: Any) -> None: ...

    slotted = Slotted()
    assert paths(step=slotted.step) == {"step": "data", "step.rows": "data"}
    assert paths(part=functools.partial(print, [1], end=[2])) == {"part[0]": "data", "part.end": "data"}


def test_globals_that_the_users_code_names_are_walked() -> None:
    def remember(ctx: Any) -> None:
        HISTORY.append(1)

    assert paths(remember=remember) == {"remember.HISTORY": "data"}


def test_an_object_is_listed_once_with_aliases_and_cycles_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    found = walk({"a": closure(loop), "b": closure(loop)})
    assert [one.path for one in found] == ["a.buffer"]
    assert set(found[0].aliases) == {"b.buffer", "a.buffer[0]"}


def test_what_offers_state_ends_the_walk() -> None:
    net = torch.nn.Linear(2, 2)
    assert paths(train=closure(net)) == {"train.buffer": "stateful"}


def test_what_is_configured_and_frozen_does_not_change() -> None:
    @dataclass(frozen=True)
    class Config:
        rate: float = 0.1

    class Plain:
        def __init__(self, config: Config) -> None:
            self.config = config

        def __call__(self, ctx: Any) -> None: ...

    assert paths(plain=Plain(Config())) == {}


def test_generators_are_data_files_are_opaque_and_locks_are_made_to_be_shared() -> None:
    assert paths(draw=closure(np.random.default_rng(0))) == {"draw.buffer": "data"}
    assert paths(draw=closure(torch.Generator())) == {"draw.buffer": "data"}
    with open(os.devnull) as file:
        assert paths(file=closure(file)) == {"file.buffer": "opaque"}
    for primitive in (threading.Lock(), threading.RLock(), threading.Event(), threading.Barrier(2)):
        assert paths(lock=closure(primitive)) == {}


def test_transient_leaves_out_what_it_names() -> None:
    class Partly:
        transient: ClassVar[tuple[str, ...]] = ("cache",)

        def __init__(self) -> None:
            self.cache, self.kept = [1], [2]

    class Wholly:
        transient = True

        def __init__(self) -> None:
            self.cache = [1]

    assert set(paths(x=closure(Partly()))) == {"x.buffer", "x.buffer.kept"}
    assert paths(x=closure(Wholly())) == {}


def test_shared_names_the_roots_that_reach_one_object() -> None:
    rows: list[int] = []
    found = shared({"a": closure(rows), "b": closure([]), "c": closure(OrderedDict(x=rows))})
    assert [(one.value is rows, names) for one, names in found] == [(True, ["a", "c"])]


def test_globals_of_inner_code_are_walked_and_attribute_names_are_not_globals() -> None:
    def remember(ctx: Any) -> None:
        (lambda: HISTORY.append(1))()

    def other(ctx: Any) -> None:
        ctx.HISTORY = 1

    assert paths(remember=remember) == {"remember.HISTORY": "data"}
    assert paths(other=other) == {}


def test_methods_of_builtin_objects_lead_to_the_object() -> None:
    rows: list[int] = []
    assert paths(push=closure(rows.append), size=closure(rows.__len__)) == {"push.buffer": "data"}


def test_values_that_cannot_change_are_not_listed() -> None:
    values = [
        *(re.compile("x"), logging.getLogger("x"), object(), datetime.timedelta(1), str.lower),
        *(np.dtype("f4"), np.float32(1), np.add, np.mean, torch.float32, torch.device("cpu")),
        *(as_tree, next_context, functools.lru_cache(len), MappingProxyType({"a": 1})),
    ]
    assert paths(**{f"m{index}": closure(value) for index, value in enumerate(values)}) == {}


def test_engine_is_walked_alike_wherever_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph, "_is_users_file", lambda file: False)
    assert paths(wait=closure(FakeClock())) == {}, "configured by now= alone"
    assert paths(act=closure(CountingPolicy().batches)) == {"act.buffer": "data"}
    assert paths(act=closure(CountingActor()))["act.buffer"] == "data"
