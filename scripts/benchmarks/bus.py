"""(h) The bus beside raw sockets, raw memory and what others would use instead."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
from collections.abc import Callable

from benchmarks import bus_calls, bus_losses, bus_values
from benchmarks.measure import Part, Section

PARTS: tuple[Callable[[bool], Part], ...] = (
    bus_calls.calls,
    bus_values.events,
    bus_values.states,
    bus_values.codec,
    bus_values.items,
    bus_calls.beside,
    bus_calls.busy,
    bus_losses.deaths,
    bus_losses.breaks,
)


def run(quick: bool) -> Section:
    """Measure every target of the bus that has something to be held against."""
    section = Section("Bus", setting())
    for part in PARTS:
        done = part(quick)
        section.goals += done.goals
        section.sides += done.sides
        section.notes += done.notes
        gc.collect()
    return section


def setting() -> str:
    """What is compared with what."""
    absent = [name for name in ("pynng", "ray") if importlib.util.find_spec(name) is None]
    return (
        "Processes of this host, over socket files where nothing else is said; raw is pyzmq "
        f"{importlib.metadata.version('pyzmq')} with nothing on top: a DEALER and a ROUTER that echoes on a "
        "thread, an XPUB that drops nothing, a PUSH. *slot by hand*: one piece of shared memory, a notice "
        "over PUB/SUB. What was copied, looked at or taken is acknowledged over a raw socket on all sides. "
        "*inline*: the handler runs on the bus's own thread, *service*: on its service thread."
        + (f" Not installed here, and so not compared with: {', '.join(absent)}." if absent else "")
    )
