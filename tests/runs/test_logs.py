"""Log files of a run."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from engine.runs.logs import logging_to, record, recording


def test_records_are_json_lines_with_their_traceback(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "main-0.jsonl"
    with logging_to(path):
        logging.getLogger("engine.x").info("hello %s", "you")
        try:
            raise ValueError("broken")
        except ValueError:
            logging.getLogger("mine").exception("oh")
    logging.getLogger("engine.x").info("after")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["level"], row["logger"], row["message"]) for row in rows] == [
        ("info", "engine.x", "hello you"),
        ("error", "mine", "oh"),
    ]
    assert "ValueError: broken" in rows[1]["traceback"]


def test_warnings_are_still_seen_where_nobody_set_up_logging(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with logging_to(tmp_path / "x.jsonl"):
        logging.getLogger("mine").warning("careful")
        logging.getLogger("engine").info("quiet")
    assert capsys.readouterr().err == "warning: careful\n"
    assert logging.getLogger().handlers == []


def test_warnings_are_json_lines_where_all_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with logging_to(tmp_path / "x.jsonl", as_json=True):
        logging.getLogger("mine").warning("care%s", "ful")
    row = json.loads(capsys.readouterr().err)
    assert row == {"event": "log", "level": "warning", "text": "careful"}


def test_a_record_is_appended_and_one_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    record(path, "first")
    record(path, "second", level="error", error=ValueError("broken"))
    record(tmp_path / "gone" / "log.jsonl", "third")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["level"], row["message"]) for row in rows] == [("info", "first"), ("error", "second")]
    assert "ValueError: broken" in rows[1]["traceback"]
    assert not (tmp_path / "gone").exists(), "a folder that was deleted stays so"


def test_many_records_are_appended_as_they_come_also_where_the_folder_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "log.jsonl"
    path.parent.mkdir()
    with recording(path, level="output") as append:
        append("one")
        assert json.loads(path.read_text())["message"] == "one"
        shutil.rmtree(path.parent)
        append("two")
    with recording(path) as append:
        append("three")
    assert not path.parent.exists()
