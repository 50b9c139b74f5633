"""What a launcher leaves behind when it is killed is cleaned up."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from engine.launch import janitor


def start(folder: Path) -> tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]:
    """Return a janitor that was told of a process and a folder, and the process."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, process_group=0)
    cleaner = subprocess.Popen([sys.executable, "-I", "-S", janitor.__file__], stdin=subprocess.PIPE)
    assert cleaner.stdin is not None
    cleaner.stdin.write(f"folder {folder}\ngroup {process.pid}\n".encode())
    cleaner.stdin.flush()
    return cleaner, process


def test_the_janitor_kills_and_removes_what_a_dead_launcher_left(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    (folder / "file").touch()
    cleaner, process = start(folder)
    cleaner.communicate(timeout=60)
    assert process.wait(60) == -9
    assert not folder.exists()
    assert process.stdin is not None
    process.stdin.close()


def test_the_janitor_leaves_all_as_it_is_when_the_launcher_has_cleaned_up(tmp_path: Path) -> None:
    cleaner, process = start(tmp_path)
    cleaner.communicate(b"done\n", timeout=60)
    assert process.poll() is None
    assert tmp_path.exists()
    process.communicate(b"\n", timeout=60)
    assert process.returncode == 0
