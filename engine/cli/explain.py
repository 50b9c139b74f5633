"""What the keys of a configuration are: type, range, value, default, origin, and what each is for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from msgspec import inspect

from engine import config as configs
from engine.config import Key, Settings
from engine.errors import ConfigError, did_you_mean
from engine.recipes.target import Target

_MISSING = object()
_NAMES: dict[type, str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "whole number",
    inspect.FloatType: "number",
    inspect.StrType: "text",
    inspect.NoneType: "null",
    inspect.DictType: "mapping",
    inspect.StructType: "mapping",
    inspect.AnyType: "any value",
}
_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="), ("multiple_of", "a multiple of"))
_LENGTHS = (("min_length", "at least"), ("max_length", "at most"))
_SECTION, _OPTIONAL = "section", "section or null"


@dataclass(frozen=True)
class Explanation:
    """One key: what it may be, what it is, and why."""

    key: str
    type: str
    range: str
    """Such as ``> 0, <= 1``; empty if any value of the type will do."""
    value: Any
    set: bool
    """False for a key of a section that is null."""
    default: Any
    required: bool
    """It has no default."""
    origin: str
    """``default``, ``command line``, a file, or ``base FILE``."""
    description: str

    def row(self) -> dict[str, Any]:
        """All of it, for JSON."""
        return {name: msgspec.to_builtins(value) for name, value in asdict(self).items()}

    def text(self) -> str:
        """A few lines for reading."""
        if self.type == _SECTION:
            return f"\n{self.key}: {self.description}".rstrip()
        value = f"{_shown(self.value)}  ({self.origin})" if self.set else f"not set: {self._parent} is null"
        default = "required" if self.required else f"default {_shown(self.default)}"
        kind = ", ".join(part for part in (self.type, self.range) if part)
        lines = [f"{self.key} = {value}", f"    {kind}; {default}", f"    {self.description}"]
        return "\n".join(lines if self.description else lines[:2])  # a recipe of the user's own may have none

    @property
    def _parent(self) -> str:
        return self.key.rpartition(".")[0]


def explain(target: Target) -> list[Explanation]:
    """Return an explanation of every key of a target's configuration, in its order; sections stand first."""
    recipe = Explanation(
        key="recipe",
        type="text",
        range="module:function",
        value=target.name,
        set=True,
        default=None,
        required=True,
        origin=str(target.settings.source(("recipe",))),
        description="the function that builds the pipeline",
    )
    return [recipe, *_explained(type(target.config), (), target.config, _MISSING, target.settings)]


def choose(explanations: Sequence[Explanation], key: str, target: Target) -> list[Explanation]:
    """Return those of a key, or of a section and all below; raises ConfigError, naming the nearest key."""
    found = [one for one in explanations if one.key == key or one.key.startswith(f"{key}.")]
    if found:
        return found
    known = [one.key for one in explanations]
    raise ConfigError(f"no key {key!r} in {type(target.config).__name__}{_nearest(key, known)}")


def _nearest(key: str, known: Sequence[str]) -> str:
    """Name the key of the same last word, the nearest in its section, or the nearest of all."""
    section, _, last = key.rpartition(".")
    same = [name for name in known if name.rpartition(".")[2] == last]
    if same:
        return f"; did you mean {same[0]!r}?"
    inside = [name.rpartition(".")[2] for name in known if section and name.rpartition(".")[0] == section]
    if inside:
        near = did_you_mean(last, inside)
        return near.replace("'", f"'{section}.", 1) or f"; {section} has {', '.join(inside)}"
    return did_you_mean(key, known) or "; without a key all of them are explained"


def _explained(
    struct: type[msgspec.Struct], path: Key, value: Any, default: Any, settings: Settings
) -> Iterator[Explanation]:
    """Explain the fields of `struct`; `value` and `default` are of its type, or nothing is known of them."""
    info: Any = inspect.type_info(struct)
    for field, plain in zip(info.fields, msgspec.structs.fields(struct), strict=True):
        key = (*path, field.encode_name)
        kind, description = _described(field.type)
        inner = configs.struct_in(plain.type)
        mine = getattr(value, field.name, _MISSING)
        usual = getattr(default, field.name, _MISSING)
        if usual is _MISSING and not plain.required:
            made = plain.default_factory is not msgspec.NODEFAULT
            usual = plain.default_factory() if made else plain.default
        optional = inner is not None and isinstance(kind, inspect.UnionType)
        name, bounds = (_OPTIONAL if optional else _SECTION, "") if inner else _kind(kind)
        yield Explanation(
            key=".".join(key),
            type=name,
            range=bounds,
            value=None if mine is _MISSING else mine,
            set=mine is not _MISSING,
            default=None if usual is _MISSING else usual,
            required=usual is _MISSING,
            origin=str(settings.source(key)),
            description=description or (_promise(inner) if inner else ""),
        )
        if inner is not None:
            inside = usual if isinstance(usual, inner) else _MISSING
            yield from _explained(inner, key, mine, inside, settings)


def _described(kind: Any) -> tuple[Any, str]:
    """Take the description off a type."""
    description = ""
    while isinstance(kind, inspect.Metadata):
        description = description or str((kind.extra_json_schema or {}).get("description", ""))
        kind = kind.type
    return kind, description


def _promise(struct: type[msgspec.Struct]) -> str:
    return (struct.__doc__ or "").partition("\n")[0]


def _kind(kind: Any) -> tuple[str, str]:
    """Name a type and its range in words."""
    kind, _ = _described(kind)
    if isinstance(kind, inspect.UnionType):
        parts = [_kind(part) for part in kind.types]
        parts.sort(key=lambda part: part[0] == "null")
        return " or ".join(dict.fromkeys(name for name, _ in parts)), ", ".join(
            range_ for _, range_ in parts if range_
        )
    if isinstance(kind, inspect.LiteralType):
        return "one of " + ", ".join(str(value) for value in kind.values), ""
    if isinstance(kind, inspect.EnumType):
        return "one of " + ", ".join(str(member.value) for member in kind.cls), ""
    if isinstance(kind, inspect.CollectionType):
        name, range_ = _kind(kind.item_type)
        plural = {"whole number": "whole numbers", "number": "numbers"}.get(name, name)
        each = [f"each {range_}"] if range_ else []
        return f"list of {plural}", ", ".join([*each, *_limits(kind, _LENGTHS)])
    bounds = [*_limits(kind, _BOUNDS), *_limits(kind, _LENGTHS)]
    return _NAMES.get(type(kind), type(kind).__name__.removesuffix("Type").lower()), ", ".join(bounds)


def _shown(value: Any) -> str:
    """A value as it can be written in a file; a section as ``{...}``, as its keys follow."""
    return "{...}" if isinstance(value, msgspec.Struct) else configs.dump(msgspec.to_builtins(value))


def _limits(kind: Any, names: Sequence[tuple[str, str]]) -> list[str]:
    found = [(words, getattr(kind, name, None)) for name, words in names]
    if names is _BOUNDS:
        return [f"{words} {limit}" for words, limit in found if limit is not None]
    unit = "characters" if isinstance(kind, inspect.StrType) else "items"
    one = {"at least 1": "not empty"}
    lengths = [f"{words} {limit}" for words, limit in found if limit is not None]
    return [one.get(words, f"{words} {unit}") for words in lengths]
