"""The roles that a recipe can be split into, each run by processes of its own.

A module of recipes lists them as ``ROLES``, and its recipes take ``roles: frozenset[str]`` and
``bus: Bus | None``.  With all roles in one process nothing is exchanged::

    ROLES = (COLLECTOR, LEARNER)

    def ppo(config, *, watch=None, roles=COLLECT_AND_LEARN, bus=None) -> Task: ...
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from engine.errors import UsageError, did_you_mean

Loss: TypeAlias = Literal["fail", "restart", "go_on"]
LOSSES: tuple[Loss, ...] = ("fail", "restart", "go_on")
"""What happens when a process of a role is lost: the run fails, it is started again, or the others go on."""


@dataclass(frozen=True)
class Role:
    """One part of a recipe that can run in processes of its own."""

    name: str
    """The first word of the events that it sends, like ``collector`` in ``collector_trajectories``."""
    least: int = 1
    """With fewer processes the run cannot go on."""
    loss: Loss = "fail"
    records: bool = False
    """It is given `watch` and writes metrics and policies into the run's folder; the run ends when it does.

    There is one process of such a role.
    """
    help: str = ""


COLLECTOR = Role("collector", loss="go_on", help="steps environments with the newest weights it has")
LEARNER = Role("learner", records=True, help="learns from what the collectors send, evaluates, records")

COLLECT_AND_LEARN = frozenset({COLLECTOR.name, LEARNER.name})


def roles_of(recipe: Callable[..., Any]) -> tuple[Role, ...]:
    """Return the roles that the recipe's module lists; none for a recipe that cannot be split."""
    plain = inspect.unwrap(recipe)
    known = inspect.signature(plain).parameters
    if "roles" not in known or "bus" not in known:
        return ()
    return tuple(getattr(sys.modules.get(plain.__module__), "ROLES", ()))


def check_roles(recipe: Callable[..., Any], roles: Iterable[str]) -> None:
    """Raise UsageError for no role, and for one that the recipe does not have, naming the nearest."""
    name = getattr(recipe, "__name__", repr(recipe))
    known = [role.name for role in roles_of(recipe)]
    given = list(roles)
    if not known:
        raise UsageError(
            f"{name} has no roles, so it runs in one process; a recipe has them when its module lists ROLES "
            "and it takes roles= and bus="
        )
    if not given:
        raise UsageError(f"{name} needs at least one of its roles: {', '.join(known)}")
    for role in given:
        if role not in known:
            hint = did_you_mean(role, known) or f"; there are {', '.join(known)}"
            raise UsageError(f"{name} has no role {role!r}{hint}")
