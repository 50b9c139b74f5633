"""Join collectors and a learner that run in processes of their own: weights one way, data the other.

The learner publishes its weights after each iteration as the state ``learner_model``; collectors
push what they collected into the stream ``collector_trajectories``, which holds back those that are
too quick.  In *lockstep* every iteration of the learner takes one item from each collector, and each
collector waits for the weights that came of its last one: then a run repeats exactly.

The learner alone counts: ``ctx.env_step`` there is the number of env steps that it took, and
collectors are told it with the weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engine.context import Middleware
from engine.data.trajectories import joined
from engine.errors import PeerLost
from engine.types import Actor, Arrays, Policy

if TYPE_CHECKING:
    from engine.bus.bus import Bus

MODEL, TRAJECTORIES = "learner_model", "collector_trajectories"

_REPORT_EVERY = 0.1

PATIENCE_SECONDS = 120.0
"""So long one side waits for the other before it says who is missing, and fails."""


# --- the collector's side ---------------------------------------------------------------------


def follow_model(
    actor: Actor, bus: Bus, *, lockstep: bool = False, timeout: float = PATIENCE_SECONDS
) -> Middleware:
    """Act with the newest weights of the learner; stands before what collects.

    They are taken over between iterations.  The first iteration waits for the first weights, and in
    lockstep each one for those that the learner made of the last.

    Writes: ctx.env_step, as the learner counts it, ctx.metrics["collect/version"].  Raises
    `DeadlineExceeded` where no learner appears within `timeout` seconds.
    """
    bus.declare(MODEL, "state")
    newest: dict[str, int] = {"round": -1, "env_step": 0}
    first = 0

    def take_over(model: Mapping[str, Any]) -> None:
        nonlocal first
        if model["round"] < newest["round"]:
            first = -newest["round"]  # another learner, which counts anew
        actor.take_weights(model["weights"], model["version"])
        newest.update(round=model["round"], env_step=model["env_step"])

    bus.on(MODEL, take_over, view=True)

    def follow_model(ctx: Any) -> None:
        nonlocal first
        if newest["round"] < 0:
            bus.wait_for_peers("learner", timeout=timeout)
            take_over(bus.wait_for(MODEL, timeout=None))
            first = newest["round"] - ctx.total_step
        while lockstep and newest["round"] < first + ctx.total_step:
            take_over(bus.wait_for(MODEL, timeout=None))
        ctx.env_step = newest["env_step"]
        ctx.metrics["collect/version"] = actor.version

    return follow_model


class Sent:
    """What a collector was handed and pushed, in env steps, counted on the meter of its process."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._due = 0.0

    def handed(self, steps: int) -> None:
        """A trajectory of so many env steps has come to be sent, with all that was made until now."""
        self._bus.meter.handed(steps)
        self._report()

    def push(self, data: dict[str, Any], steps: int, timeout: float) -> None:
        """Push an item that holds so many env steps."""
        self._bus.push(TRAJECTORIES, data, timeout=timeout, amount=steps)
        self._report()

    def _report(self) -> None:
        """Tell of it now and then: for those that cannot read the meter, and for `engine top`."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _REPORT_EVERY
        made = self._bus.meter.read().made()
        self._bus.report(stepped=made["stepped"] or made["held"] + made["pushed"], made=made)


def send_trajectories(
    actor: Actor, bus: Bus, *, capacity: int = 2, timeout: float = PATIENCE_SECONDS
) -> Middleware:
    """Send the trajectory to a learner; stands behind what collects.

    At most `capacity` items wait that no learner took; then it waits for room.

    Reads: ctx.trajectory (T, B, ...), ctx.metrics["collect/..."].  Raises `DeadlineExceeded` where nobody
    takes an item for `timeout` seconds.
    """
    bus.declare(TRAJECTORIES, "stream", capacity=capacity)
    sent = Sent(bus)

    def send_trajectories(ctx: Any) -> None:
        trajectory = ctx.trajectory
        steps, episodes = _counts(trajectory)
        sent.handed(steps)
        item = {
            "columns": trajectory,
            "env_step": steps,
            "env_episode": episodes,
            "version": actor.version,
            "metrics": _collect_metrics(ctx),
        }
        sent.push(item, steps, timeout)

    return send_trajectories


def send_rows(
    actor: Actor,
    bus: Bus,
    make_rows: Callable[[dict[str, Arrays]], dict[str, Arrays]],
    *,
    least_steps: int = 1,
    capacity: int = 2,
    timeout: float = PATIENCE_SECONDS,
) -> Middleware:
    """Send what a replay buffer stores, for at least `least_steps` env steps at once.

    ``make_rows(trajectory)`` turns columns (T, B, ...) into rows (N, ...), where N may be 0.

    Reads: ctx.trajectory (T, B, ...), ctx.metrics["collect/..."].  Raises as `send_trajectories`.
    """
    bus.declare(TRAJECTORIES, "stream", capacity=capacity)
    sent = Sent(bus)
    held: list[dict[str, Arrays]] = []
    steps = episodes = 0

    def send_rows(ctx: Any) -> None:
        nonlocal held, steps, episodes
        trajectory = ctx.trajectory
        more_steps, more_episodes = _counts(trajectory)
        held.append(make_rows(trajectory))
        steps, episodes = steps + more_steps, episodes + more_episodes
        sent.handed(more_steps)
        if steps < least_steps:
            return
        item = {
            "columns": joined(held, axis=0),
            "env_step": steps,
            "env_episode": episodes,
            "version": actor.version,
            "metrics": _collect_metrics(ctx),
        }
        sent.push(item, steps, timeout)
        held, steps, episodes = [], 0, 0

    return send_rows


# --- the learner's side -----------------------------------------------------------------------


def publish_model(policy: Policy, bus: Bus) -> Middleware:
    """Publish the policy's weights to the collectors, now and after every iteration.

    They are copied when they are published.  Stands behind what learns.

    Reads: ctx.env_step.  Writes: ctx.metrics["train/version"]: how many updates made the weights.
    """
    bus.declare(MODEL, "state")

    def publish(round: int, env_step: int) -> None:
        weights = policy.weights()
        model = {"round": round, "version": policy.version, "env_step": env_step, "weights": weights}
        bus.emit(MODEL, model)

    publish(0, 0)

    def publish_model(ctx: Any) -> None:
        publish(ctx.total_step + 1, ctx.env_step)
        ctx.metrics["train/version"] = policy.version

    return publish_model


class _Received(NamedTuple):
    """An item that was taken, and counted as taken."""

    value: dict[str, Any]
    sender_id: str
    seconds: float


class Receiver:
    """Takes what the collectors sent: one item of each in lockstep, else what is there, at least one.

    Raises `DeadlineExceeded`, naming who was expected, where nothing comes for `timeout` seconds.
    """

    transient = ("_policy",)
    """Only its version is read here, a whole number, also while another station trains it."""

    def __init__(
        self,
        policy: Policy,
        bus: Bus,
        *,
        lockstep: bool,
        capacity: int,
        most: int,
        timeout: float,
    ) -> None:
        bus.declare(TRAJECTORIES, "stream", capacity=capacity)
        bus.consume(TRAJECTORIES)
        self._policy, self._bus, self._lockstep, self._timeout = policy, bus, lockstep, timeout
        self._most = most
        self._begun = False

    def take(self, ctx: Any) -> list[dict[str, Arrays]]:
        """Return the columns of the items, in the order of their senders' names in lockstep.

        Writes: ctx.env_step, ctx.env_episode, ctx.metrics["collect/..."], ["exchange/..."].
        """
        items: list[_Received] = []
        if self._lockstep:
            self._from_each(items)
        else:
            self._what_is_there(items)
        values: list[dict[str, Any]] = [item.value for item in items]
        for item in items:
            ctx.env_step += item.value["env_step"]
            ctx.env_episode += item.value["env_episode"]
            self._bus.meter.used(item.sender_id, item.value["env_step"])
        self._bus.report(waiting=self._bus.waiting(TRAJECTORIES))
        for name in sorted({name for value in values for name in value["metrics"]}):
            found = [value["metrics"][name] for value in values if name in value["metrics"]]
            ctx.metrics[name] = sum(found) / len(found)
        behind = [self._policy.version - value["version"] for value in values]
        ctx.metrics["exchange/behind_sending"] = sum(behind) / len(behind)
        ctx.metrics["exchange/queue_seconds"] = sum(item.seconds for item in items) / len(items)
        ctx.metrics["exchange/items"] = len(items)
        return [value["columns"] for value in values]

    def _take(self, sender: str | None = None) -> _Received:
        """Take an item, and count it before its sender hears that it is off its hands."""
        taken = self._bus.take(TRAJECTORIES, sender=sender, timeout=self._timeout, held=True)
        item = _Received(taken.value, taken.sender_id, taken.seconds)
        self._bus.meter.took(item.sender_id, taken.number, item.value["env_step"])
        taken.release()
        return item

    def _what_is_there(self, items: list[_Received]) -> None:
        items.append(self._take())
        while len(items) < self._most and self._bus.waiting(TRAJECTORIES):
            items.append(self._take())

    def _from_each(self, items: list[_Received]) -> None:
        while not items:
            # At first all that the run has; it expects one less for each that is lost for good before that.
            number = 1 if self._begun else None
            names = self._bus.wait_for_peers("collector", number, timeout=self._timeout)
            self._begun = True
            for name in sorted(names, key=_by_number):
                try:
                    items.append(self._take(name))
                except PeerLost:
                    continue  # the others go on; who decides whether they may is the launcher


def receive_trajectories(
    policy: Policy,
    bus: Bus,
    *,
    lockstep: bool = False,
    capacity: int = 2,
    timeout: float = PATIENCE_SECONDS,
) -> Middleware:
    """Take a trajectory of one collector, or in lockstep of each, side by side; see `Receiver`.

    Writes: ctx.trajectory (T, B, ...), ctx.env_step, ctx.env_episode, ctx.metrics["collect/..."] and
    ["exchange/..."]: ``behind_sending``, the updates since the newest weights that the collector had when
    it sent, and ``queue_seconds``, how long it was on its way.
    """
    receiver = Receiver(policy, bus, lockstep=lockstep, capacity=capacity, most=1, timeout=timeout)

    def receive_trajectories(ctx: Any) -> None:
        ctx.trajectory = joined(receiver.take(ctx), axis=1)

    return receive_trajectories


def receive_rows(
    policy: Policy,
    bus: Bus,
    *,
    lockstep: bool = False,
    capacity: int = 2,
    most: int = 64,
    timeout: float = PATIENCE_SECONDS,
) -> Middleware:
    """Take the rows of at most `most` items that wait, or in lockstep of one from each collector.

    Writes: ctx.rows (N, ...), and as `receive_trajectories`.
    """
    receiver = Receiver(policy, bus, lockstep=lockstep, capacity=capacity, most=most, timeout=timeout)

    def receive_rows(ctx: Any) -> None:
        ctx.rows = joined(receiver.take(ctx), axis=0)

    return receive_rows


# --- both -------------------------------------------------------------------------------------


def _counts(trajectory: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many transitions, and how many ends of episodes, are in a trajectory."""
    valid = trajectory["valid"]
    ended = (trajectory["terminated"] | trajectory["truncated"]) & valid
    return int(np.count_nonzero(valid)), int(np.count_nonzero(ended))


def _collect_metrics(ctx: Any) -> dict[str, float]:
    metrics = {name: value for name, value in ctx.metrics.items() if name.startswith("collect/")}
    metrics.pop("collect/version", None)
    return {name: float(value) for name, value in metrics.items()}


def _by_number(name: str) -> tuple[int, str]:
    """Order ``collector_2`` before ``collector_10``."""
    number = name.rpartition("_")[2]
    return (int(number) if number.isdigit() else 1 << 62), name


__all__ = [
    "MODEL",
    "TRAJECTORIES",
    "follow_model",
    "publish_model",
    "receive_rows",
    "receive_trajectories",
    "send_rows",
    "send_trajectories",
]
