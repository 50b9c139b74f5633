"""Values as what msgpack can hold; the bytes of their arrays are gathered aside."""

from __future__ import annotations

import dataclasses
import enum
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
import numpy as np

from engine import tree
from engine.bus import arrays, marks
from engine.bus.marks import INLINE, Limits
from engine.errors import CodecError, PayloadTooLarge


class Refused(Exception):
    """A value that cannot be sent; the path to it is gathered on the way out, innermost step first."""

    def __init__(self, reason: str, *, too_large: bool = False) -> None:
        super().__init__(reason)
        self.too_large = too_large
        self.steps: list[str] = []

    def at(self, step: str) -> Refused:
        self.steps.append(step)
        return self

    def error(self, root: str = "value") -> CodecError:
        where = root + "".join(reversed(self.steps))
        return (PayloadTooLarge if self.too_large else CodecError)(f"{where}: {self}")


# What msgpack holds as it is.  A careful packer looks at integers and strings one by one: those beyond
# 64 bits and those with lone surrogates are not for msgpack.  bytes may belong into the arena.
LEAVES = frozenset({type(None), bool, int, float, str})
CAREFUL_LEAVES = frozenset({type(None), bool, float})
KEYS = LEAVES | {bytes}


class Packer:
    """Turns one value into what msgpack can hold, and gathers the buffers of its arrays."""

    __slots__ = ("buffers", "keys", "leaves", "limits", "nodes", "size")

    def __init__(self, limits: Limits, *, careful: bool = False) -> None:
        self.limits = limits
        self.leaves = CAREFUL_LEAVES if careful else LEAVES
        self.keys = CAREFUL_LEAVES if careful else KEYS
        self.buffers: list[tuple[int, memoryview]] = []
        self.size = 0
        self.nodes = 0

    def pack(self, value: Any, depth: int = 0) -> Any:
        """Return what stands for `value` below `depth` containers; raises `Refused`."""
        kind = type(value)
        if kind in self.leaves:
            return value
        handler = _HANDLERS.get(kind)
        if handler is None:
            handler = _handler_for(value)
        return handler(self, value, depth)

    def items(self, values: Iterable[Any], depth: int, step: str = "") -> list[Any]:
        """Pack the items of a container one by one; `step` leads to each of those that have no order."""
        leaves, pack = self.leaves, self.pack
        out: list[Any] = []
        try:
            for item in values:
                out.append(item if type(item) in leaves else pack(item, depth))
        except Refused as refused:
            raise refused.at(step or f"[{len(out)}]") from None
        return out

    def enter(self, count: int, depth: int) -> int:
        """Count a container of `count` values below `depth` others; return the depth of what it holds."""
        if depth >= self.limits.depth:
            raise Refused(f"more than {self.limits.depth} levels deep (does it hold itself?)", too_large=True)
        self.nodes += count
        # Each takes a byte at least.  Counted before they are packed, since few containers that hold
        # each other many times over stand for values without end.
        if self.nodes > self.limits.skeleton:
            raise Refused(f"more than {self.limits.skeleton} values", too_large=True)
        return depth + 1

    def place(self, buffer: memoryview) -> int:
        """Put a buffer into the arena; return its offset."""
        if len(self.buffers) >= self.limits.buffers:
            raise Refused(
                f"more than {self.limits.buffers} arrays of {INLINE} bytes and more", too_large=True
            )
        offset = -(-self.size // arrays.ALIGNMENT) * arrays.ALIGNMENT
        self.check_room(len(buffer))
        self.buffers.append((offset, buffer))
        self.size = offset + len(buffer)
        return offset

    def check_room(self, size: int) -> None:
        """Refuse a buffer for which the arena has no room."""
        total = -(-self.size // arrays.ALIGNMENT) * arrays.ALIGNMENT + size
        if total > self.limits.bytes:
            raise Refused(
                f"{total} bytes of arrays up to here; {self.limits.bytes} may be sent", too_large=True
            )


Handler: TypeAlias = Callable[[Packer, Any, int], Any]


def _pack_list(packer: Packer, value: list[Any], depth: int) -> Any:
    depth = packer.enter(len(value), depth)
    if packer.leaves.issuperset(map(type, value)):
        return value
    return packer.items(value, depth)


def _pack_dict(packer: Packer, value: dict[Any, Any], depth: int) -> Any:
    depth = packer.enter(len(value), depth)
    leaves, pack = packer.leaves, packer.pack
    if not packer.keys.issuperset(map(type, value)):
        return _pack_pairs(packer, value, depth)
    if leaves.issuperset(map(type, value.values())):
        return value
    packed: dict[Any, Any] = {}
    for key, item in value.items():
        try:
            packed[key] = item if type(item) in leaves else pack(item, depth)
        except Refused as refused:
            raise refused.at(f"[{reprlib.repr(key)}]") from None
    return packed


def _pack_pairs(packer: Packer, value: dict[Any, Any], depth: int) -> Any:
    """Pack a dict whose keys msgpack would not give back as they were."""
    pairs: list[Any] = [_PAIRS]
    for key, item in value.items():
        try:
            pairs.append(packer.pack(key, depth))
        except Refused as refused:
            raise refused.at(f", key {reprlib.repr(key)}") from None
        try:
            pairs.append(packer.pack(item, depth))
        except Refused as refused:
            raise refused.at(f"[{reprlib.repr(key)}]") from None
    return pairs


def _pack_ordered(packer: Packer, value: OrderedDict[Any, Any], depth: int) -> Any:
    return [_ORDERED, _pack_dict(packer, value, depth)]


def _pack_marked(mark: marks.Mark) -> Handler:
    ext = mark.ext
    step = "" if mark is marks.TUPLE else f", in the {mark.name}"

    def pack_marked(packer: Packer, value: Any, depth: int) -> Any:
        return [ext, *packer.items(value, packer.enter(len(value), depth), step)]

    return pack_marked


def _pack_int(packer: Packer, value: int, depth: int) -> Any:
    if -(1 << 63) <= value < 1 << 64:
        return value
    return [_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)]


def _pack_str(packer: Packer, value: str, depth: int) -> Any:
    return [_TEXT, value.encode("utf-8", "surrogatepass")]


def _pack_bytes(packer: Packer, value: bytes, depth: int) -> Any:
    if len(value) < INLINE:
        return value
    return [_BYTES, packer.place(memoryview(value)), len(value)]


def _pack_complex(packer: Packer, value: complex, depth: int) -> Any:
    return [_COMPLEX, value.real, value.imag]


def _pack_datetime(packer: Packer, value: datetime, depth: int) -> Any:
    return [_DATETIME, value.isoformat(), value.fold]


def _pack_array(packer: Packer, value: arrays.NDArray, depth: int) -> Any:
    return [_ARRAY, *_array_form(packer, value)]


def _pack_scalar(packer: Packer, value: np.generic, depth: int) -> Any:
    return [_SCALAR, *_array_form(packer, np.asarray(value))]


def _array_form(packer: Packer, array: arrays.NDArray) -> tuple[Any, list[int], int | bytes]:
    """Return dtype, shape, and the bytes or their offset in the arena."""
    dtype, shape = array.dtype, array.shape
    try:
        form = arrays.form_of(dtype)
        size = array.nbytes or arrays.size_of(dtype, shape)
    except arrays.REFUSED as error:
        hint = "; send a list of str" if dtype.kind in "UST" else ""
        raise Refused(f"an array of {dtype}, shape {shape}: {error}{hint}") from None
    if size < INLINE:
        return form, list(shape), array.tobytes()
    # Before it is made contiguous: an array that repeats its memory claims more than there is.
    packer.check_room(size)
    return form, list(shape), packer.place(arrays.bytes_of(array))


def _pack_tensor(packer: Packer, value: Any, depth: int) -> Any:
    try:
        packer.check_room(value.numel() * value.element_size())
        array, name = arrays.array_of(value)
    except arrays.REFUSED as error:
        raise Refused(f"a tensor whose numbers cannot be had: {error}") from None
    return [_TENSOR, *_array_form(packer, array), name]


def _pack_tree(packer: Packer, value: Any, depth: int) -> Any:
    data = value.json()
    _check_leaves(data)
    return [_TREE if tree.is_tree(value) else _ARRAY_TREE, packer.pack(data, depth)]


def _check_leaves(data: dict[str, Any]) -> None:
    for name, item in data.items():
        if isinstance(item, dict):
            try:
                _check_leaves(item)
            except Refused as refused:
                raise refused.at(f".{name}") from None
        elif not isinstance(item, np.ndarray) and not arrays.is_tensor(type(item)):
            what = f"a {type(item).__name__}, where a tree that is sent holds tensors and arrays"
            raise Refused(what).at(f".{name}")


def _pack_object(packer: Packer, value: Any, depth: int) -> Any:
    shape = marks.SHAPES[type(value)]
    depth = packer.enter(len(shape.fields), depth)
    packed: dict[str, Any] = {}
    for field in shape.fields:
        try:
            item = getattr(value, field)
        except AttributeError:
            raise Refused("a field that was never set").at(f".{field}") from None
        try:
            packed[field] = packer.pack(item, depth)
        except Refused as refused:
            raise refused.at(f".{field}") from None
    return [_OBJECT, shape.name, packed]


_PAIRS, _ORDERED, _OBJECT = marks.PAIRS.ext, marks.ORDERED.ext, marks.OBJECT.ext
_INT, _TEXT, _BYTES = marks.INT.ext, marks.TEXT.ext, marks.BYTES.ext
_COMPLEX, _DATETIME = marks.COMPLEX.ext, marks.DATETIME.ext
_ARRAY, _SCALAR, _TENSOR = marks.ARRAY.ext, marks.SCALAR.ext, marks.TENSOR.ext
_TREE, _ARRAY_TREE = marks.TREE.ext, marks.ARRAY_TREE.ext

_HANDLERS: dict[type, Handler] = {
    int: _pack_int,
    str: _pack_str,
    bytes: _pack_bytes,
    list: _pack_list,
    dict: _pack_dict,
    OrderedDict: _pack_ordered,
    tuple: _pack_marked(marks.TUPLE),
    set: _pack_marked(marks.SET),
    frozenset: _pack_marked(marks.FROZENSET),
    complex: _pack_complex,
    datetime: _pack_datetime,
    np.ndarray: _pack_array,
    np.memmap: _pack_array,
}


def _handler_for(value: Any) -> Handler:
    """Find who packs a value of a type that no packer has met yet, and remember it."""
    kind = type(value)
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        handler: Handler = _pack_scalar
    elif kind in marks.SHAPES:
        handler = _pack_object
    elif kind.__module__ in ("torch", "torch.nn.parameter") and arrays.is_tensor(kind):
        handler = _pack_tensor
    elif tree.is_tree(value) or tree.is_array_tree(value):
        handler = _pack_tree
    else:
        raise Refused(_why_not(value))
    _HANDLERS[kind] = handler
    return handler


_INSTEAD: dict[Any, str] = {
    (bytearray, memoryview, bytes): "bytes(...)",
    enum.Enum: "its value",
    dict: "dict(...)",
    list: "list(...)",
    tuple: "tuple(...)",
    str: "str(...)",
    int: "int(...)",
    float: "float(...)",
    np.ndarray: "numpy.asarray(...)",
}


def _why_not(value: Any) -> str:
    kind = type(value)
    if isinstance(value, type):
        return f"the class {value.__name__}; send a name that the other side can look it up by"
    if getattr(value, "__name__", "") == "<lambda>":
        return "a lambda; send a name that the other side can look a function up by"
    if dataclasses.is_dataclass(kind) or isinstance(value, msgspec.Struct):
        return f"a {kind.__name__}; give its class a name with engine.bus.codec.register"
    for bases, instead in _INSTEAD.items():
        if isinstance(value, bases):
            return f"a {kind.__name__}; send {instead}"
    return f"a {kind.__name__}; numbers, text, containers, arrays and registered classes can be sent"
