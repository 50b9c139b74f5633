"""Environments in processes of their own: the same numbers, clear deaths, nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from scripted_envs import Counting, Dying, NestedCounting

from engine.envs.make import make_env
from engine.envs.process import ProcessVectorEnv
from engine.envs.vector import VectorEnv
from engine.errors import EnvError


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_steps_are_those_of_sync():
    columns = []
    for mode in ("sync", "process"):
        with make_env(
            NestedCounting, num_envs=2, vectorization=mode, kwargs={"script": [(2, "both")]}
        ) as env:
            env.reset()
            steps = [env.step(np.array([0, 1])) for _ in range(3)]
            columns.append(
                [[s.reward.tolist(), str(s.obs), str(s.next_obs), s.terminated.tolist()] for s in steps]
            )
    assert columns[0] == columns[1]


def test_close_leaves_no_process_and_may_be_called_twice():
    env = make_env(Counting, num_envs=2, vectorization="process")
    pids = env.env.pids
    assert len(set(pids)) == 2
    assert all(alive(pid) for pid in pids)
    env.close()
    env.close()
    assert not any(alive(pid) for pid in pids)


def test_a_process_that_exits_is_named_and_the_others_end():
    with make_env(Dying, num_envs=2, vectorization="process") as env:
        env.reset()
        env.step(np.zeros(2, int))
        pids = env.env.pids
        start = time.monotonic()
        with pytest.raises(EnvError, match=r"process of environment 0 \(Dying\) exited with code 7"):
            env.step(np.zeros(2, int))
        assert time.monotonic() - start < 5
        assert not any(alive(pid) for pid in pids)
        with pytest.raises(EnvError, match=r"reset\(\) starts them anew"):
            env.step(np.zeros(2, int))
        assert env.reset().shape == (2, 2)


def test_a_process_that_is_killed_is_named():
    with make_env(Counting, num_envs=2, vectorization="process") as env:
        env.reset()
        os.kill(env.env.pids[1], signal.SIGKILL)
        with pytest.raises(EnvError, match=r"environment 1 .*killed by SIGKILL"):
            env.step(np.zeros(2, int))


def test_an_error_keeps_its_type_and_the_processes_go_on():
    with make_env(
        "engine.envs.toy:CrashEnv", num_envs=2, vectorization="process", kwargs={"after": 1}
    ) as env:
        env.reset()
        with pytest.raises(RuntimeError, match="crashes") as caught:
            env.step(np.zeros(2, int))
        (note,) = caught.value.__notes__
        assert note.startswith("raised by environment engine.envs.toy:CrashEnv, index 0")
        assert "toy.py" in note
        assert env.reset().shape == (2, 1)


def test_an_error_while_making_reaches_the_caller():
    with pytest.raises(EnvError, match="did you mean 'length'"):
        make_env("engine.envs.toy:CrashEnv", vectorization="process", kwargs={"lenth": 1})


class Printing(Counting):
    def step(self, action):
        print("a line that must not enter the protocol")
        return super().step(action)


def test_what_an_environment_prints_does_no_harm(capfd):
    with make_env(Printing, vectorization="process") as env:
        env.reset()
        env.step(np.zeros(1, int))
    assert "must not enter" in capfd.readouterr().err


class Stuck(Counting):
    """Never returns from its second step, nor from close."""

    def step(self, action):
        if self.elapsed == 1:
            threading.Event().wait()
        return super().step(action)

    def close(self):
        threading.Event().wait()


def test_close_does_not_wait_for_an_environment_that_hangs():
    env = VectorEnv(ProcessVectorEnv([Stuck, Stuck], close_timeout=0.3))
    env.reset()
    pids = env.env.pids
    env.close()
    assert not any(alive(pid) for pid in pids)


def test_an_interrupt_in_the_middle_of_a_step_stops_the_processes_and_reset_starts_them_anew():
    def interrupt(*_):
        raise KeyboardInterrupt

    with make_env(Stuck, num_envs=2, vectorization="process") as env:
        env.env._close_timeout = 0.3
        env.reset()
        env.step(np.zeros(2, int))
        pids = env.env.pids
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            env.step(np.zeros(2, int))
        signal.signal(signal.SIGALRM, before)
        assert not any(alive(pid) for pid in pids)
        env.reset()
        assert env.step(np.zeros(2, int)).obs.tolist() == [[0.0, 1.0]] * 2


def test_a_parent_that_is_killed_leaves_no_process():
    code = """
import os, signal
from engine.envs.make import make_env
env = make_env("CartPole-v1", num_envs=2, vectorization="process")
env.reset()
os.kill(os.getpid(), signal.SIGKILL)
"""
    # The workers hold the standard error they inherited: its end tells that they are gone, too.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_script_without_a_main_guard_may_use_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import gymnasium, numpy, threading\n"
        "from engine.envs.make import make_env\n"
        "class Own(gymnasium.Env):\n"
        "    observation_space = gymnasium.spaces.Box(0, 1, (1,))\n"
        "    action_space = gymnasium.spaces.Discrete(2)\n"
        "    def reset(self, *, seed=None, options=None): return numpy.zeros(1, 'f'), {}\n"
        "    def step(self, action): return numpy.ones(1, 'f'), 1.0, True, False, {}\n"
        "env = make_env(Own, num_envs=1, vectorization='process')\n"
        "env.reset()\n"
        "print(env.step(numpy.zeros(1, int)).episodes[0].return_)\n"
        "env.close()\n"
        "print(threading.active_count())\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-W", "error", script], capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.stderr) == ("1.0\n1\n", "")
