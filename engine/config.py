"""Configurations: YAML files and ``key=value`` words in, checked frozen Structs out, mistakes named by place.

A configuration is data in layers: a file may name one ``base:`` file (relative to itself) whose values it
overrides, and the command line overrides both. Mappings are merged key by key; an empty mapping ``{}`` and
everything else replaces. Every value remembers the layer it came from, so that an error can name the place
and `to_yaml` can mark it.

YAML is read with the numbers of YAML 1.2 (``1e-3`` is a float, ``010`` is ten, ``12:30`` is text) and the
booleans of 1.1, so that ``yes``, ``no``, ``on`` and ``off`` are refused where text is declared.
"""

from __future__ import annotations

import json
import math
import os
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import yaml

from engine.errors import ConfigError, UsageError, did_you_mean

S = TypeVar("S", bound=msgspec.Struct)
Key = tuple[str, ...]

COMMAND_LINE = "command line"
_MAX_BYTES = 1 << 20


class Source(NamedTuple):
    """Where a value came from: a kind (``base``, ``file``, ``command line``) and the file's name."""

    kind: str
    file: str = ""

    def __str__(self) -> str:
        return {"file": self.file, "base": f"base {self.file}"}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Settings:
    """Values that are not checked against a Struct yet, and the source of each."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[Key, Source] = field(default_factory=dict)

    @property
    def recipe(self) -> str | None:
        """The ``recipe:`` of the file, as ``module:function``; None where it names none."""
        recipe = self.values.get("recipe")
        if recipe is not None and not isinstance(recipe, str):
            raise ConfigError(
                f"recipe must be text like module:function, got {recipe!r} ({self.source(('recipe',))})"
            )
        return recipe

    def source(self, key: Key) -> Source:
        """The layer that set `key`, or the last layer that set anything below or above it."""
        if key in self.sources:
            return self.sources[key]
        below = [source for known, source in self.sources.items() if known[: len(key)] == key]
        above = [source for known, source in self.sources.items() if key[: len(known)] == known]
        ranks = {"base": 0, "file": 1, COMMAND_LINE: 2}
        return max(below or above, key=lambda source: ranks.get(source.kind, 0), default=Source("default"))


def load(name: str | Path) -> Settings:
    """Read a configuration by name or path, with the files it is based on.

    Raises UsageError for a name that nobody has and ConfigError for a file that cannot be read.
    """
    return _load(find(name), Source("file"), ())


def override(settings: Settings, words: Iterable[str]) -> Settings:
    """Return `settings` with ``a.b=value`` words laid over it; values are read as YAML."""
    values, sources = _copy(settings.values), dict(settings.sources)
    for word in words:
        dotted, equals, text = word.partition("=")
        key = tuple(dotted.strip().split("."))
        if not equals or not all(re.fullmatch(r"[^\s.=]+", part) for part in key):
            raise ConfigError(f"{word!r} is not of the form key=value, like policy.learning_rate=1e-3")
        if not text.strip():
            raise ConfigError(
                f"no value after {word!r}; write {dotted}=null for nothing or {dotted}=\"''\" for empty text"
            )
        value = _parse(text, f"{COMMAND_LINE}, {dotted}")
        for part in reversed(key):
            value = {part: value}
        _merge(values, sources, value, Source(COMMAND_LINE))
    return Settings(values, sources)


def convert(settings: Settings | Mapping[str, Any], struct: type[S]) -> S:
    """Build a `struct` from values; every unknown key, wrong type and wrong range is named by its place.

    Raises ConfigError with one line per mistake.
    """
    if not isinstance(settings, Settings):
        plain = Settings()
        _merge(plain.values, plain.sources, dict(settings), Source("given values"))
        settings = plain
    values = dict(settings.values)
    if "recipe" not in struct.__struct_fields__:
        values.pop("recipe", None)
    mistakes = list(_mistakes(values, struct, (), settings, struct))
    if not mistakes:
        try:
            return msgspec.convert(values, struct, strict=False)
        except msgspec.ValidationError as error:  # from a __post_init__: an impossible combination
            message, key = _split(str(error), ())
            mistakes.append(f"{message} ({settings.source(key)}{', ' + '.'.join(key) if key else ''})")
    if len(mistakes) == 1:
        raise ConfigError(mistakes[0])
    raise ConfigError(
        "\n".join([f"{len(mistakes)} mistakes in the configuration:", *(f"  {m}" for m in mistakes)])
    )


def to_yaml(config: msgspec.Struct, settings: Settings | None = None, *, recipe: str | None = None) -> str:
    """Write a configuration as YAML that `load` reads back; `settings` marks where each line came from."""
    lines: list[tuple[str, str]] = [(f"recipe: {dump(recipe)}", "")] if recipe else []

    def write(values: Mapping[str, Any], path: Key) -> None:
        for name, value in values.items():
            key, indent = (*path, name), "  " * len(path)
            if isinstance(value, dict) and value:
                lines.append((f"{indent}{dump(name)}:", ""))
                write(value, key)
            else:
                source = settings.sources.get(key) if settings else None
                above = (
                    next((s for k, s in settings.sources.items() if key[: len(k)] == k), None)
                    if settings
                    else None
                )
                mark = f"  # {source or above or 'default'}" if settings else ""
                lines.append((f"{indent}{dump(name)}: {dump(value)}", mark))

    write(msgspec.to_builtins(config), ())
    width = min(48, max((len(text) for text, mark in lines if mark), default=0))
    return "".join(f"{text:<{width}}{mark}\n" if mark else f"{text}\n" for text, mark in lines)


# ------------------------------------------------------------------ finding files


def folders() -> list[Path]:
    """Where names are looked up, in order: ./configs, configs/ of a checkout, the packaged copy."""
    package = Path(__file__).parent
    checkout = package.parent / "configs"
    places = [Path("configs"), package / "configs"]
    if (package.parent / "setup.py").is_file():
        places.insert(1, checkout)
    kept: dict[Path, Path] = {place.resolve(): place for place in reversed(places) if place.is_dir()}
    return list(reversed(kept.values()))


def names() -> list[str]:
    """Every configuration that can be run by name, like ``ppo/cartpole``; those under base/ are left out."""
    found = {
        path.relative_to(folder).with_suffix("").as_posix()
        for folder in folders()
        for path in folder.rglob("*.yaml")
        if path.relative_to(folder).parts[0] != "base"
    }
    return sorted(found)


def find(name: str | Path) -> Path:
    """Return the file behind a name: a literal path first, then the folders of `folders`."""
    text = str(name)
    if Path(text).suffix in (".yaml", ".yml"):
        candidates = [Path(text), *(folder / text for folder in folders())]
    else:
        candidates = [Path(f"{text}.yaml"), *(folder / f"{text}.yaml" for folder in folders())]
    for path in candidates:
        if path.exists():
            return path
    if Path(text).is_dir():
        raise ConfigError(f"{text} is a folder, not a configuration file{did_you_mean(text, names())}")
    inside = [known for known in names() if known.startswith(f"{text.rstrip('/')}/")]
    if inside:
        raise UsageError(f"no configuration {text!r}; there are {', '.join(inside)}")
    hint = did_you_mean(text.removesuffix(".yaml"), names()) or "; `engine list` shows what there is"
    raise UsageError(f"no configuration {text!r}{hint}")


def summary(path: Path) -> str:
    """The comment at the top of a file, as one line."""
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if not line.startswith("#"):
            break
        if "yaml-language-server" not in line:
            lines.append(line.lstrip("# ").rstrip())
    return " ".join(lines)


# ------------------------------------------------------------------ reading YAML


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the numbers of YAML 1.2, and an error for a key given twice."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  # declared by PyYAML; empty here, filled below

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} must be text: quote it", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is given twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


for _tag, _pattern, _first in (
    ("bool", r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO"),
    ("int", r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("merge", r"<<", "<"),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), list(_first))


def _construct_int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    return int(text, 16) if text.lower().startswith("0x") else int(text)


_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def _parse(text: str, where: str) -> Any:
    try:
        value = yaml.load(text, _Loader)
        _check_finite(value)
        return value
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f", line {mark.line + 1}" if mark is not None and "\n" in text.strip() else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"not valid YAML: {problem} ({where}{line})") from None
    except RecursionError:
        raise ConfigError(f"not usable YAML: it is nested too deeply, or contains itself ({where})") from None


def _check_finite(value: Any) -> None:
    """Raise RecursionError for a value that contains itself, which anchors can make."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_finite(inner)


def _read(path: Path) -> dict[str, Any]:
    """Return the mapping in a file, or say in one sentence why there is none."""
    shown = _shown(path)
    try:
        if path.is_file() and path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{shown} is larger than 1 MiB: that is no configuration file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{shown} is not a text file in UTF-8") from None
    except IsADirectoryError:
        raise ConfigError(f"{shown} is a folder, not a configuration file") from None
    except OSError as error:
        raise ConfigError(f"cannot read {shown}: {(error.strerror or str(error)).lower()}") from None
    values = _parse(text, shown)
    if values is None:
        raise ConfigError(f"{shown} is empty; a configuration needs at least `recipe:` or `base:`")
    if not isinstance(values, dict):
        kind = "a list" if isinstance(values, list) else "a single value"
        raise ConfigError(
            f"{shown} holds {kind} at its top; a configuration is a mapping of `key: value` lines"
        )
    return values


def _load(path: Path, source: Source, above: tuple[Path, ...]) -> Settings:
    resolved = path.resolve()
    if resolved in above:
        chain = " -> ".join(_shown(p) for p in (*above[above.index(resolved) :], resolved))
        raise ConfigError(f"`base:` goes in a circle: {chain}")
    values = _read(path)
    base = values.pop("base", None)
    if base is None:
        settings = Settings()
    elif not isinstance(base, str):
        raise ConfigError(f"base must be the name of one file, got {base!r} ({_shown(path)})")
    else:
        file = path.parent / (base if Path(base).suffix in (".yaml", ".yml") else f"{base}.yaml")
        if not file.exists():
            raise ConfigError(f"{_shown(path)} is based on {base!r}, but {_shown(file)} does not exist")
        settings = _load(file, Source("base"), (*above, resolved))
    _merge(settings.values, settings.sources, values, source._replace(file=_shown(path)))
    return settings


def _merge(
    into: dict[str, Any], sources: dict[Key, Source], values: Mapping[str, Any], source: Source
) -> None:
    def merge(into: dict[str, Any], values: Mapping[str, Any], path: Key) -> None:
        for name, value in values.items():
            key = (*path, name)
            if isinstance(value, dict) and value:
                if not isinstance(into.get(name), dict):
                    forget(key)
                    into[name] = {}
                sources.pop(key, None)
                merge(into[name], value, key)
            else:
                forget(key)
                into[name] = value
                sources[key] = source

    def forget(key: Key) -> None:
        for known in [known for known in sources if known[: len(key)] == key]:
            del sources[known]

    merge(into, values, ())


def _copy(values: dict[str, Any]) -> dict[str, Any]:
    return {name: _copy(value) if isinstance(value, dict) else value for name, value in values.items()}


def _shown(path: Path) -> str:
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("..") else relative


def dump(value: Any) -> str:
    """Write a value on one line so that this module's reader gives the same value back."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{dump(name)}: {dump(inner)}" for name, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(dump(inner) for inner in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return {"inf": ".inf", "-inf": "-.inf"}.get(repr(value), ".nan")
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z/](?:[\w/.:-]*[\w/])?", value, re.ASCII)
        if plain and _parse(f"[{value}]", "") == [value]:
            return value
        return (
            '"'
            + "".join(c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
            + '"'
        )
    return json.dumps(value)


# ------------------------------------------------------------------ checking


_WORDS = {"float": "a number", "int": "a whole number", "str": "text", "bool": "true or false",
          "object": "a mapping", "array": "a list", "null": "null"}  # fmt: skip


def _mistakes(
    values: Any, struct: type[msgspec.Struct], path: Key, settings: Settings, root: type[msgspec.Struct]
) -> Iterator[str]:
    """Yield one sentence for each thing in `values` that does not fit `struct`."""
    if isinstance(values, struct):
        return
    fields = {f.encode_name: f for f in msgspec.structs.fields(struct)}
    tag = struct.__struct_config__.tag_field
    for name, value in values.items():
        key = (*path, name)
        place = f"({settings.source(key)}, {'.'.join(key)})"
        if name not in fields:
            if name != tag:
                yield f"no field {name!r} in {struct.__name__} {place}{_nearest(name, fields, root)}"
            continue
        inner = struct_in(fields[name].type)
        if inner is not None and isinstance(value, dict):
            yield from _mistakes(value, inner, key, settings, root)
            continue
        if inner is not None and isinstance(value, (str, int, float, list)):
            inside = ", ".join(f"{'.'.join(key)}.{field}" for field in list(inner.__struct_fields__)[:3])
            yield f"{name!r} of {struct.__name__} has fields of its own, like {inside}; got {value!r} {place}"
            continue
        try:
            msgspec.convert(value, fields[name].type, strict=False)
        except msgspec.ValidationError as error:
            told = _explain(error, fields[name].type, f"{name!r} of {struct.__name__}", value, place)
            yield told + _as_list(value, fields[name].type, key, settings.source(key))
    for name, info in fields.items():
        if info.required and name not in values:
            inner, key = struct_in(info.type), (*path, name)
            within = list(_mistakes({}, inner, key, settings, root)) if inner is not None else []
            if within:  # a section cannot be written as a value: name the keys in it
                yield from within
                continue
            source, dotted = settings.source(path), ".".join(key)
            source = settings.source(()) if source.kind == "default" else source
            write = f"; write {dotted}={'...' if inner is None else '{}'}"
            hint = write if source.kind == COMMAND_LINE else ""
            yield f"{struct.__name__} needs a value for {name!r} ({source}, {dotted}){hint}"


def _nearest(name: str, fields: Iterable[str], root: type[msgspec.Struct]) -> str:
    same_leaf = [dotted for dotted in keys(root) if dotted.rpartition(".")[2] == name]
    if same_leaf:
        return f"; did you mean {same_leaf[0]!r}?"
    return did_you_mean(name, fields) or f"; it has {', '.join(fields)}"


def _as_list(value: Any, hint: Any, key: Key, source: Source) -> str:
    """Tell how a value is written as a list, if that is what it should have been."""
    if isinstance(value, list | dict) or value is None:
        return ""
    text = re.sub(r"\s*,\s*|\s+", ",", str(value).strip(" ,()"))
    try:
        msgspec.convert(_parse(f"[{text}]", ""), hint, strict=False)
    except (msgspec.ValidationError, ConfigError):
        return ""
    written = f"{'.'.join(key)}=[{text}]" if source.kind == COMMAND_LINE else f"{key[-1]}: [{text}]"
    return f"; write {written}"


def keys(struct: type[msgspec.Struct]) -> list[str]:
    """Every dotted key that a configuration of `struct` may set."""
    found = []
    for info in msgspec.structs.fields(struct):
        inner = struct_in(info.type)
        found += [f"{info.encode_name}.{k}" for k in keys(inner)] if inner else [info.encode_name]
    return found


def _members(hint: Any) -> list[Any]:
    """The alternatives of a union, without Annotated wrappers and None."""
    if typing.get_origin(hint) is Annotated:
        return _members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return [m for arg in typing.get_args(hint) for m in _members(arg)]
    return [] if hint is type(None) else [hint]


def struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The Struct class that a hint declares, where it is the only mapping it could be."""
    structs = [m for m in _members(hint) if isinstance(m, type) and issubclass(m, msgspec.Struct)]
    return structs[0] if len(structs) == 1 else None


def _split(message: str, path: Key) -> tuple[str, Key]:
    """Take msgspec's ``... - at `$.a.b` `` apart into the message and the key."""
    text, _, at = message.partition(" - at `$")
    return text, (*path, *(part for part in at.rstrip("`").split(".") if part))


def _explain(error: Exception, hint: Any, subject: str, value: Any, place: str) -> str:
    message, inside = _split(str(error), ())
    shown = repr(value) if len(repr(value)) < 80 else repr(value)[:76] + "..."
    subject += f" (at {''.join(inside)})" if inside else ""
    choices = [
        choice
        for m in _members(hint)
        if typing.get_origin(m) is typing.Literal
        for choice in typing.get_args(m)
    ]
    if choices and not inside:
        words = [str(choice) for choice in choices]
        hint = did_you_mean(str(value), words)
        return f"{subject} must be one of {', '.join(words)}, got {shown} {place}{hint}"
    expected = re.match(r"Expected (.+?)(?:, got .*)?$", message)
    if expected is None:
        return f"{subject}: {message[:1].lower()}{message[1:]}, got {shown} {place}"
    phrase = re.sub(
        r"`([^`]*)`", lambda m: " or ".join(_WORDS.get(w, w) for w in m[1].split(" | ")), expected[1]
    )
    if not inside and "null" not in phrase and _takes_null(hint):
        phrase += " or null"
    return f"{subject} must be {phrase}, got {shown} {place}"


def _takes_null(hint: Any) -> bool:
    if typing.get_origin(hint) is Annotated:
        return _takes_null(typing.get_args(hint)[0])
    return type(None) in typing.get_args(hint)
