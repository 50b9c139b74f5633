"""The book of who belongs to a run."""

from __future__ import annotations

from engine.bus.hub import MOST_MEMBERS, Hub
from engine.bus.message import VERSION, Changed, Gone, Hello, Member, Refused, Welcome


def member(id: str = "collector:1", name: str = "", role: str = "collector") -> Member:
    return Member(id, name, role, f"memory://{id}")


def hub(*roles: str) -> Hub:
    return Hub("r", Member("launcher:0", "launcher_0", "launcher", "memory://0"), roles)


def hello(one: Member, run: str = "r", version: int = VERSION) -> Hello:
    return Hello(run, version, one)


def refusal(book: Hub, greeting: Hello) -> str:
    answer, news = book.hello(greeting)
    assert isinstance(answer, Refused)
    assert news is None
    return answer.reason


def test_a_newcomer_gets_a_name_and_the_others_are_told() -> None:
    book = hub()
    answer, news = book.hello(hello(member()))
    assert isinstance(answer, Welcome)
    assert answer.name == "collector_0"
    assert [one.name for one in answer.members] == ["launcher_0", "collector_0"]
    assert news == Changed(book.members["collector:1"])


def test_asking_again_is_answered_again_and_is_no_news() -> None:
    book = hub()
    book.hello(hello(member()))
    answer, news = book.hello(hello(member()))
    assert isinstance(answer, Welcome)
    assert answer.name == "collector_0"
    assert news is None


def test_a_newcomer_offers_nothing_before_it_says_so_itself() -> None:
    book = hub()
    eager = member()
    eager.on, eager.serves, eager.ready = ["a_b"], ["collector_get"], True
    book.hello(hello(eager))
    known = book.members["collector:1"]
    assert (known.on, known.serves, known.ready) == ([], [], False)


def test_free_names_are_given_again_and_names_in_use_are_not() -> None:
    book = hub()
    for id in ("collector:1", "collector:2"):
        book.hello(hello(member(id)))
    book.remove("collector:1", "it died", left=False)
    answer, _ = book.hello(hello(member("collector:3")))
    assert isinstance(answer, Welcome)
    assert answer.name == "collector_0"
    assert "collector_1 is taken" in refusal(book, hello(member("collector:4", "collector_1")))


def test_refusals_say_what_would_be_right() -> None:
    book = hub("collector", "learner")
    assert refusal(book, hello(member(), run="s")) == "this is run 'r', not 's'"
    assert "version 99" in refusal(book, hello(member(), version=99))
    assert "did you mean 'collector'" in refusal(book, hello(member(role="colector")))
    assert "no role: a role is one word" in refusal(hub(), hello(member(role="col_lector")))
    assert "named like 'collector_0'" in refusal(book, hello(member(name="learner_0")))
    assert "names no incarnation" in refusal(book, hello(member("hub")))


def test_who_was_declared_lost_stays_out_for_good() -> None:
    book = hub()
    book.hello(hello(member()))
    assert book.remove("collector:1", "silence", left=False) == Gone("collector:1", "silence", False)
    assert book.remove("collector:1", "silence", left=False) is None
    assert "declared lost: silence" in refusal(book, hello(member()))


def test_a_member_speaks_for_itself_only_and_not_of_its_name_or_place() -> None:
    book = hub()
    book.hello(hello(member()))
    book.hello(hello(member("collector:2")))
    lie = member("collector:1", "launcher_0", "launcher")
    assert book.changed("collector:2", lie) is None
    assert book.changed("stranger:1", member("stranger:1")) is None
    lie.on, lie.address = ["a_b"], "elsewhere"
    news = book.changed("collector:1", lie)
    assert news is not None
    assert (news.member.name, news.member.role, news.member.on) == ("collector_0", "collector", ["a_b"])
    assert news.member.address == "memory://collector:1"


def test_a_run_that_is_full_says_so() -> None:
    book = hub()
    for number in range(MOST_MEMBERS - 1):
        book.members[f"x:{number}"] = member(f"x:{number}", f"collector_{number}")
    assert "members already" in refusal(book, hello(member()))


def test_late_joiners_are_told_that_the_run_finishes() -> None:
    book = hub()
    book.finish = "enough"
    answer, _ = book.hello(hello(member()))
    assert isinstance(answer, Welcome)
    assert answer.finish == "enough"
