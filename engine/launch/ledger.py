"""What became of every env step that a process made.  Pure.

Every term is counted where it arises, on the meter of the process (see `engine.bus.meter`), and none is
worked out from the others.  For each process that collects

    stepped = received + unlearned + dropped + waiting + held + collecting

where ``stepped`` counts its environments' steps, ``collecting`` those since it handed over something to be
sent, ``held`` is handed over and not pushed, ``waiting`` is in the items that it pushed and that the
learner has not taken, ``dropped`` was dropped for newer ones.  The learner counts by sender what it
``received``, and what it took in an iteration that did not finish: ``unlearned``.  ``pushed``, which it
counts too, is the sum of what became of its items.  If these do not add up, env steps were lost, or counted
twice, in a way that is a mistake of the program, and `mismatches` says so.

``lost`` says how much of what waits, is held or was being collected went with a process that was lost.

The meter of a process on another machine cannot be read.  Of such a process is known what it reported last,
which is not checked; if it is lost without a farewell, ``lost`` is None: nothing else knows.

A league has accounts too: for each actor, ``jobs_given = jobs_counted + jobs_open + jobs_lost``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.bus.meter import MOST_ROWS, Reading, Row, heard, key_of

_COLUMNS = ("stepped", "pushed", "received", "unlearned", "dropped", "waiting", "held", "collecting", "lost")


def whole(value: Any) -> int | None:
    """Return a number of a report as a whole one; None for anything else: programs report what they like."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value)


@dataclass
class _Entry:
    """One process that has, or had, a name."""

    read: Callable[[], Reading] | None = None
    """Reads its meter; None if that is out of reach."""
    told: Reading = field(default_factory=Reading)
    """What it reported last."""
    is_lost: bool = False
    is_final: bool = False
    """Whether its last report was its farewell."""

    @property
    def unknown(self) -> bool:
        """Whether it was lost with counts that nothing else could read."""
        return self.is_lost and self.read is None and not self.is_final

    @property
    def reading(self) -> Reading:
        return self.told if self.read is None else self.read()


class Ledger:
    """Keeps account of env steps, and of the jobs of a league, by the names of those who made them."""

    def __init__(self) -> None:
        self._entries: dict[str, list[_Entry]] = {}

    def begin(self, name: str, read: Callable[[], Reading] | None = None) -> None:
        """Another process has taken the name; `read` reads its meter, if that can be."""
        self._entries.setdefault(name, []).append(_Entry(read))

    def note(self, name: str, report: Mapping[str, Any]) -> None:
        """Take over what a process said last of itself."""
        made = heard(report.get("made"))
        if made is not None:
            self._last(name).told = made

    def lose(self, name: str, *, final: bool = False) -> None:
        """The process of that name is gone: what the learner has not received by then never comes.

        `final` says that it left in order, so that its last report holds everything.
        """
        entry = self._last(name)
        entry.is_lost, entry.is_final = True, final

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return what became of the env steps of each; see the head of this module."""
        readings, rows = self._readings()
        totals = {}
        for name, entries in sorted(readings.items()):
            accounts = [_account(entry, reading, rows) for entry, reading in entries if reading.used]
            jobs = rows.get(key_of(name), Row())
            if not accounts and not jobs.given:
                continue
            total: dict[str, Any] = {column: sum(one[column] for one in accounts) for column in _COLUMNS}
            if any(entry.unknown for entry, _ in entries):
                total["lost"] = None
            total["exact"] = all(entry.read is not None for entry, _ in entries)
            if jobs.given:
                total |= _jobs(jobs, entries[-1][0])
            totals[name] = total
        return totals

    def mismatches(self) -> str:
        """Say what does not add up, once every process has ended; an empty string where all does."""
        readings, rows = self._readings()
        parts = []
        for name, entries in sorted(readings.items()):
            for entry, reading in entries:
                if entry.read is not None and reading.used:
                    parts += [f"of {name} {what}" for what in _wrong(entry, reading, rows)]
            jobs = rows.get(key_of(name), Row())
            if jobs.given != jobs.counted + jobs.open + jobs.lost:
                parts.append(
                    f"of {name} {jobs.given:,} jobs were given, and {jobs.counted + jobs.open + jobs.lost:,} "
                    "have a result, are open or lost"
                )
        return "; ".join(parts)

    def at_most_lost(self, name: str) -> str:
        """Say what is lost with a process; an empty string where it made no env steps."""
        account = self.totals().get(name)
        if account is None or not account["stepped"]:
            return ""
        stepped, received, lost = account["stepped"], account["received"], account["lost"]
        if lost is None:
            return f"{received:,} of its env steps were received, how many it has made since is not known"
        if not lost:
            return f"all of its {stepped:,} env steps were received"
        return f"of its {stepped:,} env steps {received:,} were received, at most {lost:,} are lost"

    def losses(self) -> str:
        """Say what is lost for good, once the run is over; an empty string where nothing is."""
        parts = []
        for name, account in self.totals().items():
            if account["lost"] is None:
                parts.append(f"how many env steps of {name} are lost is not known: it ran on another machine")
            elif account["lost"]:
                parts.append(
                    f"{account['lost']:,} of the {account['stepped']:,} env steps of {name} are lost"
                )
            if account["unlearned"]:
                parts.append(
                    f"{account['unlearned']:,} of {name} were taken in an iteration that did not finish"
                )
            if account.get("jobs_lost"):
                jobs = account["jobs_lost"]
                parts.append(f"{jobs:,} job{'s' if jobs != 1 else ''} of {name} will have no result")
        return "; ".join(parts)

    def _last(self, name: str) -> _Entry:
        return self._entries.setdefault(name, [_Entry()])[-1]

    def _readings(self) -> tuple[dict[str, list[tuple[_Entry, Reading]]], dict[int, Row]]:
        """Read everything, what consumers have taken last: what they know of was pushed before."""
        found = {
            name: [(entry, entry.reading) for entry in list(entries)]
            for name, entries in list(self._entries.items())
        }
        rows: dict[int, Row] = {}
        for entries in found.values():
            for entry, reading in entries:
                rows |= entry.reading.rows if reading.rows else {}
        return found, rows


def _account(entry: _Entry, reading: Reading, rows: Mapping[int, Row]) -> dict[str, int]:
    row = rows.get(reading.key, Row())
    waiting = _waiting(reading, row)
    collecting = 0 if reading.stepped is None else max(0, reading.stepped - reading.mark)
    return {
        "stepped": reading.held + reading.pushed if reading.stepped is None else reading.stepped,
        "pushed": reading.pushed,
        "received": row.received,
        "unlearned": row.unused,
        "dropped": reading.dropped,
        "waiting": waiting,
        "held": reading.held,
        "collecting": collecting,
        "lost": waiting + reading.held + collecting if entry.is_lost else 0,
    }


def _waiting(reading: Reading, row: Row) -> int:
    """The amount of the items that a process has pushed and the consumer has not taken."""
    if reading.items is None:  # more than a meter lists: some may be taken already
        return reading.waiting
    return sum(amount for number, amount in reading.items if not row.has(number))


def _wrong(entry: _Entry, reading: Reading, rows: Mapping[int, Row]) -> list[str]:
    """Say what does not add up of the counts of one process and its consumer."""
    wrong = []
    if reading.stepped is not None and reading.mark != reading.held + reading.pushed:
        wrong.append(
            f"{reading.mark:,} env steps were made until it last sent some, and "
            f"{reading.held + reading.pushed:,} were sent or held"
        )
    if reading.sent > reading.pushed and not entry.is_lost:  # a process that is killed may be in between
        wrong.append(
            f"{reading.sent:,} env steps were given to the stream, and {reading.pushed:,} came there"
        )
    row = rows.get(reading.key, Row())
    found = row.received + row.unused + reading.dropped + _waiting(reading, row)
    if reading.items is not None and len(rows) < MOST_ROWS and found != reading.pushed:
        wrong.append(
            f"{reading.pushed:,} env steps were pushed, and {found:,} were received, left unlearned, dropped "
            "or wait"
        )
    return wrong


def _jobs(row: Row, entry: _Entry) -> dict[str, int]:
    """The jobs of an actor; those that a lost one had open will have no result."""
    gone = row.open if entry.is_lost else 0
    return {
        "jobs_given": row.given,
        "jobs_counted": row.counted,
        "jobs_open": row.open - gone,
        "jobs_lost": row.lost + gone,
    }
