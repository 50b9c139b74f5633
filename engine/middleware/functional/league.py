"""Play the matches of a league, and keep the league.

An actor asks ``league_get_job`` for its first match, sends how it went into the stream
``actor_results``, and finds its next match in the broadcast ``league_job_<actor>``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.context import Middleware
from engine.envs.vector import VectorEnv
from engine.league.league import Job, League, Result
from engine.league.learner import improve, strategy
from engine.league.mixture import exploitability

if TYPE_CHECKING:
    from engine.bus.bus import Bus

RESULTS = "actor_results"


def job_event(actor: str) -> str:
    """Return the broadcast that brings an actor its matches, like ``league_job_actor_0``."""
    return f"league_job_{actor}"


def wait_for_league(bus: Bus, *, timeout: float = 60.0) -> Middleware:
    """Wait, once, until the league's process is there and ready.

    Raises `DeadlineExceeded`, which says who is there, after `timeout` seconds.
    """
    there = False

    def wait_for_league(ctx: Any) -> None:
        nonlocal there
        if not there:
            bus.wait_for_peers("league", timeout=timeout)
            there = True

    return wait_for_league


def fetch_job(bus: Bus, *, actor: str, player: str) -> Middleware:
    """Ask the league for the first match, and then wait for those that it broadcasts for `actor`.

    The league must be there.  Raises `PeerLost` where it dies before it answers, and `Finishing`
    where the task is to finish while it waits.  Writes: ctx.job.
    """
    event = job_event(actor)
    newest: Job | None = None
    fetched = 0

    def take(job: Job) -> None:
        nonlocal newest
        newest = job

    bus.on(event, take)

    def fetch_job(ctx: Any) -> None:
        nonlocal fetched
        job = newest
        if not fetched:
            job = bus.call("league_get_job", player=player, actor=actor, timeout=None)
        # What was broadcast before is of this actor's past, or of an actor whose place it took.
        while job is None or job.number <= fetched:
            job = bus.wait_for(event, timeout=None)
        ctx.job, fetched = job, job.number

    return fetch_job


def play_match(
    env: VectorEnv,
    generator: np.random.Generator,
    *,
    actor: str,
    payoff: np.ndarray[Any, Any],
    learning_rate: float,
    limit: float,
) -> Middleware:
    """Play the games of a match between softmax players, and learn from it where that is asked for.

    `env`, which was reset, holds games that have ``set_opponent`` and end their observation with
    the opponent's last move one-hot, as `RockPaperScissors` does; `payoff` is what a move gets
    against a move.  At least as many games are played as the job says: every environment plays as often.

    Reads: ctx.job.  Writes: ctx.result.
    """
    moves = len(payoff)

    def play_match(ctx: Any) -> None:
        job = ctx.job
        env.env.call("set_opponent", strategy(job.opponent))
        mine = strategy(job.weights)
        outcomes, seen = np.zeros(3, np.int64), np.zeros(moves)
        for _ in range(-(-job.games // env.num_envs)):
            step = env.step(generator.choice(moves, size=env.num_envs, p=mine))
            outcomes += np.bincount(np.sign(step.reward).astype(np.int64) + 1, minlength=3)
            obs: Any = step.next_obs
            seen += obs[:, -moves:].sum(0)
        weights = job.weights
        if job.learn:
            weights = improve(weights, seen, payoff, learning_rate=learning_rate, limit=limit)
        losses, draws, wins = outcomes.tolist()
        ctx.result = Result(job=job, actor=actor, wins=wins, draws=draws, losses=losses, weights=weights)

    return play_match


def send_result(bus: Bus, *, timeout: float = 60.0) -> Middleware:
    """Send how the match went to the league; waits while it is too far behind.  Reads: ctx.result."""

    def send_result(ctx: Any) -> None:
        bus.meter.handed(ctx.result.games)
        bus.push(RESULTS, ctx.result, timeout=timeout, amount=ctx.result.games)

    return send_result


def count_games() -> Middleware:
    """Count the games that this process has played.  Reads: ctx.result.  Writes: ctx.env_step.

    For an actor apart from the league, which else is the one that counts.
    """

    def count_games(ctx: Any) -> None:
        ctx.env_step += ctx.result.games

    return count_games


class Jobs:
    """Gives the jobs of a league away, and counts by actor those that have no result yet, on the meter."""

    def __init__(self, bus: Bus, league: League) -> None:
        self._bus, self._league = bus, league
        self._open: dict[str, set[int]] = {}
        self._lost: set[int] = set()

    def give_first(self, player: str, actor: str = "") -> Job:
        """Return the first job of an actor; those that it has from before, under the same name, are lost."""
        lost = self._open.pop(actor, set())
        self._lost |= lost
        self._count(actor, lost=len(lost))
        return self.give(player, actor)

    def give(self, player: str, actor: str) -> Job:
        """Return the next job of an actor."""
        job = self._league.get_job(player)
        self._open.setdefault(actor, set()).add(job.number)
        self._count(actor, given=1)
        return job

    def close(self, result: Result) -> None:
        """Count a result.  One of a job that is lost came after all."""
        number = result.job.number
        late = number in self._lost
        self._lost.discard(number)
        self._open.setdefault(result.actor, set()).discard(number)
        self._count(result.actor, counted=1, lost=-1 if late else 0)

    def _count(self, actor: str, *, given: int = 0, counted: int = 0, lost: int = 0) -> None:
        numbers = self._open.get(actor, ())
        self._bus.meter.jobs(actor, given=given, counted=counted, lost=lost, open=len(numbers))


def receive_results(bus: Bus, league: League, jobs: Jobs, *, timeout: float = 60.0) -> Middleware:
    """Wait for a result, and give the league all that have come.

    Raises `DeadlineExceeded`, which says who was expected, after `timeout` seconds without one.
    Writes: ctx.results, ctx.env_step: games that were played, ctx.metrics["collect/return_mean"]: their
    mean payoff.
    """
    bus.consume(RESULTS)

    def take() -> tuple[Result, str]:
        taken = bus.take(RESULTS, timeout=timeout, held=True)
        result: Result = taken.value
        bus.meter.took(taken.sender_id, taken.number, result.games)
        taken.release()
        return result, taken.sender_id

    def receive_results(ctx: Any) -> None:
        came = [take()]
        for _ in range(bus.waiting(RESULTS)):
            came.append(take())
        ctx.results = [result for result, _ in came]
        for result, sender_id in came:
            league.put_result(result)
            jobs.close(result)
            ctx.env_step += result.games
            bus.meter.used(sender_id, result.games)
        games = sum(result.games for result in ctx.results)
        ctx.metrics["collect/return_mean"] = sum(one.mean * one.games for one in ctx.results) / games

    return receive_results


def broadcast_jobs(bus: Bus, jobs: Jobs) -> Middleware:
    """Tell each actor that has finished a match its next one.  Reads: ctx.results."""

    def broadcast_jobs(ctx: Any) -> None:
        for result in ctx.results:
            bus.emit(job_event(result.actor), jobs.give(result.job.player, result.actor))

    return broadcast_jobs


def measure_league(league: League, *, payoff: np.ndarray[Any, Any], moves: Sequence[str]) -> Middleware:
    """Say what the league would play: its mixture of snapshots.

    Writes: ctx.metrics["league/<move>"], its probability of each move; ["league/exploitability"]: the most
    that anybody could gain against it; ["league/snapshots"].
    """

    def measure_league(ctx: Any) -> None:
        mixture = league.blend(strategy)
        for move, probability in zip(moves, mixture.tolist(), strict=True):
            ctx.metrics[f"league/{move}"] = probability
        ctx.metrics["league/exploitability"] = exploitability(mixture, payoff)
        ctx.metrics["league/snapshots"] = len(league.snapshots)

    return measure_league
