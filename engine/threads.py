"""What a new thread takes over from the one that starts it."""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def inherited(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with this thread's context variables and torch's number of threads.

    Context variables hold numpy's `errstate`, among others.  ``torch.set_num_threads`` holds for the
    thread that calls it: any other computes with all cores, which for small nets is many times slower.
    """
    variables = contextvars.copy_context()
    torch = sys.modules.get("torch")
    count = None if torch is None else torch.get_num_threads()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch is not None and count is not None:
            torch.set_num_threads(count)
        return variables.run(function, *args, **kwargs)

    return run
