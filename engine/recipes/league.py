"""A league of rock-paper-scissors players as a pipeline: each learns to beat what the others were.

::

    repeat until stop.env_step or stop.seconds:
        collect, in each actor:
            take the match that the league has broadcast for it, or ask for the first one
            play it; where the job says so, learn from it
            send the result
        learn, in the league:
            take the results: count payoffs, keep snapshots of players that beat the mixture
            broadcast the next matches
            measure the mixture, which approaches a third each

With both roles in one process the same middleware speak over the task's own bus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta, Struct

from engine.envs.config import EnvConfig
from engine.recipes.config import Count, Positive
from engine.recipes.roles import Role

if TYPE_CHECKING:
    from engine.bus.bus import Bus
    from engine.context import Middleware
    from engine.recipes.parts import Watch
    from engine.task import Task

ACTOR = Role("actor", loss="go_on", help="plays the matches that the league gives it")
LEAGUE = Role("league", records=True, help="gives matches, keeps payoffs and snapshots, records")
ROLES = (ACTOR, LEAGUE)


class PlayersConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The players that learn, and how."""

    count: Annotated[int, Meta(ge=1, description="players; in one process also actors")] = 2
    learning_rate: Annotated[float, Meta(gt=0, description="step size, on the mean payoffs of a match")] = 0.2
    limit: Annotated[
        float, Meta(gt=0, description="largest size of a logit: how near to a pure move a player can come")
    ] = 3.0


class MatchesConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which matches are played, and what counts as beating."""

    games: Annotated[int, Meta(ge=1, description="games of one match")] = 16
    window: Annotated[
        int,
        Meta(
            ge=1,
            description="newest matches in which a player must beat the mixture to be kept as a snapshot",
        ),
    ] = 32
    margin: Annotated[
        float, Meta(gt=0, lt=1, description="mean payoff from which on the mixture counts as beaten")
    ] = 0.3
    trial: Annotated[int, Meta(ge=1, description="games with each older snapshot to join the mixture")] = 128
    evaluate_every: Annotated[
        int, Meta(ge=1, description="one in so many matches is between two snapshots")
    ] = 2


class StopConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run ends at the first of these; null: not by this one."""

    env_step: Annotated[
        Count | None, Meta(description="games to play, all matches together; null: seconds ends the run")
    ] = 20_000
    seconds: Annotated[
        Positive | None, Meta(description="wall-clock seconds from the first iteration on")
    ] = None

    def __post_init__(self) -> None:
        if self.env_step is None and self.seconds is None:
            raise ValueError("without env_step the run needs another end: seconds")


class LeagueRun(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a league."""

    env: EnvConfig = EnvConfig(id="engine.envs.rock_paper_scissors:RockPaperScissors")
    seed: Annotated[int, Meta(ge=0, description="every random draw of the run follows from it")] = 0
    players: PlayersConfig = PlayersConfig()
    matches: MatchesConfig = MatchesConfig()
    stop: StopConfig = StopConfig()

    def __post_init__(self) -> None:
        if self.env.vectorization == "process":
            raise ValueError("opponents cannot be set in other processes: vectorization is auto or sync")


def league(
    config: LeagueRun,
    *,
    watch: Watch | None = None,
    roles: frozenset[str] = frozenset({ACTOR.name, LEAGUE.name}),
    bus: Bus | None = None,
) -> Task:
    """Return the task that plays the part of `roles` in a league; run it inside ``with task:``.

    An actor's number, the last word of its name on the bus, says which player it plays for.
    """
    from engine.bus import codec
    from engine.context import OnlineContext
    from engine.envs.make import make_env
    from engine.envs.rock_paper_scissors import MOVES, PAYOFF
    from engine.league.league import Job, League, Result
    from engine.middleware.functional.league import (
        RESULTS,
        Jobs,
        broadcast_jobs,
        count_games,
        fetch_job,
        job_event,
        measure_league,
        play_match,
        receive_results,
        send_result,
        wait_for_league,
    )
    from engine.middleware.functional.stop import stop_after_seconds, stop_at_env_step
    from engine.pipeline import serial
    from engine.recipes.roles import check_roles
    from engine.seeding import stream
    from engine.task import Task

    check_roles(league, roles)
    codec.register("league.Job")(Job)
    codec.register("league.Result")(Result)
    task = Task(OnlineContext(), role="main" if len(roles) > 1 else min(roles), bus=bus)
    bus = task.bus
    bus.declare(RESULTS, kind="stream", capacity=64, when_full="block")

    players, matches = config.players, config.matches
    actors = [f"actor_{number}" for number in range(players.count)]
    if LEAGUE.name not in roles:
        actors = [bus.peer]
    for actor in actors:
        bus.declare(job_event(actor), kind="state")

    if LEAGUE.name in roles:
        first = stream(config.seed, "first_moves").integers(3, size=players.count)
        start = {
            f"main_{number}": [players.limit if move == own else -players.limit for move in range(3)]
            for number, own in enumerate(first)
        }
        house = League(
            start,
            generator=stream(config.seed, "opponents"),
            **msgspec.structs.asdict(matches),
        )
        jobs = Jobs(bus, house)
        bus.serve("league_get_job", jobs.give_first)

    if ACTOR.name in roles:
        crew: list[Middleware] = [] if LEAGUE.name in roles else [wait_for_league(bus)]
        for actor in actors:
            number = _number(actor)
            env = make_env(**msgspec.structs.asdict(config.env), seed=config.seed, role=actor)
            task.own(env)
            if LEAGUE.name not in roles:
                env.count_into(bus.meter.steps())
            env.reset()
            crew.append(
                serial(
                    fetch_job(bus, actor=actor, player=f"main_{number % players.count}"),
                    play_match(
                        env,
                        stream(config.seed, "moves", role=actor),
                        actor=actor,
                        payoff=PAYOFF,
                        learning_rate=players.learning_rate,
                        limit=players.limit,
                    ),
                    send_result(bus),
                    name=actor,
                )
            )
        if LEAGUE.name not in roles:
            crew.append(count_games())
        task.use(serial(*crew), name="collect")

    if LEAGUE.name in roles:
        task.use(
            receive_results(bus, house, jobs),
            broadcast_jobs(bus, jobs),
            measure_league(house, payoff=PAYOFF, moves=MOVES),
            stop_at_env_step(config.stop.env_step),
            *([] if config.stop.seconds is None else [stop_after_seconds(config.stop.seconds)]),
            *([] if watch is None else [watch(None)]),
            name="learn",
        )
    return task


def _number(actor: str) -> int:
    word = actor.rpartition("_")[2]
    return int(word) if word.isdecimal() else 0


main = league
