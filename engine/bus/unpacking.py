"""What msgpack read as the value it stands for; nothing that it holds is trusted."""

from __future__ import annotations

import reprlib
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np

from engine import tree
from engine.bus import arrays, marks
from engine.bus.marks import Limits, Mark
from engine.errors import CodecError, PayloadTooLarge, did_you_mean

Buffer: TypeAlias = bytes | bytearray | memoryview

PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""What stands for itself."""


class Unpacker:
    """Turns what msgpack read into the value, in place."""

    __slots__ = ("_arena", "_memory", "buffers", "copied", "copy", "limits", "own")

    def __init__(self, limits: Limits, arena: Buffer | None, *, copy: bool, own: bool) -> None:
        self.limits = limits
        self.copy = copy
        self.own = own
        self.buffers = 0
        self.copied = 0
        self._arena = arena
        self._memory: memoryview | None = None

    def unpack(self, value: Any, depth: int = 0) -> Any:
        """Return the value that `value` stands for below `depth` containers."""
        kind = type(value)
        if kind in PLAIN:
            return value
        # What is no container (an array) is a list here all the same, hence one level more.
        if depth > self.limits.depth:
            raise PayloadTooLarge(f"a message of more than {self.limits.depth} levels")
        depth += 1
        if kind is dict:
            if not PLAIN.issuperset(map(type, value)):
                raise CodecError("a key in a message is no plain value")
            if not PLAIN.issuperset(map(type, value.values())):
                for key, item in value.items():
                    if type(item) not in PLAIN:
                        value[key] = self.unpack(item, depth)
            return value
        if kind is not list:
            raise CodecError(f"a message holds a {kind.__name__} where none can be")
        if value and type(value[0]) is Mark:
            return _BUILDERS[value[0]](self, value, depth)
        if not PLAIN.issuperset(map(type, value)):
            for index, item in enumerate(value):
                if type(item) not in PLAIN:
                    value[index] = self.unpack(item, depth)
        return value

    def items(self, value: list[Any], depth: int) -> list[Any]:
        """Unpack what follows the mark of a container."""
        return [item if type(item) in PLAIN else self.unpack(item, depth) for item in value[1:]]

    def array(self, form: Any, shape: Any, where: Any) -> arrays.NDArray:
        """Return an array over the arena, or over bytes of its own."""
        dtype = arrays.dtype_of(form)
        lengths = arrays.checked_shape(shape)
        size = arrays.size_of(dtype, lengths)
        if type(where) is not bytes:
            array = arrays.read(dtype, lengths, self.claim(where, size), where)
            # What came by a socket lies at a multiple of 8; long doubles want more.
            return array.copy() if self.own and not array.flags.aligned else array
        if len(where) != size:
            raise CodecError(f"an array of {size} bytes came with {len(where)}")
        array = arrays.read(dtype, lengths, where, 0)
        return array.copy() if self.copy or self.own else array

    def claim(self, offset: Any, size: int) -> memoryview:
        """Return the arena after checking that a buffer lies within it."""
        memory = self._memory
        if memory is None:
            memory = self._memory = self._open()
        self.buffers += 1
        if self.buffers > self.limits.buffers:
            raise PayloadTooLarge(f"a message with more than {self.limits.buffers} buffers")
        if type(offset) is not int or offset < 0 or offset % arrays.ALIGNMENT:
            raise CodecError("a buffer begins where none can")
        if offset + size > len(memory):
            raise CodecError(f"a buffer of {size} bytes at {offset} ends after the arena of {len(memory)}")
        return memory

    def count_copy(self, size: int) -> None:
        """Refuse more copies than limits allow: buffers may overlap, and be many times the arena."""
        self.copied += size
        if self.copied > self.limits.bytes:
            raise PayloadTooLarge(f"a message with more than {self.limits.bytes} bytes of buffers")

    def _open(self) -> memoryview:
        if self._arena is None:
            raise CodecError("a message names buffers and came without an arena")
        memory = memoryview(self._arena)
        if memory.format != "B" or memory.ndim != 1:
            memory = memory.cast("B")
        if len(memory) > self.limits.bytes:
            raise PayloadTooLarge(f"an arena of {len(memory)} bytes, where {self.limits.bytes} may be")
        if not self.copy and not self.own:
            return memory.toreadonly()
        source = np.frombuffer(memory, np.uint8)
        if self.own and not self.copy and source.flags.writeable and not arrays.address(source) % 8:
            return memory
        copy = arrays.aligned(len(memory))
        copy[:] = source
        return copy.data


def _held(value: list[Any], *kinds: type) -> list[Any]:
    """Return what follows the mark, where it is of these types (object: of any)."""
    held = value[1:]
    if len(held) != len(kinds):
        raise _no(value)
    for item, kind in zip(held, kinds, strict=True):
        if kind is not object and type(item) is not kind:
            raise _no(value)
    return held


def _no(value: list[Any]) -> CodecError:
    return CodecError(f"what should be a {value[0].name} is none")


def _tuple(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return tuple(unpacker.items(value, depth))


def _set(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return set(unpacker.items(value, depth))


def _frozenset(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return frozenset(unpacker.items(value, depth))


def _pairs(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    items = unpacker.items(value, depth)
    return dict(zip(items[::2], items[1::2], strict=True))


def _dict(unpacker: Unpacker, value: list[Any], depth: int) -> dict[Any, Any]:
    """Return the dict that follows a mark and is of one level with it."""
    (held,) = _held(value, object)
    data = unpacker.unpack(held, depth - 1)
    if type(data) is not dict:
        raise _no(value)
    return data


def _ordered(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return OrderedDict(_dict(unpacker, value, depth))


def _int(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return int.from_bytes(_held(value, bytes)[0], "little", signed=True)


def _text(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return _held(value, bytes)[0].decode("utf-8", "surrogatepass")


def _complex(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    return complex(*_held(value, float, float))


def _datetime(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    text, fold = _held(value, str, int)
    return datetime.fromisoformat(text).replace(fold=fold)


def _bytes(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    offset, size = _held(value, int, int)
    if size < 0:
        raise CodecError("bytes of a negative length")
    memory = unpacker.claim(offset, size)
    unpacker.count_copy(size)
    return bytes(memory[offset : offset + size])


def _array(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    if len(value) != 4:
        raise _no(value)
    return unpacker.array(value[1], value[2], value[3])


def _scalar(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    array = unpacker.array(*_held(value, object, object, object))
    if array.shape:
        raise _no(value)
    return array[()]


def _tensor(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    form, shape, where, name = _held(value, object, object, object, object)
    if name is not None and type(name) is not str:
        raise _no(value)
    array = unpacker.array(form, shape, where)
    if not array.flags.writeable:
        # A tensor cannot be for reading only, and no write may reach memory that others see.
        unpacker.count_copy(array.nbytes)
        array = array.copy()
    return arrays.tensor_of(array, name)


def _tree(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    data = _dict(unpacker, value, depth)
    _check_leaves(data)
    return tree.holding(data, arrays=value[0] is marks.ARRAY_TREE)


def _check_leaves(data: dict[Any, Any]) -> None:
    for item in data.values():
        if type(item) is dict:
            _check_leaves(item)
        elif type(item) is not np.ndarray and not arrays.is_tensor(type(item)):
            raise CodecError("a tree of tensors and arrays holds something else")


def _object(unpacker: Unpacker, value: list[Any], depth: int) -> Any:
    name, held = _held(value, str, dict)
    kind = marks.CLASSES.get(name)
    if kind is None:
        near = did_you_mean(name[:100], marks.CLASSES)
        raise CodecError(f"a message holds a {name[:100]!r}, a name that nobody registered here{near}")
    shape = marks.SHAPES[kind]
    fields = unpacker.unpack(held, depth - 1)
    if fields.keys() != set(shape.fields):
        raise CodecError(f"a {name} came with fields {reprlib.repr(list(fields))}, not {list(shape.fields)}")
    made = kind(**{field: fields[field] for field in shape.fields if field in shape.given})
    for field in shape.fields:
        if field not in shape.given:
            object.__setattr__(made, field, fields[field])
    return made


_BUILDERS: dict[Mark, Callable[[Unpacker, list[Any], int], Any]] = {
    marks.TUPLE: _tuple,
    marks.SET: _set,
    marks.FROZENSET: _frozenset,
    marks.PAIRS: _pairs,
    marks.ORDERED: _ordered,
    marks.INT: _int,
    marks.TEXT: _text,
    marks.COMPLEX: _complex,
    marks.DATETIME: _datetime,
    marks.BYTES: _bytes,
    marks.ARRAY: _array,
    marks.SCALAR: _scalar,
    marks.TENSOR: _tensor,
    marks.TREE: _tree,
    marks.ARRAY_TREE: _tree,
    marks.OBJECT: _object,
}

_MARKS = {mark.code: mark for mark in _BUILDERS}


def mark_of(code: int, data: memoryview) -> Mark:
    """Return the mark that an ext type of msgpack stands for."""
    mark = _MARKS.get(code)
    if mark is None or len(data):
        raise CodecError(f"a message holds ext type {code}, which means nothing here")
    return mark
