"""Remote calls: those that this process makes, and those that it answers."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from engine.bus.aside import ServiceThread
from engine.bus.gate import Gate
from engine.bus.lines import ANSWER_SECONDS
from engine.bus.message import SMALL_BYTES, Call, Failure, Member, Reply
from engine.bus.router import Arrived, Body
from engine.bus.services import Served, Services, error_of, failure_of
from engine.bus.transport import Frame
from engine.errors import CodecError, NoSuchService, did_you_mean

if TYPE_CHECKING:
    from engine.bus.network import Network
    from engine.bus.values import Values

_SOON_SECONDS = 0.1
_FOR_EVER = 365 * 24 * 3600.0


class _Pending:
    """A call that is waited for; ``told`` is released when it has ended."""

    __slots__ = ("at_gate", "outcome", "told")

    def __init__(self) -> None:
        self.outcome: Arrived | Failure | None = None
        self.told = threading.Lock()
        self.told.acquire()
        self.at_gate = False


class Calls:
    """Makes calls and answers them; `network` and `values` are None while the process is alone."""

    def __init__(self, gate: Gate, look: Callable[[], None], thread: ServiceThread) -> None:
        self.network: Network | None = None
        self.values: Values | None = None
        self.services = Services(thread=thread)
        self._gate, self._changed, self._look = gate, gate.changed, look
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)

    # --- made -------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        expected: Callable[[], str],
    ) -> Any:
        """Call a method, here or elsewhere; see `Bus.call`."""
        if method in self.services.table:
            return self._call_here(method, next(self._numbers), timeout, args, kwargs)
        network, values = self.network, self.values
        if network is None or values is None:
            raise NoSuchService(f"nobody serves {method!r}{did_you_mean(method, self.services.table)}")
        self._gate.check("a call")
        body = values.snapshot_call(args, kwargs)
        seconds = _FOR_EVER if timeout is None else timeout
        call = Call(0, method, int(min(seconds, _FOR_EVER) * 1000), body.size, body.skeleton)
        servers = network.router.servers.get(method, ())
        direct = bool(servers) and not body.size and len(body.skeleton) < SMALL_BYTES and self._may_block
        server = servers[0] if direct and seconds > ANSWER_SECONDS else ""
        try:
            outcome = self._made(network, call, body, server, timeout, expected)
        except BaseException:
            network.do(lambda: network.router.cancel(call.number, server))
            raise
        if isinstance(outcome, Failure):
            raise error_of(outcome, method, network.server_of(method))
        assert isinstance(outcome, Arrived)
        return values.load(outcome)

    @property
    def _may_block(self) -> bool:
        """Whether this thread may wait without answering calls meanwhile."""
        me = threading.get_ident()
        return me != self._gate.network and not (me == self._gate.runner and self.services.for_this_thread)

    def _made(
        self,
        network: Network,
        call: Call,
        body: Body,
        server: str,
        timeout: float | None,
        expected: Callable[[], str],
    ) -> Arrived | Failure:
        """Make a call, by a line to `server` if there is one, and return how it ended."""
        router, asked = network.router, False
        line = network.lines.take(server) if server else None
        # With the line in hand: who serves takes calls of one line in the order of their numbers.
        call.number = next(self._numbers)
        pending: _Pending | None = None
        try:
            if line is not None:
                answer = line.ask(call)
                if isinstance(answer, Reply):
                    return Arrived(answer.skeleton, 0)
                if isinstance(answer, Failure):
                    return answer
                asked = answer
            pending = self._pending[call.number] = _Pending()
            if asked:
                network.do(lambda: router.insist(call, server))
            else:
                network.do(lambda: router.call(call, body.frames()))
            return self._outcome(pending, call.method, timeout, expected)
        finally:
            if pending is not None:
                del self._pending[call.number]
            if line is not None:
                network.lines.give_back(server, line)

    def _outcome(
        self, pending: _Pending, method: str, timeout: float | None, expected: Callable[[], str]
    ) -> Arrived | Failure:
        left = timeout
        if self._may_block:
            # Most calls end soon, and a lock of their own wakes nobody else and needs no second look.
            first = _SOON_SECONDS if timeout is None else min(timeout, _SOON_SECONDS)
            if pending.told.acquire(timeout=first):
                assert pending.outcome is not None
                return pending.outcome
            left = None if timeout is None else timeout - first
        pending.at_gate = True
        self._gate.until(
            lambda: True if pending.outcome is not None else None,
            left,
            lambda: f"{method!r} was not answered within {timeout:g} s{expected()}",
            what=f"the answer to {method!r}",
            finishing=False,
        )
        assert pending.outcome is not None
        return pending.outcome

    def _call_here(
        self,
        method: str,
        number: int,
        timeout: float | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        outcome: list[tuple[Any, BaseException | None]] = []

        def finish(result: Any, error: BaseException | None) -> None:
            with self._changed:
                outcome.append((result, error))
                self._changed.notify_all()

        deadline = time.monotonic() + (_FOR_EVER if timeout is None else timeout)
        served = Served("", number, method, deadline, lambda: (args, kwargs), finish)
        mine = self._gate.runner in (None, threading.get_ident())
        if mine and self.services.table[method].where == "task":
            self.services.answer(served)
        elif self.services.accept(served):
            self._look()
        result, error = self._gate.until(
            lambda: outcome[0] if outcome else None,
            timeout,
            lambda: f"{method!r} was not answered within {timeout:g} s",
            what=f"the answer to {method!r}",
            finishing=False,
        )
        if error is not None:
            raise error
        return result

    def replied(self, number: int, outcome: Arrived | Failure) -> None:
        """A call of ours has ended."""
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.outcome = outcome
        if pending.at_gate or self.network is None:
            self._gate.wake()
        else:
            self.network.at_last(pending.told.release)

    # --- answered ---------------------------------------------------------------------------

    def called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        """Somebody calls a method of ours; on the network's thread."""
        network, values = self.network, self.values
        assert network is not None
        assert values is not None
        router, caller, number = network.router, sender.id, call.number

        def load() -> tuple[tuple[Any, ...], dict[str, Any]]:
            return values.load_call(Arrived(call.skeleton, call.size, None, arena))

        def finish(result: Any, error: BaseException | None) -> None:
            if error is None:
                try:
                    body = values.snapshot_reply(result)
                except CodecError as unsendable:
                    error = unsendable
                else:
                    network.now_or_soon(
                        lambda: router.reply(caller, number, body.skeleton, body.size, body.frames())
                    )
                    return
            failure = failure_of(number, error)
            network.now_or_soon(lambda: router.fail(caller, failure))

        deadline = time.monotonic() + min(call.milliseconds / 1000, _FOR_EVER)
        if self.services.accept(Served(caller, number, call.method, deadline, load, finish)):
            self._look()

    def answer(self) -> bool:
        """Answer one call that waits for the task's thread; False if there is none."""
        try:
            call = self.services.for_task.popleft()
        except IndexError:
            return False
        self.services.answer(call)
        return True

    def answer_all(self) -> None:
        """Answer the calls that wait for the task's thread now."""
        for _ in range(len(self.services.for_task)):
            self.answer()
