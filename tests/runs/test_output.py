"""What a program prints, taken line by line."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from engine.runs.output import Lines, own_stdout, telling

ROOT = Path(__file__).parents[2]


def test_whole_lines_are_told_and_text_goes_through(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    with telling(told.append):
        print("one", "line")
        sys.stdout.write("in ")
        sys.stdout.writelines(["parts\nand a ", "rest"])
        assert told == ["one line", "in parts"]
    assert told == ["one line", "in parts", "and a rest"]
    assert capsys.readouterr().out == "one line\nin parts\nand a rest"


def test_without_through_only_the_teller_gets_it(capsys: pytest.CaptureFixture[str]) -> None:
    told: list[str] = []
    before = sys.stdout
    with telling(told.append, through=False):
        print("said")
    assert sys.stdout is before
    assert (told, capsys.readouterr().out) == (["said"], "")


def test_lines_of_several_threads_are_all_told() -> None:
    told: list[str] = []
    lines = Lines(io.StringIO(), told.append, through=False)

    def write(name: str) -> None:
        for number in range(500):
            lines.write(f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == sorted(f"{name} {number}" for name in "abc" for number in range(500))


def test_it_answers_as_the_stream_does() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    lines = Lines(stream, print, through=True)
    assert (lines.isatty(), lines.encoding, lines.buffer) == (False, "latin-1", stream.buffer)
    with pytest.raises(TypeError):
        lines.write(b"bytes")  # type: ignore[arg-type]


CODE = r"""
import ctypes, os, sys
from engine.runs.output import own_stdout
print("before")
with own_stdout() as own:
    own.write("mine\n"); own.flush()
    os.write(1, b"below\n")
    os.system("echo child")
    ctypes.CDLL(None).printf(b"late\n")
print("after", flush=True)
os.write(1, b"below after\n")
"""


def test_only_the_holder_writes_to_its_own_stdout() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, timeout=60)
    assert done.stdout.splitlines() == ["before", "mine", "after", "below after"]
    assert done.stderr.splitlines() == ["below", "child", "late"]


def test_where_stdout_is_no_file_it_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with own_stdout() as own:
        assert own is stream
