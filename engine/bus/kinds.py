"""Kinds of events that differ between two processes of a run: nothing of such an event would pass.  Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from engine.bus.message import Member

MOST_ANNOUNCED = 2048
"""Events whose kinds a process announces; of further names a difference is not found."""

_HEARD = "on"  # listened to, and not declared: an event or a state
_SHOWN = {"event": "an event", "state": "a state", "stream": "a stream", _HEARD: "listened to with on()"}


class Clashes(NamedTuple):
    """What differs, by event: what fails in this process, and what it only tells."""

    raised: dict[str, str]
    told: dict[str, str]


def clashes(me: Member, others: Iterable[Member]) -> Clashes:
    """Compare the kinds that `me` announced with those of `others`.

    The fewer are wrong: what is one kind in more processes than another goes on in those, so that one
    mistaken newcomer fails and a run that is under way does not.  Of equally many, all fail.
    """
    agree: Counter[str] = Counter()
    against: dict[str, list[tuple[str, str]]] = {}
    mine: dict[str, str] = dict(me.kinds)
    listened = set(me.on) - mine.keys()
    for other in sorted(others, key=lambda other: other.name):
        for event, kind in other.kinds.items():
            if mine.get(event) == kind:
                agree[event] += 1
            elif event in mine or (kind == "stream" and event in listened):
                against.setdefault(event, []).append((other.name, kind))
        for event in other.on:
            if mine.get(event) == "stream" and event not in other.kinds:
                against.setdefault(event, []).append((other.name, _HEARD))
    found = Clashes({}, {})
    for event, those in against.items():
        peer, there = those[0]
        here = mine.get(event, _HEARD)
        text = (
            f"{event!r} is {_SHOWN[here]} in {me.name} and {_SHOWN[there]} in {peer}: nothing of it passes "
            "between them; declare it as the same kind in both"
        )
        (found.raised if agree[event] + 1 <= len(those) else found.told)[event] = text
    return found
