"""The recorder: keeps what a run shows and leaves behind, while it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gymnasium.spaces import Box

from engine.context import Context
from engine.middleware.functional.log import Averages
from engine.middleware.functional.rhythm import Every, Seldomer
from engine.middleware.functional.save import save_best_policy
from engine.pipeline import Node, Timing
from engine.policies.files import save_policy
from engine.runs.collapse import Collapse
from engine.runs.folder import Run
from engine.runs.metrics import MetricsWriter
from engine.runs.progress import Progress
from engine.runs.stations import StationTime
from engine.runs.trackers import Tracker
from engine.types import Clock

log = logging.getLogger(__name__)


ROWS = 200
"""About how many rows of metrics a run writes."""
LOOK_SECONDS = 2.0
"""So often it looks whether the run's folder is still there."""


class Watched(Protocol):
    """What the recorder asks of the task that it stands in."""

    @property
    def timings(self) -> Mapping[str, Timing]: ...

    @property
    def stations(self) -> Sequence[StationTime]: ...

    def graph(self) -> Sequence[Node]: ...


class Recorder:
    """Write metrics, show progress, and save the best policy (by evaluation) and the last one.

    A row of metrics is written for every `every` env steps (None: ever more seldom, about `ROWS` as the
    run doubles) and at each evaluation; it holds the means since the row before, ``train_iter`` and
    ``time/sps`` (env steps a second, pauses included).
    Warn once if a policy of discrete actions stops exploring and gets worse.

    Raises `FolderError` once the disk is full, or the folder is gone.

    Stands last in the pipeline.  Without a policy (None) nothing is saved but the metrics; without
    ``ctx.env_step`` iterations are counted.  Reads: ctx.metrics, the counters.
    """

    transient = ("_writer", "_trackers", "_progress", "_task", "_clock")

    def __init__(
        self,
        run: Run,
        policy: Any,
        *,
        progress: Progress,
        trackers: Sequence[Tracker] = (),
        every: int | None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.run = run
        self.policy = policy
        self._save_best = None if policy is None else save_best_policy(policy, run.path / "policies" / "best")
        self._progress = progress
        self._trackers = tuple(trackers)
        # The entropy of a density may be any number.
        discrete = policy is not None and not isinstance(policy.action_space, Box)
        self._collapse = Collapse() if discrete else None
        with run.storing():
            self._writer = MetricsWriter(run.path / "metrics.jsonl")
        self._averages = Averages()
        self._due = Seldomer(ROWS) if every is None else Every(every)
        self._clock = clock
        self._last = (clock(), 0)
        self._look_at = clock()
        self._task: Watched | None = None
        self.gave_up = False
        """Whether the last evaluation was given up, so that nothing is known of the last policy."""
        self.cut: int | None = None
        """How many episodes of the last evaluation were cut; None before the first."""

    def watch(self, task: Watched) -> None:
        """Show what `task` says about the cost of each middleware, and overlapped about its stations."""
        self._task = task

    def __call__(self, ctx: Context) -> None:
        metrics, env_step = ctx.metrics, ctx.get("env_step", ctx.total_step)
        self._averages.add(metrics)
        self._look()
        evaluated = metrics.get("eval/return_mean")
        if evaluated is not None or ctx.get("gave_up"):
            self.gave_up, self.cut = evaluated is None, int(metrics.get("eval/cut", 0))
        if evaluated is not None:
            self.save_last()
            if self._save_best is not None:
                with self.run.storing():
                    self._save_best(ctx)
        if self._due(env_step) or evaluated is not None:
            self.write(ctx)
            self._progress.update(env_step, metrics, self.seconds(), self.stations())
        else:
            self._progress.update(env_step, metrics)

    def write(self, ctx: Context) -> None:
        """Write a row now, unless nothing has been measured since the last one."""
        means = self._averages.take()
        if not means:
            return
        now, env_step = self._clock(), ctx.get("env_step", ctx.total_step)
        then, before = self._last
        row: dict[str, Any] = {"train_iter": ctx.get("train_iter", 0), **means}
        if env_step > before and now > then:
            row["time/sps"] = (env_step - before) / (now - then)
        with self.run.storing():
            self._writer.write(env_step, row)
        if self._collapse is not None and (warning := self._collapse.look(row)):
            log.warning("%s", warning)
        for tracker in self._trackers:
            tracker.log(env_step, row)
        self._last = now, env_step

    def tell(self, played: int, episodes: int, steps: int) -> None:
        """Show how far an evaluation is."""
        self._look()
        self._progress.playing("evaluating", played, episodes, steps)

    def seconds(self) -> dict[str, float]:
        """Return the seconds that each middleware of the pipeline has taken, those inside others left out.

        A serial group at the top is shown by its members, as recipes group theirs into stations.
        """
        if self._task is None:
            return {}
        groups = {node.name for node in self._task.graph() if node.kind == "serial"}
        return {
            name: timing.seconds
            for name, timing in self._task.timings.items()
            if name not in groups and ("." not in name or name.rpartition(".")[0] in groups)
        }

    def stations(self) -> Sequence[StationTime]:
        """Return what each station of an overlapped task has done so far; nothing in order."""
        return self._task.stations if self._task is not None else ()

    def save_last(self) -> None:
        """Save the policy as it is, as the last one."""
        if self.policy is not None:
            with self.run.storing():
                save_policy(self.policy, self.run.path / "policies" / "last")

    def _look(self) -> None:
        """Find out whether the folder is still there, now and then."""
        if (now := self._clock()) >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self.run.check()

    def close(self) -> None:
        """Force everything to disk."""
        try:
            self._writer.close()
        except OSError:
            with self.run.storing():
                raise
        finally:
            for tracker in self._trackers:
                tracker.close()
