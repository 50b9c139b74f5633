"""Configurations: layers, overrides, places of mistakes."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import config
from engine.errors import ConfigError, UsageError


class Net(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    learning_rate: Annotated[float, msgspec.Meta(gt=0)] = 1e-3
    layers: tuple[int, ...] = (64, 64)
    clip: float | None = 0.2

    def __post_init__(self) -> None:
        if self.clip == 0 and self.learning_rate > 1:
            raise ValueError("a learning_rate above 1 needs a clip")


class Env(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    num_envs: Annotated[int, msgspec.Meta(ge=1)] = 8
    mode: Literal["auto", "sync"] = "auto"
    kwargs: dict[str, object] = {}


class Experiment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    env: Env
    policy: Net = Net()
    device: str = "auto"
    seed: int = 0
    render: bool = False


LISTS = {
    "policy.layers=64,64": "policy.layers=[64,64]",
    "policy.layers=32 32": "policy.layers=[32,32]",
    "policy.layers=64": "policy.layers=[64]",
    "policy.layers=(1, 2)": "policy.layers=[1,2]",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, text: str) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text, encoding="utf-8")
    return name


def read(text: str, *words: str) -> Experiment:
    return config.convert(config.override(config.load(write("x.yaml", text)), words), Experiment)


def mistake(text: str, *words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(text, *words)
    return str(caught.value)


MINIMAL = "recipe: a:b\nenv: {id: X}\n"


def test_unknown_key_names_struct_file_place_and_the_nearest(folder: Path) -> None:
    assert mistake("env: {id: X}\npolicy: {learning_rat: 1}") == (
        "no field 'learning_rat' in Net (x.yaml, policy.learning_rat); did you mean 'learning_rate'?"
    )


def test_a_key_of_another_section_is_suggested_with_its_section(folder: Path) -> None:
    assert mistake(MINIMAL, "learning_rate=1e-3").endswith(
        "(command line, learning_rate); did you mean 'policy.learning_rate'?"
    )


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("policy.learning_rate=fast", "'learning_rate' of Net must be a number, got 'fast'"),
        ("policy.learning_rate=-1", "'learning_rate' of Net must be a number > 0.0, got -1"),
        ("policy.learning_rate=.nan", "'learning_rate' of Net must be a number > 0.0, got nan"),
        ("env.num_envs=0", "'num_envs' of Env must be a whole number >= 1, got 0"),
        ("env.num_envs=1.5", "'num_envs' of Env must be a whole number, got 1.5"),
        ("env.mode=syn", "'mode' of Env must be one of auto, sync, got 'syn'"),
        ("device=on", "'device' of Experiment must be text, got True"),
        ("policy=null", "'policy' of Experiment must be a mapping, got None"),
        ("seed.x=1", "'seed' of Experiment must be a whole number, got {'x': 1}"),
        ("policy.layers=[1, a]", "'layers' of Net (at [1]) must be a whole number, got [1, 'a']"),
        ("policy.clip=a", "'clip' of Net must be a number or null, got 'a'"),
    ],
)
def test_wrong_values_are_named_with_the_command_line(folder: Path, word: str, expected: str) -> None:
    key = word.partition("=")[0] if "seed" not in word else "seed"
    assert mistake(MINIMAL, word).startswith(f"{expected} (command line, {key})")


def test_every_mistake_is_reported_with_its_own_source(folder: Path) -> None:
    write("base/all.yaml", "env: {id: X, num_envs: no}\n")
    message = mistake("base: base/all.yaml\npolicy: {lerning_rate: 1}\n", "seed=a")
    assert message.splitlines()[0] == "3 mistakes in the configuration:"
    for place in (
        "(base base/all.yaml, env.num_envs)",
        "(x.yaml, policy.lerning_rate)",
        "(command line, seed)",
    ):
        assert place in message


def test_an_impossible_combination_names_its_section(folder: Path) -> None:
    message = mistake(MINIMAL + "policy: {clip: 0}", "policy.learning_rate=2")
    assert message == "a learning_rate above 1 needs a clip (command line, policy)"


def test_a_missing_value_is_named(folder: Path) -> None:
    assert mistake("env: {num_envs: 2}") == "Env needs a value for 'id' (x.yaml, env.id)"
    assert mistake("seed: 2") == "Env needs a value for 'id' (x.yaml, env.id)"
    told = "Env needs a value for 'id' (command line, env.id); write env.id=..."
    assert mistake("seed: 2", "seed=3") == told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 1e5),
        ("3", 3),
        ("010", 10),
        ("0x10", 16),
        ("1_000", 1000),
        (".5", 0.5),
        ("-1.", -1.0),
        ("12:30", "12:30"),
        ("2024-01-01", "2024-01-01"),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("{a: {b: 1}}", {"a": {"b": 1}}),
        ("-.inf", -math.inf),
        ("true", True),
        ("yes", True),
        ("'yes'", "yes"),
        ("a=b", "a=b"),
        ("1e-3x", "1e-3x"),
    ],
)
def test_values_are_read_as_yaml_with_sane_numbers(text: str, value: object) -> None:
    read = config.override(config.Settings(), [f"k={text}"]).values["k"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    "word", ["seed", "=3", "a..b=1", ".=1", "seed=", "a b=1", "k=[1", "k={a: 1, a: 2}", "k=&a [*a]"]
)
def test_words_that_are_no_override_are_refused(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.override(config.Settings(), [word])
    assert "\n" not in str(caught.value)


def test_layers_merge_key_by_key_and_an_empty_mapping_replaces(folder: Path) -> None:
    write("base/b.yaml", "seed: 1\nenv: {id: X, kwargs: {a: 1}}\npolicy: {clip: 0.1}\n")
    loaded = read("base: base/b.yaml\nseed: 2\nenv: {kwargs: {b: 2}}\n", "policy.learning_rate=1")
    assert loaded == Experiment(
        seed=2, env=Env(id="X", kwargs={"a": 1, "b": 2}), policy=Net(clip=0.1, learning_rate=1.0)
    )
    assert read("base: base/b\n", "env.kwargs={}").env.kwargs == {}


def test_overriding_leaves_the_settings_it_was_given_alone(folder: Path) -> None:
    settings = config.load(write("x.yaml", MINIMAL))
    config.override(settings, ["env.id=Y"])
    assert settings.values["env"] == {"id": "X"}


def test_a_circle_of_bases_is_an_error(folder: Path) -> None:
    write("a.yaml", "base: b.yaml")
    write("b.yaml", "base: a.yaml")
    with pytest.raises(ConfigError, match=r"circle: a.yaml -> b.yaml -> a.yaml"):
        config.load("a.yaml")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is empty"),
        (b"# only a comment\n", "is empty"),
        (b"- 1\n", "holds a list"),
        (b"3", "a single value"),
        (b"\x80\xff\x00", "not a text file"),
        (b"a: 1\na: 2\n", "'a' is given twice (x.yaml, line 2)"),
        (b"1: 2\n", "must be text"),
        (b"a: [1\n", "not valid YAML"),
        (b"a: !!python/object:os.system {}", "not valid YAML"),
        (b"\x00\x01", "not valid YAML"),
        (b"a: &a\n  b: *a\n", "contains itself"),
        (b"[" * 5000, "nested too deeply"),
        (b"base: [a]\nx: 1", "base must be the name"),
        (b"base: nowhere\n", "does not exist"),
        (b"x" * 2_000_000, "larger"),
    ],
)
def test_unusable_files_are_explained_in_one_line(folder: Path, content: bytes, sentence: str) -> None:
    Path("x.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        config.load("x.yaml")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_folders_missing_files_and_unknown_names_are_told_apart(folder: Path) -> None:
    write("configs/ppo/cartpole.yaml", MINIMAL)
    Path("dir.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"dir.yaml is a folder"):
        config.load("dir.yaml")
    with pytest.raises(UsageError, match="did you mean 'ppo/cartpole'"):
        config.load("ppo/cartpol")
    with pytest.raises(UsageError, match=r"no configuration 'gone.yaml'"):
        config.load("gone.yaml")


def test_names_are_looked_up_here_before_the_package(folder: Path) -> None:
    write("configs/ppo/mine.yaml", MINIMAL)
    write("configs/base/b.yaml", MINIMAL)
    assert "ppo/mine" in config.names()
    assert "base/b" not in config.names()
    assert config.find("ppo/mine") == Path("configs/ppo/mine.yaml")
    write("ppo/mine.yaml", MINIMAL)
    assert config.find("ppo/mine") == Path("ppo/mine.yaml"), "a literal path comes first"


def test_resolved_yaml_reads_back_and_marks_where_values_came_from(folder: Path) -> None:
    write("base/b.yaml", "env: {id: X, kwargs: {a: 1}}\n")
    settings = config.override(
        config.load(write("x.yaml", "base: base/b.yaml\nseed: 2\n")), ["policy.layers=[3]"]
    )
    experiment = config.convert(settings, Experiment)
    text = config.to_yaml(experiment, settings, recipe="a:b")
    lines = {line.split(":")[0].strip(): line.partition("  # ")[2] for line in text.splitlines()}
    assert lines["id"] == lines["a"] == "base base/b.yaml"
    assert (lines["seed"], lines["layers"], lines["clip"]) == ("x.yaml", "command line", "default")
    again = config.load(write("y.yaml", text))
    assert again.recipe == "a:b"
    assert config.convert(again, Experiment) == experiment


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.text(min_size=1, max_size=6), st.recursive(PLAIN, lambda x: st.lists(x, max_size=3)))
)
def test_any_values_survive_writing_and_reading(values: dict[str, object]) -> None:
    experiment = Experiment(env=Env(id="X", kwargs=values))
    settings = config.Settings(config._parse(config.to_yaml(experiment, config.Settings()), "text"))
    assert config.convert(settings, Experiment) == experiment


def test_given_values_may_hold_structs_and_numbers_as_text() -> None:
    read = config.convert({"env": Env(id="X"), "seed": "3", "policy": {"learning_rate": "1e-3"}}, Experiment)
    assert read == Experiment(env=Env(id="X"), seed=3)


def test_import_brings_neither_torch_nor_numpy() -> None:
    code = "import engine.config, sys; print({'torch', 'numpy', 'gymnasium', 'rich'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"


def test_a_folder_of_configurations_names_what_is_in_it() -> None:
    with pytest.raises(UsageError, match="no configuration 'dqn'; there are dqn/acrobot, dqn/cartpole"):
        config.find("dqn")


def test_where_no_name_is_near_the_fields_are_listed() -> None:
    with pytest.raises(ConfigError, match=r"no field 'zzz' in Net .*; it has learning_rate, "):
        config.convert({"zzz": 1}, Net)


def test_a_value_in_the_place_of_fields_names_the_fields() -> None:
    class Outer(msgspec.Struct):
        net: Net = Net()

    with pytest.raises(
        ConfigError, match=r"'net' of Outer has fields of its own, like net.learning_rate, .*got 'X-v0'"
    ):
        config.convert({"net": "X-v0"}, Outer)


@pytest.mark.parametrize(("word", "shown"), LISTS.items())
def test_a_list_without_brackets_is_shown_with_them(folder: Path, word: str, shown: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"; write {shown}") + "$"):
        read("env: {id: X}", word)
    assert read("env: {id: X}", shown).policy.layers, "what is shown is what works"
    in_file = shown.partition(".")[2].replace("=", ": ")
    value = word.partition("=")[2]
    with pytest.raises(ConfigError, match=re.escape(f"(x.yaml, policy.layers); write {in_file}") + "$"):
        read(f"env: {{id: X}}\npolicy:\n  layers: {value}\n")


@pytest.mark.parametrize("word", ["policy.layers=a,b", "policy.layers=null", "policy.clip=1,2", "seed=1,2"])
def test_no_list_is_suggested_where_none_would_do(folder: Path, word: str) -> None:
    with pytest.raises(ConfigError) as told:
        read("env: {id: X}", word)
    assert "write" not in str(told.value)
