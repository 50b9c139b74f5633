"""Processes to measure with: an object in a process of its own, whose methods are asked for."""

from __future__ import annotations

import contextlib
import multiprocessing
import traceback
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0


class Child:
    """An object that `make` builds in a new process; closed with it.

    `ask` calls one of its methods and waits for what it returns; `tell` and `answer` are its halves.
    """

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_live, args=(theirs, make, args), daemon=True)
        self.process.start()
        theirs.close()

    def ready(self) -> Child:
        """Wait until the object is made."""
        self.answer()
        return self

    def ask(self, method: str, *args: Any, timeout: float = PATIENCE) -> Any:
        """Return what a method of the object returns there."""
        self.tell(method, *args)
        return self.answer(timeout)

    def tell(self, method: str, *args: Any) -> None:
        """Begin a method; `answer` returns what it returned."""
        self._pipe.send((method, args))

    def answer(self, timeout: float = PATIENCE) -> Any:
        """Wait for what was told last; raises what went wrong there."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"process {self.process.pid} has not answered for {timeout:g} s")
        well, result = self._pipe.recv()
        if not well:
            raise RuntimeError(f"in the other process:\n{result}")
        return result

    def close(self) -> None:
        """End the process in order, or by force where it does not."""
        self._pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _live(pipe: Any, make: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with contextlib.ExitStack() as stack:
        try:
            one = make(*args)
            stack.callback(one.close)
        except Exception:
            pipe.send((False, traceback.format_exc()))
            return
        pipe.send((True, None))
        while True:
            try:
                method, words = pipe.recv()
            except (EOFError, ConnectionResetError):
                return
            try:
                pipe.send((True, getattr(one, method)(*words)))
            except Exception:
                pipe.send((False, traceback.format_exc()))
