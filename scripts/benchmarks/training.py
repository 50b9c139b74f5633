"""Train as the standard input says, a turn at a time, with the engine of the source tree that is given.

A run is built from the name of its configuration: the tree's own YAML file names the recipe.  No module of
the engine is imported by its place but the resolver of targets, which is looked up by its file name, so that
trees with another layout can be compared.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

UNENDING = 10**9  # env steps: no evaluation and no end within a measurement


def target_of(tree: Path, name: str, words: list[str]) -> Any:
    """Resolve a configuration of `tree`: an object with ``recipe``, a function, and ``config``."""
    files = sorted((tree / "engine").glob("**/target.py"))
    for file in files:
        module = importlib.import_module(".".join(file.relative_to(tree).with_suffix("").parts))
        if hasattr(module, "resolve"):
            return module.resolve(name, words)
    raise SystemExit(f"{tree} has no module `target` with a function `resolve` under engine/")


class Training:
    """One run of a shipped configuration, without evaluations."""

    def __init__(self, tree: Path, name: str, words: list[str], warm_up: int) -> None:
        words = [*words, "seed=1", f"evaluate.every={UNENDING}", f"stop.env_step={UNENDING}"]
        target = target_of(tree, str(tree / "configs" / f"{name}.yaml"), words)
        self._task = target.recipe(target.config).open()
        self._task.run(max_step=warm_up)
        gc.collect()

    def turn(self, iterations: int) -> tuple[float, int]:
        """Go on for some iterations; return the seconds of the processor, and the env steps."""
        before = self._task.ctx.env_step
        start = time.process_time()
        ctx = self._task.run(max_step=iterations)
        return time.process_time() - start, ctx.env_step - before

    def end(self) -> str:
        """Return a digest of the weights of every module that the middleware hold."""
        digests = set()
        for found in self._task.holdings():
            model = getattr(found.value, "model", None)
            if isinstance(model, torch.nn.Module):
                tensors = [tensor.detach().contiguous() for tensor in model.state_dict().values()]
                joined = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in tensors)
                digests.add(hashlib.sha256(joined).hexdigest())
        self._task.close()
        if not digests:
            raise SystemExit("no policy with a model was found in the task")
        return " ".join(sorted(digests))


def main() -> None:
    tree = Path(sys.argv[1])
    training: Any = None
    for line in sys.stdin:
        what, *words = json.loads(line)
        if what == "start":
            training, answer = Training(tree, *words), None
        else:
            answer = getattr(training, what)(*words)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1]
    main()
