"""What every recipe lets one configure beside its policy; quick to import."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from engine.envs.config import EnvConfig
from engine.errors import ConfigError
from engine.policies.config import PolicyConfig

Count = Annotated[int, Meta(ge=1)]
Positive = Annotated[float, Meta(gt=0)]


class EvaluateConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Periodic deterministic evaluation in separate environments."""

    every: Annotated[int, Meta(ge=1, description="env steps from one evaluation to the next")] = 10_000
    episodes: Annotated[int, Meta(ge=1, description="episodes of each evaluation")] = 10
    max_steps: Annotated[
        int, Meta(ge=1, description="steps after which an episode is cut, and counts as it is then")
    ] = 100_000
    final_episodes: Annotated[
        int, Meta(ge=0, description="episodes of the closing examination of the best policy; 0: none")
    ] = 20
    video: Annotated[int, Meta(ge=0, description="episodes to film at the end of the run")] = 0


class StopConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The run ends at the first of these; null: not by this one."""

    env_step: Annotated[
        Count | None, Meta(description="transitions to collect; null: another of these ends the run")
    ] = 100_000
    return_mean: Annotated[
        float | None, Meta(description="the run ends when an evaluation reaches this mean return")
    ] = None
    seconds: Annotated[
        Positive | None, Meta(description="wall-clock seconds from the first iteration on")
    ] = None
    no_progress: Annotated[Count | None, Meta(description="env steps without a better evaluation")] = None

    def __post_init__(self) -> None:
        for name in ("seconds", "no_progress"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be > 0 or null, not {value}")
        others = (self.seconds, self.return_mean, self.no_progress)
        if self.env_step is None and others == (None, None, None):
            raise ValueError(
                "without env_step the run needs another end: seconds, return_mean or no_progress"
            )


class ExchangeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How collectors and a learner in processes of their own work together; see docs/bus.md."""

    capacity: Annotated[Count, Meta(description="items of a collector that wait for the learner")] = 2
    patience: Annotated[
        float, Meta(gt=0, description="seconds that one side waits for the other before the run fails")
    ] = 120.0


class LooseExchangeConfig(ExchangeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For algorithms that can learn from what older weights collected."""

    lockstep: Annotated[
        bool,
        Meta(description="each update takes one item of every collector, which waits for the new weights"),
    ] = False


class RowsExchangeConfig(LooseExchangeConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For algorithms that learn from replay."""

    least_steps: Annotated[
        Count,
        Meta(description="env steps that a collector sends at once; in lockstep one iteration"),
    ] = 32


class RunConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all recipes share."""

    env: EnvConfig
    seed: Annotated[int, Meta(ge=0, description="every random draw of the run follows from it")] = 0
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="where the policy learns")] = "cpu"
    evaluate: EvaluateConfig = EvaluateConfig()
    stop: StopConfig = StopConfig()
    async_mode: Annotated[
        bool, Meta(description="collect the next data while the policy learns from the last")
    ] = False
    max_lag: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="with async_mode: iterations that collecting may be ahead of learning; null: one"),
    ] = None

    def __post_init__(self) -> None:
        if self.max_lag is not None and not self.async_mode:
            raise ValueError("max_lag says how far async_mode may run ahead: it needs async_mode=true")
        if self.stop.env_step is None and self.stop.seconds is None:
            for setting, instead in self.decays().items():
                raise ValueError(
                    f"{setting} follows how far the run is, which is not known with stop.env_step=null: "
                    f"set stop.seconds, or {instead}"
                )

    def decays(self) -> dict[str, str]:
        """Return the settings that change until the end of the run, each with one that does not."""
        return {}


def decays_of(policy: PolicyConfig) -> dict[str, str]:
    """Return what of a policy changes until the end of the run, as `RunConfig.decays` does."""
    if policy.learning_rate_decay == "none":
        return {}
    return {f"policy.learning_rate_decay={policy.learning_rate_decay}": "policy.learning_rate_decay=none"}


def config_type(recipe: Callable[..., Any], name: str) -> type[msgspec.Struct]:
    """The Struct that annotates a recipe's first parameter; only this annotation is looked at.

    Raises ConfigError where there is none.
    """
    parameter = next(iter(inspect.signature(recipe).parameters.values()), None)
    hint = parameter.annotation if parameter is not None else None
    if isinstance(hint, str):
        try:
            hint = eval(hint, getattr(inspect.unwrap(recipe), "__globals__", {}))  # as typing does
        except NameError as error:
            raise ConfigError(f"the configuration type of {name} cannot be found: {error}") from None
    if not (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        raise ConfigError(
            f"{name} is no recipe: its first parameter must be annotated with a msgspec.Struct, "
            "as in `def ppo(config: PPORun, ...) -> Task`"
        )
    return hint
