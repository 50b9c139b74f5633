"""The seats of a run while it goes on: who sits where, and how it went.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from engine.errors import EngineError, FolderError, PeerLost, RemoteError
from engine.launch.backend import Ended, Handle, was_asked
from engine.launch.ledger import whole
from engine.launch.losses import Policy
from engine.launch.plan import Seat
from engine.recipes.roles import Role

State: TypeAlias = Literal["starting", "running", "leaving", "waiting", "finished", "lost"]

_RATE_SECONDS = 2.0
_CONSEQUENCES = {"PeerLost", "HubLost", "DeadlineExceeded", "NoSuchService", "Finishing", "KeyboardInterrupt"}
"""Errors that somebody else's end brings about."""


@dataclass(frozen=True)
class Failure:
    """What went wrong in one process."""

    seat: str
    kind: str
    """The name of the error's type; empty for a process that died without a word."""
    message: str
    traceback: str = ""
    output: str = ""
    code: int = 1

    @classmethod
    def of(cls, seat: str, how: Ended, cause: str) -> Failure:
        """Return the failure of a process that said nothing before it ended."""
        code = how.code if how.code > 0 and not was_asked(how.code) else 1
        return cls(seat, "", cause, output=how.output, code=code)

    @property
    def consequence(self) -> bool:
        """Whether it looks as if something else had gone wrong before."""
        return self.kind in _CONSEQUENCES

    @property
    def mistaken(self) -> bool:
        """Whether every process would fail alike: a mistake in the call or the configuration."""
        return self.code in (2, 3) and self.kind not in ("", "SystemExit")

    def text(self) -> str:
        """One line."""
        if not self.kind:
            return f"{self.seat} was {self.message}" if self.killed else f"{self.seat} {self.message}"
        return f"{self.seat} failed: {self.kind}: {self.message}"

    @property
    def killed(self) -> bool:
        """Whether a signal ended it."""
        return self.message.startswith("killed")

    def error(self, why: str = "") -> EngineError:
        """Return the error to raise, with the traceback from there, or what was printed last, as a note."""
        text = f"{self.text()}; {why}" if why else self.text()
        error: EngineError
        if self.kind == FolderError.__name__:
            return FolderError(self.message)  # where it was found out says nothing
        if self.kind:
            error = RemoteError(text, kind=self.kind, peer=self.seat)
        else:
            error = PeerLost(text, peer=self.seat, cause=self.message)
        if self.traceback:
            error.add_note(f"the traceback of {self.seat}:\n{self.traceback.rstrip()}")
        elif self.output:
            error.add_note(f"the last that {self.seat} printed:\n{self.output}")
        error.exit_code = self.code
        return error


@dataclass(eq=False)
class Place:
    """One seat, or somebody who attached himself."""

    seat: Seat
    state: State = "starting"
    attached: bool = False
    handle: Handle | None = None
    about: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    """What it said last of itself."""
    rate: float | None = None
    """Env steps a second, lately."""
    _noted: tuple[float, int] | None = None
    restarts: int = 0
    cause: str = ""
    """Why the launcher ended it, if it did."""
    killed: bool = False
    """Whether the launcher killed it."""
    due: float | None = None
    """When it is taken again."""
    join_by: float | None = None
    leave_by: float | None = None
    insist_by: float | None = None
    """When it gets a second SIGTERM, which ends it in the midst of an iteration; the first may have been
    one of several by one order."""
    kill_by: float | None = None
    left: Failure | None = None
    """That it has left although the run goes on, while it is not known yet whether the run is to stop too."""
    decide_by: float | None = None
    """When its leaving is a loss."""

    @property
    def alive(self) -> bool:
        """Whether there is, or will be, or may be again, a process."""
        return self.state in ("starting", "running", "leaving", "waiting")

    def note(self, report: Mapping[str, Any], now: float) -> None:
        """Take over what it says of itself, and work out how fast it is."""
        self.report = dict(report)
        steps = self._steps() or 0
        if self._noted is None or steps < self._noted[1]:
            self._noted = now, steps
        elif now >= self._noted[0] + _RATE_SECONDS:
            then, before = self._noted
            self.rate, self._noted = (steps - before) / (now - then), (now, steps)

    @property
    def version(self) -> int | None:
        """Which weights it has, where it says so."""
        return whole(self.report.get("version"))

    def _steps(self) -> int | None:
        stepped = whole(self.report.get("stepped"))
        return whole(self.report.get("env_step")) if stepped is None else stepped

    def row(self) -> dict[str, Any]:
        """What is shown of it."""
        known = {
            "seat": self.seat.name,
            "role": self.seat.role,
            "state": self.state,
            "pid": self.about.get("pid") or (self.handle.pid if self.handle else None),
            "host": self.about.get("host"),
            "attached": self.attached,
            "restarts": self.restarts,
            "env_step": self._steps(),
            "env_steps_per_second": None if self.rate is None else round(self.rate, 1),
        }
        told = {key: value for key, value in self.report.items() if isinstance(value, int | float | str)}
        return {**told, **known}


class Crew:
    """All places of a run."""

    def __init__(
        self, roles: Mapping[str, Role], policies: Mapping[str, Policy], seats: Iterable[Seat]
    ) -> None:
        self.roles = roles
        self.policies = policies
        self.places = {seat.name: Place(seat) for seat in seats}

    def attach(self, name: str, role: str, about: dict[str, Any]) -> Place:
        """Give a place to somebody who was not started here."""
        place = self.places[name] = Place(
            Seat(name, role, -1), state="running", attached=True, about=dict(about)
        )
        return place

    def alive(self) -> list[Place]:
        """Those who are there, or will be."""
        return [place for place in self.places.values() if place.alive]

    def left(self, role: str) -> int:
        """How many of a role are there, or will be."""
        stay = self.policies[role].loss == "restart"
        return sum(
            place.seat.role == role and (place.state != "leaving" or (stay and not place.attached))
            for place in self.alive()
        )

    def seated(self, role: str) -> int:
        """How many processes of a role were started here and are there, or will be again."""
        return sum(place.seat.role == role and not place.attached for place in self.alive())

    def rows(self) -> list[dict[str, Any]]:
        """What is shown of each; ``weight_lag`` is how many updates the weights that it acts with are old."""
        places = list(self.places.values())
        versions = [
            place.version
            for place in places
            if self.roles[place.seat.role].records and place.version is not None
        ]
        rows = []
        for place in places:
            row = {**place.row(), "policy": str(self.policies[place.seat.role])}
            version = place.version
            acts = place.alive and not self.roles[place.seat.role].records
            if versions and version is not None and acts:
                row["weight_lag"] = max(0, max(versions) - version)
            rows.append(row)
        return rows

    def decisive(self) -> list[Place]:
        """Those whose end in order is the end of the run.

        They are of a role that records; where there is none, of those that the run cannot do without.
        """
        places = list(self.places.values())
        return (
            [place for place in places if self.roles[place.seat.role].records]
            or [place for place in places if self.policies[place.seat.role].loss == "fail"]
            or places
        )

    def over(self) -> bool:
        """Whether the run has nothing left to do."""
        return all(place.state == "finished" for place in self.decisive())


def blame(failures: list[Failure]) -> Failure:
    """Return the failure that the others follow from, as far as one can tell."""
    return next((one for one in failures if not one.consequence), failures[0])
