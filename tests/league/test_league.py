"""The league asks for the right matches, and its mixture approaches the Nash strategy of the game."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.errors import UnknownName, UsageError
from engine.league.league import Job, League, Result
from engine.league.learner import improve, strategy
from engine.league.mixture import exploitability

RPS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
PURE = [(3.0, -3.0, -3.0), (-3.0, 3.0, -3.0), (-3.0, -3.0, 3.0)]


def make(*weights: tuple[float, ...], seed: int = 0, **more: Any) -> League:
    players = {f"main_{index}": one for index, one in enumerate(weights)}
    return League(players, generator=np.random.default_rng(seed), **more)


def result(job: Job, wins: int = 0, draws: int = 0, losses: int = 0, **more: Any) -> Result:
    values = {"actor": "actor_0", "weights": job.weights, **more}
    return Result(job=job, wins=wins, draws=draws, losses=losses, **values)


def play(job: Job, generator: np.random.Generator) -> Result:
    mine = generator.choice(3, size=job.games, p=strategy(job.weights))
    theirs = generator.choice(3, size=job.games, p=strategy(job.opponent))
    reward = RPS[mine, theirs]
    seen = np.bincount(theirs, minlength=3)
    learned = improve(job.weights, seen, RPS, learning_rate=0.2, limit=3.0)
    return result(
        job,
        wins=int((reward > 0).sum()),
        draws=int((reward == 0).sum()),
        losses=int((reward < 0).sum()),
        weights=learned if job.learn else job.weights,
    )


def test_every_player_begins_with_a_snapshot_of_itself() -> None:
    league = make(PURE[0], PURE[1])
    assert league.snapshots == {"main_0_0": PURE[0], "main_1_0": PURE[1]}
    assert league.players == {"main_0": PURE[0], "main_1": PURE[1]}
    assert league.mixture == {"main_0_0": 1.0, "main_1_0": 0.0}  # the second is on trial


def test_a_single_player_learns_against_its_own_past() -> None:
    job = make(PURE[0], games=5).get_job("main_0")
    assert job == Job(
        number=1,
        player="main_0",
        home="main_0",
        away="main_0_0",
        weights=PURE[0],
        opponent=PURE[0],
        games=5,
        learn=True,
    )


def test_snapshots_on_trial_play_first_and_join_the_mixture_after_it() -> None:
    league = make(PURE[0], PURE[1], games=8, trial=16)
    jobs = [league.get_job("main_0"), league.get_job("main_1")]
    assert [(job.home, job.away, job.learn) for job in jobs] == [("main_0_0", "main_1_0", False)] * 2
    assert league.get_job("main_0").learn
    league.put_result(result(jobs[0], losses=8))
    assert league.mixture == {"main_0_0": 1.0, "main_1_0": 0.0}
    league.put_result(result(jobs[1], losses=8))
    assert league.mixture == {"main_0_0": 0.0, "main_1_0": 1.0}  # paper has beaten rock
    assert league.payoff.win_rate("main_1_0", "main_0_0") == 1.0
    assert league.games_played == 16


def test_a_result_that_never_comes_delays_a_trial_but_does_not_stop_it() -> None:
    league = make(PURE[0], PURE[1], games=8, trial=8, evaluate_every=3)
    league.get_job("main_0")  # whoever got it died
    while not league.mixture["main_1_0"]:
        job = league.get_job("main_1")
        league.put_result(result(job, losses=8))
    assert job.number == 3


def test_learning_matches_meet_snapshots_as_often_as_the_mixture_says() -> None:
    league = make(*PURE, games=1, trial=1, evaluate_every=1_000_000)
    for _ in range(3):
        job = league.get_job("main_0")
        wins = int(strategy(job.weights) @ RPS @ strategy(job.opponent) > 0)
        league.put_result(result(job, wins=wins, losses=1 - wins))
    assert np.allclose(list(league.mixture.values()), 1 / 3)
    met = [league.get_job("main_1").away for _ in range(3_000)]
    shares = [met.count(name) / 3_000 for name in league.snapshots]
    assert np.abs(np.array(shares) - 1 / 3).max() < 5 * (2 / 9 / 3_000) ** 0.5


def test_a_player_that_beats_the_mixture_for_a_window_leaves_a_snapshot() -> None:
    league = make(PURE[0], games=10, window=3, margin=0.3)
    for wins in (6, 6, 7):  # mean payoffs 0.2, 0.2, 0.4: not enough yet
        league.put_result(result(league.get_job("main_0"), wins=wins, losses=10 - wins, weights=PURE[1]))
    assert list(league.snapshots) == ["main_0_0"]
    league.put_result(result(league.get_job("main_0"), wins=7, losses=3, weights=PURE[1]))
    assert league.snapshots == {"main_0_0": PURE[0], "main_0_1": PURE[1]}
    assert league.players == {"main_0": PURE[1]}


def test_strangers_and_senseless_settings_are_refused() -> None:
    league = make(PURE[0])
    with pytest.raises(UnknownName, match="did you mean 'main_0'"):
        league.get_job("main_1")
    job = league.get_job("main_0")
    with pytest.raises(UnknownName, match="no player 'main_7'"):
        league.put_result(result(replace(job, home="main_7"), wins=1))
    assert league.games_played == 0
    with pytest.raises(UsageError, match="at least one player"):
        make()
    with pytest.raises(UsageError, match="window is at least 1"):
        make(PURE[0], window=0)
    with pytest.raises(UsageError, match="margin"):
        make(PURE[0], margin=1.0)


def trained(seed: int, games: int) -> tuple[League, np.ndarray[Any, Any]]:
    generator = np.random.default_rng([seed, 1])
    league = make(PURE[seed % 3], PURE[seed // 3 % 3], seed=seed)
    while league.games_played < games:
        for player in league.players:
            league.put_result(play(league.get_job(player), generator))
    return league, league.blend(strategy)


@pytest.mark.parametrize("seed", range(9))
def test_the_mixture_approaches_a_third_each_from_every_pair_of_first_moves(seed: int) -> None:
    league, mixture = trained(seed, 20_000)
    assert np.abs(mixture - 1 / 3).max() < 0.05
    assert exploitability(mixture, RPS) < 0.1
    assert 3 <= len(league.snapshots) <= 12


def test_the_same_seed_gives_the_same_league() -> None:
    first, mixture = trained(4, 3_000)
    second, again = trained(4, 3_000)
    assert np.array_equal(mixture, again)
    assert first.snapshots == second.snapshots
    assert first.players == second.players
