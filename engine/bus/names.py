"""The names of events and methods, and the law that they follow."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, TypeAlias

from engine.errors import UsageError, did_you_mean

Kind: TypeAlias = Literal["event", "state", "stream"]

LOST, LEFT, MISSED, FINISH = "task_peer_lost", "task_peer_left", "task_events_missed", "task_finish"
OWN = (LOST, LEFT, MISSED, FINISH)
"""Events that the bus itself emits, and nobody else."""

LAUNCHER, OBSERVER = "launcher", "observer"
"""The roles of what holds a run together and of what only looks at it: peers of no use to a wait."""

MOST_CHARACTERS = 200

_EVENT = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")


def check_event(event: str, roles: Sequence[str] = ()) -> str:
    """Return `event` if it is a well-formed name, ``<sender>_<data>``; else raise `UsageError`.

    Where there are `roles`, its first word is one of them, or ``task``.
    """
    if not isinstance(event, str) or not _EVENT.fullmatch(event) or len(event) > MOST_CHARACTERS:
        raise UsageError(
            f"{event!r} cannot name an event; a name is <sender>_<data>[_<parameter>_<value>] "
            "in small letters and digits, like 'learner_model' or 'league_job_actor_0'"
        )
    role = event.partition("_")[0]
    if roles and role != "task" and role not in roles:
        near = did_you_mean(role, roles)
        raise UsageError(
            f"{event!r} does not begin with a role of this run{near}; names begin with the role that sends "
            f"or serves, one of {', '.join(roles)}, or with 'task', like {roles[0] + '_model'!r}"
        )
    return event
