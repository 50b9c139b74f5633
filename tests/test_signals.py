"""How signals end a task, and whatever it runs inside of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from engine import OnlineContext, Task
from engine.context import Context
from engine.signals import REASONS, Stop, Terminated, exit_code, number_of

ENDS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers_stay_as_they_were() -> Iterator[None]:
    before = [signal.getsignal(number) for number in REASONS]
    yield
    assert [signal.getsignal(number) for number in REASONS] == before


def kill(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("async_mode", [False, True])
@pytest.mark.parametrize(("number", "reason"), REASONS.items())
def test_the_first_signal_ends_the_iteration_and_a_further_run_goes_on(
    number: int, reason: str, async_mode: bool
) -> None:
    def step(ctx: OnlineContext) -> None:
        if ctx.total_step == 3:
            kill(number)
        ctx.env_step += 1

    with Task(OnlineContext(), async_mode=async_mode) as task:
        task.use(step)
        assert task.run(max_step=100_000).env_step < 100_000
        assert task.finish_reason == reason
        done = task.ctx.env_step
        assert task.run(max_step=2).env_step == done + 2
        assert task.finish_reason is None


@pytest.mark.parametrize("first", ENDS)
@pytest.mark.parametrize("second", REASONS)
def test_a_second_signal_of_any_kind_is_immediate(first: int, second: int) -> None:
    log: list[str] = []

    def step(ctx: Context) -> None:
        kill(first)
        log.append("goes on")
        kill(second)
        log.append("not reached")

    with Task() as task, pytest.raises((KeyboardInterrupt, Terminated)) as caught:
        task.use(step).run()
    assert log == ["goes on"]
    if second == signal.SIGINT:
        assert caught.type is KeyboardInterrupt
    else:
        assert caught.value.code == 128 + second


def test_an_order_that_comes_twice_at_once_counts_once() -> None:
    # As `timeout` sends it: to the process, then to its group.
    program = (
        "import time\n"
        "from engine import Task\n"
        "def step(ctx):\n"
        "    print('runs', flush=True)\n"
        "    by = time.monotonic() + 1\n"
        "    while time.monotonic() < by: sum(range(1000))\n"
        "    print('whole', flush=True)\n"
        "with Task() as task:\n"
        "    task.use(step).run()\n"
        "    print(task.finish_reason)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGHUP):  # and systemd a SIGHUP behind it
        process.send_signal(number)
    assert process.communicate(timeout=60)[0] == "whole\nsigterm\n"
    assert process.returncode == 0


def test_what_was_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Task() as task:
            task.use(lambda ctx: kill(signal.SIGHUP))
            assert task.run(max_step=3).total_step == 3
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_handler_of_the_programs_own_stays_in_charge() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with Task() as task:
            task.use(lambda ctx: kill(signal.SIGTERM))
            assert task.run(max_step=2).total_step == 2
        assert heard == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", ENDS)
def test_a_signal_ends_the_tasks_around_a_nested_one_too(number: int) -> None:
    def nested(ctx: Context) -> None:
        inner.run(max_step=5)

    with Task() as inner, Task() as outer:
        inner.use(lambda ctx: kill(number) if ctx.total_step == 1 else None)
        outer.use(nested)
        assert (outer.run(max_step=5).total_step, inner.ctx.total_step) == (1, 2)
    assert inner.finish_reason == outer.finish_reason == REASONS[number]


def test_a_stop_without_a_task_raises_unless_it_is_held() -> None:
    with pytest.raises(Terminated) as caught, Stop() as stop:
        kill(signal.SIGTERM)
    assert (caught.value.code, stop.reason) == (143, "sigterm")
    with Stop() as stop:
        with stop.held():
            kill(signal.SIGINT)
        assert stop.reason == "interrupted"
        with pytest.raises(KeyboardInterrupt):
            stop.check()


def test_a_task_inside_a_stop_that_was_asked_does_not_begin() -> None:
    ran: list[int] = []
    with Stop() as stop, Task() as task:
        task.use(lambda ctx: ran.append(ctx.total_step))
        with stop.held():
            kill(signal.SIGTERM)
            with pytest.raises(Terminated):
                task.run(max_step=1)
            assert not stop.insisted
    assert ran == []


def test_a_stop_around_a_task_learns_of_the_signal_that_ended_it() -> None:
    with Stop() as stop, Task() as task:
        task.use(lambda ctx: kill(signal.SIGHUP) if ctx.total_step == 1 else None)
        assert task.run(max_step=9).total_step == 2
    assert stop.reason == "sighup"


def test_exit_codes_follow_from_reasons() -> None:
    assert [exit_code(reason) for reason in ("sigterm", "sighup", "interrupted", None)] == [
        143,
        129,
        130,
        130,
    ]
    assert number_of("sigterm at once: nothing is saved") == signal.SIGTERM
    assert number_of("300,000 env steps are done") is None
