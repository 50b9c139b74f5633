"""A league of rock-paper-scissors, both roles in one process: it converges, repeats and records."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from engine.bus.bus import Bus, host, join
from engine.bus.memory import Network
from engine.context import OnlineContext
from engine.envs.config import EnvConfig
from engine.envs.make import make_env
from engine.envs.rock_paper_scissors import MOVES, PAYOFF, RockPaperScissors
from engine.errors import ConfigError, DeadlineExceeded, UsageError
from engine.league.league import Job, League
from engine.league.learner import strategy
from engine.middleware.functional.league import play_match, wait_for_league
from engine.recipes.experiment import run_experiment
from engine.recipes.league import LeagueRun, MatchesConfig, PlayersConfig, StopConfig, league
from engine.recipes.target import resolve
from engine.runs.folder import Run
from engine.seeding import stream
from engine.task import Task


def short(games: int = 512, **more: Any) -> LeagueRun:
    return LeagueRun(stop=StopConfig(env_step=games), **more)


def played(config: LeagueRun) -> tuple[list[dict[str, Any]], Any, League]:
    """Run the league; return the metrics of every iteration, the last context and the league itself."""
    rows: list[dict[str, Any]] = []
    with league(config, watch=lambda policy: lambda ctx: rows.append(dict(ctx.metrics))) as task:
        ctx = task.run()
        house = next(found.value for found in task.holdings() if isinstance(found.value, League))
    return rows, ctx, house


@pytest.mark.parametrize("seed", range(5))
def test_the_mixture_approaches_a_third_each(seed: int) -> None:
    rows, ctx, house = played(LeagueRun(seed=seed))
    mixture = [rows[-1][f"league/{move}"] for move in MOVES]
    assert np.abs(np.array(mixture) - 1 / 3).max() < 0.05
    assert rows[-1]["league/exploitability"] < 0.1
    assert max(rows[0][f"league/{move}"] for move in MOVES) > 0.9  # it did not begin there
    assert ctx.env_step == house.games_played >= 20_000
    assert rows[-1]["league/snapshots"] == len(house.snapshots) >= 3


def test_the_same_seed_gives_the_same_numbers() -> None:
    rows, _, house = played(short(2_000, seed=3))
    again, _, other = played(short(2_000, seed=3))
    different, _, _ = played(short(2_000, seed=4))
    assert rows == again != different
    assert house.snapshots == other.snapshots
    assert house.players == other.players


def test_it_stops_when_enough_games_were_played_by_both_actors() -> None:
    with league(short(64)) as task:
        assert task.names == ["collect", "learn"]
        ctx = task.run()
    assert task.finish_reason == "64 env steps are done"
    assert (ctx.env_step, ctx.total_step) == (64, 2)  # two matches of 16 games an iteration
    assert {result.actor for result in ctx.results} == {"actor_0", "actor_1"}
    assert ctx.metrics["collect/return_mean"] == np.mean([result.mean for result in ctx.results])


def test_after_the_first_match_jobs_come_by_broadcast() -> None:
    bus = Bus()
    heard: list[Job] = []
    with league(short(64, players=PlayersConfig(count=3)), bus=bus) as task:
        bus.on("league_job_actor_2", heard.append)
        task.run(max_step=3)
    assert [job.player for job in heard] == ["main_2"] * 2
    # Three were asked for, then every job was broadcast: none was asked for again.
    assert [job.number for job in heard] == [6, 9]


def test_a_match_is_played_as_the_players_are_and_only_its_player_learns() -> None:
    rock, paper = (9.0, -9.0, -9.0), (-9.0, 9.0, -9.0)
    with make_env(RockPaperScissors, num_envs=4, kwargs={"rounds": 3}) as env:
        env.reset()
        play = play_match(
            env, stream(0, "moves"), actor="actor_0", payoff=PAYOFF, learning_rate=0.5, limit=20.0
        )
        for learn in (True, False):
            names = {"player": "main_0", "home": "main_0", "away": "main_1_0"}
            job = Job(number=1, **names, weights=rock, opponent=paper, games=10, learn=learn)
            ctx = OnlineContext()
            ctx.job = job
            play(ctx)
            result = ctx.result
            # Ten games with four environments are twelve; rock loses each to paper.
            assert (result.wins, result.draws, result.losses) == (0, 0, 12)
            assert result.mean == -1.0
            # Against paper, rock would lose, paper draw, and scissors win.
            expected = np.array(rock) + 0.5 * np.array([-1.0, 0.0, 1.0])
            assert np.allclose(result.weights, expected - expected.mean() if learn else rock)


def test_first_moves_follow_from_the_seed_and_differ_between_players() -> None:
    firsts = set()
    for seed in range(10):
        config = short(seed=seed)
        with league(config) as task:
            house = next(found.value for found in task.holdings() if isinstance(found.value, League))
        firsts.add(tuple(int(strategy(weights).argmax()) for weights in house.players.values()))
    assert len(firsts) > 3


def played_apart(config: LeagueRun) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, str | None]]:
    """Run the league and two actors, each on a thread with a bus of its own.

    Returns the metrics of the league's iterations, and of each part its last context and why it ended.
    """
    rows: list[dict[str, Any]] = []
    contexts: dict[str, Any] = {}
    reasons: dict[str, str | None] = {}
    network = Network()
    hub = host(network.transport(), run="apart", roles=("actor", "league"))

    def play(peer: str) -> None:
        role = peer.partition("_")[0]
        bus = join(network.transport(), at=hub.address, run="apart", role=role, peer=peer)
        more: dict[str, Any] = {}
        if role == "league":
            more["watch"] = lambda policy: lambda ctx: rows.append(dict(ctx.metrics))
        try:
            with league(config, roles=frozenset({role}), bus=bus, **more) as task:
                if role == "league":
                    bus.wait_for_peers("actor", 2, timeout=60)
                contexts[peer] = task.run()
                reasons[peer] = task.finish_reason
            if role == "league":
                hub.tell_finish("the league has ended")
                over.wait(30)  # so that nobody finds its server gone before it is told to finish
        finally:
            hub.tell_finish(f"{peer} has ended")  # the first reason stands
            bus.close()

    over = threading.Event()
    try:
        with ThreadPoolExecutor(3) as pool:
            parts = {peer: pool.submit(play, peer) for peer in ("league_0", "actor_0", "actor_1")}
            try:
                for peer in ("actor_0", "actor_1"):
                    parts[peer].result(timeout=100)
            finally:
                hub.tell_finish("the test is over")
                over.set()
            parts["league_0"].result(timeout=30)
    finally:
        hub.close()
    return rows, contexts, reasons


def test_an_actor_without_a_league_says_so() -> None:
    network = Network()
    hub = host(network.transport(), run="apart", roles=("actor", "league"))
    bus = join(network.transport(), at=hub.address, run="apart", role="actor")
    try:
        task = Task(OnlineContext(), bus=bus).use(wait_for_league(bus, timeout=0.05))
        with task, pytest.raises(DeadlineExceeded, match="1 of role 'league' were expected"):
            task.run(max_step=1)
    finally:
        bus.close()
        hub.close()


def test_apart_league_and_actors_speak_over_the_bus_and_every_game_counts() -> None:
    rows, contexts, reasons = played_apart(short(1_600))
    assert reasons["league_0"] == "1,600 env steps are done"
    assert reasons["actor_0"] == reasons["actor_1"] == "the league has ended"
    assert contexts["league_0"].env_step >= 1_600
    sent = sum(contexts[actor].env_step for actor in ("actor_0", "actor_1"))
    # An actor may have sent its last match after the league had ended, and play one more.
    assert 0 <= sent - contexts["league_0"].env_step <= 2 * 2 * 16
    assert {result.actor for result in contexts["league_0"].results} <= {"actor_0", "actor_1"}
    assert rows[-1]["league/snapshots"] >= 2


@pytest.mark.slow
def test_apart_the_mixture_approaches_a_third_each_too() -> None:
    rows, _, _ = played_apart(LeagueRun())
    assert rows[-1]["league/exploitability"] < 0.1


def test_the_run_folder_holds_the_mixture_and_no_policy(tmp_path: Path) -> None:
    run = Run.create(env="rps", algo="league", seed=0, run_dir=tmp_path / "run")
    config = short(640, matches=MatchesConfig(games=32, trial=32))
    finished = run_experiment(league, config, run=run, progress="off")
    assert finished.state == "finished"
    metrics = finished.metrics()
    names = {"league/rock", "league/paper", "league/scissors", "league/exploitability", "league/snapshots"}
    assert names <= set(metrics.names())
    assert metrics.rows[-1]["env_step"] == 640
    assert (run.path / "plots" / "learning_curve.png").exists()
    assert not (run.path / "policies").exists()


def test_the_shipped_configuration_is_the_one_that_converges() -> None:
    target = resolve("league/rock_paper_scissors", [])
    assert target.recipe is league
    assert msgspec.to_builtins(target.config) == msgspec.to_builtins(LeagueRun())


def test_senseless_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="opponents cannot be set in other processes"):
        resolve("league/rock_paper_scissors", ["env.vectorization=process"])
    with pytest.raises(UsageError, match="did you mean 'actor'"):
        league(LeagueRun(), roles=frozenset({"actors"}))
    with pytest.raises(ValueError, match="opponents"):
        LeagueRun(env=EnvConfig(id="x:Y", vectorization="process"))
