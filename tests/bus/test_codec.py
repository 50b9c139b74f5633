"""Values come back as they were, what cannot be sent is named, and no bytes at all do harm."""

from __future__ import annotations

import collections
import dataclasses
import enum
import math
import random
import subprocess
import sys
import tracemalloc
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.msgpack import Ext

from engine import tree
from engine.bus import marks
from engine.bus.codec import INLINE, Encoded, Limits, decode, decode_call, encode, encode_call, register
from engine.errors import CodecError, PayloadTooLarge

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)


def arena_of(encoded: Encoded) -> bytearray:
    arena = bytearray(b"\xff" * encoded.arena_size)
    encoded.write_into(arena)
    return arena


def there_and_back(value: Any, **how: bool) -> Any:
    encoded = encode(value)
    return decode(encoded.skeleton, arena_of(encoded), **(how or {"copy": True}))


def same(left: Any, right: Any) -> bool:
    """Whether two values are equal, types, dtypes, NaN and order of keys included."""
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        bits = (left.dtype, left.shape) == (right.dtype, right.shape)
        return bits and torch.equal(left.reshape(-1).view(torch.uint8), right.reshape(-1).view(torch.uint8))
    if isinstance(left, np.ndarray | np.generic):
        return (left.dtype, left.shape) == (right.dtype, right.shape) and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return same(list(left.items()), list(right.items()))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float):
        return repr(left) == repr(right)
    return bool(left == right)


# --- values come back as they were --------------------------------------------------------------

PLAIN = [
    None, True, 0, -1, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 3**300, -(3**300),
    1.5, -0.0, math.inf, math.nan, "", "π", "a lone \ud800", b"", b"\x00\xff", bytes(5000), 1 - 2j,
    [], [1, [2, [3]]], (), (1,), (1, (2, [3])), set(), {1, "a", (2, 3)}, frozenset({1.5, None}),
    {}, {"a": 1, "b": {"c": [1]}}, {1: "a", None: 2, 1.5: 3, False: 4, b"k": 5},
    {(1, 2): 3, frozenset({4}): 5, "s": 6, 2**70: 7}, {2**65: {"\udfff": 2**66}},
    collections.OrderedDict(b=1, a=[2]), collections.OrderedDict({(1,): (2,)}),
    datetime(2024, 2, 29, 12, 30, 1, 999), datetime(2024, 10, 27, 2, 30, fold=1),
    datetime(1, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: ascii(value)[:40])
def test_a_plain_value_comes_back_as_it_was(value: Any) -> None:
    back = there_and_back({"alone": value, "more": [value, (value,)]})
    assert same(back, {"alone": value, "more": [value, (value,)]})


def test_a_plain_value_stands_for_itself_in_the_skeleton() -> None:
    value = {"kind": "event", "name": "learner_model", "args": [1, 2.5, None], "last": True}
    encoded = encode(value)
    assert encoded.skeleton == msgspec.msgpack.encode(value)
    assert (encoded.arena_size, encoded.buffers, encoded.chunks()) == (0, [], [])


def test_the_fold_of_an_ambiguous_hour_comes_back() -> None:
    assert there_and_back(datetime(2024, 10, 27, 2, 30, fold=1)).fold == 1


STRUCTURED = np.dtype([("x", "<f4"), ("flag", "?"), ("inner", [("n", ">i8"), ("grid", "<u2", (2, 3))])])
ALIGNED = np.dtype([("x", "<i2"), ("y", "<f8")], align=True)


@pytest.mark.parametrize("length", [0, 3, 700], ids=["empty", "inline", "in the arena"])
@pytest.mark.parametrize(
    "dtype",
    ["?", "i1", "u2", "<i4", ">i4", ">f8", "f2", "g", "c8", ">c16", "G", "M8[ns]", "m8[25s]", ">M8[D]", "m8",
     STRUCTURED, ALIGNED],
    ids=str,
)  # fmt: skip
def test_an_array_of_any_dtype_comes_back(dtype: Any, length: int) -> None:
    array = np.zeros((length, 2), dtype)
    array[1:] = np.ones((), dtype)
    assert same(there_and_back(array), array)
    assert same(there_and_back(array, copy=False), array)


LAYOUTS = {
    "0-d": np.array(7.5),
    "transposed": np.arange(600.0).reshape(20, 30).T,
    "reversed": np.arange(600)[::-1],
    "strided": np.arange(6000).reshape(60, 100)[::3, ::7],
    "broadcast": np.broadcast_to(np.arange(300), (5, 300)),
    "read-only": np.frombuffer(bytes(4096), np.uint8),
    "unaligned": np.frombuffer(bytes(4097), np.uint8)[1:].view(np.float64),
    "empty in the middle": np.zeros((3, 0, 5), np.float32),
    "of one field": np.zeros(400, STRUCTURED)["inner"]["grid"],
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_array_of_any_layout_comes_back_in_c_order(name: str) -> None:
    back = there_and_back(LAYOUTS[name])
    assert same(back, LAYOUTS[name])
    assert back.flags.c_contiguous


@pytest.mark.parametrize(
    "scalar",
    [np.float64(1.5), np.float32("nan"), np.int8(-3), np.True_, np.complex64(1j), np.datetime64("NaT", "s"),
     np.datetime64("2024-01-01", "D"), np.timedelta64(3, "ms"), np.longdouble(1) / 3,
     np.ones((), STRUCTURED)[()]],
    ids=lambda scalar: type(scalar).__name__,
)  # fmt: skip
def test_a_numpy_scalar_keeps_its_type(scalar: Any) -> None:
    assert same(there_and_back([scalar])[0], scalar)


TORCH = ["bool", "uint8", "int8", "int16", "int32", "int64", "uint16", "float16", "float32", "float64",
         "complex64", "bfloat16", "float8_e4m3fn"]  # fmt: skip


@pytest.mark.parametrize("how", [{"copy": True}, {"copy": False}, {"copy": False, "own": True}], ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3), (40, 50)], ids=str)
@pytest.mark.parametrize("name", TORCH)
def test_a_tensor_of_any_dtype_comes_back_and_can_be_written(
    name: str, shape: tuple[int, ...], how: dict[str, bool]
) -> None:
    tensor = torch.ones(shape, dtype=torch.uint8).to(getattr(torch, name))
    back = there_and_back({"w": tensor}, **how)["w"]
    assert same(back, tensor)
    back.zero_()
    assert not back.reshape(-1).view(torch.uint8).any()


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(2000.0).reshape(40, 50).T, torch.ones(1, 3, 1).expand(50, 3, 50), torch.arange(2000)[::3],
     (torch.arange(900) + 1j).conj(), torch.zeros(1).expand(3), torch.arange(9, dtype=torch.bfloat16)[::2]],
    ids=["transposed", "expanded", "strided", "conjugated", "expanded small", "strided bfloat16"],
)  # fmt: skip
def test_a_tensor_of_any_layout_comes_back(tensor: torch.Tensor) -> None:
    back = there_and_back(tensor)
    assert torch.equal(back, tensor)
    assert back.is_contiguous()


def test_the_state_dict_of_a_module_comes_back_and_loads() -> None:
    module, other = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    back = there_and_back(module.state_dict())
    assert type(back) is collections.OrderedDict
    other.load_state_dict(back)
    assert torch.equal(module.weight, other.weight)


def test_a_parameter_comes_back_as_a_tensor_without_gradient() -> None:
    back = there_and_back(torch.nn.Parameter(torch.ones(3)))
    assert type(back) is torch.Tensor
    assert not back.requires_grad


def test_a_tree_comes_back_as_a_tree() -> None:
    data = tree.as_tree(
        {"obs": {"image": torch.ones(4, 300), "state": torch.zeros(4)}, "reward": torch.arange(4)}
    )
    (back,) = there_and_back((data,))
    assert tree.is_tree(back)
    assert same(tree.plain(back), tree.plain(data))
    assert tree.is_tree(there_and_back(tree.as_tree({})))


@register("test.Job")
@dataclass
class Job:
    name: str
    weights: Any = None
    tags: tuple[str, ...] = ()
    steps: int = field(default=0, init=False)


@register("test.Span")
class Span(msgspec.Struct, frozen=True):
    start: int
    stop: int = 9
    inside: Any = None


@dataclass
class Nameless:
    x: int = 0


def test_registered_classes_come_back_as_themselves() -> None:
    job = Job("a", {"w": [1.5]}, ("x",))
    job.steps = 7
    back = there_and_back([Span(1, 2, job)])
    assert back == [Span(1, 2, job)]
    assert type(back[0].inside) is Job
    assert back[0].inside.steps == 7


def test_a_name_belongs_to_one_class() -> None:
    register("test.Job")(Job)
    with pytest.raises(CodecError, match=r"'test\.Job' is the name of Job"):
        register("test.Job")(Nameless)
    with pytest.raises(CodecError, match="neither a dataclass nor"):
        register("test.int")(int)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers() | st.text() | st.binary()
    | st.text(st.characters(categories=["Cs", "L"])) | st.datetimes()
)  # fmt: skip
keys = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def array_of(dtype: str, shape: tuple[int, ...], seed: int, transposed: bool) -> np.ndarray[Any, Any]:
    size = math.prod(shape) * np.dtype(dtype).itemsize
    array = np.frombuffer(random.Random(seed).randbytes(size), dtype).reshape(shape)
    return array.T if transposed else array


some_arrays = st.builds(
    array_of,
    st.sampled_from(["u1", "<i2", ">i4", "<i8", "<f2", ">f4", "<f8", "c8", ">c16", "M8[us]", ">m8[D]"]),
    st.lists(st.integers(0, 20), max_size=3).map(tuple),
    st.integers(0, 9),
    st.booleans(),
)
values = st.recursive(
    scalars | some_arrays,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.sets(keys, max_size=4) | st.frozensets(keys, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


@quick
@given(values)
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert same(there_and_back(value), value)
    assert same(there_and_back(value, copy=False), value)


# --- the arena ----------------------------------------------------------------------------------


@quick
@given(st.lists(values, max_size=4).map(tuple), st.dictionaries(st.text(max_size=5), values, max_size=3))
def test_arguments_are_encoded_as_the_list_of_them_and_come_back(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    encoded, longer = encode_call(args, kwargs), encode([list(args), kwargs])
    assert encoded.skeleton == longer.skeleton
    assert arena_of(encoded) == arena_of(longer)
    back = decode_call(encoded.skeleton, arena_of(encoded))
    assert same(list(back), [args, kwargs])


@pytest.mark.parametrize(
    "args",
    [(2**70, "\ud800", b"x" * INLINE), ([2**70],), ({"a": "\ud800"},), ({(1, 2): 3},), ([1, [2, (3,)]],)],
    ids=str,
)
def test_arguments_that_msgpack_does_not_hold_come_back(args: tuple[Any, ...]) -> None:
    encoded = encode_call(args, {"x": args})
    assert decode_call(encoded.skeleton, arena_of(encoded)) == (args, {"x": args})


@pytest.mark.parametrize(
    "value", [5, [], [[]], [[], {}, 1], [{}, []], [(), {}], [[], {1: 2}], [[], {b"x": 2}]], ids=str
)
def test_what_is_no_arguments_is_refused_as_such(value: Any) -> None:
    with pytest.raises(CodecError, match=r"argument|message"):
        decode_call(encode(value).skeleton)


def test_arguments_beyond_the_limits_are_refused() -> None:
    limits = Limits(skeleton=100)
    with pytest.raises(PayloadTooLarge):
        encode_call(("x" * 200,), {}, limits)
    with pytest.raises(PayloadTooLarge):
        decode_call(encode_call(("x" * 200,), {}).skeleton, None, limits)


def test_buffers_are_views_that_begin_at_multiples_of_64() -> None:
    arrays = [np.full(n, n % 251, np.uint8) for n in (1024, 1025, 5000, 1023, 2048)]
    encoded = encode(arrays)
    assert [offset for offset, _ in encoded.buffers] == [0, 1024, 2112, 7168]
    assert encoded.arena_size == 7168 + 2048
    arrays[1][0] = 77
    assert encoded.buffers[1][1][0] == 77


def test_chunks_joined_are_the_arena() -> None:
    encoded = encode([np.full(n, n % 251, np.uint8) for n in (1024, 1025, 5000, 100_001, 2048)])
    assert b"".join(encoded.chunks()) == arena_of(encoded)
    assert sum(map(len, encoded.chunks())) == encoded.arena_size


def test_an_arena_goes_into_larger_memory_and_not_into_smaller() -> None:
    encoded = encode(np.arange(2000.0))
    memory = np.full(3000, 7.0)
    encoded.write_into(memory)
    assert np.array_equal(memory[:2000], np.arange(2000.0))
    assert (memory[2000:] == 7).all()
    with pytest.raises(CodecError, match="16000 bytes does not fit into 15999"):
        encoded.write_into(bytearray(15999))


@pytest.mark.parametrize("length", [3, 3000], ids=["inline", "in the arena"])
def test_copies_can_be_written_and_views_cannot(length: int) -> None:
    encoded = encode({"a": np.zeros(length), "b": torch.zeros(length)})
    arena = arena_of(encoded)
    before = bytes(arena)
    copy = decode(encoded.skeleton, arena, copy=True)
    view = decode(encoded.skeleton, arena, copy=False)
    assert not view["a"].flags.writeable
    for array in (copy["a"], copy["b"], view["b"]):
        array[:] = 1
    assert arena == before


def test_an_owned_arena_becomes_the_memory_of_the_arrays() -> None:
    encoded = encode({"a": np.zeros(3000), "b": torch.zeros(3000), "c": np.zeros(3)})
    arena = np.empty(encoded.arena_size, np.uint8)
    encoded.write_into(arena)
    back = decode(encoded.skeleton, arena.data, copy=False, own=True)
    back["a"][:] = 1
    back["b"][:] = 1
    back["c"][:] = 1
    assert (arena.view(np.uint64) != 0).sum() == 3000 + 1500


def test_an_owned_arena_that_cannot_be_written_or_is_not_aligned_is_copied() -> None:
    encoded = encode(torch.arange(3000.0))
    padded = bytearray(7 + encoded.arena_size + 64)
    memory = np.frombuffer(padded, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64 + 7
    unaligned = memoryview(padded)[start : start + encoded.arena_size]
    encoded.write_into(unaligned)
    for arena in (bytes(unaligned), unaligned):
        back = decode(encoded.skeleton, arena, copy=False, own=True)
        assert back.data_ptr() % 64 == 0
        assert torch.equal(back, torch.arange(3000.0))
        back.zero_()
    assert bytes(unaligned) == arena_of(encoded)


def test_torch_is_not_imported_by_those_who_send_none() -> None:
    code = (
        "import sys, numpy\n"
        "from engine.bus.codec import decode, encode\n"
        "made = encode({'a': (1, numpy.arange(3))})\n"
        "decode(made.skeleton, copy=True)\n"
        "assert not {'torch', 'treetensor', 'treevalue', 'zmq'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


# --- what cannot be sent ------------------------------------------------------------------------


class Color(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x y")
itself: list[Any] = []
itself.append({"again": itself})
doubled: list[Any] = []
for _ in range(60):
    doubled = [doubled, doubled]

REFUSED = {
    "lambda": ({"model": [0, 1, 2, lambda: 0]}, r"^value\['model'\]\[3\]: a lambda"),
    "function": ([len], r"^value\[0\]: a builtin_function_or_method; "),
    "class": ({"a": Job}, r"^value\['a'\]: the class Job; "),
    "object": ((object(),), r"^value\[0\]: a object; numbers, text"),
    "enum": ({"color": Color.RED}, r"^value\['color'\]: a Color; send its value"),
    "namedtuple": ([Point(1, 2)], r"a Point; send tuple\(\.\.\.\)"),
    "defaultdict": ([collections.defaultdict(int)], r"a defaultdict; send dict\(\.\.\.\)"),
    "bytearray": ([bytearray(3)], r"a bytearray; send bytes\(\.\.\.\)"),
    "numpy text": ([np.str_("a")], r"a str_; send str\(\.\.\.\)"),
    "masked": ([np.ma.zeros(3)], r"a MaskedArray; send numpy\.asarray\(\.\.\.\)"),
    "exception": ([ValueError("x")], r"^value\[0\]: a ValueError; "),
    "unregistered": ({"job": Nameless()}, r"^value\['job'\]: a Nameless; give its class a name"),
    "in an object": (Job("a", weights=[{1: {2}, "x": range(3)}]), r"^value\.weights\[0\]\['x'\]: a range"),
    "in a key": ({(1, len): 2}, r"^value, key .*\[1\]: a builtin"),
    "object array": ([np.array([None])], r"^value\[0\]: an array of object, shape \(1,\): only numbers"),
    "array of text": ([np.array(["a"])], r"an array of <U1.*; send a list of str"),
    "structured": ([np.zeros(2, [("a", "i4"), ("b", "O")])], r"^value\[0\]: an array of .*only numbers"),
    "dates without a unit": ([np.datetime64("NaT")], r"dates with a unit"),
    "endless empty": ([np.empty((1 << 40, 0))], r"an empty array of shape \(1099511627776, 0\)"),
    "sparse": ([torch.eye(3).to_sparse()], r"^value\[0\]: a tensor whose numbers cannot be had"),
    "meta": ([torch.empty(3, device="meta")], r"^value\[0\]: a tensor whose numbers cannot be had"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sent_is_named_by_its_path(name: str) -> None:
    value, message = REFUSED[name]
    with pytest.raises(CodecError, match=message) as caught:
        encode(value)
    assert not isinstance(caught.value, PayloadTooLarge)


def test_a_field_that_was_never_set_is_named() -> None:
    job = Job("a")
    del job.name
    with pytest.raises(CodecError, match=r"^value\.name: a field that was never set"):
        encode(job)


TOO_LARGE = {
    "itself": (itself, Limits(), r"more than 64 levels deep \(does it hold itself\?\)"),
    "doubled": (doubled, Limits(skeleton=5000), "more than 5000 values"),
    "skeleton": ("x" * 600, Limits(skeleton=500), "a skeleton of 603 bytes, where 500 may be"),
    "buffers": (
        [np.zeros(300)] * 3,
        Limits(buffers=2),
        r"^value\[2\]: more than 2 arrays of 1024 bytes and more",
    ),
    "bytes": (
        {"a": np.zeros(300)},
        Limits(bytes=2399),
        r"^value\['a'\]: 2400 bytes of arrays up to here; 2399",
    ),
    "broadcast": (
        [np.broadcast_to(np.zeros(1), (1 << 50,))],
        Limits(),
        r"^value\[0\]: 9007199254740992 bytes",
    ),
    "expanded": ([torch.zeros(1).expand(1 << 50)], Limits(), r"^value\[0\]: 4503599627370496 bytes"),
}


@pytest.mark.parametrize("name", TOO_LARGE)
def test_more_than_the_limits_is_refused(name: str) -> None:
    value, limits, message = TOO_LARGE[name]
    with pytest.raises(PayloadTooLarge, match=message):
        encode(value, limits)


@pytest.mark.parametrize(
    ("leaf", "levels"),
    [(np.float32(1), 0), (np.zeros(500), 0), (1j, 0), ((), 1), ({}, 1), (Job("a"), 2), (tree.as_tree({}), 1)],
    ids=lambda value: type(value).__name__,
)
def test_what_was_encoded_at_the_limits_decodes_at_the_limits(leaf: Any, levels: int) -> None:
    encoded = encode([[[leaf]]])
    limits = Limits(encoded.arena_size, len(encoded.buffers), 3 + levels, len(encoded.skeleton))
    assert encode([[[leaf]]], limits) == encoded
    (((back,),),) = decode(encoded.skeleton, arena_of(encoded), limits, copy=True)
    assert same(tree.plain(back), tree.plain(leaf))
    with pytest.raises(PayloadTooLarge, match="levels deep"):
        encode([[[leaf]]], dataclasses.replace(limits, depth=2 + levels))


# --- no bytes do harm ---------------------------------------------------------------------------

MARKS = [mark.ext for mark in vars(marks).values() if isinstance(mark, marks.Mark)]
TUPLE, SET, PAIRS, BYTES = marks.TUPLE.ext, marks.SET.ext, marks.PAIRS.ext, marks.BYTES.ext
ARRAY, SCALAR, TENSOR, TREE, OBJECT = (
    mark.ext for mark in (marks.ARRAY, marks.SCALAR, marks.TENSOR, marks.TREE, marks.OBJECT)
)

FORGED = {
    "no mark of ours": Ext(99, b""),
    "a mark with content": [Ext(1, b"x"), 1],
    "a mark alone": TUPLE,
    "a mark in the middle": [1, TUPLE],
    "a list as a key": {(1, 2): 3},
    "a date of msgpack": [datetime.now(UTC)],
    "a list in a set": [SET, [1]],
    "pairs of three": [PAIRS, 1, 2, 3],
    "a dict as a key": [PAIRS, {}, 1],
    "no dtype": [ARRAY, "<q9", [1], b"12345678"],
    "objects": [ARRAY, "|O", [1], b"12345678"],
    "objects in fields": [ARRAY, ["with", ["a"], ["|O"], [0], 8], [1], b"12345678"],
    "a dtype of text": [ARRAY, "<U2", [1], b"12345678"],
    "dates without a unit": [ARRAY, "<M8", [1], b"12345678"],
    "dates of a generic unit": [ARRAY, "<M8[generic]", [1], b"12345678"],
    "dates of an overflowing unit": [ARRAY, "<M8[999999999999999s]", [1], b"12345678"],
    "code for a dtype": [ARRAY, "i4,i4", [1], b"12345678"],
    "a dtype of lists": [ARRAY, [["a", "<i4"]], [1], b"1234"],
    "fields outside": [ARRAY, ["with", ["a"], ["<i8"], [4], 8], [1], b"12345678"],
    "a field before": [ARRAY, ["with", ["a"], ["<i4"], [-4], 8], [1], b"12345678"],
    "fields of no size": [ARRAY, ["with", ["a"], [["of", "<i4", [0]]], [0], 0], [1 << 60], b""],
    "fields of numbers": [ARRAY, ["with", [1], ["<i4"], [0], 4], [1], b"1234"],
    "huge fields": [ARRAY, ["of", "<i8", [1 << 60]], [1], 0],
    "a negative shape": [ARRAY, "<i4", [-1], b""],
    "two negative": [ARRAY, "<i4", [-1, -1], b"1234"],
    "a float shape": [ARRAY, "<i4", [1.0], b"1234"],
    "no shape": [ARRAY, "<i4", 1, b"1234"],
    "an overflowing shape": [ARRAY, "<i4", [1 << 32, 1 << 32], 0],
    "an overflow to nothing": [ARRAY, "<i4", [1 << 62, 4], b""],
    "a shape of 2^64": [ARRAY, "|u1", [(1 << 64) - 1], 0],
    "100 dimensions": [ARRAY, "|u1", [1] * 100, b"1"],
    "an endless empty array": [ARRAY, "|u1", [1 << 60, 0], b""],
    "too few bytes": [ARRAY, "<i4", [2], b"1234"],
    "too many bytes": [ARRAY, "<i4", [1], b"12345678"],
    "a negative offset": [ARRAY, "<i4", [1], -64],
    "an odd offset": [ARRAY, "<i4", [1], 4],
    "an offset outside": [ARRAY, "<i4", [1], 1 << 40],
    "the last byte outside": [ARRAY, "|u1", [65], 4096 - 64],
    "an empty array outside": [ARRAY, "|u1", [0], 4160],
    "a float offset": [ARRAY, "<i4", [1], 0.0],
    "an array cut short": [ARRAY, "<i4", [1]],
    "booleans of 7": [ARRAY, "|b1", [2], b"\x01\x07"],
    "booleans of 7 in fields": [ARRAY, ["with", ["a"], ["|b1"], [0], 1], [2], b"\x01\x07"],
    "a scalar of two": [SCALAR, "<i4", [2], b"12345678"],
    "a tensor of dates": [TENSOR, "<M8[s]", [1], b"12345678", None],
    "a big-endian tensor": [TENSOR, ">i4", [1], b"1234", None],
    "a tensor of no dtype": [TENSOR, "<i2", [1], b"12", "float32"],
    "a tensor of a function": [TENSOR, "<i2", [1], b"12", "load"],
    "a tensor of a number": [TENSOR, "<i2", [1], b"12", 3],
    "a tree of numbers": [TREE, {"a": 1}],
    "a tree of lists": [TREE, [1]],
    "a tree that hides": [TREE, {"shape": [TENSOR, "<i2", [1], b"12", None]}],
    "an unknown class": [OBJECT, "test.Jo", {}],
    "a class of a number": [OBJECT, 3, {}],
    "fields missing": [OBJECT, "test.Job", {"name": "a"}],
    "fields of another": [OBJECT, "test.Span", {"start": 1, "stop": 2, "__class__": 3}],
    "bytes of less than nothing": [BYTES, 0, -1],
    "bytes outside": [BYTES, 64, 4096],
    "no integer": [marks.INT.ext, 3],
    "no text": [marks.TEXT.ext, b"\xff"],
    "no complex": [marks.COMPLEX.ext, 1, 2],
    "no date": [marks.DATETIME.ext, "yesterday", 0],
    "no fold": [marks.DATETIME.ext, "2024-01-01", 1 << 60],
    "no ordered dict": [marks.ORDERED.ext, [1]],
}


@pytest.mark.parametrize("copy", [True, False], ids=["copy", "view"])
@pytest.mark.parametrize("name", FORGED)
def test_a_forged_skeleton_is_refused(name: str, copy: bool) -> None:
    with pytest.raises(CodecError):
        decode(msgspec.msgpack.encode(FORGED[name]), bytes(4096), copy=copy)
    with pytest.raises(CodecError):
        decode(msgspec.msgpack.encode({"a": [1, [TUPLE, FORGED[name]]]}), bytes(4096), copy=copy)


def test_a_mark_as_a_key_is_refused() -> None:
    with pytest.raises(CodecError, match="a key in a message is no plain value"):
        decode(b"\x81\xc7\x00\x01\xc0", copy=True)


def test_a_name_nearly_right_is_suggested() -> None:
    with pytest.raises(CodecError, match=r"a 'test\.Jo', .*did you mean 'test\.Job'\?"):
        decode(msgspec.msgpack.encode([OBJECT, "test.Jo", {}]), copy=True)


def test_what_a_class_raises_while_it_is_made_is_a_codec_error() -> None:
    @register("test.Picky")
    @dataclass
    class Picky:
        x: int

        def __post_init__(self) -> None:
            if self.x != 1:
                raise KeyError("picky")

    assert there_and_back(Picky(1)) == Picky(1)
    with pytest.raises(CodecError, match="KeyError: 'picky'"):
        decode(msgspec.msgpack.encode([OBJECT, "test.Picky", {"x": 2}]), copy=True)


@pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xdb", b"\xc6", b"\xc9"], ids=bytes.hex)
def test_a_length_that_does_not_follow_is_refused_without_memory(head: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(head + b"\xff\xff\xff\xff\x01", copy=True)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_overlapping_buffers_cannot_take_more_than_the_limit() -> None:
    size = 1 << 20
    arena, limits = bytes(size), Limits(bytes=4 * size)
    views = msgspec.msgpack.encode([[ARRAY, "|u1", [size], 0]] * 100)
    assert len(decode(views, arena, limits, copy=False)) == 100
    tracemalloc.start()
    try:
        assert len(decode(views, arena, limits, copy=True)) == 100
        for copies in ([[TENSOR, "|u1", [size], 0, None]] * 100, [[BYTES, 0, size]] * 100):
            with pytest.raises(PayloadTooLarge):
                decode(msgspec.msgpack.encode(copies), arena, limits, copy=False)
        assert tracemalloc.get_traced_memory()[1] < 6 * size
    finally:
        tracemalloc.stop()


def test_limits_hold_for_what_comes_in() -> None:
    array = msgspec.msgpack.encode([[ARRAY, "|u1", [1], 0]] * 3)
    deep = b"\x91" * 100 + b"\xc0"
    for skeleton, limits in [
        (array, Limits(bytes=63)), (array, Limits(buffers=2)), (array, Limits(skeleton=10)), (deep, Limits()),
    ]:  # fmt: skip
        with pytest.raises(PayloadTooLarge):
            decode(skeleton, bytes(64), limits, copy=True)
    with pytest.raises(CodecError):
        decode(b"\x91" * (1 << 20), copy=True)
    with pytest.raises(CodecError, match="without an arena"):
        decode(array, copy=True)


SAMPLE = {
    "a": np.arange(600.0), "b": [torch.arange(5), torch.ones(40, 40, dtype=torch.bfloat16)],
    "c": (1, {2}, 2**70, 1j), "d": Job("x", np.zeros(3, STRUCTURED)), "e": datetime(2024, 1, 1),
    "f": {(1, 2): b"x" * 2000}, "g": np.True_, "h": tree.as_tree({"x": torch.ones(3)}),
    "i": collections.OrderedDict(z=frozenset({1})),
    "j": np.ones(1500, "?"),
}  # fmt: skip


def decodes_or_is_refused(skeleton: bytes, arena: Any, limits: Limits = Limits()) -> bool:  # noqa: B008
    try:
        repr(decode(skeleton, arena, limits, copy=False))
    except CodecError:
        return False
    return True


def test_a_message_cut_anywhere_is_refused() -> None:
    encoded = encode(SAMPLE)
    arena = arena_of(encoded)
    assert decodes_or_is_refused(encoded.skeleton, arena)
    for end in range(len(encoded.skeleton)):
        assert not decodes_or_is_refused(encoded.skeleton[:end], arena)
    for end in range(0, len(arena), 64):
        assert not decodes_or_is_refused(encoded.skeleton, arena[:end])
    assert not decodes_or_is_refused(encoded.skeleton + b"\xc0", arena)


@pytest.mark.filterwarnings("ignore")  # of numbers that no message of ours holds, when they are printed
def test_bytes_changed_at_random_do_no_harm() -> None:
    random_bytes = random.Random(1)
    encoded = encode(SAMPLE)
    arena = arena_of(encoded)
    refused = 0
    for _ in range(500):
        changed = bytearray(encoded.skeleton)
        for _ in range(random_bytes.choice([1, 1, 2, 5])):
            changed[random_bytes.randrange(len(changed))] = random_bytes.randrange(256)
        refused += not decodes_or_is_refused(bytes(changed), arena)
    assert 50 < refused < 500


def test_random_bytes_do_no_harm() -> None:
    random_bytes = random.Random(2)
    for _ in range(3000):
        decodes_or_is_refused(random_bytes.randbytes(random_bytes.randrange(60)), bytes(256))
    for kind in (b"\xc7\x00\x0b", b"\xd4\x0b", b"\x94\xc7\x00\x0b", b"\x95\xc7\x00\x0d", b"\x93\xc7\x00\x0f"):
        for _ in range(300):
            decodes_or_is_refused(kind + random_bytes.randbytes(random_bytes.randrange(40)), bytes(256))


wild = st.recursive(
    st.sampled_from(MARKS) | st.integers(-70, 2**64 - 1) | st.sampled_from([0, 1, 2, 64, 128])
    | st.binary(max_size=32) | st.text(max_size=3) | st.none() | st.floats()
    | st.sampled_from(["<f4", "|b1", "|u1", ">i8", "<M8[s]", "with", "of", "bfloat16", "<i2"])
    | st.sampled_from(["test.Job", "test.Span"]),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(st.sampled_from(MARKS), inner, inner).map(list)
        | st.tuples(st.sampled_from(MARKS), st.sampled_from(["<f4", "|b1", "|u1", "<i2"]) | inner,
                    st.lists(st.integers(0, 9), max_size=3), st.just(0) | inner).map(list)
        | st.tuples(st.sampled_from(MARKS), st.sampled_from(["<f4", "|b1", "|u1", "<i2"]) | inner,
                    st.lists(st.integers(0, 9), max_size=3), st.just(64) | inner,
                    st.sampled_from([None, "bfloat16"])).map(list)
        | st.dictionaries(st.text(max_size=2) | st.sampled_from(["name", "start"]), inner, max_size=3)
    ),
    max_leaves=15,
)  # fmt: skip


@settings(quick, max_examples=200)
@given(wild)
def test_any_structure_of_marks_decodes_or_is_refused(value: Any) -> None:
    skeleton = msgspec.msgpack.encode(value)
    decodes_or_is_refused(skeleton, bytes(INLINE))
    decodes_or_is_refused(skeleton, bytearray(INLINE), Limits(bytes=INLINE, buffers=3, depth=4))
