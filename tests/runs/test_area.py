"""The live area of a terminal that is made narrower: one whole picture, and what stands above it."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import random
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from emulator import Terminal
from rich.console import ConsoleDimensions

from engine.executor import StationTime
from engine.runs.fleet import Fleet
from engine.runs.panel import Panel
from engine.runs.progress import Snapshot

ROOT = Path(__file__).parents[2]
SNAPSHOT = Snapshot(
    "ppo · CartPole-v1 · seed 0",
    12_000,
    100_000,
    metrics={
        "collect/return_mean": 87.0,
        "eval/return_mean": 99.0,
        "train/loss_policy": 0.1,
        "train/kl": 0.0,
    },
    timings={"collect.collector": 1.0, "learn.train": 3.0},
    stations=[StationTime("collect", 6.1, 3.9), StationTime("learn", 9.7, 0.3)],
)
STATUS: dict[str, Any] = {
    "stage": "running",
    "seconds": 3.0,
    "progress": {"env_step": 12_000, "total": 100_000, "metrics": {"collect/return_mean": 87.0}},
    "seats": [
        {"seat": f"collector_{i}", "role": "collector", "state": "running", "pid": 4_000_000 + i, "queue": 2}
        for i in range(3)
    ],
}


def check_whole(screen: list[str], above: list[str]) -> None:
    """The screen holds what was said, then one picture with all of its frame, and nothing else."""
    rows = [row for row in screen if row]
    begins = [index for index, row in enumerate(rows) if "╭" in row]
    ends = [index for index, row in enumerate(rows) if "╰" in row]
    assert (len(begins), len(ends)) == (1, 1), "\n".join(rows)
    frame = rows[begins[0] : ends[0] + 1]
    assert {(row[0], row[-1]) for row in frame[1:-1]} == {("│", "│")}, "\n".join(rows)
    assert len({len(row) for row in frame}) == 1, "\n".join(rows)
    assert rows[: begins[0]] == above, "\n".join(rows)


def panel_on(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> tuple[Panel, Callable[[int], None]]:
    """A panel that draws on a terminal, and what makes the terminal as wide as it says."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    panel = Panel(terminal)  # type: ignore[arg-type]  # it has all that is asked of a file

    def resize(width: int) -> None:
        terminal.resize(width)
        panel.console.size = ConsoleDimensions(width, terminal.height)

    resize(terminal.width)
    return panel, resize


@pytest.mark.parametrize("widths", [(70, 50, 30), (119, 118, 60, 120, 40), (40, 40, 200, 99, 33)])
def test_a_terminal_that_gets_narrower_shows_one_whole_picture(
    widths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(120)
    panel, resize = panel_on(terminal, monkeypatch)
    panel.message("said before")
    panel.draw(SNAPSHOT)
    for width in widths:
        resize(width)
        panel.draw(SNAPSHOT)
        check_whole(terminal.screen, ["said before"])
    panel.close()
    check_whole(terminal.screen, ["said before"])


def test_what_is_said_right_after_stands_above_the_picture_too(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(120)
    panel, resize = panel_on(terminal, monkeypatch)
    panel.draw(SNAPSHOT)
    resize(60)
    panel.message("first words")  # the panel has not been drawn since
    resize(45)
    print("second words", file=sys.stderr)
    check_whole(terminal.screen, ["first words", "second words"])
    resize(41)
    panel.close()
    check_whole(terminal.screen, ["first words", "second words"])


def test_any_order_of_sizes_and_words_leaves_one_whole_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        draw = random.Random(seed)
        terminal = Terminal(draw.randint(30, 160), 500)
        panel, resize = panel_on(terminal, monkeypatch)
        said = []
        panel.draw(SNAPSHOT)
        for number in range(15):
            resize(draw.randint(30, 160))
            if draw.random() < 0.3:
                said.append(f"words {number}")
                panel.message(said[-1])
            else:
                panel.draw(SNAPSHOT)
            check_whole(terminal.screen, said)
        panel.close()


def test_a_terminal_that_cuts_lines_off_keeps_no_part_of_the_picture_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal(120, breaks=False)
    panel, resize = panel_on(terminal, monkeypatch)
    for number in range(60):
        panel.message(f"line {number}")
    panel.draw(SNAPSHOT)
    resize(70)
    panel.draw(SNAPSHOT)
    above = [row for row in terminal.screen if row.startswith("line")]
    check_whole(terminal.screen, above)
    assert len(above) > 30, "some of what stands above is lost, no more than the picture has rows"


def test_a_picture_that_no_longer_fits_the_height_is_whole_on_the_screen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal(120, 30)
    panel, resize = panel_on(terminal, monkeypatch)
    for number in range(40):
        panel.message(f"line {number}")
    panel.draw(SNAPSHOT)
    resize(62)
    panel.draw(SNAPSHOT)
    check_whole(terminal.screen, [])


def test_the_table_of_a_launched_run_stays_whole_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal(120)
    fleet = Fleet("rich", "impala", file=terminal)  # type: ignore[arg-type]
    for width in (120, 64, 48, 90, 40):
        terminal.resize(width)
        fleet._console.size = ConsoleDimensions(width, terminal.height)
        fleet.update(STATUS)
        rows = [row for row in terminal.screen if row]
        assert sum("╭" in row for row in rows) == sum("╰" in row for row in rows) == 1
        assert [row.split()[0] for row in rows if "collector_" in row] == [f"collector_{i}" for i in range(3)]
    fleet.close()


DRAW = """
import json, sys
from engine.runs.panel import Panel
from engine.runs.progress import Snapshot
panel = Panel(sys.stderr)
for line in sys.stdin:
    metrics = {"collect/return_mean": 87.0}
    panel.draw(Snapshot("ppo", 12_000, 100_000, metrics=metrics, timings={"a.b": 1.0}))
    print(json.dumps(panel.console.width), flush=True)
panel.close()
"""


@pytest.mark.timeout(120)
def test_a_real_terminal_that_is_made_narrower_keeps_one_whole_picture() -> None:
    ours, theirs = pty.openpty()
    terminal = Terminal(120, 40)
    decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end in the midst of a sign

    def resize(width: int) -> None:
        terminal.resize(width)
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", terminal.height, width, 0, 0))

    def shown() -> None:
        """Take over what the program has written: all of it is there when it has answered."""
        by = time.monotonic() + 30
        while select.select([ours], [], [], 0)[0] and time.monotonic() < by:
            terminal.write(decoder.decode(os.read(ours, 1 << 16)))

    resize(120)
    env = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "FORCE_COLOR")
    }
    process = subprocess.Popen(
        [sys.executable, "-c", DRAW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**env, "TERM": "xterm", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for width in (120, 70, 41, 100, 50):
            resize(width)
            print("draw", file=process.stdin, flush=True)
            assert json.loads(process.stdout.readline()) == width
            shown()
            check_whole(terminal.screen, [])
        process.stdin.close()
        assert process.wait(timeout=60) == 0
        shown()
        check_whole(terminal.screen, [])
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(ours)
        os.close(theirs)
