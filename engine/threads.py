"""What a new thread takes over from the one that starts it."""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def inherited(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` with this thread's context variables, and torch's threads and gradient mode.

    Context variables hold numpy's `errstate`, among others.  What torch is told holds for the thread that
    says it: any other computes with all cores, whatever ``torch.set_num_threads`` said, which for small
    nets is many times slower, and outside of ``torch.no_grad()`` and ``torch.inference_mode()``.
    """
    variables = contextvars.copy_context()
    torch = sys.modules.get("torch")
    if torch is None:
        return functools.partial(variables.run, function)
    count = torch.get_num_threads()
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        torch.set_num_threads(count)
        if gradients and not inference:  # as in every new thread
            return variables.run(function, *args, **kwargs)
        with torch.inference_mode(inference), torch.set_grad_enabled(gradients):
            return variables.run(function, *args, **kwargs)

    return run
