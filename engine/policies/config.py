"""What can be set about the policies; imports nothing heavy, so that files are checked quickly."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1)]
Sizes = tuple[Count, ...]
Positive = Annotated[float, Meta(gt=0)]
Decay = Literal["none", "linear"]


class ActorCriticConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What policies of a net with an actor and a critic share."""

    learning_rate: Annotated[
        float, Meta(gt=0, le=1, description="step size of Adam, at the start of the run")
    ] = 3e-4
    learning_rate_decay: Annotated[
        Decay, Meta(description="linear: to 0 at the end of the run, as `set_progress` tells it")
    ] = "none"
    discount: Annotated[
        float, Meta(ge=0, le=1, description="gamma: what a reward one step later is worth")
    ] = 0.99
    value_coef: Annotated[float, Meta(ge=0, description="weight of the value's squared error")] = 0.5
    entropy_coef: Annotated[float, Meta(ge=0, description="weight of the entropy bonus")] = 0.0
    max_grad_norm: Annotated[float, Meta(gt=0, description="the gradient is scaled down to this norm")] = 0.5
    hidden: Annotated[Sizes, Meta(description="units of the hidden layers")] = (64, 64)
    activation: Annotated[
        Literal["tanh", "relu", "elu", "gelu", "silu"], Meta(description="activation function between layers")
    ] = "tanh"
    shared: Annotated[bool, Meta(description="one trunk for policy and value in place of two nets")] = False
    log_std_init: Annotated[
        float, Meta(ge=-20, le=2, description="Box actions: log of the first standard deviation")
    ] = 0.0
    adam_epsilon: Annotated[float, Meta(gt=0, description="Adam's guard against division by zero")] = 1e-5


class PPOConfig(ActorCriticConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proximal policy optimization (Schulman et al. 2017)."""

    gae_lambda: Annotated[
        float, Meta(ge=0, le=1, description="0: one-step advantages; 1: Monte Carlo less V")
    ] = 0.95
    clip: Annotated[
        float, Meta(gt=0, description="how far the probability ratio may leave 1 and still be rewarded")
    ] = 0.2
    value_clip: Annotated[
        Positive | None,
        Meta(description="how far V may move from the stored value in one update; null: freely"),
    ] = None
    epochs: Annotated[int, Meta(ge=1, description="passes over the batch in one update")] = 4
    minibatches: Annotated[int, Meta(ge=1, description="gradient steps in one pass")] = 4
    target_kl: Annotated[
        Positive | None,
        Meta(
            description="no further step is taken once the policy has moved this far (nats); null: all steps"
        ),
    ] = None
    normalize_advantage: Annotated[
        bool, Meta(description="give each minibatch's advantages mean 0 and deviation 1")
    ] = True

    def __post_init__(self) -> None:
        _positive_or_none(value_clip=self.value_clip, target_kl=self.target_kl)


class IMPALAConfig(ActorCriticConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Importance weighted actor-learner architecture: an actor-critic with V-trace (Espeholt et al. 2018)."""

    adam_epsilon: Annotated[
        float,
        Meta(
            gt=0,
            description="Adam's guard against division by zero; large, so that a burst of gradient after "
            "a quiet stretch, which data of older weights repeats, takes no large steps",
        ),
    ] = 1e-3

    vtrace_lambda: Annotated[
        float, Meta(ge=0, le=1, description="0: one-step targets; 1: as far as the weights reach")
    ] = 1.0
    rho_clip: Annotated[
        Positive | None,
        Meta(description="largest importance weight of one step's error; null: unclipped, higher variance"),
    ] = 1.0
    c_clip: Annotated[
        Positive | None,
        Meta(description="largest importance weight by which later errors reach back; null: any"),
    ] = 1.0

    def __post_init__(self) -> None:
        _positive_or_none(rho_clip=self.rho_clip, c_clip=self.c_clip)


class DQNConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deep Q-learning (Mnih et al. 2015), with double targets, dueling heads and n-step returns."""

    learning_rate: Annotated[
        float, Meta(gt=0, le=1, description="step size of Adam, at the start of the run")
    ] = 1e-3
    learning_rate_decay: Annotated[
        Decay, Meta(description="linear: to 0 at the end of the run, as `set_progress` tells it")
    ] = "none"
    discount: Annotated[
        float, Meta(ge=0, le=1, description="gamma: what a reward one step later is worth")
    ] = 0.99
    double: Annotated[bool, Meta(description="choose the next action by the online net (double DQN)")] = True
    dueling: Annotated[bool, Meta(description="split Q into state value and advantages")] = False
    n_step: Annotated[int, Meta(ge=1, description="rewards summed before bootstrapping")] = 1
    target_update: Annotated[
        int, Meta(ge=1, description="gradient steps between updates of the target net")
    ] = 250
    tau: Annotated[
        float, Meta(gt=0, le=1, description="how far the target net moves at each update; 1: copied")
    ] = 1.0
    huber: Annotated[
        Positive | None, Meta(description="errors beyond this count linearly; null: all are squared")
    ] = 1.0
    max_grad_norm: Annotated[float, Meta(gt=0, description="the gradient is scaled down to this norm")] = 10.0
    hidden: Annotated[Sizes, Meta(description="units of the hidden layers")] = (64, 64)
    activation: Annotated[
        Literal["tanh", "relu", "elu", "gelu", "silu"], Meta(description="activation function between layers")
    ] = "relu"
    adam_epsilon: Annotated[float, Meta(gt=0, description="Adam's guard against division by zero")] = 1e-8

    def __post_init__(self) -> None:
        _positive_or_none(huber=self.huber)


def _positive_or_none(**values: float | None) -> None:
    # the ranges of the annotations are looked at by files and words only
    for name, value in values.items():
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be > 0 or null, not {value}")


PolicyConfig: TypeAlias = ActorCriticConfig | DQNConfig


def decayed(config: PolicyConfig, progress: float) -> float:
    """Return the learning rate when a fraction `progress` of the run is done."""
    if config.learning_rate_decay == "linear":
        return config.learning_rate * (1.0 - min(max(progress, 0.0), 1.0))
    return config.learning_rate
