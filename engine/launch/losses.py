"""What becomes of a run when one of its processes is lost; pure.

A policy is written as on the command line: ``fail``, ``go_on``, ``restart`` or ``restart:5``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from engine.errors import UsageError, did_you_mean
from engine.recipes.roles import LOSSES, Loss, Role

RESTARTS = 3
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 30.0


@dataclass(frozen=True)
class Policy:
    """What to do when a process of a role is lost."""

    loss: Loss = "fail"
    restarts: int = RESTARTS
    """How often one seat is started again before the policy is ``go_on``."""

    def __str__(self) -> str:
        return f"restart:{self.restarts}" if self.loss == "restart" else self.loss


@dataclass(frozen=True)
class Fail:
    """The run ends; `why` says it in words."""

    why: str


@dataclass(frozen=True)
class Restart:
    """The seat is taken again in `after` seconds."""

    after: float


@dataclass(frozen=True)
class GoOn:
    """The others go on."""


Verdict: TypeAlias = Fail | Restart | GoOn


def decide(role: Role, policy: Policy, *, restarts: int, left: int) -> Verdict:
    """Say what a loss means: the seat was restarted `restarts` times, `left` others of its role remain.

    Restarts wait 0.5 s, 1 s, 2 s ... at most 30 s.
    """
    if policy.loss == "fail":
        return Fail(f"the run cannot go on without its {role.name}")
    if policy.loss == "restart" and restarts < policy.restarts:
        return Restart(min(_LONGEST_WAIT, _FIRST_WAIT * 2**restarts))
    if left >= role.least:
        return GoOn()
    few = "none is" if left == 0 else f"only {left} {'is' if left == 1 else 'are'}"
    tried = f", after {restarts} restarts" if restarts else ""
    return Fail(f"{few} left of role {role.name}, which needs {role.least}{tried}")


def parse(words: Iterable[str], roles: Mapping[str, Role]) -> dict[str, Policy]:
    """Read words like ``collector=restart:3`` into a policy for each role; the others keep their own.

    Raises UsageError for a role or a policy that does not exist.
    """
    policies = {name: Policy(role.loss) for name, role in roles.items()}
    given: set[str] = set()
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is not of the form role=policy, like collector=restart:3")
        if name not in roles:
            raise UsageError(
                f"no role {name!r} in --on-loss {word}{did_you_mean(name, roles) or _list(roles)}"
            )
        if name in given:
            raise UsageError(f"--on-loss {name} is given twice")
        given.add(name)
        policies[name] = _policy(text, word, roles[name])
    return policies


def _policy(text: str, word: str, role: Role) -> Policy:
    kind, colon, number = text.replace("-", "_").partition(":")
    if kind not in LOSSES:
        hint = did_you_mean(kind, LOSSES) or f"; it is one of {', '.join(LOSSES)}, like restart:3"
        raise UsageError(f"no policy {kind!r} in --on-loss {word}{hint}")
    loss: Literal["fail", "restart", "go_on"] = kind
    if colon and (loss != "restart" or not number.isdecimal() or int(number) < 1):
        raise UsageError(f"--on-loss {word}: only restart takes a number, at least 1, like restart:3")
    if role.records and loss != "fail":
        raise UsageError(
            f"--on-loss {word}: {role.name} records the run, which cannot go on without it, "
            "nor begin again in the same folder"
        )
    return Policy(loss, int(number) if number else RESTARTS)


def _list(roles: Iterable[str]) -> str:
    return f"; there are {', '.join(roles)}"
