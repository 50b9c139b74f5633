"""What travels through a pipeline: one context object per iteration.

A field declared with `kept` survives into the next iteration; every other field starts
anew there, in a new object.  Middleware may write fields that nobody declared.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, cast

from engine.errors import MiddlewareError, UnknownField, did_you_mean

if TYPE_CHECKING:
    from engine.task import Task

T = TypeVar("T")
C = TypeVar("C", bound="Context")


def kept(default: T) -> T:
    """Declare a field that survives into the next iteration; it holds immutable values."""
    value: T = field(default=default, metadata={"kept": True})
    return value


def unwritten() -> Any:
    """Declare a field of one iteration that has no value until a middleware writes it."""
    return field(init=False, repr=False, compare=False)


class _UnknownField(UnknownField):
    """Looks for the nearest name only when the message is read: `hasattr` stays quick."""

    def __init__(self, name: str, kind: str, known: list[str]) -> None:
        super().__init__(name)
        self._kind, self._known = kind, known

    def __str__(self) -> str:
        field_name = self.args[0]
        return (
            f"nobody wrote ctx.{field_name} in this iteration ({self._kind})"
            f"{did_you_mean(field_name, self._known) or '; read it softly with ctx.get(name, default)'}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self._kind, self._known)


@dataclass(eq=False)
class Context:
    """The fields every pipeline has.

    Two lines test a middleware without a task: make a context, call the middleware on it.
    """

    total_step: int = kept(0)
    """Iterations completed before this one."""

    metrics: dict[str, Any] = field(default_factory=dict)
    """Numbers of this iteration, named like ``train/loss_policy``."""

    # The link to the task and what it compiled; class attributes so that a detached context
    # needs neither.  Neither is copied nor pickled.
    _task: ClassVar[Task | None] = None
    _runners: ClassVar[dict[Any, Callable[[Any], None]] | None] = None
    _kept: ClassVar[frozenset[str]] = frozenset()
    _finish_reason: ClassVar[str | None] = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the field `name`, or `default` when nobody wrote it."""
        return getattr(self, name) if self._has(name) else default

    def keep(self, name: str) -> None:
        """Let the field `name` survive iterations for the rest of the run; it must hold immutable values."""
        if self._has(name):
            _check_immutable(name, getattr(self, name))
        self.__dict__["_kept"] = self._kept | {name}

    def finish(self, reason: str = "finish was asked") -> None:
        """Ask the task to end once this iteration is complete."""
        if self._task is None:
            self.__dict__.setdefault("_finish_reason", reason)
        else:
            self._task.request_finish(reason)

    @property
    def finishing(self) -> bool:
        """Whether the task starts no further iteration."""
        return self._finish_reason is not None if self._task is None else self._task.finish

    @property
    def hurried(self) -> bool:
        """Whether a signal ends the task: what may take long, as an evaluation, is ended at once."""
        return self._task is not None and self._task.hurried

    @property
    def running(self) -> str | None:
        """The full name of the middleware that the hook being called belongs to."""
        name: str | None = self.__dict__.get("_running")
        return name

    def _has(self, name: str) -> bool:
        return name in self.__dict__ or hasattr(type(self), name)

    def _known(self) -> list[str]:
        declared = (item.name for item in fields(self))
        written = (name for name in self.__dict__ if not name.startswith("_"))
        return sorted({*declared, *written, "get", "keep", "finish", "finishing", "hurried"})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # protocols such as copy ask for names that need not exist
            raise AttributeError(name)
        raise _UnknownField(name, type(self).__name__, self._known())

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in _LINKS}


@dataclass(eq=False)
class OnlineContext(Context):
    """A pipeline that collects its own data from environments."""

    env_step: int = kept(0)
    """Transitions collected, over all environments."""

    env_episode: int = kept(0)
    """Episodes that ended."""

    train_iter: int = kept(0)
    """Updates of the policy."""

    trajectory: Any = unwritten()
    """What was collected in this iteration: columns (T, B, ...), nested dicts of numpy arrays."""

    batch: Any = unwritten()
    """What to train on: one TreeTensor (N, ...)."""


@dataclass(eq=False)
class OfflineContext(Context):
    """A pipeline that learns from data at rest."""

    train_epoch: int = kept(0)
    """Passes over the data."""

    train_iter: int = kept(0)
    """Updates of the policy."""

    batch: Any = unwritten()
    """What to train on: one TreeTensor (N, ...)."""


# What ties a context to the task, hook or parallel group under way; a copy is free of it.
_LINKS = frozenset({"_task", "_runners", "_running", "_writes", "_before"})

Middleware: TypeAlias = Callable[[Any], Iterator[None] | None]
"""Takes ctx and returns nothing; one `yield` splits it into the way in and the way out."""


_IMMUTABLE: frozenset[type] = frozenset({int, float, bool, str, bytes, complex, type(None)})


def _check_immutable(name: str, value: Any) -> None:
    """Raise unless a kept value cannot change behind the run's back."""
    if value.__class__ in _IMMUTABLE:
        return
    try:
        hash(value)
        changes = hasattr(value, "__setitem__")
    except TypeError:
        changes = True
    if changes:
        raise MiddlewareError(
            f"the kept field ctx.{name} holds {type(value).__name__}, which can change in place; "
            "kept fields hold immutable values: use a number, a string or a tuple"
        )


# What each class of contexts became: facts about types, found once.
_RENEWALS: dict[type, Callable[[Any], Any]] = {}
_VIEWS: dict[type, type] = {}


def next_context(ctx: C) -> C:
    """Return the context of the following iteration: kept fields carried over, the rest anew.

    Raises `MiddlewareError` when a kept field holds a value that can change in place.
    """
    fresh: C = renewal_of(ctx.__class__)(ctx)
    return fresh


def renewal_of(kind: type[Context]) -> Callable[[Any], Any]:
    """Return `next_context` for contexts of one class, written and compiled for it.

    Plain attribute access is three times as quick as loops over names.
    """
    known = _RENEWALS.get(kind)
    if known is not None:
        return known
    for name, value in vars(kind).items():
        if isinstance(value, Field):
            raise MiddlewareError(
                f"{kind.__name__} declares {name} but is no dataclass; write @dataclass above it"
            )
    lines = ["def renew(ctx):", "    fresh = new(kind)"]
    values: dict[str, Any] = {"new": object.__new__, "kind": kind, "immutable": _IMMUTABLE}
    values |= {"check": _check_immutable, "carry": _carry}
    for item in fields(kind):
        if item.metadata.get("kept"):
            lines.append(f"    fresh.{item.name} = value = ctx.{item.name}")
            lines.append(f"    if value.__class__ not in immutable: check({item.name!r}, value)")
        elif item.default_factory is not MISSING:
            values[f"make_{item.name}"] = item.default_factory
            lines.append(f"    fresh.{item.name} = make_{item.name}()")
    lines.append("    fresh._task = ctx._task")
    lines.append("    fresh._runners = ctx._runners")
    lines.append("    if ctx._kept: carry(ctx, fresh)")
    lines.append("    return fresh")
    exec("\n".join(lines), values)
    renew: Callable[[Any], Any] = values["renew"]
    _RENEWALS[kind] = renew
    return renew


@functools.lru_cache(maxsize=256)
def _declared_kept(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind) if item.metadata.get("kept"))


def kept_values(ctx: Context) -> dict[str, Any]:
    """Return the kept fields of `ctx` that have a value, those that `keep` named included."""
    values = ctx.__dict__
    return {
        name: values[name] for name in (*_declared_kept(cast(Any, type(ctx))), *ctx._kept) if name in values
    }


def kept_writes(ctx: Context, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kept fields of `ctx` that hold another object than in `before`, a copy of its fields.

    Raises `MiddlewareError` for a value that can change in place.
    """
    written = {}
    for name, value in kept_values(ctx).items():
        if name not in before or before[name] is not value:
            _check_immutable(name, value)
            written[name] = value
    return written


def _carry(ctx: Context, fresh: Context) -> None:
    """Carry over what `keep` named."""
    old, new = ctx.__dict__, fresh.__dict__
    new["_kept"] = ctx._kept
    for name in ctx._kept:
        if name in old:
            _check_immutable(name, old[name])
            new[name] = old[name]


def _view_class(kind: type[Context]) -> type[Context]:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        kind.__setattr__(self, name, value)
        self.__dict__["_writes"].add(name)

    def __delattr__(self: Any, name: str) -> None:
        kind.__delattr__(self, name)
        self.__dict__["_writes"].add(name)

    def __reduce__(self: Any) -> tuple[Any, ...]:  # a copy is a context of its own, not a view
        return object.__new__, (kind,), self.__getstate__()

    body = {"__setattr__": __setattr__, "__delattr__": __delattr__, "__reduce__": __reduce__}
    _VIEWS[kind] = type(kind.__name__, (kind,), {**body, "__module__": kind.__module__, "_viewed": kind})
    return _VIEWS[kind]


def view(ctx: Context) -> Context:
    """Return a context that reads like `ctx` and remembers what is written to it."""
    kind: type[Context] = getattr(type(ctx), "_viewed", type(ctx))  # a view of a view is a view
    seen: Context = object.__new__(_VIEWS.get(kind) or _view_class(kind))
    seen.__dict__.update(ctx.__dict__)
    seen.__dict__["metrics"] = dict(ctx.metrics)
    seen.__dict__["_before"] = dict(ctx.metrics)
    seen.__dict__["_writes"] = set()
    return seen


def writes(seen: Context) -> set[str]:
    """Return what a view wrote or deleted: field names, and ``metrics[key]`` for each metric."""
    written: set[str] = seen.__dict__["_writes"] - {"metrics"}
    return written | {f"metrics[{key!r}]" for key in _metrics_written(seen)}


def _metrics_written(seen: Context) -> list[str]:
    old, new, nothing = seen.__dict__["_before"], seen.metrics, object()
    return [key for key in {**old, **new} if old.get(key, nothing) is not new.get(key, nothing)]


def merge(ctx: Context, seen: Context) -> None:
    """Write into `ctx` what was written to its view."""
    for name in seen.__dict__["_writes"] - {"metrics"}:
        if name in seen.__dict__:
            setattr(ctx, name, seen.__dict__[name])
        elif name in ctx.__dict__:
            delattr(ctx, name)
    for key in _metrics_written(seen):
        if key in seen.metrics:
            ctx.metrics[key] = seen.metrics[key]
        else:
            ctx.metrics.pop(key, None)
    if seen._kept:
        ctx.__dict__["_kept"] = ctx._kept | seen._kept
    if seen._finish_reason is not None:
        ctx.__dict__.setdefault("_finish_reason", seen._finish_reason)
