"""Which processes a program needs: its roles, how many of each, what to do about losses; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from engine.errors import UsageError
from engine.launch.losses import Policy, parse
from engine.recipes.roles import Role, check_roles, roles_of
from engine.recipes.target import Target

MOST_SEATS = 512
_MOST_DIGITS = 9


@dataclass(frozen=True)
class Seat:
    """A place for one process, which may be taken again after a loss."""

    name: str
    role: str
    index: int


@dataclass(frozen=True)
class Plan:
    """What will be started."""

    target: Target
    roles: Mapping[str, Role]
    policies: Mapping[str, Policy]
    seats: tuple[Seat, ...]

    def text(self) -> str:
        """One line for each role: how many, what a loss means, and what it does."""
        rows: list[tuple[str, ...]] = []
        for name, role in self.roles.items():
            number = sum(seat.role == name for seat in self.seats)
            rows.append((name, f"x {number}", f"on loss: {self.policies[name]}", role.help))
        return _columns(rows)


def make_plan(
    target: Target,
    counts: Mapping[str, int] | None = None,
    on_loss: Iterable[str] = (),
    *,
    elastic: bool = False,
) -> Plan:
    """Seat every role of the target's recipe, as often as `counts` says, else as often as it must.

    With `elastic` others may join from elsewhere, so that a role may have fewer seats than it needs.
    Raises UsageError for a recipe without roles, an unknown role, and one with too few or too many seats.
    """
    counts = dict(counts or {})
    roles = {role.name: role for role in roles_of(target.recipe)}
    check_roles(target.recipe, [*roles, *counts])
    numbers = {name: counts.get(name, role.least) for name, role in roles.items()}
    if sum(numbers.values()) > MOST_SEATS:
        raise UsageError(
            f"{sum(numbers.values())} processes are more than the {MOST_SEATS} that one machine may start"
        )
    seats = []
    for role in roles.values():
        number = numbers[role.name]
        if number < role.least and (role.records or not elastic):
            raise UsageError(
                f"{target.algo} needs at least {role.least} {role.name}, not {number}; "
                "only with --tcp may the rest join from elsewhere"
            )
        if role.records and number > 1:
            raise UsageError(
                f"{role.name} records the run, so there can be one, not {number}; "
                "more of another role make it quicker"
            )
        seats += [Seat(f"{role.name}_{index}", role.name, index) for index in range(number)]
    return Plan(target, roles, parse(on_loss, roles), tuple(seats))


def parse_counts(words: Iterable[str]) -> dict[str, int]:
    """Read words like ``collector=2``; raises UsageError for others, and for a role that is named twice."""
    counts: dict[str, int] = {}
    for word in words:
        name, _, text = word.partition("=")
        text = text.strip()
        if not name or not text.isdecimal() or len(text) > _MOST_DIGITS:
            raise UsageError(f"--role {word}: a role and how many of it, like --role collector=2")
        if name in counts:
            raise UsageError(f"--role {name} is given twice")
        counts[name] = int(text)
    return counts


def _columns(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
