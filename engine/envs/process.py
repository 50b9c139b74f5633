"""Environments that run each in a process of its own, behind gymnasium's vector face.

Workers are plain interpreters that speak over their stdin and stdout, not `multiprocessing`
children: safe to start after torch has made threads (nothing is forked), a user's script
needs no ``__main__`` guard, no helper process or semaphore outlives `close`, and a worker
that dies is seen at once because its pipe ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector import VectorEnv as GymVectorEnv
from gymnasium.vector.utils import CloudpickleWrapper, batch_space, concatenate, create_empty_array

from engine.envs.returns import Innermost
from engine.errors import EnvError
from engine.signals import blocked

_ROOT = str(Path(__file__).parents[2])
_BOOT = f"import sys; sys.path.insert(0, {_ROOT!r}); from engine.envs.worker import main; main()"
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class ProcessVectorEnv(GymVectorEnv):
    """Steps environments at the same time, one process each; autoreset mode DISABLED.

    `makers` build the environments inside their processes.  An error raised by an
    environment is raised here with its own type and the remote traceback as a note; the
    death of a process is an `EnvError` that names its index.  After a death or an interrupt
    all processes are stopped, and `reset` starts them anew.  Infos stay in the processes.
    """

    def __init__(
        self, makers: Sequence[Callable[[], Any]], *, name: str = "env", close_timeout: float = 5.0
    ) -> None:
        self.num_envs = len(makers)
        self._name = name
        self._makers = [pickle.dumps(CloudpickleWrapper(maker)) for maker in makers]
        self._close_timeout = close_timeout
        self._workers: list[subprocess.Popen[bytes]] = []
        made = self._launch()
        observation, action, metadata, self.render_mode, counted = made[0]
        for index, (other_observation, other_action, *_) in enumerate(made):
            if other_observation != observation or other_action != action:
                self._stop(0.0)
                raise EnvError(f"environment {index} has other spaces than environment 0")
        self.metadata = {**metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.single_observation_space, self.single_action_space = observation, action
        self.observation_space = batch_space(observation, self.num_envs)
        self.action_space = batch_space(action, self.num_envs)
        self._rows: list[Any] = [None] * self.num_envs
        self.innermost = [Innermost(*counted) for _ in makers] if counted else None
        """What each innermost environment has earned; None if no wrapper changes rewards or ends."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset all environments, or those of ``options["reset_mask"]`` (B,), with a seed each."""
        if seed is None or isinstance(seed, int):
            seed = [None if seed is None else seed + index for index in range(self.num_envs)]
        mask = (options or {}).get("reset_mask")
        rows = range(self.num_envs) if mask is None else np.flatnonzero(mask).tolist()
        if mask is None and not self._workers and not self.closed:
            self._launch()
        asked = {index: ("reset", (seed[index], mask is None)) for index in rows}
        for index, (obs, counted) in zip(rows, self._ask(asked), strict=True):
            self._rows[index] = obs
            self._count(index, counted)
        return self._batch(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every environment with its row of `actions` (B, ...)."""
        replies = self._ask({index: ("step", action) for index, action in enumerate(actions)})
        rows, reward, terminated, truncated, counts = zip(*replies, strict=True)
        self._rows = list(rows)
        if self.innermost is not None:
            for index, counted in enumerate(counts):
                self._count(index, counted)
        return (
            self._batch(),
            np.array(reward, np.float64),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            {},
        )

    def render(self) -> tuple[Any, ...]:
        """Return one frame of each environment."""
        return tuple(self._ask(dict.fromkeys(range(self.num_envs), ("render", None))))

    def close_extras(self, **_: Any) -> None:
        """Close the environments and end their processes, by force after `close_timeout` seconds."""
        self._stop(self._close_timeout)

    @property
    def pids(self) -> list[int]:
        """Process ids, by index; empty when stopped."""
        return [worker.pid for worker in self._workers]

    def _count(self, index: int, counted: tuple[list[float | None], float] | None) -> None:
        """Take over what an environment's process has counted."""
        if self.innermost is not None and counted is not None:
            ended, self.innermost[index].so_far = counted
            self.innermost[index].ended += ended

    def _batch(self) -> Any:
        # A fresh array each time: the caller keeps what it got.
        out: Any = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        return concatenate(self.single_observation_space, self._rows, out)

    def _launch(self) -> list[Any]:
        environment = {**dict.fromkeys(_ONE_THREAD, "1"), **os.environ}
        path = [entry or os.getcwd() for entry in sys.path]
        try:
            with blocked():
                for _ in self._makers:
                    worker = subprocess.Popen(
                        [sys.executable, "-c", _BOOT],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        env=environment,
                    )
                    self._workers.append(worker)
            for worker in self._workers:
                self._write(worker, path)
            return self._ask({index: ("make", maker) for index, maker in enumerate(self._makers)})
        except BaseException:
            self._stop(0.0)
            raise

    def _write(self, worker: subprocess.Popen[bytes], message: Any) -> None:
        assert worker.stdin is not None
        try:
            pickle.dump(message, worker.stdin, protocol=5)
            worker.stdin.flush()
        except BrokenPipeError:
            pass  # it is dead, which reading its reply tells with the cause

    def _ask(self, requests: dict[int, tuple[str, Any]]) -> list[Any]:
        """Send requests by index, then collect all replies, so that an error leaves none unread."""
        if not self._workers:
            raise EnvError("the processes of the environments are stopped; reset() starts them anew")
        failed: tuple[int, Any] | None = None
        values = []
        try:
            for index, request in requests.items():
                self._write(self._workers[index], request)
            for index in requests:
                reply = self._read(index)
                if reply[0] == "ok":
                    values.append(reply[1])
                elif failed is None:
                    failed = index, reply[1:]
        except BaseException:
            # A reply may be half read: nothing that follows on these pipes could be trusted.
            self._stop(0.0)
            raise
        if failed:
            index, (error, summary, text) = failed
            error = error or EnvError(summary)
            where = f", in its process:\n{text}" if text else ""
            error.add_note(f"raised by environment {self._name}, index {index}{where}")
            raise error
        return values

    def _read(self, index: int) -> Any:
        worker = self._workers[index]
        assert worker.stdout is not None
        try:
            return pickle.load(worker.stdout)
        except (EOFError, pickle.UnpicklingError):
            try:
                code = worker.wait(timeout=2.0)
            except subprocess.TimeoutExpired:
                cause = "closed its pipe"
            else:
                cause = (
                    f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
                )
            raise EnvError(f"the process of environment {index} ({self._name}) {cause}") from None

    def _stop(self, timeout: float) -> None:
        """Ask all processes to end, wait `timeout` seconds in total, then kill those that are left."""
        workers, self._workers = self._workers, []
        for worker in workers:
            if timeout > 0:
                self._write(worker, ("close", None))
            else:
                worker.kill()
        deadline = time.monotonic() + timeout
        for worker in workers:
            try:
                worker.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
            for stream in (worker.stdin, worker.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):  # bytes for a process that is gone
                    stream.close()
