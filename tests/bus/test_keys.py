"""The keys of a run."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from engine.bus.keys import RunKeys, generate_keys, load_keys
from engine.errors import UsageError

KEYS = generate_keys()


def test_keys_survive_a_file_that_only_its_user_may_read(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    before = os.umask(0)
    try:
        KEYS.save(path)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_keys(path) == KEYS


def test_each_run_has_its_own_keys() -> None:
    assert len({*asdict(KEYS).values(), *asdict(generate_keys()).values()}) == 8


def test_secrets_are_not_shown() -> None:
    assert KEYS.server_secret not in repr(KEYS)
    assert KEYS.client_secret not in repr(KEYS)


def test_keys_are_not_written_over_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("precious")
    with pytest.raises(UsageError, match="File exists"):
        KEYS.save(path)
    assert path.read_text() == "precious"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644])
def test_a_file_that_others_may_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys"
    KEYS.save(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match=rf"by others \(mode {mode:04o}\).*chmod 600"):
        load_keys(path)


def test_a_file_that_is_missing_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        load_keys(tmp_path / "nothing")
    with pytest.raises(UsageError, match="Is a directory"):
        load_keys(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        "nonsense",
        "[" * 4000,
        "x" * 5000,
        json.dumps({**asdict(KEYS), "more": "x"}),
        json.dumps({**asdict(KEYS), "client_secret": 7}),
        json.dumps({**asdict(KEYS), "client_secret": "x" * 39}),
        json.dumps({**asdict(KEYS), "client_secret": "~" * 40}),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match="no key file of a run"):
        load_keys(path)


def test_a_key_that_is_refused_is_not_shown(tmp_path: Path) -> None:
    secret = "s" * 39
    with pytest.raises(UsageError) as refused:
        RunKeys(KEYS.server_public, secret, KEYS.client_public, KEYS.client_secret)
    assert secret not in str(refused.value)
    assert "server_secret" in str(refused.value)
