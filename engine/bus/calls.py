"""Remote calls: those that this process makes, and those that it answers."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from engine.bus.aside import ServiceThread
from engine.bus.gate import FOR_EVER, Gate
from engine.bus.lines import ANSWER_SECONDS
from engine.bus.message import SMALL_BYTES, Call, Failure, Member, Reply
from engine.bus.router import UNSERVED_SECONDS, Arrived, Body
from engine.bus.services import Served, Services, error_of, failure_of
from engine.bus.transport import Frame
from engine.errors import (
    Abandoned,
    CodecError,
    DeadlineExceeded,
    Finishing,
    NoSuchService,
    PeerLost,
    UsageError,
    did_you_mean,
)

if TYPE_CHECKING:
    from engine.bus.network import Network
    from engine.bus.values import Values

_SOON_SECONDS = 0.1


class _Pending:
    """A call that is waited for; ``told`` is released when it has ended."""

    __slots__ = ("at_gate", "outcome", "server", "told")

    def __init__(self) -> None:
        self.outcome: Arrived | Failure | None = None
        self.server = ""
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
        peer: str | None = None,
    ) -> Any:
        """Call a method, here or elsewhere; see `Bus.call`."""
        network, values = self.network, self.values
        mine = peer is None or peer == self._me()
        if mine and method in self.services.table:
            return self._call_here(method, next(self._numbers), timeout, args, kwargs)
        if network is None or values is None:
            raise self._unserved(method, peer)
        self._gate.check("a call")
        body = values.snapshot_call(args, kwargs)
        call = self._call(method, body, timeout)
        servers = network.router.servers.get(method, ())
        turns = network.router.turns if peer is None and len(servers) > 1 else None
        if turns is not None:
            server = turns.begin(method, servers)
        elif peer is None:
            server = servers[0] if servers else ""
        elif mine:
            raise self._unserved(method, peer)
        else:
            server = network.id_of(peer)
        direct = (
            server in servers
            and not body.size
            and len(body.skeleton) < SMALL_BYTES
            and (timeout is None or timeout > ANSWER_SECONDS)
            and self._may_block
        )
        try:
            outcome, name = self._made(
                network, call, body, server, direct, peer is not None, timeout, expected
            )
        except BaseException:
            network.do(lambda: network.router.cancel(call.number, server if direct else ""))
            raise
        finally:
            if turns is not None:
                turns.end(server)
        if isinstance(outcome, Failure):
            raise error_of(outcome, method, name)
        return values.load(outcome)

    def call_all(
        self,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
        expected: Callable[[], str],
    ) -> dict[str, Any]:
        """Call a method wherever it is served; see `Bus.call_all`."""
        network, values = self.network, self.values
        deadline = None if timeout is None else time.monotonic() + timeout
        here = method in self.services.table
        if network is None or values is None:
            if not here:
                raise self._unserved(method)
            return {self._me(): self._result(lambda: self._call_here(method, 0, timeout, args, kwargs))}
        self._gate.check("a call")
        servers = self._servers(network, method, here, timeout, expected)
        body = values.snapshot_call(args, kwargs)
        asked: dict[str, tuple[_Pending, str, int]] = {}
        try:
            for server in servers:
                call = self._call(method, body, timeout)
                call.number = next(self._numbers)
                pending = self._pending[call.number] = _Pending()
                pending.at_gate = True
                asked[server] = pending, network.name_of(server), call.number
                network.do(partial(network.router.call, call, body.frames(), server, only=True))
            results: dict[str, Any] = {}
            if here:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                number = next(self._numbers)
                results[self._me()] = self._result(
                    lambda: self._call_here(method, number, left, args, kwargs)
                )
            self._gather([pending for pending, _, _ in asked.values()], method, deadline)
        finally:
            for server, (pending, _, number) in asked.items():
                del self._pending[number]
                if pending.outcome is None:
                    network.do(partial(network.router.cancel, number, server))
        for pending, name, _ in asked.values():
            results[name or pending.server] = self._result(
                partial(self._open, pending, method, name, timeout)
            )
        return dict(sorted(results.items()))

    def _servers(
        self,
        network: Network,
        method: str,
        here: bool,
        timeout: float | None,
        expected: Callable[[], str],
    ) -> tuple[str, ...]:
        """Return the ids of all others that serve a method; waits for one unless it is served `here`."""
        began = time.monotonic()

        def serving() -> tuple[str, ...] | None:
            servers = network.router.servers.get(method, ())
            if servers or here:
                return servers
            if time.monotonic() - began > UNSERVED_SECONDS and network.router.unserved(method):
                raise NoSuchService(network.router.unserved(method))
            return None

        return self._gate.until(
            serving,
            timeout,
            lambda: f"nothing has served {method!r} within {timeout:g} s{expected()}",
            what=f"the answers to {method!r}",
            finishing=False,
        )

    def _gather(self, waiting: list[_Pending], method: str, deadline: float | None) -> None:
        """Wait until all calls have ended, or the deadline has passed."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with contextlib.suppress(DeadlineExceeded):  # told of each that did not answer
            self._gate.until(
                lambda: True if all(pending.outcome is not None for pending in waiting) else None,
                left,
                lambda: "",
                what=f"the answers to {method!r}",
                finishing=False,
            )

    def _open(self, pending: _Pending, method: str, name: str, timeout: float | None) -> Any:
        """Return what a call of many returned, or raise why it did not."""
        assert self.values is not None
        if pending.outcome is None:
            raise DeadlineExceeded(f"{method!r} was not answered by {name} within {timeout:g} s")
        if isinstance(pending.outcome, Failure):
            raise error_of(pending.outcome, method, name)
        return self.values.load(pending.outcome)

    @staticmethod
    def _result(work: Callable[[], Any]) -> Any:
        """Return what `work` returns, or the error that it raises; the end of the run is none."""
        try:
            return work()
        except (Abandoned, Finishing):
            raise
        except Exception as error:
            return error

    def _call(self, method: str, body: Body, timeout: float | None) -> Call:
        seconds = FOR_EVER if timeout is None else min(timeout, FOR_EVER)
        return Call(0, method, int(seconds * 1000), body.size, body.skeleton)

    def _unserved(self, method: str, peer: str | None = None) -> Exception:
        if peer is not None and peer != self._me():
            return PeerLost(
                f"{peer} cannot be called: it is not in the run", peer=peer, cause="it is not in the run"
            )
        hint = did_you_mean(method, self.services.table)
        return NoSuchService(
            f"{peer or 'no process'} {'does not serve' if peer else 'serves'} {method!r}{hint}"
        )

    def _me(self) -> str:
        return "main" if self.network is None else self.network.me.name

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
        direct: bool,
        only: bool,
        timeout: float | None,
        expected: Callable[[], str],
    ) -> tuple[Arrived | Failure, str]:
        """Make a call, if `direct` by a line to `server`; return how it ended and the server's name."""
        router, asked = network.router, False
        line = network.lines.take(server) if direct else None
        # With the line in hand: who serves takes calls of one line in the order of their numbers.
        call.number = next(self._numbers)
        pending: _Pending | None = None
        try:
            if line is not None:
                answer = line.ask(call)
                if isinstance(answer, Reply):
                    return Arrived(answer.skeleton, 0), ""
                if isinstance(answer, Failure):
                    return answer, network.name_of(server)
                asked = answer
            pending = self._pending[call.number] = _Pending()
            if asked:
                network.do(lambda: router.insist(call, server))
            else:
                network.do(lambda: router.call(call, body.frames(), server, only=only))
            return self._outcome(pending, call.method, timeout, expected), pending.server
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

        deadline = time.monotonic() + (FOR_EVER if timeout is None else timeout)
        served = Served("", number, method, deadline, lambda: (args, kwargs), finish)
        mine = self._gate.runner in (None, threading.get_ident())
        if self.services.table[method].where == "service" and self.services.thread.is_this:
            raise UsageError(
                f"{method!r} is answered by the service thread, which is calling it here and would wait for "
                "itself: call the function itself, or serve one of the two on another thread"
            )
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

    def replied(self, number: int, outcome: Arrived | Failure, server: str) -> None:
        """A call of ours has ended; `server` is the name of the process that answered."""
        pending = self._pending.get(number)
        if pending is None:
            return
        pending.server = server
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

        deadline = time.monotonic() + min(call.milliseconds / 1000, FOR_EVER)
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
