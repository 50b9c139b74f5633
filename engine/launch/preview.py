"""What each role of a plan would run, found out without running it: no process, no socket, no file.

Every role is built as its process would build it, in a thread of this one, with the bus in memory.  All of
them at once, as one may ask another while it is built.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from engine.bus.bus import Bus, host, join
from engine.bus.memory import Network
from engine.bus.names import OBSERVER
from engine.envs.config import EnvConfig
from engine.errors import DeadlineExceeded, Finishing, PeerLost
from engine.launch.plan import Plan
from engine.recipes.experiment import built
from engine.runs.diagram import draw

BUILD_SECONDS = 5.0
"""So long may the roles take to be built; importing torch is not counted."""
_LEAVE_SECONDS = 1.0
_RUN = "preview"

_Told: TypeAlias = "queue.SimpleQueue[tuple[str, str | BaseException]]"
_WAITED = (DeadlineExceeded, Finishing, PeerLost)
"""What a role raises that waits, while it is built, for what only happens when all of them run."""


def pipelines(plan: Plan, *, timeout: float = BUILD_SECONDS) -> dict[str, str]:
    """Return the pipeline of each role as text; everything that was opened for it is closed again.

    A role that is not built in `timeout` seconds, or waits for what others do once they run, has a
    sentence instead that says so.  Raises what the recipe raises.
    """
    with contextlib.ExitStack() as stack:
        network = Network()
        hub = host(
            network.transport(),
            run=_RUN,
            roles=(*plan.roles, OBSERVER),
            crew=dict.fromkeys(plan.roles, 1),
            shared=False,
        )
        stack.callback(hub.close, linger=0.0)
        buses: dict[str, Bus] = {}
        for role in plan.roles:
            buses[role] = join(
                network.transport(), at=hub.address, run=_RUN, role=role, peer=f"{role}_0", shared=False
            )
            stack.callback(buses[role].close, linger=0.0)
        return _shown(plan, buses, timeout)


def _shown(plan: Plan, buses: Mapping[str, Bus], timeout: float) -> dict[str, str]:
    config = _in_this_process(plan.target.config)
    told: _Told = queue.SimpleQueue()
    over = threading.Event()

    def build(role: str, bus: Bus) -> None:
        try:
            with built(plan.target.recipe, config, roles=frozenset({role}), bus=bus) as task:
                told.put((role, draw(task, "text")))
                over.wait(timeout)  # somebody who is built later may ask it
        except BaseException as error:
            told.put((role, error))

    threads = [
        threading.Thread(target=build, args=(role, bus), name=f"preview-{role}", daemon=True)
        for role, bus in buses.items()
    ]
    for thread in threads:
        thread.start()
    try:
        shown = _collected(told, len(buses), time.monotonic() + timeout)
    finally:
        over.set()
        for bus in buses.values():
            bus.close(linger=0.0)  # ends the waits of those that still wait
        by = time.monotonic() + _LEAVE_SECONDS
        for thread in threads:
            thread.join(max(0.0, by - time.monotonic()))
    while not told.empty():  # what came of closing, and of waits that were ended
        _note(shown, *told.get_nowait())
    late = f"it was still being built after {timeout:g} s"
    return {role: shown.get(role) or f"(not known: {late})" for role in buses}


def _collected(told: _Told, count: int, deadline: float) -> dict[str, str]:
    """Return what the roles tell until the deadline; raises what is wrong with one of them."""
    shown: dict[str, str] = {}
    while len(shown) < count:
        try:
            role, text = told.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        _note(shown, role, text)
    return shown


def _note(shown: dict[str, str], role: str, told: str | BaseException) -> None:
    if isinstance(told, _WAITED):
        shown.setdefault(role, f"(not known before it runs: {told})")
    elif isinstance(told, BaseException):
        told.add_note(f"raised while {role} was built")
        raise told
    else:
        shown[role] = told


def _in_this_process(config: Any) -> Any:
    """The configuration with environments that start no processes: their pipeline is the same."""
    env = getattr(config, "env", None)
    if not isinstance(env, EnvConfig) or env.vectorization != "process":
        return config
    return msgspec.structs.replace(config, env=msgspec.structs.replace(env, vectorization="sync"))
