"""Rock-paper-scissors by its rules, and against opponents whose best answer is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check

from engine.envs.make import make_env
from engine.envs.rock_paper_scissors import MOVES, PAYOFF, RockPaperScissors
from engine.errors import EnvError

ROCK, PAPER, SCISSORS = range(3)
BEATS = {(ROCK, SCISSORS), (PAPER, ROCK), (SCISSORS, PAPER)}


def pure(move: int) -> list[float]:
    return [float(move == other) for other in range(3)]


def test_it_obeys_gymnasium() -> None:
    gymnasium_check(RockPaperScissors(), skip_render_check=True)


@pytest.mark.parametrize("mine", range(3))
@pytest.mark.parametrize("theirs", range(3))
def test_rewards_are_the_rules(mine: int, theirs: int) -> None:
    env = RockPaperScissors(rounds=1, opponent=pure(theirs))
    env.reset(seed=0)
    obs, reward, terminated, truncated, info = env.step(mine)
    expected = 1.0 if (mine, theirs) in BEATS else -1.0 if (theirs, mine) in BEATS else 0.0
    assert (reward, terminated, truncated) == (expected, True, False)
    assert expected == PAYOFF[mine, theirs]
    assert obs.tolist() == pure(mine) + pure(theirs)
    assert info == {"opponent_move": theirs}


def test_the_game_is_symmetric_and_its_table_cannot_be_changed() -> None:
    assert np.array_equal(PAYOFF, -PAYOFF.T)
    with pytest.raises(ValueError, match="read-only"):
        PAYOFF[0, 0] = 1.0


def test_the_opponent_moves_as_often_as_its_strategy_says() -> None:
    strategy = np.array([0.6, 0.3, 0.1])
    env = RockPaperScissors(rounds=30_000, opponent=strategy.tolist())
    env.reset(seed=3)
    moves = [env.step(ROCK)[4]["opponent_move"] for _ in range(30_000)]
    # Five standard deviations of a share over 30,000 draws.
    assert np.abs(np.bincount(moves, minlength=3) / 30_000 - strategy).max() < 5 * 0.5 / 30_000**0.5


def test_an_opponent_can_be_set_between_rounds_and_at_reset() -> None:
    env = RockPaperScissors(rounds=4, opponent=pure(ROCK))
    env.reset(seed=0)
    assert env.step(PAPER)[1] == 1.0
    env.set_opponent(pure(SCISSORS))
    assert env.step(PAPER)[1] == -1.0
    env.reset(options={"opponent": pure(PAPER)})
    assert env.step(PAPER)[1] == 0.0


def test_the_same_seed_gives_the_same_opponent_moves() -> None:
    def moves(seed: int) -> list[int]:
        env = RockPaperScissors(rounds=50)
        env.reset(seed=seed)
        return [env.step(ROCK)[4]["opponent_move"] for _ in range(50)]

    assert moves(1) == moves(1) != moves(2)


@pytest.mark.parametrize(
    "opponent", [[0.5, 0.5], [0.5, 0.6, -0.1], [0.3, 0.3, 0.3], [float("nan"), 0.5, 0.5]]
)
def test_what_is_no_strategy_is_refused(opponent: Any) -> None:
    with pytest.raises(EnvError, match="3 probabilities of rock, paper, scissors"):
        RockPaperScissors(opponent=opponent)


def test_at_least_one_round_is_played() -> None:
    with pytest.raises(EnvError, match="at least 1 round"):
        RockPaperScissors(rounds=0)


def test_the_last_round_is_told_in_words() -> None:
    env = RockPaperScissors(opponent=pure(ROCK), render_mode="ansi")
    env.reset(seed=0)
    assert env.render() == "no round was played yet"
    env.step(PAPER)
    assert env.render() == f"round 1: {MOVES[PAPER]} against {MOVES[ROCK]}, won"


def test_it_is_played_many_at_a_time_and_answering_the_last_move_beats_a_constant_opponent() -> None:
    kwargs = {"rounds": 5, "opponent": pure(SCISSORS)}
    with make_env("engine.envs.rock_paper_scissors:RockPaperScissors", num_envs=3, kwargs=kwargs) as env:
        obs = env.reset()
        returns: list[float] = []
        while not returns:
            seen = obs[:, 3:]
            best = np.where(seen.any(1), (seen.argmax(1) + 1) % 3, PAPER)  # what beats the last move
            step = env.step(best)
            obs, returns = step.obs, [episode.return_ for episode in step.episodes]
    assert returns == [3.0] * 3  # lost the first round, won four
