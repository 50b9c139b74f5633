"""Which processes a program needs, and what becomes of losses."""

from __future__ import annotations

import pytest

from engine.errors import UsageError
from engine.launch.losses import Fail, GoOn, Policy, Restart, decide, parse
from engine.launch.plan import make_plan, parse_counts
from engine.recipes.roles import COLLECTOR, LEARNER, Role
from engine.recipes.target import Target, resolve

ROLES = {"collector": COLLECTOR, "learner": LEARNER}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parent))
    return resolve("programs:add", ["until=7"])


def test_every_role_is_seated_as_often_as_it_must_or_as_is_asked(target: Target) -> None:
    names = [seat.name for seat in make_plan(target, {"collector": 2}).seats]
    assert names == ["collector_0", "collector_1", "learner_0"]
    assert [seat.name for seat in make_plan(target).seats] == ["collector_0", "learner_0"]


def test_a_wrong_role_is_told_the_nearest(target: Target) -> None:
    with pytest.raises(UsageError, match="no role 'colector'; did you mean 'collector'"):
        make_plan(target, {"colector": 1})


def test_a_missing_role_is_an_error_unless_others_may_join(target: Target) -> None:
    with pytest.raises(UsageError, match="needs at least 1 collector, not 0"):
        make_plan(target, {"collector": 0})
    plan = make_plan(target, {"collector": 0}, elastic=True)
    assert [seat.name for seat in plan.seats] == ["learner_0"]
    with pytest.raises(UsageError, match="needs at least 1 learner"):
        make_plan(target, {"learner": 0}, elastic=True)


def test_no_more_are_seated_than_one_machine_may_start(target: Target) -> None:
    assert len(make_plan(target, {"collector": 511}).seats) == 512
    for many in (512, 10**18):
        with pytest.raises(UsageError, match=f"{many + 1} processes are more than the 512"):
            make_plan(target, {"collector": many})


def test_one_process_records_the_run(target: Target) -> None:
    with pytest.raises(UsageError, match="there can be one, not 2"):
        make_plan(target, {"learner": 2})


def test_a_recipe_without_roles_says_so(target: Target) -> None:
    with pytest.raises(UsageError, match="alone has no roles, so it runs in one process"):
        make_plan(resolve("programs:alone", []), {"collector": 2})


def test_counts_are_read_from_words() -> None:
    assert parse_counts(["collector=2", "learner=1"]) == {"collector": 2, "learner": 1}
    for word in ("collector", "collector=", "collector=-1", "=2", "collector=two", f"collector={'9' * 5000}"):
        with pytest.raises(UsageError, match="like --role collector=2"):
            parse_counts([word])
    with pytest.raises(UsageError, match="twice"):
        parse_counts(["a=1", "a=2"])


def test_policies_are_read_from_words_and_the_others_keep_their_own() -> None:
    assert parse(["collector=restart:5"], ROLES) == {
        "collector": Policy("restart", 5),
        "learner": Policy("fail"),
    }
    assert parse(["collector=go-on"], ROLES)["collector"] == Policy("go_on")
    assert str(Policy("restart", 2)) == "restart:2"


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("collector", "role=policy"),
        ("colector=fail", "did you mean 'collector'"),
        ("collector=restrat", "did you mean 'restart'"),
        ("collector=fail:3", "only restart takes a number"),
        ("collector=restart:0", "at least 1"),
        ("collector=restart:²", "only restart takes a number"),
        ("learner=restart", "cannot go on without it"),
    ],
)
def test_a_wrong_policy_is_explained(word: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse([word], ROLES)


def test_a_policy_is_given_once_for_a_role() -> None:
    with pytest.raises(UsageError, match="--on-loss collector is given twice"):
        parse(["collector=go_on", "collector=fail"], ROLES)


def test_a_role_that_cannot_be_missed_fails_the_run() -> None:
    assert isinstance(decide(LEARNER, Policy("fail"), restarts=0, left=5), Fail)


def test_the_others_go_on_while_enough_remain() -> None:
    role = Role("collector", least=2, loss="go_on")
    assert decide(role, Policy("go_on"), restarts=0, left=2) == GoOn()
    verdict = decide(role, Policy("go_on"), restarts=0, left=1)
    assert verdict == Fail("only 1 is left of role collector, which needs 2")


def test_restarts_wait_longer_each_time_and_end() -> None:
    policy = Policy("restart", 8)
    waits = [decide(COLLECTOR, policy, restarts=number, left=0) for number in range(8)]
    assert waits == [Restart(wait) for wait in (0.5, 1, 2, 4, 8, 16, 30, 30)]
    assert decide(COLLECTOR, policy, restarts=8, left=1) == GoOn()
    assert isinstance(decide(COLLECTOR, policy, restarts=8, left=0), Fail)
