"""Values as bytes and back, without pickle: a skeleton that msgpack reads, and an arena of raw arrays.

The skeleton is the value as msgpack, where arrays of 1 KiB and more are only named: their bytes lie
in the arena, each at a multiple of 64.  What msgpack has no type for (a tuple, a set, an array) is a
list that begins with a mark, an ext type that no value can produce::

    (1, 2)         [mark "tuple", 1, 2]
    {"a": array}   {"a": [mark "array", "<f4", [128, 84, 84], 64]}

What msgpack does have travels as it is, so that small messages cost little more than msgspec takes.

`decode` trusts nothing.  It checks sizes before it takes memory for them, makes no object of a class
but those given to `register`, and raises `CodecError` and nothing else.  A list of empty lists takes
the most memory for its size: about 80 bytes for each byte of the skeleton.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from engine.bus.arrays import ALIGNMENT
from engine.bus.marks import INLINE, LIMITS, Limits, register
from engine.bus.packing import KEYS, LEAVES, Packer, Refused
from engine.bus.unpacking import PLAIN, Buffer, Unpacker, mark_of
from engine.errors import CodecError, PayloadTooLarge

__all__ = [
    "INLINE",
    "LIMITS",
    "Buffer",
    "Encoded",
    "Limits",
    "decode",
    "decode_call",
    "encode",
    "encode_call",
    "register",
]

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(ext_hook=mark_of)
_PADDING = memoryview(bytes(ALIGNMENT))


@dataclass(slots=True)
class Encoded:
    """A value as a skeleton and the buffers of its arena, which still show the arrays' own memory.

    Until they are written or sent, a change of those arrays changes what is sent.
    """

    skeleton: bytes
    arena_size: int = 0
    buffers: list[tuple[int, memoryview]] = dataclasses.field(default_factory=list)
    """The place of each buffer in the arena, ascending, and its bytes."""

    def write_into(self, target: Any) -> None:
        """Copy the arena to the start of a writable buffer of at least ``arena_size`` bytes."""
        memory = memoryview(target)
        if memory.format != "B" or memory.ndim != 1:
            memory = memory.cast("B")
        if len(memory) < self.arena_size:
            raise CodecError(f"an arena of {self.arena_size} bytes does not fit into {len(memory)}")
        end = 0
        for offset, buffer in self.buffers:
            if offset > end:
                memory[end:offset] = _PADDING[: offset - end]
            end = offset + len(buffer)
            if len(buffer) < 1 << 16:
                memory[offset:end] = buffer
            else:
                # numpy lets other threads run while it copies; a memoryview does not.
                np.frombuffer(memory, np.uint8, len(buffer), offset)[:] = np.frombuffer(buffer, np.uint8)

    def chunks(self) -> list[memoryview]:
        """Return the arena in pieces, none of them copied: joined they are what `write_into` writes."""
        pieces: list[memoryview] = []
        end = 0
        for offset, buffer in self.buffers:
            if offset > end:
                pieces.append(_PADDING[: offset - end])
            pieces.append(buffer)
            end = offset + len(buffer)
        return pieces


def encode(value: Any, limits: Limits = LIMITS) -> Encoded:
    """Return `value` as a skeleton and buffers, which are views of its arrays where these are contiguous.

    Raises `CodecError` that names the path of what cannot be sent (``value['model'][3]: a lambda``),
    and `PayloadTooLarge` for more than `limits` allow.
    """
    try:
        return _encoded(value, limits)
    except Refused as refused:
        raise refused.error() from None


def _encoded(value: Any, limits: Limits) -> Encoded:
    """As `encode`, but raise `Refused` for what cannot be sent."""
    try:
        packer = Packer(limits)
        try:
            skeleton = _ENCODER.encode(packer.pack(value))
        except (OverflowError, UnicodeEncodeError):
            # Somewhere is an integer or a string that msgpack cannot hold: look at each.
            packer = Packer(limits, careful=True)
            skeleton = _ENCODER.encode(packer.pack(value))
    except RecursionError:
        raise PayloadTooLarge(f"value: deeper than Python can follow; {limits.depth} levels may be") from None
    if len(skeleton) > limits.skeleton:
        raise PayloadTooLarge(f"value: a skeleton of {len(skeleton)} bytes, where {limits.skeleton} may be")
    return Encoded(skeleton, packer.size, packer.buffers)


def encode_call(args: tuple[Any, ...], kwargs: dict[str, Any], limits: Limits = LIMITS) -> Encoded:
    """Return what `encode` returns for ``[list(args), kwargs]``, sooner if all of it is plain and flat.

    The path of what cannot be sent begins with the argument: ``value`` for the only one, else ``args[1]`` or
    ``kwargs['job']``.
    """
    if all(map(_is_plain, args)) and LEAVES.issuperset(map(type, kwargs.values())):
        try:
            skeleton = _ENCODER.encode((args, kwargs))
        except (OverflowError, UnicodeEncodeError):
            pass  # what cannot be held as it is takes the longer way
        else:
            if len(skeleton) <= limits.skeleton:
                return Encoded(skeleton)
    try:
        return _encoded([list(args), kwargs], limits)
    except Refused as refused:
        steps = refused.steps  # the innermost first; the last says whether it is of args or of kwargs
        root = "args" if steps and steps.pop() == "[0]" else "kwargs"
        if root == "args" and steps and len(args) == 1 and not kwargs:
            steps.pop()
            root = "value"
        raise refused.error(root) from None


def _is_plain(value: Any) -> bool:
    """Whether msgpack holds a value as it is, as can be seen without looking deep into it."""
    kind = type(value)
    if kind in LEAVES:
        return True
    if kind is bytes:
        return len(value) < INLINE
    if kind is dict:
        return KEYS.issuperset(map(type, value)) and LEAVES.issuperset(map(type, value.values()))
    return kind is list and LEAVES.issuperset(map(type, value))


def decode_call(
    skeleton: Buffer, arena: Buffer | None = None, limits: Limits = LIMITS
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that `encode_call` made a message of; arrays own their memory.

    Raises `CodecError`, and nothing else, also for a value that is no arguments.
    """
    value = _read(skeleton, limits)
    match value:
        case [list() as args, dict() as kwargs] if PLAIN.issuperset(map(type, args)) and PLAIN.issuperset(
            map(type, kwargs.values())
        ):
            pass
        case _:
            match _unpacked(value, arena, limits, copy=False, own=True):
                case [list() as args, dict() as kwargs]:
                    pass
                case _:
                    raise CodecError("a message without arguments, where they belong")
    if not _TEXT.issuperset(map(type, kwargs)):
        raise CodecError("the name of an argument is no text")
    return tuple(args), kwargs


_TEXT = frozenset({str})


def decode(
    skeleton: Buffer, arena: Buffer | None = None, limits: Limits = LIMITS, *, copy: bool, own: bool = False
) -> Any:
    """Return the value that was encoded; raises `CodecError`, and nothing else, whatever bytes come in.

    With `copy`, arrays own their memory and can be written: one copy of the arena, which all of
    them share and keep alive.  Without it they are views of the arena, for reading only, and tensors,
    which cannot be that, are copies.  With `own` the caller hands the arena over: arrays and tensors
    are views of it that can be written (of a copy, where it is for reading only or not aligned).
    """
    value = _read(skeleton, limits)
    return value if type(value) in PLAIN else _unpacked(value, arena, limits, copy=copy, own=own)


def _read(skeleton: Buffer, limits: Limits) -> Any:
    """Return what msgpack reads in a skeleton."""
    if len(skeleton) > limits.skeleton:
        raise PayloadTooLarge(f"a skeleton of {len(skeleton)} bytes, where {limits.skeleton} may be")
    try:
        return _DECODER.decode(skeleton)
    except Exception as error:
        raise _unreadable(error) from error


def _unpacked(value: Any, arena: Buffer | None, limits: Limits, *, copy: bool, own: bool) -> Any:
    """Return the value that what was read stands for."""
    try:
        return Unpacker(limits, arena, copy=copy, own=own).unpack(value)
    except CodecError:
        raise
    except Exception as error:
        # Any: numpy, torch, hashing and a class's own __init__ fail in ways of their own.
        raise _unreadable(error) from error


def _unreadable(error: Exception) -> CodecError:
    return CodecError(f"a message that cannot be read: {type(error).__name__}: {error}")
