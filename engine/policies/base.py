"""What policies of torch modules have in common: a model, its optimizer, its place, its state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import nn

from engine.errors import ConfigError, EnvError, StateError, TreeError
from engine.nets.adam import Adam
from engine.nets.flat import FlatParameters
from engine.policies.config import PolicyConfig, decayed
from engine.policies.device import choose_device, leaf_map
from engine.policies.spaces import Space, env_action, parts_of, to_arrays
from engine.policies.trainers import trainer_of
from engine.seeding import seed_torch, stream
from engine.tree import check_names, plain
from engine.types import Arrays

_BUILDING = threading.Lock()


@contextmanager
def own_torch_stream(seed: int) -> Iterator[None]:
    """Seed torch's global generator for this block; behind it, it goes on as if nothing had been drawn."""
    # There is one for all threads, and roles may run in threads.
    with _BUILDING, torch.random.fork_rng(devices=[]):
        seed_torch(seed)
        yield


class TorchPolicy:
    """Owns a module, its Adam and its random streams; a subclass says how it acts and learns.

    A model of the user's own is moved to the device and trained in place: its parameters
    become views of one vector.  Without one, the subclass's net is built from `seed` alone; torch's
    global generator is left as it was.
    """

    algorithm: ClassVar[str]
    config_type: ClassVar[type[PolicyConfig]]
    config: PolicyConfig

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        config: PolicyConfig,
        *,
        build: Callable[[], nn.Module],
        model: nn.Module | None,
        device: str,
        seed: int,
    ) -> None:
        _check_keys(observation_space)
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.device = choose_device(device)
        self.version = 0
        self.custom_model = model is not None
        if model is None:
            with own_torch_stream(seed):
                model = build()
        self.model = model.to(self.device).eval()
        self._weights = flatten(self.model)
        # One vector to optimize: Adam's and clipping's cost no longer grows with the layers.
        self._optimizer = Adam(self._weights, learning_rate=config.learning_rate, epsilon=config.adam_epsilon)
        self._trainer = trainer_of(self.model, self._weights, self.device)
        self._act_generator = stream(seed, "policy_act")
        self._shuffle_generator = stream(seed, "policy_shuffle")
        self._on_cpu = self.device.type == "cpu"

    # -- acting

    def act(self, obs: Any, *, deterministic: bool = False) -> Any:
        """Return what `env.step` takes for one observation, or for a batch of them.

        `obs` is what gymnasium gives, dicts and tuples included; one dimension more than the
        space has makes it a batch.  Discrete actions count from the space's `start` (an int for
        one observation), Box actions are clipped to the bounds.  Sampling draws from the
        policy's own generator.  Raises `ValueError` for observations of another shape, and for numbers that
        are not finite in float32.
        """
        arrays, single = to_arrays(obs, self.observation_space)
        action = env_action(self._choose(arrays, deterministic), self.action_space)
        if not single:
            return action
        return int(action[0]) if isinstance(self.action_space, Discrete) else action[0, ...]

    def _choose(self, obs: Arrays, deterministic: bool) -> Any:
        """Return actions (B, ...) as they are recorded."""
        raise NotImplementedError

    # -- learning

    @property
    def learning_rate(self) -> float:
        """Adam's step size from now on; part of the state."""
        return self._optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._optimizer.learning_rate = float(value)

    def set_progress(self, fraction: float) -> None:
        """Set the learning rate to what the config's decay asks when this fraction of the run is done.

        The caller measures the fraction from its own counters, so a resumed run goes on where it was.
        """
        self.learning_rate = decayed(self.config, fraction)

    def _columns(self, batch: Any) -> dict[str, Any]:
        """Return a batch's columns as arrays to compute on: numpy on CPU, tensors of the device elsewhere."""
        columns = plain(batch)
        if self._on_cpu:
            return {name: leaf_map(_as_numpy, column) for name, column in columns.items()}

        def moved(leaf: Any) -> torch.Tensor:
            return torch.as_tensor(leaf).to(self.device, non_blocking=True)

        return {name: leaf_map(moved, column) for name, column in columns.items()}

    def _descend(self, gradients: Sequence[Any]) -> float | torch.Tensor:
        """Take one step, given the loss's gradient by each output; return its norm before clipping."""
        self._trainer.backward(gradients)
        norm: float | torch.Tensor = self._weights.clip(self.config.max_grad_norm)
        self._optimizer.step()
        return norm

    # -- state

    def state_dict(self) -> dict[str, Any]:
        """Return everything that acting and learning depend on, as a copy that later updates leave alone."""
        return {
            "algorithm": self.algorithm,
            "version": self.version,
            "model": weights_of(self.model),
            "optimizer": self._optimizer.state_dict(),
            "generators": {
                "act": self._act_generator.bit_generator.state,
                "shuffle": self._shuffle_generator.bit_generator.state,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what `state_dict` of a policy of the same kind and sizes returned.

        Raises `StateError`, and changes no weights, when kinds or sizes differ.
        """
        if state.get("algorithm") != self.algorithm:
            raise StateError(f"state of {state.get('algorithm')!r} given to a policy of {self.algorithm!r}")
        self.load_weights(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.version = int(state["version"])
        self._act_generator.bit_generator.state = state["generators"]["act"]
        self._shuffle_generator.bit_generator.state = state["generators"]["shuffle"]

    def weights(self) -> dict[str, Any]:
        """Return what an actor acts with as numpy arrays, for `take_weights` of an actor elsewhere.

        Views of the weights, where they lie on the CPU: good until the next `learn`.
        """
        return self._weights.arrays()

    def load_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy named tensors into the model; raises `StateError` when names or shapes differ."""
        mine = self.model.state_dict()
        if wrong := sorted(mine.keys() ^ weights.keys()):
            raise StateError(f"the weights belong to another model: only one side has {', '.join(wrong[:5])}")
        for name, tensor in weights.items():
            if mine[name].shape != tensor.shape:
                there, here = tuple(tensor.shape), tuple(mine[name].shape)
                raise StateError(
                    f"the weights belong to another model: {name} is {there} there and {here} here"
                )
        self.model.load_state_dict(dict(weights))


def _check_keys(space: Space) -> None:
    """Refuse keys of Dict observations that a batch could not hold, before anything is collected."""
    parts = parts_of(space)
    if parts is not None:
        try:
            check_names(parts)
        except TreeError as error:
            raise EnvError(f"a key of the observation space cannot be used: {error} with a wrapper") from None
        for part in parts.values():
            _check_keys(part)


def flatten(model: nn.Module) -> FlatParameters:
    """Return the model's parameters as one vector; raises `ConfigError` where they are not of one kind."""
    try:
        return FlatParameters(model)
    except ValueError as error:
        raise ConfigError(f"{type(model).__name__} cannot be trained: {error}") from None


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of a module's parameters and buffers by name, on CPU."""
    return {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}


def _as_numpy(leaf: Any) -> Any:
    return leaf.numpy() if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
