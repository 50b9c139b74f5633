"""Who sits where, and who is to blame."""

from __future__ import annotations

from engine.errors import PeerLost, RemoteError
from engine.launch.backend import Ended, cause
from engine.launch.crew import Crew, Failure, blame
from engine.launch.losses import Policy
from engine.launch.plan import Seat
from engine.recipes.roles import COLLECTOR, LEARNER, Role

SEATS = [
    Seat("collector_0", "collector", 0),
    Seat("collector_1", "collector", 1),
    Seat("learner_0", "learner", 0),
]


def crew(*roles: Role, seats: list[Seat] = SEATS) -> Crew:
    return Crew({role.name: role for role in roles}, {role.name: Policy(role.loss) for role in roles}, seats)


def test_the_run_is_over_when_the_one_that_records_it_has_finished() -> None:
    mine = crew(COLLECTOR, LEARNER)
    mine.places["collector_0"].state = "finished"
    assert not mine.over()
    mine.places["learner_0"].state = "finished"
    assert mine.over()


def test_where_nobody_records_all_that_cannot_be_missed_must_finish() -> None:
    seats = [Seat("league_0", "league", 0), Seat("actor_0", "actor", 0), Seat("actor_1", "actor", 1)]
    mine = crew(Role("league", loss="go_on"), Role("actor"), seats=seats)
    mine.places["actor_0"].state = "finished"
    assert not mine.over()
    mine.places["actor_1"].state = "finished"
    assert mine.over()


def test_a_seat_that_is_to_be_taken_again_counts_as_one_that_is_left() -> None:
    mine = crew(COLLECTOR, LEARNER)
    mine.places["collector_0"].state = "waiting"
    mine.places["collector_1"].state = "lost"
    assert mine.left("collector") == 1


def test_the_error_that_others_follow_from_is_blamed() -> None:
    follows = Failure("learner_0", "PeerLost", "collector_0 was lost")
    first = Failure("collector_0", "ValueError", "no such thing")
    assert blame([follows, first]) is first
    assert blame([follows]) is follows


def test_a_failure_raises_with_the_traceback_from_there() -> None:
    error = Failure("learner_0", "ConfigError", "bad", traceback="Traceback ...", code=3).error(
        "it is needed"
    )
    assert isinstance(error, RemoteError)
    assert (error.kind, error.peer, error.exit_code) == ("ConfigError", "learner_0", 3)
    assert str(error) == "learner_0 failed: ConfigError: bad; it is needed"
    assert "Traceback ..." in error.__notes__[0]


def test_a_death_raises_with_what_was_printed_last() -> None:
    failure = Failure.of("learner_0", Ended(-9, cause(-9), "the last words"), cause(-9))
    error = failure.error()
    assert isinstance(error, PeerLost)
    assert str(error) == "learner_0 was killed by SIGKILL"
    assert "the last words" in error.__notes__[0]
    assert error.exit_code == 1


def test_a_cause_is_told_in_words() -> None:
    assert cause(3) == "left with exit code 3"
    assert cause(-15) == "killed by SIGTERM"
    assert cause(-1000) == "killed by signal 1000"


def test_reports_may_hold_anything_and_hide_nothing() -> None:
    mine = crew(COLLECTOR, LEARNER)
    mine.places["collector_0"].note({"stepped": "many", "version": "1.2", "state": "warm", "queue": 3}, 1.0)
    mine.places["collector_1"].note({"stepped": None, "env_step": 7.0, "version": [1]}, 1.0)
    mine.places["learner_0"].note({"env_step": True, "version": float("nan")}, 1.0)
    first, second, learner = mine.rows()
    assert (first["state"], first["env_step"], first["queue"]) == ("starting", None, 3)
    assert (second["env_step"], learner["env_step"]) == (7, None)
    assert not any("weight_lag" in row for row in (first, second, learner))


def test_speed_and_lag_are_worked_out_from_what_processes_report() -> None:
    mine = crew(COLLECTOR, LEARNER)
    for now, steps in ((10.0, 100), (11.0, 900), (14.0, 500)):
        mine.places["collector_0"].note({"env_step": 7, "stepped": steps, "version": 3, "x": {}}, now)
    mine.places["learner_0"].note({"env_step": 7, "version": 5}, 10.0)
    first, second, learner = mine.rows()
    assert (first["env_step"], first["env_steps_per_second"], first["weight_lag"]) == (500, 100.0, 2)
    assert "x" not in first
    assert (second["env_step"], "weight_lag" in second) == (None, False)
    assert (learner["env_step"], learner["env_steps_per_second"], "weight_lag" in learner) == (7, None, False)
