"""Runs a plan: hosts the hub, seats the processes, watches them, and ends them all, whatever happens.

The launcher holds no learner code.  Everything that happens comes to it as an event in one queue, and one
loop decides.  A run goes through stages: ``running``; ``finishing``, when every process was asked to end in
order; ``failed``, when something went wrong and the rest is ended.  No wait is without a bound: who has
not joined, or not left, in time is named and ended, with SIGTERM first and SIGKILL 5 s later.

A process that leaves while the run goes on is a loss, in whatever order it left.  If a signal asked it to,
that is decided 2 s later: what runs jobs signals all processes of one, and may come to the launcher last.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, TypeAlias

import msgspec

from engine.bus.bus import Bus
from engine.bus.meter import METER, Opened, Reading
from engine.bus.names import OBSERVER
from engine.errors import FolderError, UsageError
from engine.launch.backend import Backend, Ended, Handle, Order, was_asked
from engine.launch.card import Card
from engine.launch.crew import Crew, Failure, Place, blame
from engine.launch.ledger import Ledger
from engine.launch.losses import Fail, Policy, Restart, decide
from engine.launch.plan import Plan
from engine.runs.fleet import Fleet
from engine.runs.folder import Run
from engine.signals import REASONS, exit_code, name_of

JOIN_SECONDS = 120.0
"""So long may a process take from its start until it has joined; most of it is importing torch."""
LEAVE_SECONDS = 4.0
"""So long may those without whom the run can end take to leave, before they get a SIGTERM."""
INTERRUPT_SECONDS = 30.0
"""So long may those who record the run take to end in order after Ctrl-C."""
KILL_SECONDS = 5.0
"""So long after its SIGTERM a process gets a SIGKILL."""
_NOW_SECONDS = 1.0
_INSIST_SECONDS = 0.1
_REPEATED_SECONDS = 0.02
SIGNAL_SECONDS = 2.0
"""So long after a process that a signal made leave the launcher's own may come: then the run was stopped."""
_BLAME_SECONDS = 0.3  # so long the cause of a failure may come after its consequence
_EXIT_SECONDS = 0.5  # so long a lost process may take to end by itself
_PARTING_SECONDS = 0.5  # so long the bus may take to strike somebody off
_TICK = 0.2
_MOST_LINES, _ROOM_SECONDS = 1000, 1.0  # so many lines wait to be shown, and one more for so long
_STALL_SECONDS = 3.0  # a loop that stood still for so long was stopped, or the machine was

Stage: TypeAlias = Literal["running", "finishing", "failed"]


@dataclass(frozen=True)
class _Event:
    """Something that happened: its kind, to whom, and what is known of it."""

    kind: Literal["joined", "left", "lost", "ended", "failed", "over", "stop", "signal", "line"]
    seat: str = ""
    about: Any = None
    handle: Handle | None = None


class Launcher:
    """Runs one plan in a run folder, by means of one backend."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        run: Run,
        display: Fleet,
        *,
        run_id: str,
        join_timeout: float = JOIN_SECONDS,
        ready: Callable[[str], None] | None = None,
    ) -> None:
        self.plan = plan
        self.run_id = run_id
        self._backend = backend
        self._run = run
        self._display = display
        self._join_timeout = join_timeout
        self._ready = ready
        self._crew = Crew(plan.roles, plan.policies, plan.seats)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._failures: list[Failure] = []
        self._told: dict[str, Failure] = {}
        self._stage: Stage = "running"
        self._reason: str | None = None
        self._interrupts = 0
        self._interrupted_at = -math.inf
        self._failed_unasked = False
        """Whether the run had failed before anybody asked it to stop."""
        self._asked_by: str | None = None
        """The word of a signal, as in `REASONS`, or who asked otherwise."""
        self._settle_at: float | None = None
        self._progress: dict[str, Any] = {}
        self._bus: Bus | None = None
        self._begin = self._ticked = time.monotonic()
        self._ledger = Ledger()
        self._mismatch = ""
        self._parting: dict[str, threading.Event] = {}
        self._room = threading.Semaphore(_MOST_LINES)
        self._over = False

    def __call__(self) -> Run:
        """Run the program to its end; return the run.  Raises what made it fail."""
        error: BaseException | None = None
        with self._signals():
            try:
                try:
                    self._open()
                    self._loop()
                except BaseException as caught:
                    error = caught
                finally:
                    self._close()
            finally:
                if error is None and self._failures:
                    worst = blame(self._failures)
                    error = worst.error(self._reason or "")
                    told = [] if isinstance(error, FolderError) else self._failures
                    for other in told:
                        if other is not worst:
                            error.add_note(f"then {other.text()}")
                try:
                    self._run.check()
                    self._tell_end(error)
                except FolderError as gone:
                    error = error or gone
        if error is not None:
            raise error
        return Run.open(self._run.path)

    # --- opening and closing --------------------------------------------------------------

    def _open(self) -> None:
        from engine.bus.bus import host

        self._bus = bus = host(
            self._backend.open(),
            run=self.run_id,
            roles=(*self.plan.roles, OBSERVER),
            crew={role: self._crew.left(role) for role in self.plan.roles},
            admit=self._refusal,
        )
        bus.watch(self._on_member)
        for name, method in (
            ("launcher_get_status", self.status),
            ("launcher_get_order", self._give_order),
            ("launcher_stop_run", self._stop_run),
            ("launcher_end_run", self._end_run),
            ("launcher_report_failure", self._report_failure),
        ):
            bus.serve(name, method, thread="service")
        self._write_card(bus.address)
        if self._ready is not None:
            self._ready(bus.address)
        for place in self._crew.places.values():
            self._start(place)

    def _close(self) -> None:
        """End what still runs; after this nothing is left of the run but its folder."""
        self._over = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._leave_card)
            stack.callback(self._tell_losses)
            if self._bus is not None:
                stack.callback(self._bus.close)
            stack.callback(self._backend.close)
            self._note_reports()

    def _tell_losses(self) -> None:
        """Say what was lost, and what does not add up, now that no process counts any more."""
        if losses := self._ledger.losses():
            self._display.message(losses, level="warning")
        self._mismatch = self._ledger.mismatches()
        if self._mismatch:
            self._display.message(f"the env steps do not add up: {self._mismatch}", level="error")
        self._display.update(self.status())
        self._display.close()

    def _leave_card(self) -> None:
        try:
            self._write_card(None)
        except FolderError as error:
            if not self._failures:  # else the process that records the run has said so
                self._display.message(str(error), level="error")

    def _write_card(self, address: str | None) -> None:
        card = Card(
            run=self.run_id,
            pid=os.getpid(),
            host=socket.gethostname(),
            program=self.plan.target.name,
            address=address,
            status={} if address else self.status(),
        )
        with self._run.storing():
            card.write(self._run.path)

    def _tell_end(self, error: BaseException | None) -> None:
        """Write into run.json how the run ended, where the process that records it did not get to it."""
        run = Run.open(self._run.path)
        if totals := self._ledger.totals():
            run.update(exchange=totals, exchange_mismatch=self._mismatch or None)
        stopped = self._interrupts > 0 and not self._failed_unasked
        if isinstance(error, KeyboardInterrupt) or (error is not None and stopped):
            run.finish("interrupted", f"{self._interruption()} at once")
        elif error is not None:
            if run.info["state"] != "failed":
                run.finish("failed", str(error))
        elif run.info["state"] == "running":
            run.finish("interrupted" if self._interrupts else "finished", self._reason)
        elif run.info["state"] == "failed":  # by its own account, though every process left in order
            self._display.message(f"the run failed: {run.info['stop_reason']}", level="error")
        if run.info["state"] == "interrupted" and self._asked_by is not None:
            if self._asked_by not in REASONS.values():
                run.update(stop_reason=f"by {self._asked_by}")
            elif exit_code(run.info["stop_reason"]) != exit_code(self._asked_by):
                run.update(stop_reason=self._asked_by)  # its process had another one, or knew of none

    def _interruption(self) -> str:
        """The reason for which tasks are asked to end and save: that of the signal which came."""
        asked = self._asked_by or ""
        return asked if asked in REASONS.values() else REASONS[signal.SIGINT]

    def _order(self, role: str, seat: str | None) -> Order:
        assert self._bus is not None
        return Order(
            run=self.run_id,
            address=self._bus.address,
            role=role,
            seat=seat,
            program=self.plan.target.name,
            config=msgspec.to_builtins(self.plan.target.config),
            folder=str(self._run.path.resolve()),
            path=[os.path.abspath(path) for path in sys.path if path],
        )

    # --- the loop -------------------------------------------------------------------------

    def _loop(self) -> None:
        while self._crew.alive():
            until = time.monotonic() + _TICK  # also where more comes than one gets done
            with contextlib.suppress(queue.Empty):
                self._handle(self._events.get(timeout=_TICK))
                while time.monotonic() < until:
                    self._handle(self._events.get_nowait())
            self._tick(time.monotonic())
            self._note_reports()
            self._display.update_soon(self.status)

    def _handle(self, event: _Event) -> None:
        place = self._crew.places.get(event.seat)
        if event.kind == "line":
            self._room.release()
            self._on_line(event.seat, event.about)
        elif event.kind == "joined":
            self._joined(event.seat, event.about)
        elif event.kind == "failed":
            if place is not None:
                self._told[event.seat] = event.about
            if place is not None and place.alive:
                place.kill_by = time.monotonic() + KILL_SECONDS  # it only has to leave now
        elif event.kind == "over":
            self._finish(event.about)
        elif event.kind == "stop":
            self._stop(*event.about)
        elif event.kind == "signal":
            self._interrupted(*event.about)
        elif place is not None and event.kind == "ended":
            if event.handle is place.handle:
                self._ended(place, event.about)
        elif place is not None and place.alive:
            self._gone(place, event.about, left=event.kind == "left")

    def _tick(self, now: float) -> None:
        stalled, self._ticked = now - self._ticked - _TICK, now
        if stalled > _STALL_SECONDS:
            self._display.message(
                f"the launcher stood still for {stalled:.0f} s: who waited for it may have given up",
                level="warning",
            )
        for place in self._crew.alive():
            if place.due is not None and now >= place.due:
                self._start(place)
            if place.decide_by is not None and now >= place.decide_by:
                self._settle(place)
            if place.state == "starting" and place.join_by is not None and now >= place.join_by:
                place.join_by = None
                place.cause = f"did not join within {self._join_timeout:g} s"
                self._kill(place)
            if place.kill_by is not None and now >= place.kill_by:
                place.kill_by = None
                self._kill(place)
            elif place.insist_by is not None and now >= place.insist_by:
                place.insist_by = None
                if place.handle is not None:
                    place.handle.terminate()
            elif place.leave_by is not None and now >= place.leave_by:
                place.leave_by = None
                if place.handle is not None:
                    self._display.message(f"{place.seat.name} has not left yet: it gets a SIGTERM")
                self._terminate(place, KILL_SECONDS)
        if self._settle_at is not None and now >= self._settle_at:
            self._settle_at = None
            self._end_all(KILL_SECONDS)

    def _start(self, place: Place) -> None:
        name = place.seat.name
        place.state, place.due, place.insist_by, place.kill_by = "starting", None, None, None
        place.cause, place.killed = "", False
        place.join_by = time.monotonic() + self._join_timeout
        handles: list[Handle] = []
        started = threading.Event()

        def on_end(how: Ended) -> None:
            started.wait()
            self._events.put(_Event("ended", name, how, handles[0]))

        def on_line(line: str) -> None:
            # Whoever prints quicker than it can be shown waits, so that nothing else waits behind its lines.
            if not self._over:
                self._room.acquire(timeout=_ROOM_SECONDS)
            self._events.put(_Event("line", name, line))

        place.handle = self._backend.start(self._order(place.seat.role, name), on_end=on_end, on_line=on_line)
        handles.append(place.handle)
        started.set()

    # --- what happens to processes --------------------------------------------------------

    def _joined(self, name: str, about: Mapping[str, Any]) -> None:
        place, role = self._crew.places.get(name), str(about["role"])
        if place is None or not place.alive:
            if self.plan.roles[role].records:
                return  # there can be one: `_give_order` refuses, and it leaves
            self._crew.attach(name, role, dict(about))
            self._display.message(f"{name} has joined, from {about.get('host')}")
            return
        place.state, place.about, place.join_by = "running", dict(about), None
        if all(one.state == "running" for one in self._crew.places.values()):
            self._display.update(self.status())

    def _gone(self, place: Place, cause: str, *, left: bool) -> None:
        """Somebody left the bus; what was started here has ended when its process has."""
        if place.attached:
            failure = self._told.pop(place.seat.name, None)
            if left and failure is None:
                if self._stage == "running":
                    words = f"has left {cause}" if cause.startswith("on ") else "has left"
                    self._leave(place, Failure(place.seat.name, "", words), SIGNAL_SECONDS)
                else:
                    place.state = "finished"
            else:
                self._lose(place, failure or Failure(place.seat.name, "", f"was lost: {cause}"))
        elif place.handle is None:
            pass  # its end was seen before
        elif left:
            place.cause = "did not end after it had left the run"
            place.leave_by = None
            place.kill_by = place.kill_by or time.monotonic() + KILL_SECONDS
        elif place.kill_by is None:
            # Struck off for good, so it can be of no use; but if it is just dying, its end says more.
            place.cause = f"was lost: {cause}"
            place.kill_by = time.monotonic() + _EXIT_SECONDS

    def _ended(self, place: Place, how: Ended) -> None:
        name = place.seat.name
        place.handle = None
        self._strike(name, how.cause)
        failure = self._told.pop(name, None)
        if failure is None and self._expected(place, how.code):
            place.state = "finished"
            if how.code == -signal.SIGKILL:
                place.state = "lost"
                self._ledger.lose(name)
            if self._crew.over() and self._stage == "running":
                self._finish(f"{name} has finished")
            self._hurry()
            return
        if failure is None:
            ended_here = place.killed and place.cause
            failure = Failure.of(name, how, place.cause if ended_here else how.cause)
            if self._stage == "running" and not ended_here and was_asked(how.code):
                self._leave(place, failure, SIGNAL_SECONDS)
                return
        self._lose(place, failure)

    def _expected(self, place: Place, code: int) -> bool:
        """Whether a process that reported no failure may end so: in order, or as it was asked to."""
        records = self.plan.roles[place.seat.role].records
        if self._stage == "running":
            if records:  # it would have said that the run is over, unless it could not be heard
                return code == 0 and Run.open(self._run.path).info["state"] != "running"
            return code == 0 and place in self._crew.decisive()
        in_order = code == 0 or was_asked(code)
        by_force = code in (-signal.SIGTERM, -signal.SIGKILL)
        if self._stage == "failed" or self._interrupts:
            return in_order or by_force
        return (in_order and (code >= 0 or not records)) or (by_force and not records)

    def _leave(self, place: Place, failure: Failure, patience: float) -> None:
        """A process has left although the run goes on: a loss, unless the run is to stop too."""
        place.state, place.left, place.decide_by = "leaving", failure, time.monotonic() + patience
        place.join_by = place.leave_by = place.insist_by = place.kill_by = None

    def _settle(self, place: Place) -> None:
        """The run was not stopped together with a process that left: it is lost."""
        failure, place.left, place.decide_by = place.left, None, None
        assert failure is not None
        self._lose(place, failure, left=True)

    def _excuse(self, place: Place) -> None:
        """The run is stopped, or over, and with it the process that left."""
        place.state, place.left, place.decide_by = "finished", None, None

    def _lose(self, place: Place, failure: Failure, *, left: bool = False) -> None:
        in_order = left and place.attached
        place.state = "finished" if in_order else "lost"
        self._note_reports()
        self._ledger.lose(place.seat.name, final=in_order)
        role = self.plan.roles[place.seat.role]
        policy = self.plan.policies[role.name]
        if place.attached and (in_order or policy.loss == "restart"):
            policy = Policy("go_on")  # it is not the launcher's to start, and may come and go
        number = self._crew.left(role.name)
        if self._stage == "failed":
            if policy.loss == "fail" or not failure.consequence:
                self._failures.append(failure)
            return
        if self._stage == "finishing" and not role.records and policy.loss != "fail":
            self._display.message(f"{failure.text()}, while the run was finishing")
            return
        verdict = decide(role, policy, restarts=place.restarts, left=number)
        if failure.mistaken and not place.attached:  # elsewhere other packages may be installed
            verdict = Fail("")
        if isinstance(verdict, Fail):
            self._fail(failure, verdict.why)
        elif isinstance(verdict, Restart):
            place.restarts += 1
            place.state, place.due = "waiting", time.monotonic() + verdict.after
            self._warn(
                failure, f"it is started again in {verdict.after:g} s, for the {_nth(place.restarts)} time"
            )
        else:
            if self._bus is not None and not place.attached:
                self._bus.expect(role.name, self._crew.seated(role.name))
            self._warn(failure, f"the run goes on with {number} {role.name}{'s' if number != 1 else ''}")

    def _warn(self, failure: Failure, then: str) -> None:
        steps = self._ledger.at_most_lost(failure.seat)
        self._display.message(
            "; ".join(part for part in (failure.text(), then, steps) if part),
            level="warning",
            traceback=failure.traceback or failure.output,
        )

    def _fail(self, failure: Failure, why: str) -> None:
        self._failures.append(failure)
        self._failed_unasked = not self._interrupts
        self._stage, self._reason = "failed", why
        self._settle_at = time.monotonic() + _BLAME_SECONDS

    def _finish(self, reason: str) -> None:
        """Ask everybody to end in order."""
        if self._stage != "running":
            return
        self._stage, self._reason = "finishing", reason
        now = time.monotonic()
        if self._bus is not None:
            self._bus.tell_finish(reason)
        decisive = self._crew.decisive()
        for place in self._crew.alive():
            if place.state == "waiting":
                place.state, place.due = "finished", None
            elif place.state == "leaving":
                if place.left is not None and not self._interrupts:
                    self._display.message(f"{place.left.text()}, while the run was finishing")
                self._excuse(place)
            elif place not in decisive:
                place.leave_by = now + LEAVE_SECONDS
            elif self._interrupts:
                place.leave_by = now + INTERRUPT_SECONDS

    def _hurry(self) -> None:
        """Once the run is over, whoever is left must leave."""
        if self._stage == "finishing" and self._crew.over():
            by = time.monotonic() + LEAVE_SECONDS
            for place in self._crew.alive():
                place.leave_by = min(place.leave_by or by, by)

    def _end_all(self, patience: float) -> None:
        if self._bus is not None:
            self._bus.tell_finish(self._reason or "the run has failed")
        for place in self._crew.alive():
            if place.state == "waiting":
                place.state = "lost"
            elif place.state == "leaving":
                self._excuse(place)
            else:
                self._terminate(place, patience)

    def _terminate(self, place: Place, patience: float) -> None:
        """End a process now, and by force after so long."""
        now = time.monotonic()
        place.leave_by, place.insist_by, place.kill_by = None, now + _INSIST_SECONDS, now + patience
        if place.handle is not None:
            place.handle.terminate()

    def _kill(self, place: Place) -> None:
        if place.handle is not None:
            place.killed = place.handle.kill()
        else:
            place.killed = True
            self._strike(place.seat.name, place.cause or "did not leave in time")
            place.state = "lost"
            self._ledger.lose(place.seat.name)

    def _strike(self, name: str, cause: str) -> None:
        """Tell everybody that a process is gone, unless they know."""
        bus = self._bus
        if bus is not None and any(peer.name == name for peer in bus.peers()):
            parted = self._parting[name] = threading.Event()
            bus.declare_lost(name, cause)
            parted.wait(_PARTING_SECONDS)  # so that its last words are known

    # --- what it is asked for, on the bus's threads or by signals ---------------------------

    def status(self) -> dict[str, Any]:
        """Return what `engine top` shows."""
        self._note_reports()
        return {
            "run": self.run_id,
            "folder": str(self._run.path),
            "program": self.plan.target.name,
            "stage": self._stage,
            "reason": self._reason,
            "seconds": round(time.monotonic() - self._begin, 3),
            "progress": dict(self._progress),
            "seats": self._crew.rows(),
            "exchange": self._ledger.totals(),
        }

    def _note_reports(self) -> None:
        """Keep what each process said last of itself, for when it is gone."""
        for peer in [] if self._bus is None else self._bus.peers():
            place = self._crew.places.get(peer.name)
            if place is not None and peer.report:
                place.note(peer.report, time.monotonic())
                self._ledger.note(peer.name, peer.report)

    def _on_member(self, kind: str, peer: Any, cause: str) -> None:
        if kind == "joined" and peer.role in self.plan.roles:
            self._ledger.begin(peer.name, _meter_of(peer.about))
        if peer.report:
            self._ledger.note(peer.name, peer.report)
        if kind != "joined" and (parted := self._parting.pop(peer.name, None)):
            parted.set()
        if peer.role in self.plan.roles:
            about: Any = {**peer.about, "role": peer.role} if kind == "joined" else cause
            self._events.put(_Event(kind, peer.name, about))  # type: ignore[arg-type]

    def _on_line(self, name: str, line: str) -> None:
        row = self._display.line(name, line)
        if row is not None:
            self._progress = row

    def _refusal(self, role: str, name: str, about: Mapping[str, Any]) -> str | None:
        """Say why a process may not join: a worker takes a seat of the plan, or a role that is open."""
        open_roles = [one.name for one in self.plan.roles.values() if not one.records]
        if name in self._crew.places or (not name and role in open_roles):
            return None
        if role == OBSERVER and not name and not about.get("works"):
            return None
        can = f"; {', '.join(open_roles)} can" if open_roles else ""
        return f"{'an' if role[0] in 'aeiou' else 'a'} {role} cannot join this run from elsewhere{can}"

    def _give_order(self, role: str) -> dict[str, Any]:
        if role not in self.plan.roles or self.plan.roles[role].records:
            raise UsageError(f"a {role} cannot join this run from elsewhere")
        order: dict[str, Any] = msgspec.to_builtins(self._order(role, None))
        return order

    def _stop_run(self, reason: str = "engine stop", now: bool = False) -> str:
        self._events.put(_Event("stop", about=(reason, now)))
        return self._stage

    def _end_run(self, seat: str, reason: str) -> None:
        self._events.put(_Event("over", seat, reason))

    def _report_failure(self, seat: str, kind: str, message: str, traceback: str, code: int) -> None:
        self._events.put(_Event("failed", seat, Failure(seat, kind, message, traceback, code=code)))

    def _stop(self, reason: str, now: bool) -> None:
        self._interrupts += 1
        self._asked_by = self._asked_by or reason
        if now:
            if self._stage == "running":
                self._stage, self._reason = "finishing", self._interruption()
            self._end_all(_NOW_SECONDS)
        else:
            self._finish(self._interruption())

    def _interrupted(self, number: int, when: float) -> None:
        if number != signal.SIGINT and when < self._interrupted_at + _REPEATED_SECONDS:
            return  # one order that came twice: to the process and its group, or as SIGTERM and SIGHUP
        self._interrupted_at = when
        time.sleep(_REPEATED_SECONDS)  # before the message, after which any signal is another order
        if self._interrupts == 0:
            what = (
                "the run has failed and is ending"
                if self._stage == "failed"
                else "every process ends its iteration and the run is saved"
            )
            self._display.message(f"{name_of(number)}: {what}; once more stops at once")
        self._stop(REASONS[number], now=self._interrupts > 0)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn Ctrl-C, SIGTERM and the end of the terminal into events; restored on exit."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def asked(number: int, frame: FrameType | None) -> None:
            self._events.put(_Event("signal", about=(number, time.monotonic())))

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # else it was started with nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, asked) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _meter_of(about: Mapping[str, Any]) -> Callable[[], Reading] | None:
    """Return what reads the meter of a process of this machine, from what it tells of itself."""
    if about.get("host") != socket.gethostname():
        return None
    try:
        return Opened(about.get("pid"), about.get(METER)).read
    except LookupError:
        return None


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
