"""Runs a recipe in roles: each process of a run as a thread, over a network in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from engine.bus.bus import Bus, host, join
from engine.bus.memory import Network
from engine.task import Task

SECONDS = 120.0


class Fleet:
    """A run of several roles; `run` returns when the learner is done and everybody has left."""

    def __init__(self, recipe: Callable[..., Task], config: Any, crew: Mapping[str, int]) -> None:
        self.recipe, self.config, self.crew = recipe, config, dict(crew)
        self.network = Network()
        self.errors: list[BaseException] = []
        self.policy: Any = None
        self.rows: list[dict[str, Any]] = []
        self.contexts: dict[str, Any] = {}
        self.reports: dict[str, dict[str, Any]] = {}
        self._hub: Bus | None = None

    def run(self) -> Fleet:
        roles = ("collector", "learner")
        self._hub = hub = host(self.network.transport(), run="test", roles=roles, crew=self.crew)
        seats = [(role, f"{role}_{n}") for role, count in self.crew.items() for n in range(count)]
        threads = [threading.Thread(target=self._guarded, args=seat, name=seat[1]) for seat in seats]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
        late = [thread.name for thread in threads if thread.is_alive()]
        if late:
            hub.tell_finish("the test has waited long enough")
        hub.close()
        for error in self.errors:
            raise error
        assert not late
        return self

    def _guarded(self, role: str, name: str) -> None:
        assert self._hub is not None
        try:
            self._play(role, name)
        except BaseException as error:
            self.errors.append(error)
            self._hub.tell_finish(f"{name} failed: {error!r}")

    def _play(self, role: str, name: str) -> None:
        assert self._hub is not None
        bus = join(self.network.transport(), at=self._hub.address, run="test", role=role, peer=name)
        try:
            if role == "learner":
                task = self.recipe(self.config, roles=frozenset({role}), bus=bus, watch=self._watch)
            else:
                task = self.recipe(self.config, roles=frozenset({role}), bus=bus)
            with task:
                self.contexts[name] = task.run()
            if role == "learner":
                self._hub.tell_finish("the learner is done")
        finally:
            bus.close()

    def _watch(self, policy: Any) -> Callable[[Any], None]:
        self.policy = policy
        return watching(self.rows)


def watching(rows: list[dict[str, Any]]) -> Callable[[Any], None]:
    """Return a middleware that keeps the metrics of every iteration."""

    def watch(ctx: Any) -> None:
        rows.append({"env_step": ctx.env_step, "train_iter": ctx.train_iter, **ctx.metrics})

    return watch
