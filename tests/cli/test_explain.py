"""`engine config explain`: what every key of a configuration is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta, Struct

from engine import config as configs
from engine.cli.explain import Explanation, explain
from engine.cli.main import call
from engine.recipes.target import resolve

TARGETS = [
    *configs.names(),
    *(f"engine.recipes.{name}:{name}" for name in ("ppo", "dqn", "impala", "league")),
]


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the whole.

    More about it.
    """

    depth: Annotated[Annotated[int, Meta(gt=0, lt=9)] | None, Meta(description="how deep it goes")] = 4


class Every(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every kind of key."""

    name: Annotated[str, Meta(min_length=2, description="what it is called")]
    rate: Annotated[float, Meta(gt=0, le=1, description="how quick")] = 0.5
    sizes: Annotated[tuple[Annotated[int, Meta(ge=1)], ...], Meta(description="how large")] = (3, 4)
    mixed: Annotated[list[str | dict[str, Any]], Meta(description="names or mappings")] = []
    way: Annotated[Literal["up", "down"], Meta(description="where to")] = "up"
    sure: Annotated[bool, Meta(description="whether so")] = False
    part: Part = Part(depth=5)
    maybe: Annotated[Part | None, Meta(description="a second part; null: none")] = None


def recipe(config: Every) -> None:
    """A recipe of one's own."""


@pytest.fixture
def explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Explanation]:
    """Every key of a file that is based on another, with a word on the command line."""
    monkeypatch.chdir(tmp_path)
    Path("below.yaml").write_text(f"recipe: {__name__}:recipe\nname: below\nrate: 0.1\n")
    Path("mine.yaml").write_text("base: below\nname: mine\nsizes: [7]\n")
    return {one.key: one for one in explain(resolve("mine.yaml", ["part.depth=6"]))}


@pytest.mark.parametrize("target", TARGETS)
def test_every_key_of_every_shipped_configuration_has_a_description_and_a_type(target: str) -> None:
    words = [] if target in configs.names() else ["env.id=CartPole-v1"]
    resolved = resolve(target, words)
    found = {one.key: one for one in explain(resolved)}
    assert set(configs.keys(type(resolved.config))) <= set(found)
    for one in found.values():
        assert one.description.strip(), f"{one.key} of {target} has no description"
        assert one.type.strip()
        assert "msgspec" not in one.type


def test_values_defaults_and_origins_are_those_of_each_layer(explained: dict[str, Explanation]) -> None:
    found = {key: (one.value, one.default, one.origin) for key, one in explained.items()}
    assert found == {
        "recipe": (f"{__name__}:recipe", None, "base below.yaml"),
        "name": ("mine", None, "mine.yaml"),
        "rate": (0.1, 0.5, "base below.yaml"),
        "sizes": ((7,), (3, 4), "mine.yaml"),
        "mixed": ([], [], "default"),
        "way": ("up", "up", "default"),
        "sure": (False, False, "default"),
        "part": (Part(depth=6), Part(depth=5), "command line"),
        "part.depth": (6, 5, "command line"),
        "maybe": (None, None, "default"),
        "maybe.depth": (None, 4, "default"),
    }
    assert [key for key, one in explained.items() if one.required] == ["recipe", "name"]
    assert [key for key, one in explained.items() if not one.set] == ["maybe.depth"]


def test_types_and_ranges_are_told_in_words(explained: dict[str, Explanation]) -> None:
    assert {key: (one.type, one.range) for key, one in explained.items() if key != "recipe"} == {
        "name": ("text", "at least 2 characters"),
        "rate": ("number", "> 0, <= 1"),
        "sizes": ("list of whole numbers", "each >= 1"),
        "mixed": ("list of text or mapping", ""),
        "way": ("one of down, up", ""),
        "sure": ("true or false", ""),
        "part": ("section", ""),
        "part.depth": ("whole number or null", "> 0, < 9"),
        "maybe": ("section or null", ""),
        "maybe.depth": ("whole number or null", "> 0, < 9"),
    }
    assert explained["part"].description == "A part of the whole."


def test_a_key_without_a_description_has_two_lines(explained: dict[str, Explanation]) -> None:
    plain = replace(explained["rate"], description="")
    assert plain.text() == "rate = 0.1  (base below.yaml)\n    number, > 0, <= 1; default 0.5"


def constraints(kind: type[Struct], path: str = "") -> Iterator[tuple[str, str, float]]:
    """Each bound that msgspec itself checks, as its JSON schema has it."""
    schema = msgspec.json.schema(kind)
    names = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}

    def walk(node: dict[str, Any], key: str) -> Iterator[tuple[str, str, float]]:
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        for name, sign in names.items():
            if name in node:
                yield key, sign, node[name]
        for part in [
            *node.get("anyOf", ()),
            *([node["items"]] if isinstance(node.get("items"), dict) else []),
        ]:
            yield from walk(part, key)
        for name, inner in node.get("properties", {}).items():
            yield from walk(inner, f"{key}.{name}".lstrip("."))

    yield from walk(schema, path)


@pytest.mark.parametrize("name", ["ppo", "dqn", "impala", "league"])
def test_the_ranges_are_those_that_are_checked(name: str) -> None:
    resolved = resolve(f"engine.recipes.{name}:{name}", ["env.id=CartPole-v1"])
    found = {one.key: one.range for one in explain(resolved)}
    checked = list(constraints(type(resolved.config)))
    assert len(checked) > 5
    for key, sign, bound in checked:
        assert f"{sign} {bound}" in found[key], key


def test_a_key_is_explained_alone_and_a_section_with_all_of_its_keys(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(["config", "explain", "ppo/cartpole", "policy.clip", "policy.clip=0.3"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "policy.clip = 0.3  (command line)",
        "    number, > 0; default 0.2",
        "    how far the probability ratio may leave 1 and still be rewarded",
    ]
    assert call(["config", "explain", "dqn/cartpole", "train", "train.threads", "seed"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "train: How much is learned from what was collected."
    keys = [line.partition(" ")[0] for line in shown[1:] if line and not line.startswith(" ")]
    assert keys[0] == "train.batch_size"
    assert keys[-1] == "seed"
    assert keys.count("train.threads") == 1
    assert "train.prioritized.alpha = not set: train.prioritized is null" in shown


def test_without_a_key_all_are_explained_and_json_holds_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["config", "explain", "impala/cartpole"]) == 0
    shown = capsys.readouterr().out
    assert call(["config", "explain", "impala/cartpole", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    for row in rows:
        assert f"{row['key']}{':' if row['type'] == 'section' else ' = '}" in shown
        assert row["description"] in shown
    (rate,) = [row for row in rows if row["key"] == "policy.learning_rate"]
    assert rate == {
        "key": "policy.learning_rate",
        "type": "number",
        "range": "> 0, <= 1",
        "value": configs.load("impala/cartpole").values["policy"]["learning_rate"],
        "set": True,
        "default": 3e-4,
        "required": False,
        "origin": rate["origin"],
        "description": "step size of Adam, at the start of the run",
    }
    assert rate["origin"].endswith("configs/impala/cartpole.yaml")


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("learning_rate", "did you mean 'policy.learning_rate'?"),
        ("policy.learning_rat", "did you mean 'policy.learning_rate'?"),
        ("plicy", "did you mean 'policy'?"),
        ("train.prioritised.alpha", "did you mean 'train.prioritized.alpha'?"),
        ("policy.qqq", "; policy has learning_rate, "),
        ("qqq", "without a key all of them are explained"),
    ],
)
def test_an_unknown_key_is_told_the_nearest(key: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(["config", "explain", "dqn/cartpole", key]) == 3
    assert capsys.readouterr().err.startswith(f"error: no key {key!r} in DQNRun")
    assert call(["config", "explain", "dqn/cartpole", key]) == 3
    assert told in capsys.readouterr().err
