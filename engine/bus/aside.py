"""The service thread: runs what must not wait until the task's thread gets to it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Literal, TypeAlias

HandlerThread: TypeAlias = Literal["task", "service"]

_END_SECONDS = 2.0


class ServiceThread:
    """One thread, which begins with the first work and does one after the other; work must not raise."""

    def __init__(self) -> None:
        self._works: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    @property
    def is_this(self) -> bool:
        """Whether this is the thread that asks."""
        return threading.current_thread() is self._thread

    def do(self, work: Callable[[], None]) -> None:
        """Have it done soon; not once this is closed."""
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="engine-service", daemon=True)
                self._thread.start()
        self._works.put(work)

    def close(self) -> None:
        """Begin nothing more, and wait a little for what is being done."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._works.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(_END_SECONDS)

    def _run(self) -> None:
        while (work := self._works.get()) is not None and not self._closed:
            work()
            del work  # with what it holds, while nothing comes
