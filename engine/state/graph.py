"""What middleware hold: walk the object graph and give every object a path.

The walk follows closure cells, attributes, containers, partials, bound methods, defaults
and the globals that a function's code names where its module is the user's own.  A path
starts at the middleware's name: ``collector._recorder``, ``push.buffer``, ``train.history[0]``.
Each object is listed once, under the first path that reaches it, with its other paths as
aliases.  Walking and naming only: nothing is read from an object beyond its attributes.

What to leave out is said in one place: a class attribute ``transient``, either True (the
whole object) or a tuple of attribute names.
"""

from __future__ import annotations

import dis
import functools
import io
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TypeAlias, cast

Kind: TypeAlias = Literal["stateful", "data", "opaque"]

_PLAIN: tuple[type, ...] = (int, float, complex, bool, str, bytes, type(None), type(Ellipsis), range, slice)
_INERT: tuple[type, ...] = (
    type,
    types.ModuleType,
    types.GenericAlias,
    types.UnionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    PurePath,
    Enum,
    property,
)
# Values that cannot change, loggers and locks, of classes that are better not imported for this.
_INERT_NAMES = frozenset(
    {
        *("datetime.date", "datetime.time", "datetime.timedelta", "datetime.tzinfo"),
        *("decimal.Decimal", "fractions.Fraction", "uuid.UUID", "re.Pattern", "logging.Logger"),
        *("operator.itemgetter", "operator.attrgetter", "operator.methodcaller"),
        *("numpy.dtype", "numpy.generic", "numpy.ufunc", "numpy._ArrayFunctionDispatcher"),
        *("torch.dtype", "torch.device", "torch.layout", "torch.memory_format"),
        # made to be shared between threads, and no state of a run
        *("_thread.lock", "_thread.RLock", "threading.Condition", "threading.Event", "threading.Semaphore"),
        *("threading.BoundedSemaphore", "threading.Barrier"),
    }
)
_ENGINE = str(PurePath(__file__).parents[1] / "_")[:-1]  # with the separator


@dataclass
class Found:
    """One object that can change, and where it was found."""

    path: str
    value: Any = field(repr=False)
    kind: Kind
    """``stateful``: offers state_dict and load_state_dict.  ``data``: containers, arrays, instances.
    ``opaque``: changes in ways that cannot be seen from here (files, locks, foreign extensions)."""
    aliases: list[str] = field(default_factory=list)


def walk(roots: Mapping[str, Any]) -> list[Found]:
    """Return every object that can change and is reachable from `roots`, by path, breadth first.

    `roots` maps the full names of middleware to the callables.
    """
    return list(_Walk(roots).found.values())


def shared(roots: Mapping[str, Any]) -> list[tuple[Found, list[str]]]:
    """Return the objects that more than one root reaches, each with the names of those roots."""
    owners: dict[int, tuple[Found, list[str]]] = {}
    for name, root in roots.items():
        for found in walk({name: root}):
            owners.setdefault(id(found.value), (found, []))[1].append(name)
    return [(found, names) for found, names in owners.values() if len(names) > 1]


def is_configuration(owner: Any, name: str) -> bool:
    """Whether an attribute is named like a parameter of its class's ``__init__``."""
    return name in _parameters(cast(Any, type(owner)))


@functools.lru_cache(maxsize=1024)
def _parameters(kind: Any) -> frozenset[str]:
    code = getattr(getattr(kind, "__init__", None), "__code__", None)
    if code is None:
        return frozenset()
    return frozenset(code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount])


class _Walk:
    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.found: dict[int, Found] = {}
        self._seen: dict[int, str] = {}
        self._alive: list[Any] = []  # keeps temporary objects, so that no id is used twice
        queue: deque[tuple[str, Any]] = deque(roots.items())
        while queue:
            path, value = queue.popleft()
            if isinstance(value, _PLAIN) or _is_inert(cast(Any, type(value))):
                continue
            if id(value) in self._seen:
                known = self.found.get(id(value))
                if known is not None and path != known.path:
                    known.aliases.append(path)
                continue
            self._seen[id(value)] = path
            self._alive.append(value)
            queue.extend(self._visit(path, value))

    def _add(self, path: str, value: Any, kind: Kind) -> None:
        self.found[id(value)] = Found(path, value, kind)

    def _visit(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        """List `value` if it can change, and yield what it holds."""
        if getattr(type(value), "transient", None) is True:
            return
        if isinstance(value, types.FunctionType):
            yield from _function_parts(path, value)
        elif isinstance(value, types.MethodType):
            yield path, value.__self__
            yield path, value.__func__
        elif isinstance(value, functools.partial):
            yield path, value.func
            yield from ((f"{path}[{index}]", item) for index, item in enumerate(value.args))
            yield from ((f"{path}.{name}", item) for name, item in value.keywords.items())
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodWrapperType)):
            yield path, value.__self__  # rows.append; a module where it is a function
        elif isinstance(value, functools._lru_cache_wrapper):  # remembering changes nothing
            yield path, value.__wrapped__
        elif isinstance(value, types.MappingProxyType):
            yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, types.CellType):
            yield path, value.cell_contents
        elif _offers_state(value):
            self._add(path, value, "stateful")  # state_dict speaks for what is inside
        elif isinstance(value, (tuple, frozenset)):
            yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, Mapping):
            self._add(path, value, "data")
            yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
        elif isinstance(value, (list, set, deque)):
            self._add(path, value, "data")
            yield from ((f"{path}[{index}]", item) for index, item in enumerate(value))
        elif isinstance(value, bytearray) or _is_array(value) or _is_random(value):
            self._add(path, value, "data")
        elif isinstance(value, io.IOBase) or not _is_users(type(value)):
            self._add(path, value, "opaque")
        else:
            yield from self._instance(path, value)

    def _instance(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        left_out = getattr(type(value), "transient", ())
        parts = [(name, item) for name, item in _attributes(value) if name not in left_out]
        if any(not is_configuration(value, name) for name, _ in parts) and not _is_frozen(type(value)):
            self._add(path, value, "data")
        yield from ((f"{path}.{name}", item) for name, item in parts)


@functools.lru_cache(maxsize=4096)
def _is_inert(kind: type) -> bool:
    if kind is object or issubclass(kind, _INERT):
        return True
    return any(f"{base.__module__}.{base.__qualname__}" in _INERT_NAMES for base in kind.__mro__)


def _offers_state(value: Any) -> bool:
    kind = type(value)
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def _is_array(value: Any) -> bool:
    return hasattr(type(value), "__array__") and hasattr(type(value), "__setitem__")


def _is_random(value: Any) -> bool:
    kind = type(value)
    return kind.__name__ in ("Generator", "RandomState", "Random") and kind.__module__.partition(".")[0] in (
        "numpy",
        "torch",
        "random",
    )


def _is_frozen(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    settings = getattr(kind, "__struct_config__", None)
    return bool(getattr(parameters, "frozen", False) or getattr(settings, "frozen", False))


def _is_users(kind: type) -> bool:
    """Whether a class is of this project or of the user: written in Python, outside of site-packages."""
    module = sys.modules.get(kind.__module__)
    if module is None or kind.__module__ == "__main__":
        return True
    file = getattr(module, "__file__", None)
    return _is_engines(file) or _is_users_file(file)


def _is_engines(file: str | None) -> bool:
    return file is not None and file.startswith(_ENGINE)


@functools.lru_cache(maxsize=4096)
def _is_users_file(file: str | None) -> bool:
    if file is None or not file.endswith(".py"):
        return False
    parts = PurePath(file).parts
    installed = "site-packages" in parts or "dist-packages" in parts
    return not installed and not file.startswith(sysconfig.get_path("stdlib"))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    yield from list(getattr(value, "__dict__", {}).items())
    for kind in type(value).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                yield name, getattr(value, name)


def _function_parts(path: str, function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{path}.{name}", cell.cell_contents
        except ValueError:  # an empty cell: the name is not bound yet
            continue
    for name, item in zip(
        reversed(code.co_varnames[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False
    ):
        yield f"{path}.{name}", item
    for name, item in (function.__kwdefaults__ or {}).items():
        yield f"{path}.{name}", item
    yield from (
        (f"{path}.{name}", item) for name, item in vars(function).items() if not name.startswith("__")
    )
    if _is_engines(code.co_filename):  # creates no object at import time, so its globals hold no state
        return
    if _is_users_file(code.co_filename) or not code.co_filename.endswith(".py"):
        for name in _globals_of(code):
            if name in function.__globals__:
                yield f"{path}.{name}", function.__globals__[name]


def _globals_of(code: types.CodeType) -> dict[str, None]:
    """The global names that code reads, that of its lambdas and comprehensions included, in order."""
    reads = ("LOAD_GLOBAL", "LOAD_NAME")
    names = {one.argval: None for one in dis.get_instructions(code) if one.opname in reads}
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _globals_of(inner)
    return names
