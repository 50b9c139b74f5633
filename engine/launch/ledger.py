"""What became of every env step that a process made: learned from, under way, or lost.  Pure.

Processes that collect report ``stepped`` and ``sent``; the one that learns reports ``received`` and
``unlearned`` by sender, see `engine.middleware.functional.exchange`.  For each name holds

    stepped = received + unlearned + waiting + unsent + lost

where ``unlearned`` was taken in an iteration that did not finish, ``waiting`` was sent and nobody took it,
and ``lost`` is what a process that was lost had made and nobody had received.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def whole(value: Any) -> int | None:
    """Return a number of a report as a whole one; None for anything else: programs report what they like."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


@dataclass
class _Entry:
    stepped: int = 0
    """By the process that has the name now."""
    sent: int = 0
    stepped_before: int = 0
    """By those that had it before."""
    sent_before: int = 0
    lost_before: int = 0
    is_lost: bool = False


class Ledger:
    """Keeps account of env steps by the names of those who made them."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._received: dict[str, int] = {}
        self._unlearned: dict[str, int] = {}

    def note(self, name: str, report: Mapping[str, Any]) -> None:
        """Take over what a process said last of itself."""
        stepped, sent = whole(report.get("stepped")), whole(report.get("sent"))
        if stepped is not None and sent is not None:
            entry = self._entries.setdefault(name, _Entry())
            entry.stepped, entry.sent = max(entry.stepped, stepped), max(entry.sent, sent)
        for mine, key in ((self._received, "received"), (self._unlearned, "unlearned")):
            told = report.get(key)
            if isinstance(told, Mapping):
                for sender, steps in told.items():
                    mine[sender] = max(mine.get(sender, 0), whole(steps) or 0)

    def lose(self, name: str) -> None:
        """The process of that name was lost: what nobody received of it is lost too."""
        if name in self._entries:
            self._entries[name].is_lost = True

    def begin(self, name: str) -> None:
        """Another process has taken the name, and counts from 0."""
        entry = self._entries.get(name)
        if entry is None or not (entry.stepped or entry.sent):
            return
        entry.stepped_before += entry.stepped
        entry.sent_before += entry.sent
        entry.stepped = entry.sent = 0
        if entry.is_lost:
            entry.lost_before = max(entry.lost_before, self._account(name)["lost"])
        entry.is_lost = False

    def totals(self) -> dict[str, dict[str, int]]:
        """Return what became of the env steps of each; see the head of this module."""
        return {name: self._account(name) for name in sorted(self._entries)}

    def at_most_lost(self, name: str) -> str:
        """Say what is lost with a process; an empty string where it made no env steps."""
        if name not in self._entries:
            return ""
        account = self._account(name)
        stepped, lost = account["stepped"], account["lost"]
        if not lost:
            return f"all of its {stepped:,} env steps were received"
        return f"of its {stepped:,} env steps {stepped - lost:,} were received, at most {lost:,} are lost"

    def losses(self) -> str:
        """Say what is lost for good, once the run is over; an empty string where nothing is."""
        parts = []
        for name, account in self.totals().items():
            if account["lost"]:
                parts.append(
                    f"{account['lost']:,} of the {account['stepped']:,} env steps of {name} are lost"
                )
            if account["unlearned"]:
                parts.append(
                    f"{account['unlearned']:,} of {name} were taken in an iteration that did not finish"
                )
        return "; ".join(parts)

    def _account(self, name: str) -> dict[str, int]:
        entry = self._entries[name]
        received, unlearned = self._received.get(name, 0), self._unlearned.get(name, 0)
        # What was received was sent, though its last words may not have come.
        sent = max(entry.sent_before + entry.sent, received + unlearned)
        stepped = max(entry.stepped_before + entry.stepped, sent)
        rest = stepped - received - unlearned
        lost = rest if entry.is_lost else min(entry.lost_before, rest)
        unsent = min(rest - lost, max(0, entry.stepped - entry.sent))
        return {
            "stepped": stepped,
            "sent": sent,
            "received": received,
            "unlearned": unlearned,
            "waiting": rest - lost - unsent,
            "unsent": unsent,
            "lost": lost,
        }
