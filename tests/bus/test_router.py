"""Several routers and the messages between them, without a network."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.bus.message import PEER_LOST, SMALL_BYTES, Call, Event, Failure, Held, Member, Reply, pack, unpack
from engine.bus.router import MOST_BACKLOG_BYTES, MOST_CALLS, UNSERVED_SECONDS, Arrived, Router
from engine.bus.slots import Torn
from engine.bus.transport import Frame


class Value:
    """A body whose skeleton says which it is; ``where`` is one of here, shared, far."""

    def __init__(self, what: str, where: str = "here") -> None:
        self.skeleton = what.encode()
        self.where = where
        self.size = 0 if where == "here" else 4
        self.released = 0
        self.overwritten = False

    def offer(self) -> tuple[Any, ...] | None:
        return (self.skeleton,) if self.where == "shared" else None

    def frames(self) -> list[Frame]:
        if self.overwritten:
            raise Torn("overwritten")
        return [self.skeleton[:4].ljust(4)]

    def release(self) -> None:
        self.released += 1


class Station:
    """A member: its router, and what came to it."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.id = f"{name}:1"
        self.me = Member(self.id, name, name.partition("_")[0], f"memory://{name}")
        self.attaches = True
        self.queued = 0
        self.router = Router(
            self.me,
            send=self._send,
            answer=lambda line, frame: world.answers.append((line, frame)),
            backlog=lambda _: self.queued,
            attach=lambda _: self.attaches,
            inflow=self,
        )
        self.alive = True
        self.events: list[tuple[str, bytes]] = []
        self.lost = 0
        self.states: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
        self.unread: deque[tuple[str, str]] = deque()
        self.items: deque[tuple[str, str, int, bytes]] = deque()
        self.taken: list[bytes] = []
        self.settled_count = 0
        self.calls: deque[tuple[str, Call]] = deque()
        self.made: Counter[tuple[str, int]] = Counter()
        self.cancels: list[int] = []
        self.outcomes: dict[int, list[Arrived | Failure]] = {}

    def _send(self, id: str, lane: int, frames: list[Frame]) -> None:
        self.world.links.setdefault((self.id, id, lane), deque()).append(frames)

    def offers(self, **fields: Any) -> None:
        self.me = self.router.me = msgspec.structs.replace(self.me, **fields)
        self.world.tell(self.me)

    def take(self) -> None:
        sender, name, number, what = self.items.popleft()
        self.taken.append(what)
        self.router.take(sender, name, [number])

    def answer(self) -> None:
        caller, call = self.calls.popleft()
        self.router.reply(caller, call.number, b"answer to " + call.skeleton, 0, [])

    # --- the inflow

    def event(self, sender: Member, event: Event) -> None:
        self.events.append((event.name, event.skeleton))

    def missed(self, sender: Member, count: int) -> None:
        self.lost += count

    def state(self, sender: Member, name: str, version: int, value: Arrived) -> None:
        self.states.setdefault((sender.id, name), []).append((version, value.skeleton))
        if value.offer is None:
            self.unread.append((sender.id, name))

    def item(self, sender: Member, name: str, number: int, age: float, value: Arrived) -> None:
        self.items.append((sender.id, name, number, value.skeleton))

    def settled(self, name: str, count: int) -> None:
        self.settled_count += count

    def called(self, sender: Member, call: Call, arena: Sequence[Frame]) -> None:
        self.calls.append((sender.id, call))
        self.made[sender.id, call.number] += 1

    def cancelled(self, sender: Member, number: int) -> None:
        self.cancels.append(number)
        self.calls = deque(one for one in self.calls if one[1].number != number)

    def replied(self, number: int, outcome: Arrived | Failure, server: str = "") -> None:
        self.outcomes.setdefault(number, []).append(outcome)


class World:
    """Stations, the links between them, each in order, and the news of who is there."""

    def __init__(self, *names: str) -> None:
        self.links: dict[tuple[str, str, int], deque[list[Frame]]] = {}
        self.answers: list[tuple[bytes, bytes]] = []  # on lines
        self.news: dict[str, deque[Member | str]] = {}
        self.stations: dict[str, Station] = {}
        for name in names:
            self.join(name)

    def __getitem__(self, name: str) -> Station:
        return self.stations[f"{name}:1"]

    @property
    def living(self) -> list[Station]:
        return [one for one in self.stations.values() if one.alive]

    def join(self, name: str) -> Station:
        station = Station(self, name)
        self.news[station.id] = deque(one.me for one in self.living)
        self.stations[station.id] = station
        self.tell(station.me)
        return station

    def tell(self, what: Member | str) -> None:
        about = what if isinstance(what, str) else what.id
        for station in self.living:
            if station.id != about:
                self.news[station.id].append(what)

    def kill(self, station: Station) -> None:
        station.alive = False
        for link in [link for link in self.links if station.id in link[:2]]:
            del self.links[link]
        self.tell(station.id)

    def step(self, rng: random.Random) -> bool:
        """Bring one message of any link, or one piece of news, to where it goes; False if there is none."""
        choices: list[Any] = [id for id, news in self.news.items() if news and self.stations[id].alive]
        choices += [link for link, queue in self.links.items() if queue and self._open(link)]
        if not choices:
            return False
        choice = rng.choice(choices)
        if isinstance(choice, str):
            what, router = self.news[choice].popleft(), self.stations[choice].router
            router.removed(what, "it died") if isinstance(what, str) else router.changed(what)
        else:
            frames = self.links[choice].popleft()
            receiver = self.stations[choice[1]].router
            receiver.handle(receiver.members[choice[0]], unpack(frames[0]), frames[1:])
        return True

    def _open(self, link: tuple[str, str, int]) -> bool:
        sender, receiver = self.stations[link[0]], self.stations[link[1]]
        return sender.alive and receiver.alive and sender.id in receiver.router.members

    def settle(self, rng: random.Random | None = None) -> None:
        while self.step(rng or random.Random(0)):
            pass


# --- anything at all --------------------------------------------------------------------------

OPS = ["deliver"] * 6 + ["emit", "snapshot", "publish", "push", "push", "take", "call", "answer", "read"]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_whatever_happens_calls_end_once_items_are_taken_once_and_states_are_the_latest(seed: int) -> None:
    rng = random.Random(seed)
    world = World("learner_0", "collector_0", "collector_1", "league_0")
    wishes: dict[str, dict[str, Any]] = {
        "learner_0": {"consumes": {"collector_items": 3}, "on": ["collector_news", "collector_state"]},
        "collector_0": {"serves": ["collector_get"], "on": ["collector_state"]},
        "collector_1": {"on": ["collector_news"]},
        "league_0": {"consumes": {"collector_items": 1}, "serves": ["collector_get", "league_get"]},
    }
    for name, offers in wishes.items():
        world[name].offers(**offers)
    for station in world.living:
        station.attaches = rng.random() < 0.7
    world.settle(rng)
    producers = [world["collector_0"], world["collector_1"]]
    pushed: dict[str, list[Value]] = {one.id: [] for one in producers}
    written: dict[str, list[Value]] = {one.id: [] for one in producers}  # a ring of two
    published: dict[str, int] = {one.id: 0 for one in producers}
    asked: list[tuple[Station, int, str]] = []
    numbers = iter(range(10_000))
    for step in range(250):
        if step in (120, 180) and rng.random() < 0.7:
            world.kill(rng.choice([one for one in world.living if one.name != "collector_1"]))
        if step == 150:
            late = world.join("learner_1")
            late.offers(on=["collector_state"], consumes={"collector_items": 2})
        one = rng.choice(world.living)
        match rng.choice(OPS):
            case "deliver":
                world.step(rng)
            case "emit":
                one.router.emit("collector_news", pack(Event("collector_news", b"x", b"")))
            case "snapshot" if one in producers:
                ring = written[one.id]
                ring.append(Value(f"{len(ring) + 1}", rng.choice(["here", "shared", "far"])))
                for old in ring[:-2]:
                    old.overwritten = old.where == "shared"
            case "publish" if one in producers and published[one.id] < len(written[one.id]):
                published[one.id] += 1
                value = written[one.id][published[one.id] - 1]
                one.router.publish("collector_state", published[one.id], value)
            case "push" if one in producers:
                value = Value(f"{one.name} {len(pushed[one.id])}", rng.choice(["here", "shared", "far"]))
                pushed[one.id].append(value)
                one.router.push("collector_items", value, 0.0, None)
            case "take" if one.items:
                one.take()
            case "call":
                number = next(numbers)
                method = rng.choice(["collector_get", "league_get"])
                asked.append((one, number, method))
                one.router.call(Call(number, method, 1000, 0, b"x"), [])
            case "answer" if one.calls:
                one.answer()
            case "read" if one.unread:
                one.router.read(*one.unread.popleft())
    for id, ring in written.items():
        while world.stations[id].alive and published[id] < len(ring):
            published[id] += 1
            world.stations[id].router.publish("collector_state", published[id], ring[published[id] - 1])
    busy = True
    while busy:
        busy = world.step(rng)
        for one in world.living:
            while one.items or one.calls or one.unread:
                busy = True
                if one.items:
                    one.take()
                if one.calls:
                    one.answer()
                if one.unread:
                    one.router.read(*one.unread.popleft())
    for one in world.living:
        one.router.at(UNSERVED_SECONDS + 1)
        for member in one.router.members.values():
            member.ready = True
        one.router.look_again()

    for station, number, method in asked:
        members = station.router.members.values()
        served = any(method in member.serves or member.role == method[:-4] for member in members)
        if station.alive:
            assert served <= len(station.outcomes.get(number, [])) <= 1
    taken = Counter(what for one in world.living for what in one.taken)
    taken_by_the_dead = {what for one in world.stations.values() if not one.alive for what in one.taken}
    for producer in producers:
        if producer.alive:
            for value in pushed[producer.id]:
                consumers = [one for one in world.living if "collector_items" in one.me.consumes]
                by_dead = value.skeleton in taken_by_the_dead
                if consumers:
                    assert value.released == 1
                    assert taken[value.skeleton] == 1 or (by_dead and not taken[value.skeleton])
                else:
                    assert value.released <= by_dead
            counts = producer.router.stream("collector_items", None).counts
            assert counts.pushed == len(pushed[producer.id]) == counts.taken + counts.waiting
            assert producer.settled_count == counts.taken
    for one in world.living:
        for seen in one.states.values():
            versions = [version for version, _ in seen]
            assert versions == sorted(set(versions))
            assert all(what == f"{version}".encode() for version, what in seen)
        if "collector_state" in one.me.on:
            for producer in producers:
                if producer.alive and producer is not one and published[producer.id]:
                    assert one.states[producer.id, "collector_state"][-1][0] == published[producer.id]


class Caller:
    """Calls by two lines, each for one call at a time; what is under way may be lost, or late."""

    def __init__(self, world: World, station: Station, rng: random.Random) -> None:
        self.world, self.station, self.rng = world, station, rng
        self.waiting: dict[int, tuple[Call, str]] = {}  # by line
        self.flying: list[tuple[Call, str]] = []
        self.asked: list[int] = []
        self.last: dict[int, int] = {}  # by line: its latest call

    def call(self, method: str) -> None:
        servers = self.station.router.servers.get(method, ())
        free = [line for line in (1, 2) if self.last.get(line) in (None, *self.station.outcomes)]
        if servers and free:
            number = len(self.asked)
            self.asked.append(number)
            self.last[free[0]] = number
            call = Call(number, method, 1000, 0, self.rng.choice([b"x", b"x" * SMALL_BYTES]), free[0])
            self.waiting[free[0]] = call, servers[0]
            self.flying.append((call, servers[0]))

    def fly(self) -> None:
        """Bring something that is under way to where it goes, or lose it."""
        asked, answered = self.flying, self.world.answers
        if asked and self.rng.random() < 0.5:
            call, id = asked.pop(self.rng.randrange(len(asked)))
            server = self.world.stations[id]
            member = server.router.members.get(self.station.id)
            if server.alive and member is not None and self.rng.random() < 0.8:
                server.router.asked(member, call, b"%d" % call.line)
        elif answered:
            line, frame = answered.pop(self.rng.randrange(len(answered)))
            assert len(frame) < SMALL_BYTES + 100
            number, answer = int(line), unpack(frame)
            if number in self.waiting and self.rng.random() < 0.8:
                waiting, _ = self.waiting[number]
                match answer:
                    case Held(its) if its == waiting.number:
                        self.insist(number)
                    case Reply() | Failure() if answer.number == waiting.number:
                        del self.waiting[number]
                        outcome = answer if isinstance(answer, Failure) else Arrived(answer.skeleton, 0)
                        self.station.replied(answer.number, outcome)

    def insist(self, line: int) -> None:
        self.station.router.insist(*self.waiting.pop(line))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_a_call_by_a_line_is_made_once_at_most_and_ends_once_whatever_is_lost_or_late(seed: int) -> None:
    rng = random.Random(seed)
    world = World("learner_0", "league_0", "league_1")
    for name in ("league_0", "league_1"):
        world[name].offers(serves=["league_get"])
    world.settle(rng)
    learner = world["learner_0"]
    caller = Caller(world, learner, rng)
    for step in range(150):
        if step == 100 and rng.random() < 0.5:
            world.kill(world["league_0"])
        one = rng.choice(world.living)
        match rng.choice(["call", "fly", "fly", "insist", "answer", "answer", "deliver", "deliver"]):
            case "call":
                caller.call("league_get")
            case "fly":
                caller.fly()
            case "insist" if caller.waiting:
                caller.insist(rng.choice(list(caller.waiting)))
            case "answer" if one.calls:
                one.answer()
            case "deliver":
                world.step(rng)
    while caller.waiting:
        caller.insist(next(iter(caller.waiting)))
    while world.step(rng) or caller.flying or world.answers or any(one.calls for one in world.living):
        caller.fly()
        for one in world.living:
            while one.calls:
                one.answer()

    assert all(len(learner.outcomes.get(number, [])) == 1 for number in caller.asked)
    made = world["league_0"].made + world["league_1"].made
    assert max(made.values(), default=1) == 1
    for number in caller.asked:
        (outcome,) = learner.outcomes[number]
        if isinstance(outcome, Failure):
            assert (outcome.kind, outcome.traceback) == (PEER_LOST, "league_0")
        else:
            assert made[learner.id, number] == 1
            assert outcome.skeleton.startswith(b"answer to x")


# --- one by one -------------------------------------------------------------------------------


def two(**offers: Any) -> tuple[World, Station, Station]:
    world = World("learner_0", "collector_0")
    world["collector_0"].offers(**offers)
    world.settle()
    return world, world["learner_0"], world["collector_0"]


def test_what_somebody_does_not_read_in_time_is_counted_and_told() -> None:
    world, learner, collector = two(on=["learner_news"])
    event = pack(Event("learner_news", b"x", b""))
    learner.router.emit("learner_news", event)
    learner.queued = MOST_BACKLOG_BYTES
    for _ in range(3):
        learner.router.emit("learner_news", event)
    learner.router.catch_up("collector_0:1")
    assert learner.router.behind == ["collector_0:1"]
    learner.queued = 0
    learner.router.catch_up("collector_0:1")
    learner.router.emit("learner_news", event)
    world.settle()
    assert (len(collector.events), collector.lost) == (2, 3)
    assert learner.router.behind == []


def test_a_state_that_a_slow_peer_missed_is_told_once_it_reads() -> None:
    world, learner, collector = two(on=["learner_model"])
    learner.queued = MOST_BACKLOG_BYTES + 1
    for version in (1, 2, 3):
        learner.router.publish("learner_model", version, Value(str(version)))
    learner.queued = 0
    learner.router.catch_up("collector_0:1")
    world.settle()
    assert collector.states["learner_0:1", "learner_model"] == [(3, b"3")]


def test_a_slow_reader_pulls_the_latest_and_no_more_than_one() -> None:
    world, learner, collector = two(on=["learner_model"])
    for version in range(1, 6):
        learner.router.publish("learner_model", version, Value(str(version), "far"))
        world.settle()
    assert [version for version, _ in collector.states["learner_0:1", "learner_model"]] == [1]
    collector.router.read("learner_0:1", "learner_model")
    world.settle()
    assert [version for version, _ in collector.states["learner_0:1", "learner_model"]] == [1, 5]


def test_small_states_are_not_pulled_once_they_are_read() -> None:
    world, learner, collector = two(on=["learner_model"])
    learner.router.publish("learner_model", 1, Value("1"))
    learner.router.publish("learner_model", 2, Value("2"))
    world.settle()
    collector.router.read("learner_0:1", "learner_model")
    world.settle()
    assert [version for version, _ in collector.states["learner_0:1", "learner_model"]] == [1, 2]


def test_a_pull_of_what_was_overwritten_is_answered_with_what_is_published_next() -> None:
    world, learner, collector = two(on=["learner_model"])
    first = Value("1", "far")
    learner.router.publish("learner_model", 1, first)
    first.overwritten = True
    world.settle()
    assert collector.states == {}
    learner.router.publish("learner_model", 2, Value("2", "far"))
    world.settle()
    assert collector.states["learner_0:1", "learner_model"] == [(2, b"2")]


def test_an_offer_that_cannot_be_reached_is_sent_by_socket_and_the_next_ones_at_once() -> None:
    world, learner, collector = two()
    learner.offers(consumes={"collector_items": 9})
    learner.attaches = False
    world.settle()
    for number in range(3):
        collector.router.push("collector_items", Value(str(number), "shared"), 0.0, None)
        world.settle()
    assert [what for *_, what in learner.items] == [b"0", b"1", b"2"]
    assert not any(queue for queue in world.links.values())


def test_items_of_a_dead_consumer_go_to_another_in_their_old_order() -> None:
    world = World("learner_0", "learner_1", "collector_0")
    collector = world["collector_0"]
    world["learner_0"].offers(consumes={"collector_items": 5})
    world.settle()
    for number in range(4):
        collector.router.push("collector_items", Value(str(number)), 0.0, None)
    world.settle()
    world["learner_0"].take()
    world.settle()
    world.kill(world["learner_0"])
    world["learner_1"].offers(consumes={"collector_items": 5})
    world.settle()
    assert [what for *_, what in world["learner_1"].items] == [b"1", b"2", b"3"]


def test_the_oldest_that_was_not_sent_is_dropped_where_the_stream_says_so() -> None:
    _, _, collector = two()
    values = [Value(str(number)) for number in range(5)]
    for value in values:
        collector.router.push("collector_items", value, 0.0, 2)
    assert [value.released for value in values] == [1, 1, 1, 0, 0]
    assert collector.settled_count == 3


def test_calls_of_a_dead_server_fail_and_say_who_died() -> None:
    world, learner, collector = two(serves=["collector_get"])
    learner.router.call(Call(1, "collector_get", 1000, 0, b""), [])
    world.settle()
    world.kill(collector)
    world.settle()
    (failure,) = learner.outcomes[1]
    assert isinstance(failure, Failure)
    assert (failure.kind, failure.message, failure.traceback) == (PEER_LOST, "it died", "collector_0")


def test_a_method_that_nobody_serves_is_given_up_once_its_role_is_ready() -> None:
    world, learner, collector = two(serves=["collector_get_job"])
    learner.router.call(Call(1, "collector_get_jib", 1000, 0, b""), [])
    learner.router.at(2 * UNSERVED_SECONDS)
    learner.router.look_again()
    assert learner.outcomes == {}
    collector.offers(ready=True)
    world.settle()
    (failure,) = learner.outcomes[1]
    assert isinstance(failure, Failure)
    assert "did you mean 'collector_get_job'" in failure.message


def test_a_caller_with_too_many_calls_is_told_at_once() -> None:
    world, learner, collector = two(serves=["collector_get"])
    for number in range(MOST_CALLS + 1):
        learner.router.call(Call(number, "collector_get", 1000, 0, b""), [])
    world.settle()
    (failure,) = learner.outcomes[MOST_CALLS]
    assert isinstance(failure, Failure)
    assert failure.kind == "Overloaded"
    collector.answer()
    world.settle()
    learner.router.call(Call(999, "collector_get", 1000, 0, b""), [])
    world.settle()
    assert len(collector.calls) == MOST_CALLS


def test_a_caller_with_too_many_calls_is_told_by_its_line() -> None:
    world, learner, collector = two(serves=["collector_get"])
    for number in range(MOST_CALLS):
        learner.router.call(Call(number, "collector_get", 1000, 0, b""), [])
    world.settle()
    collector.router.asked(learner.me, Call(MOST_CALLS, "collector_get", 1000, 0, b"", 1), b"line 1")
    ((line, frame),) = world.answers
    failure = unpack(frame)
    assert isinstance(failure, Failure)
    assert (line, failure.kind, failure.number) == (b"line 1", "Overloaded", MOST_CALLS)


def test_a_peer_has_only_so_many_lines() -> None:
    _, learner, collector = two(serves=["collector_get"])
    for line in range(100):
        collector.router.asked(learner.me, Call(line, "collector_get", 1000, 0, b"", line), b"line")
    assert [call.line for _, call in collector.calls] == list(range(1, 17))


def test_a_call_by_a_line_that_nobody_waits_for_is_cancelled_where_it_was_asked() -> None:
    world, learner, collector = two(serves=["collector_get"])
    collector.router.asked(learner.me, Call(1, "collector_get", 1000, 0, b"", 1), b"line")
    learner.router.cancel(1, collector.id)
    world.settle()
    assert collector.cancels == [1]


def test_a_large_answer_is_kept_until_it_is_asked_for_or_nobody_waits_for_it() -> None:
    world, learner, collector = two(serves=["collector_get"])
    for number in (1, 2):
        call = Call(number, "collector_get", 1000, 0, b"", 1)
        collector.router.asked(learner.me, call, b"line")
        collector.router.reply(learner.id, number, b"head", 4, [b"body"])
        assert unpack(world.answers.pop()[1]) == Held(number)
        if number == 1:
            learner.router.insist(call, collector.id)
        else:
            learner.router.cancel(number, collector.id)
        world.settle()
        assert collector.router._heard[learner.id][1].answer is None
    assert [type(outcome) for outcome in learner.outcomes[1]] == [Arrived]
    assert 2 not in learner.outcomes


def test_a_cancelled_call_is_over_at_both_ends() -> None:
    world, learner, collector = two(serves=["collector_get"])
    learner.router.call(Call(1, "collector_get", 1000, 0, b""), [])
    world.settle()
    learner.router.cancel(1)
    collector.answer()
    world.settle()
    assert collector.cancels == [1]
    assert learner.outcomes == {}


@pytest.mark.parametrize("number", [0, 7])
def test_replies_and_receipts_that_nobody_asked_for_are_left(number: int) -> None:
    world, learner, collector = two(serves=["collector_get"])
    collector.router.reply("learner_0:1", number, b"", 0, [])
    collector.router.take("learner_0:1", "collector_items", [number])
    collector.router.resend("learner_0:1", "collector_items", number)
    collector.router.pull("learner_0:1", "learner_model")
    world.settle()
    assert learner.outcomes == {}
