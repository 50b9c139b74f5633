"""How a pipeline is driven: in order, one iteration after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from engine.context import Context, renewal_of
from engine.pipeline import Run


class Driven(Protocol):
    """What an executor needs of the task that it drives."""

    ctx: Context
    """The context of the iteration that runs, or ran last."""

    attention: bool
    """Whether the next boundary has something to do: events, alterations, finishing."""

    def boundary(self) -> Run | None:
        """Deliver events and make alterations; return what to run next, or None to stop."""
        ...


class Executor(Protocol):
    """Drives a pipeline until its steps are done or the task stops it."""

    def run(self, task: Driven, run: Run, steps: int | None) -> None: ...


class InOrder:
    """One iteration after the other, on the thread that calls `run`."""

    def run(self, task: Driven, run: Run, steps: int | None) -> None:
        """Run iterations until `steps` are done (None: until the task stops).

        ``task.ctx`` is the context of the iteration that runs; each starts with a new one.
        After an error it stays at the iteration that failed, whose step is not counted.
        """
        ctx = task.ctx
        left = -1 if steps is None else steps
        renew: Callable[[Context], Context] = renewal_of(ctx.__class__)
        while left:
            left -= 1
            run(ctx)
            ctx.total_step += 1
            if task.attention:
                following = task.boundary()
                if following is None:
                    return
                run = following
            if left:
                task.ctx = ctx = renew(ctx)
