"""Who belongs to a run: the book that one process, the hub, keeps for all.  Pure.

The hub alone decides who is in and who is lost; everybody else is told, in one order.  An
incarnation that was declared lost stays out for good: what it may still send is nobody's, and a
process that takes its place joins as a new one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from engine.bus.message import VERSION, Changed, Gone, Hello, Member, Refused, Welcome
from engine.errors import did_you_mean

MOST_MEMBERS = 1024

_MOST_GONE = 10_000
"""So many that are gone are remembered, the latest."""

Admit: TypeAlias = Callable[[str, str, dict[str, Any]], str | None]
"""Says, of a role, a name and what a process tells of itself, why it may not join; None if it may."""

_ROLE = re.compile(r"[a-z][a-z0-9]*")
_ID = re.compile(r"[!-9;-~]+:[!-9;-~]+")


class Hub:
    """Lets members in, and remembers who is there and who is gone."""

    def __init__(
        self,
        run: str,
        me: Member,
        roles: Iterable[str] = (),
        crew: Mapping[str, int] | None = None,
        admit: Admit | None = None,
    ) -> None:
        self.run = run
        self._admit = admit
        self.roles = sorted(roles)
        """The roles that may join; none listed: any."""
        self.crew = dict(crew or {})
        """How many of each role the run begins with."""
        self.expected = dict(self.crew)
        """How many of each role are expected to be there."""
        self.members: dict[str, Member] = {me.id: me}
        self.gone: dict[str, str] = {}
        self.finish: str | None = None
        """Why every task of the run is asked to finish; None while they are not."""

    def hello(self, hello: Hello) -> tuple[Welcome | Refused, Changed | None]:
        """Return the answer to somebody who wants to join, and what to tell the others if he is new.

        Asking again is answered again: the first answer may have been lost.
        """
        member = hello.member
        if member.id in self.members:
            return self._welcome(self.members[member.id]), None
        refusal = self.refusal(hello)
        if refusal is not None:
            return Refused(refusal), None
        name = member.name or self._free_name(member.role)
        member = msgspec.structs.replace(
            member, name=name, on=[], serves=[], consumes={}, kinds={}, ready=False, shortage=""
        )
        self.members[member.id] = member
        return self._welcome(member), Changed(member)

    def changed(self, sender: str, member: Member) -> Changed | None:
        """Take over what a member says of itself; None where it is no member, or speaks for another."""
        known = self.members.get(sender)
        if known is None or member.id != sender:
            return None
        mine = msgspec.structs.replace(
            member, name=known.name, role=known.role, address=known.address, report=known.report
        )
        self.members[sender] = mine
        return Changed(mine)

    def remove(self, id: str, cause: str, *, left: bool) -> Gone | None:
        """Strike a member off for good; None where it is none."""
        member = self.members.pop(id, None)
        if member is None:
            return None
        self.gone[id] = cause
        if len(self.gone) > _MOST_GONE:
            del self.gone[next(iter(self.gone))]
        return Gone(id, cause, left)

    def named(self, name: str) -> Member | None:
        """Return the member of that name, if it is there."""
        return next((member for member in self.members.values() if member.name == name), None)

    def refusal(self, hello: Hello) -> str | None:
        """Return why a process that is no member may not become one; None if it may."""
        member = hello.member
        if hello.run != self.run:
            return f"this is run {self.run!r}, not {hello.run!r}"
        if hello.version != VERSION:
            return f"the hub speaks version {VERSION} of the protocol, the newcomer version {hello.version}"
        if member.id in self.gone:
            return f"this incarnation was declared lost: {self.gone[member.id]}"
        if not _ID.fullmatch(member.id):
            return f"{member.id!r} names no incarnation of a process"
        if not _ROLE.fullmatch(member.role):
            return f"{member.role!r} is no role: a role is one word of small letters and digits"
        if self.roles and member.role not in self.roles:
            # Not those of who holds the run together or only looks at it.
            offered = [role for role in self.roles if role in self.crew] or self.roles
            return (
                f"this run has no role {member.role!r}{did_you_mean(member.role, offered)}; "
                f"it has {', '.join(offered)}"
            )
        if member.name and not re.fullmatch(rf"{member.role}(_[a-z0-9]+)+", member.name):
            return f"a {member.role} is named like '{member.role}_0', not {member.name!r}"
        if member.name and self.named(member.name) is not None:
            return f"{member.name} is taken: a process of that name is in the run"
        if len(self.members) >= MOST_MEMBERS:
            return f"the run has {MOST_MEMBERS} members already"
        return self._admit(member.role, member.name, dict(member.about)) if self._admit is not None else None

    def _free_name(self, role: str) -> str:
        taken = {member.name for member in self.members.values()}
        # The first names are for those that the run begins with: one may just be starting again.
        number = self.crew.get(role, 0)
        while f"{role}_{number}" in taken:
            number += 1
        return f"{role}_{number}"

    def _welcome(self, member: Member) -> Welcome:
        members = list(self.members.values())
        return Welcome(self.run, member.name, self.roles, self.crew, members, self.finish, self.expected)
