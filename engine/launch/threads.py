"""The backend for tests and debugging: every seat a thread of this process, the bus in memory."""

from __future__ import annotations

import logging
import signal
import threading
import time

from engine.bus.memory import Network
from engine.bus.transport import Transport
from engine.launch.backend import Ended, OnEnd, OnLine, Order, cause
from engine.launch.worker import Stopping, attend
from engine.signals import REASONS

log = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class Threads:
    """Starts seats as threads; one that does not listen cannot be killed, and is left behind."""

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or Network()
        self._started: list[Thread] = []

    def open(self) -> Transport:
        """Return a transport in memory."""
        return self.network.transport()

    def start(self, order: Order, *, on_end: OnEnd, on_line: OnLine) -> Thread:
        """Start a thread for a seat; it prints where this process does."""
        thread = Thread(order, self.network.transport(), on_end)
        self._started.append(thread)
        thread.start()
        return thread

    def close(self) -> None:
        """Wait for the threads, but not for ever."""
        by = time.monotonic() + _JOIN_SECONDS
        for thread in self._started:
            thread.join(max(0.0, by - time.monotonic()))


class Thread:
    """One seat."""

    def __init__(self, order: Order, transport: Transport, on_end: OnEnd) -> None:
        self.pid: int | None = None
        self._order, self._transport, self._on_end = order, transport, on_end
        self._stopping = Stopping()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=order.seat, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def terminate(self) -> None:
        """Ask its task to finish."""
        self._stopping.ask(REASONS[signal.SIGTERM])

    def kill(self) -> bool:
        """Give it up: its peers are told that it is gone."""
        if self._ended.is_set():
            return False
        self._stopping.ask("given up")
        self._tell(Ended(-9, "given up: its thread does not end"))
        return True

    def join(self, timeout: float) -> None:
        """Wait for its end, for at most `timeout` seconds."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("the thread of %s does not end and is left behind", self._order.seat)

    def _run(self) -> None:
        code = attend(self._order, self._transport, stopping=self._stopping)
        self._tell(Ended(code, cause(code)))

    def _tell(self, how: Ended) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._on_end(how)
