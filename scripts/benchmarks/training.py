"""Train as the standard input says, a turn at a time, with the engine of the source tree that is given."""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

sys.path[0] = sys.argv[1]

from engine import config as configs  # noqa: E402
from engine.recipes import dqn, ppo  # noqa: E402


class Training:
    """One run of a shipped configuration of CartPole-v1, without evaluations."""

    def __init__(self, name: str, words: list[str], seed: int) -> None:
        kind, build = (ppo.PPORun, ppo.ppo) if name.startswith("ppo") else (dqn.DQNRun, dqn.dqn)
        words = [*words, f"seed={seed}", "evaluate.every=1000000000", "stop.env_step=1000000000"]
        config: Any = configs.convert(configs.override(configs.load(name), words), kind)
        self._task = build(config, watch=self._remember).open()
        self._task.run(max_step=config.train.warm_up if isinstance(config, dqn.DQNRun) else 2)
        gc.collect()

    def _remember(self, policy: Any) -> Callable[[Any], None]:
        self._policy = policy
        return lambda ctx: None

    def turn(self, iterations: int) -> tuple[float, int]:
        """Go on for some iterations; return the seconds of the processor, and the env steps."""
        before = self._task.ctx.env_step
        start = time.process_time()
        ctx = self._task.run(max_step=iterations)
        return time.process_time() - start, ctx.env_step - before

    def end(self) -> str:
        """Return a digest of the weights."""
        self._task.close()
        digest = hashlib.sha256()
        for tensor in self._policy.model.state_dict().values():
            digest.update(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def main() -> None:
    training: Any = None
    for line in sys.stdin:
        what, *words = json.loads(line)
        if what == "start":
            training, answer = Training(*words), None
        else:
            answer = getattr(training, what)(*words)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
