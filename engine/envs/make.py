"""Make environments: find them by name, wrap them, and step many of them together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import gymnasium
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from engine.envs.config import EnvConfig, Vectorization
from engine.envs.contract import watch_first_calls
from engine.envs.find import (
    DEPENDENCY,
    Found,
    Wrapper,
    absent,
    find_env,
    find_wrapper,
    import_plugins,
    missing,
    newer,
    quiet,
)
from engine.envs.process import ProcessVectorEnv
from engine.envs.returns import count_innermost
from engine.envs.spaces import check_action_space, check_observation_space, named
from engine.envs.statistics import refuse_running_statistics
from engine.envs.vector import VectorEnv, blame
from engine.errors import EngineError, EnvError, did_you_mean

NATIVE_FROM = 4
"""From how many environments on a native class is quicker: CartPole takes 30 µs a step natively,
whatever their number, and 7 µs each one after the other."""


class _Blaming(gymnasium.Wrapper):
    """Tells which of many environments raised an error."""

    def __init__(self, env: Any, name: str, index: int) -> None:
        super().__init__(env)
        self._who = name, index

    def step(self, action: Any) -> Any:
        try:
            return self.env.step(action)
        except Exception as error:
            blame(error, *self._who)
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        try:
            return self.env.reset(seed=seed, options=options)
        except Exception as error:
            blame(error, *self._who)
            raise


@dataclass(frozen=True)
class EnvMaker:
    """Builds one environment when called, here or in another process."""

    id: str | Callable[..., Any]
    wrappers: tuple[Wrapper, ...] = ()
    plugins: tuple[str, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    render_mode: str | None = None
    tried: bool = False
    """Whether wrappers of the same kind are tried elsewhere, on another copy."""

    def find(self) -> Found:
        """Import the plugins and return the environment; `EnvError` with the nearest id if there is none."""
        import_plugins(self.plugins)
        return find_env(self.id)

    def __call__(self) -> Any:
        """Return a new, wrapped environment.

        Raises `EnvError` for arguments it does not take and `MissingExtra` for absent packages.
        """
        found = self.find()
        wrappers = [find_wrapper(wrapper) for wrapper in self.wrappers]
        kwargs = self.kwargs if self.render_mode is None else {**self.kwargs, "render_mode": self.render_mode}
        with quiet():
            made = env = _construct(found, kwargs)
            for wrap, wrapper in zip(wrappers, self.wrappers, strict=True):
                try:
                    env = wrap(env)
                except DEPENDENCY as error:
                    env.close()
                    raise absent(error, f"wrapper {wrapper!r}") from error
                except (TypeError, ValueError, AssertionError, gymnasium.error.Error) as error:
                    env.close()
                    raise EnvError(f"wrapper {wrapper!r} of {found.name}: {error}") from error
                if not isinstance(env, gymnasium.Env):
                    made.close()
                    raise EnvError(
                        f"wrapper {wrapper!r} makes a {type(env).__name__}, which is no gymnasium.Env"
                    )
        return _looked_after(env, made, found.name, tried=self.tried)


def _looked_after(env: Any, made: Any, name: str, *, tried: bool = False) -> Any:
    """Return an environment that is checked at its first step, and counted below its wrappers."""
    if not tried:
        try:
            refuse_running_statistics(env, name)
        except EnvError:
            env.close()
            raise
    watch_first_calls(env, name)
    return count_innermost(env, made)


def make_anyhow(maker: Callable[[], Any]) -> Any:
    """Return what a maker makes, looked after as an `EnvMaker` does it."""
    env = maker()
    if isinstance(getattr(maker, "fn", maker), EnvMaker):  # fn: of gymnasium's CloudpickleWrapper
        return env
    return _looked_after(env, env, type(env).__name__)


def _construct(found: Found, kwargs: dict[str, Any]) -> Any:
    try:
        if found.spec is not None:
            env = gymnasium.make(found.spec, disable_env_checker=True, **kwargs)
        else:
            assert found.create is not None
            env = found.create(**kwargs)
    except EngineError:
        raise
    except DEPENDENCY as error:
        extra = missing(error, f"environment {found.name!r}")
        raise extra or EnvError(
            f"environment {found.name!r} cannot be made: {error}{newer(found)}"
        ) from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            blame(error, found.name)
            raise
        raise EnvError(f"environment {found.name!r}: {_bad_argument(found, kwargs)}") from error
    except Exception as error:
        blame(error, found.name)
        raise
    if not isinstance(env, gymnasium.Env):
        raise EnvError(f"{found.name} makes a {type(env).__name__}, which is no gymnasium.Env")
    for key in ("observation_space", "action_space"):
        if not isinstance(getattr(env, key, None), gymnasium.Space):
            kind = type(env.unwrapped).__name__
            raise EnvError(
                f"{found.name}: {kind} has no {key}; set self.{key}, a gymnasium.Space, in __init__"
            )
    return env


def _bad_argument(found: Found, kwargs: dict[str, Any]) -> str:
    create = found.create or found.spec.entry_point
    if isinstance(create, str):
        create = gymnasium.envs.registration.load_env_creator(create)
    known = [name for name in inspect.signature(create).parameters if name not in ("self", "kwargs")]
    for name in kwargs:
        if name not in known:
            return f"it takes no argument {name!r}{did_you_mean(name, known)}"
    return f"it does not take the arguments {sorted(kwargs)}"


def make_env(
    id: str | Callable[..., Any],
    *,
    num_envs: int = 1,
    seed: int = 0,
    role: str = "main",
    vectorization: Vectorization = "auto",
    wrappers: Sequence[Wrapper] = (),
    plugins: Sequence[str] = (),
    kwargs: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> VectorEnv:
    """Return `num_envs` environments that are stepped together.

    `id` is a registered id, ``module:Class``, or a class or function that makes an
    environment; `wrappers` (names, dicts, callables; innermost first) go around each one.
    `vectorization` "sync" steps one after the other and "process" each in a process of its
    own: both see the same episodes, whatever `num_envs` is.  "native" is the environment's
    own vectorised class; "auto" takes it where there is one with the same spaces and it is
    quicker, else "sync".  Raises `EnvError` and `MissingExtra`.
    """
    if num_envs < 1:
        raise EnvError(f"num_envs is {num_envs}; expected at least 1")
    _check_vectorization(vectorization)
    maker = EnvMaker(id, tuple(wrappers), tuple(plugins), dict(kwargs or {}), render_mode)
    found = maker.find()
    raw: Any = None
    if vectorization == "native":
        raw = _native(maker, found, num_envs)
    elif vectorization == "auto" and num_envs >= NATIVE_FROM and render_mode is None:
        raw = _native_if_alike(maker, found, num_envs)
    elif vectorization == "process":
        makers = [maker, *[replace(maker, tried=True)] * (num_envs - 1)]
        raw = ProcessVectorEnv(makers, name=found.name)
    if raw is None:
        # VectorEnv tries the wrappers of the first copy.
        raw = _sync(replace(maker, tried=True), found.name, num_envs)
    try:
        limited = _time_limited(maker, found, raw)
        return VectorEnv(raw, seed=seed, role=role, name=found.name, time_limited=limited)
    except EnvError:
        raw.close()
        raise


def _time_limited(maker: EnvMaker, found: Found, raw: Any) -> bool:
    """Whether a `TimeLimit` stands around each environment, or gymnasium was told to put one there."""
    if found.spec is not None and maker.kwargs.get("max_episode_steps", found.spec.max_episode_steps):
        return True
    names = [one.get("wrapper") if isinstance(one, Mapping) else one for one in maker.wrappers]
    if any(str(getattr(name, "__name__", name)).endswith("TimeLimit") for name in names):
        return True
    env = raw.envs[0] if isinstance(raw, SyncVectorEnv) else None
    while isinstance(env, gymnasium.Wrapper) and not isinstance(env, TimeLimit):
        env = env.env
    return isinstance(env, TimeLimit)


def _check_vectorization(name: str) -> None:
    known = get_args(Vectorization)
    if name not in known:
        raise EnvError(f"no vectorization {name!r}, only {', '.join(known)}{did_you_mean(name, known)}")


def _sync(maker: EnvMaker, name: str, num_envs: int) -> SyncVectorEnv[Any, Any]:
    envs: list[Any] = []
    try:
        for index in range(num_envs):
            envs.append(_Blaming(maker(), name, index))
            # Before gymnasium sees them: it fails on some of these spaces without saying why.
            check_observation_space(envs[-1].observation_space, name)
            check_action_space(envs[-1].action_space, name)
        # The adapter copies what it hands out, once.
        return SyncVectorEnv(
            [partial(_same, env) for env in envs], False, autoreset_mode=AutoresetMode.DISABLED
        )
    except BaseException:
        for env in envs:
            env.close()
        raise


def _same(env: Any) -> Any:
    return env


def _native(maker: EnvMaker, found: Found, num_envs: int) -> Any:
    """The vectorised class of an environment; `EnvError` where there is none or it cannot serve."""
    if found.spec is None or found.spec.vector_entry_point is None:
        raise EnvError(f"{found.name} has no vectorised class of its own; use vectorization=sync or process")
    if maker.wrappers or found.spec.additional_wrappers:
        raise EnvError(
            f"{found.name}: wrappers go around single environments, which a vectorised class has not; "
            "use vectorization=sync or process"
        )
    kwargs = maker.kwargs if maker.render_mode is None else {**maker.kwargs, "render_mode": maker.render_mode}
    try:
        with quiet():
            return gymnasium.make_vec(found.spec, num_envs, "vector_entry_point", **kwargs)
    except DEPENDENCY as error:
        extra = missing(error, f"environment {found.name!r}")
        raise extra or EnvError(f"the vectorised class of {found.name} cannot be made: {error}") from error
    except TypeError as error:
        raise EnvError(f"the vectorised class of {found.name} cannot be made: {error}") from error


def _native_if_alike(maker: EnvMaker, found: Found, num_envs: int) -> Any:
    """The vectorised class where it can serve and shows what single environments show, else None."""
    if found.spec is None or found.spec.vector_entry_point is None:
        return None
    try:
        native = _native(maker, found, num_envs)
    except (EnvError, ImportError):
        return None
    single = maker()
    alike = (
        native.single_observation_space == single.observation_space
        and native.single_action_space == single.action_space
    )
    single.close()
    if not alike:
        native.close()
    return native if alike else None


def check_env(config: EnvConfig) -> tuple[Any, Any]:
    """Return the observation and action space that `config` leads to, or say what is wrong with it.

    Makes one environment and closes it; imports no torch.  Raises `EnvError` for unknown
    ids, modules, wrappers, arguments and spaces, with the nearest valid name, and
    `MissingExtra` with the line that installs what is absent.
    """
    maker = EnvMaker(config.id, tuple(config.wrappers), tuple(config.plugins), dict(config.kwargs))
    found = maker.find()
    if config.vectorization == "native":
        env: Any = _native(maker, found, 1)
        observation, action = env.single_observation_space, env.single_action_space
    else:
        env = maker()
        observation, action = env.observation_space, env.action_space
    env.close()
    check_observation_space(observation, found.name)
    check_action_space(action, found.name)
    return named(observation), action
