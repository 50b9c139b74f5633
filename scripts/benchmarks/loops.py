"""(b), (c) Training loops: the recipe of engine, the loops in scripts/reference, stable-baselines3."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.measure import Goal, Section, take_turns
from reference import plain_dqn, plain_ppo, tuned_dqn, tuned_ppo

Side = Callable[[int], float]

BASELINES = "2.9.2"


def reference(module: Any, steps: int) -> Side:
    """Steps per second of a loop in scripts/reference."""

    def side(number: int) -> float:
        torch.set_num_threads(1)
        speed: float = module.run(steps, number)[0]
        return speed

    return side


def recipe(build: Callable[[int], Any], warm_up: int = 0) -> Side:
    """Env steps per second of a task, after its first `warm_up` env steps."""

    def side(number: int) -> float:
        with build(number) as task:
            before = task.run(max_step=warm_up).env_step if warm_up else 0
            start = time.perf_counter()
            ctx = task.run()
            seconds = time.perf_counter() - start
        steps: float = (ctx.env_step - before) / seconds
        return steps

    return side


def baselines_installed() -> bool:
    """Whether the pinned stable-baselines3 is there to compare with."""
    if importlib.util.find_spec("stable_baselines3") is None:
        return False
    found: str = importlib.import_module("stable_baselines3").__version__
    return found == BASELINES


def engine_ppo(steps: int) -> Side:
    from engine.envs.config import EnvConfig
    from engine.policies.config import PPOConfig
    from engine.recipes import ppo
    from engine.recipes.config import EvaluateConfig, StopConfig

    def build(seed: int) -> Any:
        policy = PPOConfig(
            learning_rate=tuned_ppo.LEARNING_RATE,
            learning_rate_decay="linear",
            discount=tuned_ppo.DISCOUNT,
            gae_lambda=tuned_ppo.GAE_LAMBDA,
            clip=tuned_ppo.CLIP,
            value_coef=tuned_ppo.VALUE_WEIGHT,
            entropy_coef=tuned_ppo.ENTROPY_WEIGHT,
            max_grad_norm=tuned_ppo.MAX_GRAD_NORM,
            epochs=tuned_ppo.EPOCHS,
            minibatches=tuned_ppo.MINIBATCHES,
            hidden=(tuned_ppo.HIDDEN, tuned_ppo.HIDDEN),
            activation="tanh",
        )
        config = ppo.PPORun(
            env=EnvConfig(id="CartPole-v1", num_envs=tuned_ppo.NUM_ENVS),
            seed=seed,
            policy=policy,
            collect=ppo.CollectConfig(num_steps=tuned_ppo.NUM_STEPS),
            evaluate=EvaluateConfig(every=10**9),
            stop=StopConfig(env_step=steps),
        )
        return ppo.ppo(config)

    return recipe(build)


def engine_dqn(steps: int) -> Side:
    from engine.envs.config import EnvConfig
    from engine.policies.config import DQNConfig
    from engine.recipes import dqn
    from engine.recipes.config import EvaluateConfig, StopConfig

    def build(seed: int) -> Any:
        policy = DQNConfig(
            learning_rate=tuned_dqn.LEARNING_RATE,
            learning_rate_decay="linear",
            huber=None,
            discount=tuned_dqn.DISCOUNT,
            double=False,
            target_update=tuned_dqn.TARGET_EVERY,
            max_grad_norm=tuned_dqn.MAX_GRAD_NORM,
            hidden=(tuned_dqn.HIDDEN, tuned_dqn.HIDDEN),
        )
        config = dqn.DQNRun(
            env=EnvConfig(id="CartPole-v1", num_envs=1),
            seed=seed,
            policy=policy,
            collect=dqn.CollectConfig(
                num_steps=1, epsilon_end=tuned_dqn.EPSILON_END, epsilon_steps=tuned_dqn.EPSILON_STEPS
            ),
            train=dqn.TrainConfig(
                batch_size=tuned_dqn.BATCH_SIZE,
                warm_up=tuned_dqn.LEARNING_STARTS,
                buffer_size=tuned_dqn.CAPACITY,
            ),
            evaluate=EvaluateConfig(every=10**9),
            stop=StopConfig(env_step=steps),
        )
        return dqn.dqn(config)

    # Every iteration is one env step (a dummy step of the autoreset at most), none learns before warm_up.
    return recipe(build, warm_up=tuned_dqn.LEARNING_STARTS)


def baselines_ppo(steps: int) -> Side:
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    def side(number: int) -> float:
        torch.set_num_threads(1)
        env = make_vec_env("CartPole-v1", tuned_ppo.NUM_ENVS, seed=number)
        model = PPO(
            "MlpPolicy",
            env,
            learning_rate=lambda left: tuned_ppo.LEARNING_RATE * left,
            n_steps=tuned_ppo.NUM_STEPS,
            batch_size=tuned_ppo.NUM_STEPS * tuned_ppo.NUM_ENVS // tuned_ppo.MINIBATCHES,
            n_epochs=tuned_ppo.EPOCHS,
            gamma=tuned_ppo.DISCOUNT,
            gae_lambda=tuned_ppo.GAE_LAMBDA,
            clip_range=tuned_ppo.CLIP,
            ent_coef=tuned_ppo.ENTROPY_WEIGHT,
            vf_coef=tuned_ppo.VALUE_WEIGHT / 2,
            max_grad_norm=tuned_ppo.MAX_GRAD_NORM,
            policy_kwargs={"net_arch": [tuned_ppo.HIDDEN, tuned_ppo.HIDDEN]},
            device="cpu",
            seed=number,
        )
        start = time.perf_counter()
        model.learn(steps)
        seconds = time.perf_counter() - start
        env.close()
        return model.num_timesteps / seconds

    return side


def baselines_dqn(steps: int) -> Side:
    from stable_baselines3 import DQN

    def side(number: int) -> float:
        torch.set_num_threads(1)
        model = DQN(
            "MlpPolicy",
            "CartPole-v1",
            learning_rate=lambda left: tuned_dqn.LEARNING_RATE * left,
            buffer_size=tuned_dqn.CAPACITY,
            learning_starts=tuned_dqn.LEARNING_STARTS,
            batch_size=tuned_dqn.BATCH_SIZE,
            gamma=tuned_dqn.DISCOUNT,
            train_freq=1,
            gradient_steps=1,
            target_update_interval=tuned_dqn.TARGET_EVERY,
            max_grad_norm=tuned_dqn.MAX_GRAD_NORM,
            exploration_fraction=min(1.0, tuned_dqn.EPSILON_STEPS / steps),
            exploration_final_eps=tuned_dqn.EPSILON_END,
            policy_kwargs={"net_arch": [tuned_dqn.HIDDEN, tuned_dqn.HIDDEN]},
            device="cpu",
            seed=number,
        )
        model.learn(tuned_dqn.LEARNING_STARTS)
        start = time.perf_counter()
        model.learn(steps - tuned_dqn.LEARNING_STARTS, reset_num_timesteps=False)
        return (steps - tuned_dqn.LEARNING_STARTS) / (time.perf_counter() - start)

    return side


def compare(section: Section, sides: dict[str, Side], rounds: int, least: float) -> Section:
    """Time the sides in turns, the first round of each thrown away, and set the goals."""
    for side in sides.values():
        side(10_000)
    measured = take_turns(sides, rounds, "env steps/s")
    section.sides.append(measured)
    section.goals.append(Goal("engine / tuned loop", measured.ratio("engine", "tuned loop"), 0.95, True))
    plain_limit = 2.5 if "PPO" in section.title else None
    section.goals.append(
        Goal("engine / plain loop", measured.ratio("engine", "plain loop"), plain_limit, True)
    )
    if "stable-baselines3" in sides:
        figure = measured.ratio("tuned loop", "stable-baselines3")
        section.goals.append(Goal("tuned loop / stable-baselines3", figure, least, True))
        section.goals.append(
            Goal("engine / stable-baselines3", measured.ratio("engine", "stable-baselines3"))
        )
    else:
        section.notes.append(f"stable-baselines3 {BASELINES} is not installed here: not compared.")
    return section


def run_ppo(quick: bool) -> Section:
    """Compare the ways to train PPO."""
    rounds, steps = (3, 12_000) if quick else (7, 30_000)
    section = Section(
        "PPO, CartPole-v1",
        f"{tuned_ppo.NUM_ENVS} envs x {tuned_ppo.NUM_STEPS} steps, {tuned_ppo.EPOCHS} epochs x "
        f"{tuned_ppo.MINIBATCHES} minibatches, separate actor and critic of 2 x {tuned_ppo.HIDDEN} tanh, "
        f"one torch thread for every side, {steps} env steps a round from a fresh start, of which only real "
        "transitions count. "
        "stable-baselines3 runs its default DummyVecEnv, the others gymnasium's native vector class.",
    )
    sides = {
        "tuned loop": reference(tuned_ppo, steps),
        "engine": engine_ppo(steps),
        "plain loop": reference(plain_ppo, steps),
    }
    if baselines_installed():
        sides["stable-baselines3"] = baselines_ppo(steps)
    return compare(section, sides, rounds, 2.6)


def run_dqn(quick: bool) -> Section:
    """Compare the ways to train DQN."""
    rounds, steps = (3, 2_500) if quick else (7, 6_000)
    section = Section(
        "DQN, CartPole-v1",
        f"1 env, one gradient step of batch {tuned_dqn.BATCH_SIZE} for each env step, 2 x {tuned_dqn.HIDDEN} "
        f"relu, one torch thread for every side, {steps} env steps a round of which the first "
        f"{tuned_dqn.LEARNING_STARTS} only fill the buffer and are not timed. stable-baselines3 has a Huber "
        "loss, the others a squared one, which costs the same.",
    )
    sides = {
        "tuned loop": reference(tuned_dqn, steps),
        "engine": engine_dqn(steps),
        "plain loop": reference(plain_dqn, steps),
    }
    if baselines_installed():
        sides["stable-baselines3"] = baselines_dqn(steps)
    return compare(section, sides, rounds, 1.5)
