"""What packing and unpacking agree on: the marks, the limits, and the classes that have a name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from engine.errors import CodecError

T = TypeVar("T")

INLINE = 1024
"""Arrays and bytes below this size lie in the skeleton."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one message may hold: bytes in the arena, arrays in it, levels, bytes of skeleton."""

    bytes: int = 1 << 30
    buffers: int = 4096
    depth: int = 64
    skeleton: int = 16 << 20


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Mark:
    """Begins a list that stands for something else; each is found by what it is, not by its fields."""

    name: str
    code: int

    @property
    def ext(self) -> msgspec.msgpack.Ext:
        """What stands for it in the skeleton: an ext type without content."""
        return msgspec.msgpack.Ext(self.code, b"")


# The codes are the wire format: a new mark takes a new one.
TUPLE = Mark("tuple", 1)
SET = Mark("set", 2)
FROZENSET = Mark("frozenset", 3)
PAIRS = Mark("dict", 4)
ORDERED = Mark("OrderedDict", 5)
INT = Mark("int", 6)
TEXT = Mark("str", 7)
COMPLEX = Mark("complex", 8)
DATETIME = Mark("datetime", 9)
BYTES = Mark("bytes", 10)
ARRAY = Mark("array", 11)
SCALAR = Mark("scalar", 12)
TENSOR = Mark("tensor", 13)
TREE = Mark("tree", 14)
OBJECT = Mark("object", 15)
ARRAY_TREE = Mark("tree of arrays", 16)


@dataclass(frozen=True, slots=True)
class Shape:
    """The name of a registered class, its fields, and which of them its `__init__` takes."""

    name: str
    fields: tuple[str, ...]
    given: frozenset[str]


SHAPES: dict[type, Shape] = {}
CLASSES: dict[str, type] = {}


def register(name: str) -> Callable[[type[T]], type[T]]:
    """Let objects of a dataclass or msgspec Struct be sent, under a name that both sides know.

    A decorator: ``@register("league.Job")``.  The other side makes the object by calling the class
    with the fields, whose types it does not check.  Subclasses need a name of their own.  Raises
    `CodecError` for a name that another class has, and for classes whose fields are not known.
    """

    def register(kind: type[T]) -> type[T]:
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            fields = tuple(kind.__struct_fields__)
            given = frozenset(fields)
        elif isinstance(kind, type) and dataclasses.is_dataclass(kind):
            fields = tuple(field.name for field in dataclasses.fields(kind))
            given = frozenset(field.name for field in dataclasses.fields(kind) if field.init)
        else:
            raise CodecError(
                f"{kind!r} is neither a dataclass nor a msgspec Struct: its fields are not known"
            )
        other = CLASSES.get(name, kind)
        # The same class may come again, as it does where its module is loaded anew.
        if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise CodecError(f"{name!r} is the name of {other.__qualname__} of {other.__module__} already")
        SHAPES[kind] = Shape(name, fields, given)
        CLASSES[name] = kind
        return kind

    return register
