"""What became of every env step."""

from __future__ import annotations

from typing import Any

from engine.bus.meter import Meter, Reading, Row, key_of
from engine.launch.ledger import Ledger

ID = "collector_0:1"


def collector(**counts: Any) -> Reading:
    return Reading(key=key_of(ID), **counts)


def kept(made: Reading, **row: int) -> Ledger:
    """The ledger of a collector and a learner."""
    ledger = Ledger()
    ledger.begin("collector_0", lambda: made)
    ledger.begin("learner_0", lambda: Reading(rows={key_of(ID): Row(**row)}))
    return ledger


GOOD = collector(stepped=75, mark=70, held=10, pushed=60, waiting=25, items=((2, 15), (3, 10)))


def test_every_env_step_is_somewhere() -> None:
    ledger = kept(GOOD, received=35, unused=15, next=3, recent=0b111)
    assert ledger.totals() == {
        "collector_0": {
            "stepped": 75,
            "pushed": 60,
            "received": 35,
            "unlearned": 15,
            "dropped": 0,
            "waiting": 10,  # item 2 was taken, though its producer had not heard of that
            "held": 10,
            "collecting": 5,
            "lost": 0,
            "exact": True,
        }
    }
    assert ledger.mismatches() == ""
    assert ledger.losses() == "15 of collector_0 were taken in an iteration that did not finish"


def test_what_goes_with_a_lost_process_is_lost_and_less_of_it_once_more_is_received() -> None:
    ledger = kept(GOOD, received=35, next=2, recent=0b11)
    ledger.lose("collector_0")
    assert ledger.at_most_lost("collector_0") == "of its 75 env steps 35 were received, at most 40 are lost"
    assert ledger.mismatches() == ""
    later = kept(GOOD, received=60, next=4, recent=0b1111)
    later.lose("collector_0")
    assert later.losses() == "15 of the 75 env steps of collector_0 are lost"


def test_items_that_are_in_no_count_are_told() -> None:
    gone = kept(collector(pushed=60, mark=60, stepped=60), received=44, next=4, recent=0b1111)
    assert gone.mismatches() == (
        "of collector_0 60 env steps were pushed, and 44 were received, left unlearned, dropped or wait"
    )
    twice = kept(collector(pushed=60, mark=60, stepped=60), received=76, next=4, recent=0b1111)
    assert "60 env steps were pushed, and 76 were received" in twice.mismatches()


def test_trajectories_that_were_made_and_never_sent_are_told() -> None:
    ledger = kept(collector(stepped=70, mark=64, held=0, pushed=48), received=48, next=3, recent=0b111)
    assert ledger.mismatches() == (
        "of collector_0 64 env steps were made until it last sent some, and 48 were sent or held"
    )


def test_items_that_the_stream_never_got_are_told_unless_the_process_was_killed_meanwhile() -> None:
    made = collector(stepped=64, mark=64, held=16, sent=64, pushed=48)
    ledger = kept(made, received=48, next=3, recent=0b111)
    assert ledger.mismatches() == "of collector_0 64 env steps were given to the stream, and 48 came there"
    ledger.lose("collector_0")
    assert ledger.mismatches() == ""


def test_a_process_that_takes_the_name_of_a_lost_one_has_an_account_of_its_own() -> None:
    ledger, other = kept(GOOD, received=35, next=2, recent=0b11), "collector_0:2"
    ledger.lose("collector_0")
    ledger.begin("collector_0", lambda: Reading(key_of(other), stepped=30, mark=30, held=5, pushed=25))
    ledger.begin("learner_1", lambda: Reading(rows={key_of(other): Row(received=25, next=1, recent=1)}))
    account = ledger.totals()["collector_0"]
    assert (account["stepped"], account["received"], account["lost"]) == (105, 60, 40)
    assert (account["waiting"], account["held"]) == (25, 15)
    assert ledger.mismatches() == ""


def test_of_a_meter_out_of_reach_is_known_what_was_reported_last_and_that_is_said() -> None:
    ledger = Ledger()
    ledger.begin("collector_0")
    ledger.note("collector_0", {"made": GOOD.made()})
    ledger.begin("learner_0", lambda: Reading(rows={key_of(ID): Row(received=80, next=4, recent=15)}))
    ledger.lose("collector_0")
    account = ledger.totals()["collector_0"]
    assert (account["exact"], account["lost"], account["received"]) == (False, None, 80)
    assert ledger.mismatches() == "", "what it made after its last report is not known"
    assert ledger.at_most_lost("collector_0") == (
        "80 of its env steps were received, how many it has made since is not known"
    )
    assert "how many env steps of collector_0 are lost is not known" in ledger.losses()
    ledger.lose("collector_0", final=True)
    assert ledger.totals()["collector_0"]["lost"] == 15, "it left in order, and said so last"


def test_who_makes_no_env_steps_has_no_account() -> None:
    ledger = Ledger()
    ledger.begin("actor_0", Meter().read)
    ledger.note("actor_0", {"env_step": 5, "made": "many"})
    ledger.lose("actor_0")
    assert ledger.totals() == {}
    assert ledger.at_most_lost("actor_0") == ""
    assert ledger.losses() == ""


def test_a_program_without_environments_is_accounted_from_what_it_hands_over() -> None:
    ledger = kept(collector(held=2, pushed=8, waiting=3, items=((1, 3),)), received=5, next=1, recent=1)
    assert ledger.totals()["collector_0"]["stepped"] == 10
    assert ledger.mismatches() == ""


def test_jobs_are_counted_open_or_lost() -> None:
    ledger = Ledger()
    rows = {key_of("actor_0"): Row(given=9, counted=7, open=2), key_of("actor_1"): Row(given=3, counted=5)}
    ledger.begin("league_0", lambda: Reading(rows=rows))
    ledger.begin("actor_0", Reading)
    ledger.begin("actor_1", Reading)
    ledger.lose("actor_0")
    account = ledger.totals()["actor_0"]
    jobs = {name: account[name] for name in ("jobs_given", "jobs_counted", "jobs_open", "jobs_lost")}
    assert jobs == {"jobs_given": 9, "jobs_counted": 7, "jobs_open": 0, "jobs_lost": 2}
    assert ledger.losses() == "2 jobs of actor_0 will have no result"
    assert ledger.mismatches() == "of actor_1 3 jobs were given, and 5 have a result, are open or lost"
