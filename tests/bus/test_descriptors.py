"""A process that is short of file descriptors takes on no more peers, and says so; it is never aborted."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from engine.bus import descriptors
from engine.bus.bus import Bus, host, join
from engine.bus.gate import Gate
from engine.bus.zeromq import ZeroMQ
from engine.errors import UsageError

LONG = 60.0

pytestmark = pytest.mark.timeout(180)

CHILD = """
import os, resource, sys
at, limit = sys.argv[1], int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
from engine.bus.bus import host, join
from engine.bus.zeromq import ZeroMQ
if at:
    bus = join(ZeroMQ(), at=at, run="r", role="learner", timeout=60)
else:
    bus = host(ZeroMQ(), run="r", role="learner")
bus.serve("learner_open", lambda: len(os.listdir("/proc/self/fd")), thread="service")
bus.declare("learner_model", "state")
bus.emit("learner_model", 1)
bus.ready()
print(bus.address, flush=True)
sys.stdin.read()
bus.close()
"""


class Learner:
    """A process with a limit, which hosts a run or joins one."""

    def __init__(self, limit: int, at: str = "") -> None:
        command = [sys.executable, "-c", CHILD, at, str(limit)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def end(self) -> str:
        """Let it leave; return what it said."""
        _, said = self.process.communicate(timeout=LONG)
        assert self.process.returncode == 0, said
        return said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def eventually(ready: Any, what: str = "it") -> Any:
    return Gate().until(lambda: ready() or None, LONG, lambda: f"{what} did not happen", what=what)


def joined(stack: ExitStack, at: str) -> Bus:
    bus = join(ZeroMQ(), at=at, run="r", role="collector", timeout=LONG)
    stack.callback(bus.close, linger=0.2)
    return bus


def fill(stack: ExitStack, at: str, most: int, tell: bool = False) -> tuple[list[Bus], str]:
    """Join until that is refused; return who joined, and why no more did."""
    members: list[Bus] = []
    for _ in range(most):
        try:
            members.append(joined(stack, at))
        except UsageError as error:
            return members, str(error)
        if tell:
            members[-1].declare("learner_model", "state")
            assert members[-1].wait_for("learner_model", timeout=LONG) == 1
    return members, ""


def test_a_hub_short_of_descriptors_refuses_and_lives_and_has_room_again(stack: ExitStack) -> None:
    learner = Learner(200)
    stack.callback(learner.close)
    before = None
    members, why = fill(stack, learner.address, 30)
    assert 8 <= len(members) < 18
    number = (
        r"the run has no room for one more process: learner_0 has \d+ of its 200 file descriptors to spare"
    )
    assert re.search(number, why)
    first = members[0]
    before = first.call("learner_open", timeout=LONG)
    assert before <= 200 - descriptors.SPARE + 1
    for member in members[1:]:
        member.close()
    eventually(lambda: len(first.peers()) == 1, "all leave")
    # Ten for each of them, at once and not after a minute.
    eventually(lambda: first.call("learner_open", timeout=LONG) <= before - 9 * (len(members) - 1))
    again = joined(stack, learner.address)
    assert again.call("learner_open", timeout=LONG) < before
    for one in (again, first):
        one.close()
    said = learner.end()
    assert "learner_0 takes on no more peers: it has" in said
    assert "collector, from" in said
    assert "was not let in: the run has no room" in said


def test_a_member_short_of_descriptors_is_given_no_more_peers(stack: ExitStack) -> None:
    hub = host(ZeroMQ(), run="r")
    stack.callback(hub.close)
    learner = Learner(200, hub.address)
    stack.callback(learner.close)
    members, why = fill(stack, hub.address, 40, tell=True)
    assert 8 <= len(members) < 20
    assert "learner_0 has" in why
    assert members[0].call("learner_open", timeout=LONG) < 200
    for member in members:
        member.close()
    learner.end()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    code = (
        "import resource as r; from engine.bus.zeromq import ZeroMQ;"
        "_, hard = r.getrlimit(r.RLIMIT_NOFILE); r.setrlimit(r.RLIMIT_NOFILE, (min(256, hard), hard));"
        "one = ZeroMQ(); one.start('a:1'); one.close(); print(*r.getrlimit(r.RLIMIT_NOFILE))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG, check=True
    )
    soft, hard = map(int, out.stdout.split())
    assert soft == min(hard, 1 << 20)


def test_a_process_short_of_descriptors_does_not_begin_to_take_part() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(os.listdir("/proc/self/fd"))
    code = (
        "import os, resource as r; from engine.bus.zeromq import ZeroMQ;"
        "r.setrlimit(r.RLIMIT_NOFILE, (100, 100)); kept = [os.open('/', 0) for _ in range(50)];"
        "ZeroMQ().start('a:1')"
    )
    assert used < soft <= hard
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == 1
    assert "UsageError: this process cannot be part of a run: it has" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("limit", [1024, 4096])
def test_the_hundred_and_first_member(stack: ExitStack, limit: int) -> None:
    """At 1,024 it is refused by a hub that goes on; with more it joins."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 8192:
        pytest.skip("this user may not open enough files for so many members in one process")
    learner = Learner(limit)
    stack.callback(learner.close)
    members, why = fill(stack, learner.address, 130)
    if limit == 1024:
        assert 80 <= len(members) <= 95
        assert "file descriptors to spare" in why
    else:
        assert len(members) == 130
    assert members[-1].call("learner_open", timeout=LONG) < limit
    for member in members:
        member.close(linger=0.2)
    learner.end()
