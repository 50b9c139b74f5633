"""Find environments and wrappers by name, and say what is wrong when that fails."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import gymnasium

from engine.errors import EnvError, MissingExtra, did_you_mean

Wrapper: TypeAlias = "str | Mapping[str, Any] | Callable[[Any], Any]"

_EXTRAS = {"Box2D": "box2d", "mujoco": "mujoco", "ale_py": "atari", "pygame": "render"}
_PACKAGES = {"cv2": "opencv-python-headless"}
"""Where the package to install has another name than the module; headless: no screen library is needed."""
_ATARI = ("AtariPreprocessing", "ALE/", "ale_py")

DEPENDENCY = (ImportError, gymnasium.error.DependencyNotInstalled)
"""What is raised where a package is absent."""


@dataclass(frozen=True)
class Found:
    """An environment that exists: registered with gymnasium (`spec`), or built by calling `create`."""

    name: str
    spec: Any = None
    create: Callable[..., Any] | None = None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence gymnasium's own warnings, which tell of versions and spaces that were chosen on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*(\x1b\[\d+m)?WARN: ")
        # Box2D's wrapper warns while it is imported, and crashes where warnings are errors.
        warnings.filterwarnings("ignore", message=r"builtin type [Ss]wig")
        yield


def install(what: str) -> str:
    """Return the command that installs `what` in the versions that the tests run with."""
    return f"pip install -c constraints.txt {what}"


def missing(error: BaseException, user: str) -> MissingExtra | None:
    """Return the error that tells what to install when `error` comes from an absent package."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError) and cause.name:
            package = cause.name.partition(".")[0]
            extra = _EXTRAS.get(package)
            if package == "cv2" and any(word in user for word in _ATARI):
                extra = "atari"
            what = f"'engine[{extra}]'" if extra else _PACKAGES.get(package, package)
            return MissingExtra(
                f"{user} needs the package {package!r}, which is not installed: {install(what)}"
            )
        cause = cause.__cause__ or cause.__context__
    return None


def absent(error: BaseException, user: str) -> MissingExtra | EnvError:
    """Return `missing`, or the error for a package that is there and cannot be imported."""
    return missing(error, user) or EnvError(f"{user} cannot be used: {error}")


def import_module(name: str, user: str) -> Any:
    """Import a module; `EnvError` or `MissingExtra` naming `user` when there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself, or a parent of it: what it imports in turn is another story.
        if error.name and f"{name}.".startswith(f"{error.name}.") and error.name not in _EXTRAS:
            raise EnvError(f"{user}: there is no module {error.name!r}") from None
        raise missing(error, user) or error from None


def import_plugins(plugins: Sequence[str]) -> None:
    """Import the modules that register environments."""
    for name in plugins:
        with quiet():
            gymnasium.register_envs(import_module(name, f"env.plugins {name!r}"))


def find_env(env_id: str | Callable[..., Any]) -> Found:
    """Return the environment of a registered id, ``module:Class``, ``module:registered-id`` or a callable."""
    if callable(env_id):
        return Found(getattr(env_id, "__qualname__", type(env_id).__name__), create=env_id)
    if ":" in env_id:
        return _find_in_module(env_id)
    spec = gymnasium.registry.get(env_id)
    if spec is None:
        raise _unknown(env_id)
    return Found(env_id, spec=spec)


def _find_in_module(env_id: str) -> Found:
    module_name, _, name = env_id.partition(":")
    module = import_module(module_name, f"environment {env_id!r}")
    create = getattr(module, name, None)
    if callable(create):
        return Found(env_id, create=create)
    if name in gymnasium.registry:
        return Found(env_id, spec=gymnasium.registry[name])
    known = [
        key
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, gymnasium.Env)
    ]
    raise EnvError(f"module {module_name!r} has no environment {name!r}{did_you_mean(name, known)}")


def _latest() -> dict[str, str]:
    """The newest id of each environment by its name in small letters, without the version."""
    newest: dict[str, Any] = {}
    for spec in gymnasium.registry.values():
        key = re.sub(r"-v\d+$", "", spec.id).lower()
        if key not in newest or (spec.version or 0) > (newest[key].version or 0):
            newest[key] = spec
    return {key: spec.id for key, spec in newest.items()}


def newer(found: Found) -> str:
    """Return ``"; did you mean 'x'?"`` when a newer version of the environment is registered, or nothing."""
    latest = _latest().get(re.sub(r"-v\d+$", "", found.name).lower(), found.name)
    return f"; did you mean {latest!r}?" if latest != found.name else ""


def _unknown(env_id: str) -> EnvError | MissingExtra:
    latest = _latest()
    namespace = env_id.rpartition("/")[0]
    if namespace and not any(key.startswith(f"{namespace.lower()}/") for key in latest):
        return _unknown_namespace(env_id, namespace)
    base = re.sub(r"-v\d+$", "", env_id).lower()
    version = env_id[len(base) :]
    if base in latest:
        why = (
            f"{gymnasium.__version__} of gymnasium has no {version[1:]} of it"
            if version
            else "its version is missing"
        )
        return EnvError(f"unknown environment {env_id!r} ({why}); did you mean {latest[base]!r}?")
    # Ids of a namespace need packages of their own: offered only to those who wrote one.
    near = [key for key in latest if ("/" in key) == bool(namespace)]
    close = difflib.get_close_matches(base, near, n=1, cutoff=0.5)
    hint = f"; did you mean {latest[close[0]]!r}?" if close else ""
    return EnvError(
        f"unknown environment {env_id!r}{hint or '; a package that registers it belongs in env.plugins'}"
    )


def _unknown_namespace(env_id: str, namespace: str) -> EnvError | MissingExtra:
    if namespace.lower() == "ale":
        if importlib.util.find_spec("ale_py") is None:
            return MissingExtra(
                f"environment {env_id!r} needs the package 'ale_py', which is not installed: "
                + install("'engine[atari]'")
            )
        return EnvError(f"unknown environment {env_id!r}: add ale_py to env.plugins, it registers the games")
    known = {spec.namespace for spec in gymnasium.registry.values() if spec.namespace}
    return EnvError(
        f"unknown environment {env_id!r}: nothing registered the namespace {namespace!r}"
        f"{did_you_mean(namespace, known) or '; add the package that does to env.plugins'}"
    )


def find_wrapper(wrapper: Wrapper) -> Callable[[Any], Any]:
    """Return the function that wraps one environment.

    A string is ``module:Class`` or a name in gymnasium.wrappers; a dict holds it under
    ``wrapper``, with arguments beside it; anything callable is taken as it is.
    """
    if isinstance(wrapper, str):
        return _wrapper_class(wrapper)
    if isinstance(wrapper, Mapping):
        arguments = dict(wrapper)
        name = arguments.pop("wrapper", None)
        if not isinstance(name, str):
            raise EnvError(f"a wrapper given as a dict names itself under 'wrapper'; got {dict(wrapper)}")
        if ":" not in name:  # gymnasium's take tuples, which YAML and the command line cannot write
            arguments = {key: tuple(v) if isinstance(v, list) else v for key, v in arguments.items()}
        return partial(_wrapper_class(name), **arguments)
    if callable(wrapper):
        return wrapper
    raise EnvError(f"a wrapper is a name, a dict or a callable, not {type(wrapper).__name__}")


def _wrapper_class(name: str) -> Callable[..., Any]:
    module_name, colon, attribute = name.rpartition(":")
    module = import_module(module_name, f"wrapper {name!r}") if colon else gymnasium.wrappers
    try:
        found = getattr(module, attribute)
    except DEPENDENCY as error:  # gymnasium imports some of its wrappers when they are asked for
        raise absent(error, f"wrapper {name!r}") from error
    except AttributeError:
        known = [key for key in dir(module) if key[:1].isupper()] + list(getattr(module, "__all__", ()))
        hint = did_you_mean(attribute, known)
        raise EnvError(f"{module.__name__} has no wrapper {attribute!r}{hint}") from None
    if not callable(found):
        raise EnvError(f"wrapper {name!r} is a {type(found).__name__}, which cannot be called")
    return found  # type: ignore[no-any-return]
