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
            job = bus.call("league_get_job", player=player, timeout=None)
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
        bus.push(RESULTS, ctx.result, timeout=timeout)

    return send_result


def count_games() -> Middleware:
    """Count the games that this process has played.  Reads: ctx.result.  Writes: ctx.env_step.

    For an actor apart from the league, which else is the one that counts.
    """

    def count_games(ctx: Any) -> None:
        ctx.env_step += ctx.result.games

    return count_games


def receive_results(bus: Bus, league: League, *, timeout: float = 60.0) -> Middleware:
    """Wait for a result, and give the league all that have come.

    Raises `DeadlineExceeded`, which says who was expected, after `timeout` seconds without one.
    Writes: ctx.results, ctx.env_step: games that were played, ctx.metrics["collect/return_mean"]: their
    mean payoff.
    """
    bus.consume(RESULTS)

    def receive_results(ctx: Any) -> None:
        ctx.results = [bus.take(RESULTS, timeout=timeout).value]
        for _ in range(bus.waiting(RESULTS)):
            ctx.results.append(bus.take(RESULTS, timeout=timeout).value)
        for result in ctx.results:
            league.put_result(result)
            ctx.env_step += result.games
        games = sum(result.games for result in ctx.results)
        ctx.metrics["collect/return_mean"] = sum(one.mean * one.games for one in ctx.results) / games

    return receive_results


def broadcast_jobs(bus: Bus, league: League) -> Middleware:
    """Tell each actor that has finished a match its next one.  Reads: ctx.results."""

    def broadcast_jobs(ctx: Any) -> None:
        for result in ctx.results:
            bus.emit(job_event(result.actor), league.get_job(result.job.player))

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
