"""What became of every env step."""

from __future__ import annotations

from engine.launch.ledger import Ledger


def test_every_env_step_is_somewhere() -> None:
    ledger = Ledger()
    ledger.note("collector_0", {"stepped": 70, "sent": 60})
    ledger.note("learner_0", {"received": {"collector_0": 40}, "unlearned": {"collector_0": 10}})
    assert ledger.totals() == {
        "collector_0": {
            "stepped": 70,
            "sent": 60,
            "received": 40,
            "unlearned": 10,
            "waiting": 10,
            "unsent": 10,
            "lost": 0,
        }
    }
    assert ledger.losses() == "10 of collector_0 were taken in an iteration that did not finish"


def test_what_nobody_received_of_a_lost_process_is_lost_and_less_of_it_once_more_is_received() -> None:
    ledger = Ledger()
    ledger.note("collector_0", {"stepped": 70, "sent": 60})
    ledger.note("learner_0", {"received": {"collector_0": 40}})
    ledger.lose("collector_0")
    assert ledger.at_most_lost("collector_0") == ("of its 70 env steps 40 were received, at most 30 are lost")
    ledger.note("learner_0", {"received": {"collector_0": 60}})
    assert ledger.losses() == "10 of the 70 env steps of collector_0 are lost"


def test_what_was_received_was_sent_though_nobody_said_so() -> None:
    ledger = Ledger()
    ledger.note("collector_0", {"stepped": 20, "sent": 10})
    ledger.note("learner_0", {"received": {"collector_0": 30}})
    ledger.lose("collector_0")
    assert ledger.totals()["collector_0"]["stepped"] == 30
    assert ledger.at_most_lost("collector_0") == "all of its 30 env steps were received"
    assert ledger.losses() == ""


def test_a_process_that_takes_the_name_of_a_lost_one_counts_anew() -> None:
    ledger = Ledger()
    ledger.note("collector_0", {"stepped": 50, "sent": 50})
    ledger.note("learner_0", {"received": {"collector_0": 40}})
    ledger.lose("collector_0")
    ledger.begin("collector_0")
    ledger.note("collector_0", {"stepped": 30, "sent": 25})
    ledger.note("learner_0", {"received": {"collector_0": 60}})
    account = ledger.totals()["collector_0"]
    assert (account["stepped"], account["received"], account["lost"]) == (80, 60, 10)
    assert (account["waiting"], account["unsent"]) == (5, 5)


def test_who_makes_no_env_steps_has_no_account() -> None:
    ledger = Ledger()
    ledger.note("actor_0", {"env_step": 5})
    ledger.lose("actor_0")
    ledger.begin("actor_0")
    assert ledger.totals() == {}
    assert ledger.at_most_lost("actor_0") == ""


def test_what_is_no_number_is_not_counted() -> None:
    ledger = Ledger()
    ledger.note("collector_0", {"stepped": "many", "sent": 3})
    ledger.note("learner_0", {"received": {"collector_1": None}, "unlearned": "none"})
    assert ledger.totals() == {}
    ledger.note("collector_1", {"stepped": 5.0, "sent": 5})
    assert ledger.totals()["collector_1"]["waiting"] == 5
