"""The folder of a run: it describes itself, belongs to one run only, and is known by its run.json.

::

    runs/<env>/<algo>[-<name>]-s<seed>-<UTC yyyymmdd-hhmmss>-<4 hex>/
      run.json       state, process, start and end, argv, versions, commit, result
      config.yaml    the resolved configuration      overrides.txt   what the command line changed
      source.diff    uncommitted changes             packages.txt    what was installed
      pipeline.mmd   the pipeline as a Mermaid graph
      metrics.jsonl  the source of truth             tb/             the same for TensorBoard
      logs/  plots/  videos/
    runs/latest      a text file with the name of the newest run
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import EngineError, FolderError, UsageError, did_you_mean
from engine.runs import surroundings
from engine.runs.files import claim, overwrite, write_text
from engine.runs.metrics import Metrics, read_metrics
from engine.signals import REASONS, Terminated, exit_code

STATES = ("running", "finished", "interrupted", "failed")
_FREE_BYTES = 32 << 20
_BLOCK, _ROOM = 4096, 1024
_FIRST = {"run.json", "config.yaml", "overrides.txt", "source.diff", "packages.txt", "logs"}


class Run:
    """One run on disk: what it was started with, how far it came, and where its files are.

    Made by `create` or `open`. `info` is the content of run.json; `update` and `finish` change it.
    """

    def __init__(self, path: Path, info: dict[str, Any]) -> None:
        self.path = path
        self.info = info
        self._made: _Made | None = None

    @classmethod
    def create(
        cls,
        *,
        env: str,
        algo: str,
        seed: int,
        name: str | None = None,
        run_dir: str | Path | None = None,
        root: str | Path | None = None,
        **details: Any,
    ) -> Run:
        """Make a folder that no other run has or will get, and write run.json with state ``running``.

        `run_dir` names the exact folder, which must be empty or new; `root` is where named folders go
        (default: ``$ENGINE_RUNS`` or ``runs``). `details` go into run.json as they are. Raises UsageError for
        a folder that is taken or cannot be written, EngineError for a full disk.
        """
        top = _root(root)
        made = _Made.before(Path(run_dir) if run_dir is not None else top / _safe(env), top / "latest")
        with _explained(Path(run_dir) if run_dir is not None else top):
            if run_dir is not None:
                path = Path(run_dir)
                _refuse_taken(path)
                path.mkdir(parents=True, exist_ok=True)
            else:
                path = _new_folder(
                    top / _safe(env), "-".join(_safe(part) for part in (algo, name) if part), seed
                )
                made.absent.insert(0, path)
            free = shutil.disk_usage(path).free
            if free < _FREE_BYTES:
                raise EngineError(
                    f"only {free >> 20} MiB are free at {path}; a run needs some {_FREE_BYTES >> 20}"
                )
            info = {
                "format": 1,
                "state": "running",
                "env": env,
                "algo": algo,
                "name": name,
                "seed": seed,
                **details,
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "start": _now(),
                "end": None,
                "stop_reason": None,
                "argv": sys.argv,
                "directory": str(Path.cwd()),
                "versions": surroundings.versions(),
                "commit": surroundings.commit(),
                "result": {},
            }
            if not claim(path / "run.json", _padded(_json(info))):
                raise UsageError(f"{path} was taken by another run at this moment; choose another --run-dir")
            run = cls(path, info)
            run.write("source.diff", surroundings.difference())
            run.write("packages.txt", "".join(f"{line}\n" for line in surroundings.packages()))
            if run_dir is None or top.is_dir():
                inside = path.resolve().is_relative_to(top.resolve())
                shown = (
                    path.resolve().relative_to(top.resolve()).as_posix() if inside else str(path.resolve())
                )
                write_text(top / "latest", f"{shown}\n")
                made.shown = f"{shown}\n"
        run._made = made
        return run

    @classmethod
    def open(cls, name: str | Path, *, root: str | Path | None = None) -> Run:
        """Find a run by its folder, by ``latest``, or by a part of its name that no other run has.

        Raises UsageError, naming the nearest run, when there is none or more than one.
        """
        return cls._read(_resolve(str(name), _root(root)))

    @classmethod
    def _read(cls, path: Path) -> Run:
        file = path / "run.json"
        try:
            info = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"cannot read {file}: {(error.strerror or str(error)).lower()}") from None
        except ValueError:
            raise UsageError(f"{file} is damaged: it is not JSON") from None
        if not isinstance(info, dict) or "state" not in info:
            raise UsageError(f"{file} does not describe a run of engine")
        return cls(path, info)

    @property
    def name(self) -> str:
        """The folder below the runs' root, like ``CartPole-v1/ppo-s1-...``; unique among runs there."""
        return f"{self.path.resolve().parent.name}/{self.path.resolve().name}"

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``interrupted``, ``failed``; ``died`` when its process is gone."""
        state = str(self.info["state"])
        if state == "running" and self.info.get("host") == socket.gethostname():
            return state if _alive(int(self.info.get("pid", 0))) else "died"
        return state

    @property
    def exit_code(self) -> int:
        """What a command leaves with: 0 finished, 130 interrupted (143 by SIGTERM, 129 by SIGHUP), else 1."""
        if self.state == "interrupted":
            return exit_code(self.info.get("stop_reason"))
        return 0 if self.state == "finished" else 1

    @property
    def ended(self) -> str:
        """How the run ended, in a line: its state, and why."""
        return ": ".join(str(part) for part in (self.info["state"], self.info["stop_reason"]) if part)

    @property
    def result(self) -> dict[str, Any]:
        """What the run achieved, as far as it said."""
        return dict(self.info.get("result") or {})

    def update(self, **fields: Any) -> None:
        """Change fields of run.json; the file is whole at every moment.

        Also on a full disk: then it is written over in place.  Raises FolderError if it is gone.
        """
        self.info = {**self.info, **fields}
        with self.storing():
            try:
                write_text(self.path / "run.json", _padded(_json(self.info)))
            except OSError:
                overwrite(self.path / "run.json", _json(self.info))

    def check(self) -> None:
        """Raise FolderError if the folder is gone: deleted or moved while the run goes on."""
        try:
            os.stat(self.path / "run.json")
        except FileNotFoundError:
            how, here = "was deleted or moved while the run was going", _working_directory()
            if not self.path.is_absolute() and here not in (None, self.info.get("directory")):
                how = f"is not in {here}, to which this program changed while the run was going"
            raise FolderError(
                f"the run's folder {self.path} {how}, so that nothing can be saved any more"
            ) from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise FolderError(
                f"the run's folder {self.path} cannot be reached any more: {reason}; what was saved until "
                "then is kept"
            ) from None

    @contextmanager
    def storing(self) -> Iterator[None]:
        """Turn what the file system refuses while the run goes on into one sentence, a FolderError."""
        self.check()
        try:
            yield
        except OSError as error:
            if isinstance(error, EngineError):
                raise
            self.check()
            reason = (error.strerror or str(error)).lower()
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "make room and start again; " if full else ""
            raise FolderError(
                f"cannot write to the run's folder {self.path} any more: {reason}; {hint}what was saved "
                "until then is kept"
            ) from error

    def finish(self, state: str, stop_reason: str | None = None, **fields: Any) -> None:
        """Write the final state, why it ended, and the time."""
        if state not in STATES:
            raise ValueError(f"state must be one of {', '.join(STATES)}, got {state!r}")
        self.update(state=state, stop_reason=stop_reason, end=_now(), **fields)

    def end_with(self, error: BaseException) -> None:
        """Write that the run ended by `error`, unless how it ended is written already."""
        if self.info.get("end") is not None:
            return
        state, reason = "failed", _reason(error)
        if isinstance(error, (KeyboardInterrupt, Terminated)):
            number = error.number if isinstance(error, Terminated) else signal.SIGINT
            state, reason = "interrupted", REASONS[number]
        with contextlib.suppress(FolderError):  # nothing can be told in a folder that is gone
            self.finish(state, reason)

    def withdraw(self) -> bool:
        """Remove the folder, and all that `create` made for it, as if it had never been.

        Returns False, and leaves it, if it was not made by `create` in this process, or holds more than that
        and `describe` wrote, and a log.
        """
        if self._made is None or {path.name for path in self.path.iterdir()} - _FIRST:
            return False
        for path in self.path.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._made.undo()
        return True

    def describe(self, *, config: str, overrides: Sequence[str] = (), pipeline: str | None = None) -> None:
        """Write the resolved configuration (YAML), the overriding words, and the graph (Mermaid)."""
        self.write("config.yaml", config)
        self.write("overrides.txt", "".join(f"{word}\n" for word in overrides))
        if pipeline is not None:
            self.write("pipeline.mmd", pipeline)

    def write(self, name: str, text: str) -> Path:
        """Write a text file of the folder as a whole; return its path."""
        self.check()
        with _explained(self.path):
            write_text(self.path / name, text)
        return self.path / name

    def file(self, name: str) -> Path:
        """A path inside the folder (``plots/learning_curve.png``), its parent made."""
        path = self.path / name
        self.check()
        with _explained(self.path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def metrics(self) -> Metrics:
        """Everything measured so far; empty before the first line."""
        return read_metrics(self.path / "metrics.jsonl")

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state})"


@dataclass
class _Made:
    """What was there before a run's folder was made."""

    absent: list[Path]
    """Folders that did not exist, the innermost first."""
    pointer: Path
    pointed: str | None
    """The content of `pointer`."""
    shown: str | None = None
    """What the run has written into it."""

    @classmethod
    def before(cls, folder: Path, pointer: Path) -> _Made:
        absent = [path for path in (folder, *folder.parents) if not path.exists()]
        return cls(absent, pointer, pointer.read_text(encoding="utf-8") if pointer.is_file() else None)

    def undo(self) -> None:
        """Remove the folders that were made, as far as they are empty, and point to the run before."""
        if self.shown is not None and self.pointer.read_text(encoding="utf-8") == self.shown:
            if self.pointed is None:
                self.pointer.unlink()
            else:
                write_text(self.pointer, self.pointed)
        for path in self.absent:
            with contextlib.suppress(OSError):  # another run has come into it
                path.rmdir()


def find_runs(root: str | Path | None = None) -> list[Run]:
    """Every readable run below `root` (default ``$ENGINE_RUNS`` or ``runs``), newest first."""
    runs = []
    for path in _folders(_root(root)):
        try:
            runs.append(Run._read(path))
        except UsageError:
            continue
    return sorted(runs, key=lambda run: str(run.info.get("start")), reverse=True)


def _root(root: str | Path | None) -> Path:
    return Path(root if root is not None else os.environ.get("ENGINE_RUNS") or "runs")


def _folders(top: Path) -> list[Path]:
    return [file.parent for depth in ("", "*/", "*/*/", "*/*/*/") for file in top.glob(f"{depth}run.json")]


def _resolve(name: str, top: Path) -> Path:
    path = Path(name)
    if (path / "run.json").exists():
        return path
    if path.name == "run.json" and path.is_file():
        return path.parent
    if name == "latest":
        pointer = top / "latest"
        target = top / pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else None
        if target is None or not (target / "run.json").is_file():
            raise UsageError(f"there is no latest run in {top}; start one with `engine run`")
        return target
    known = {folder.relative_to(top).as_posix(): folder for folder in _folders(top)}
    matches = [shown for shown in known if name.strip("/") and name.strip("/") in f"{top.name}/{shown}"]
    if len(matches) == 1:
        return known[matches[0]]
    if matches:
        listed = "".join(f"\n  {top / match}" for match in sorted(matches, reverse=True)[:5])
        more = "\n  ..." if len(matches) > 5 else ""
        raise UsageError(f"{name!r} fits {len(matches)} runs; say which:{listed}{more}")
    why = f"{name} has no run.json, so it is no run" if path.exists() else f"no run {name!r} in {top}"
    nearest = did_you_mean(name.removeprefix(f"{top}/"), ["latest", *known])
    raise UsageError(f"{why}{nearest or '; `engine list` shows what there is'}")


def _refuse_taken(path: Path) -> None:
    if (path / "run.json").exists():
        raise UsageError(f"{path} already holds a run; choose another --run-dir (runs never share a folder)")
    if path.is_dir() and any(path.iterdir()):
        raise UsageError(f"{path} is not empty; --run-dir wants a new or an empty folder")


def _new_folder(parent: Path, prefix: str, seed: int) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = parent / f"{prefix}-s{seed}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        try:
            path.mkdir()  # fails when it exists: this is what makes the folder ours
            return path
        except FileExistsError:
            continue


def _working_directory() -> str | None:
    """Where this process is; None if that was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _safe(text: str) -> str:
    """A folder name for any id: ``ALE/Pong-v5`` becomes ``ALE-Pong-v5``."""
    return re.sub(r"[^\w.+=-]+", "-", text).strip(".-") or "unnamed"


def _reason(error: BaseException) -> str:
    """Why a run failed, in a line that fits into run.json also on a full disk."""
    said = str(error) if isinstance(error, FolderError) else f"{type(error).__name__}: {error}"
    return said if len(said) <= _ROOM // 2 else f"{said[: _ROOM // 2]}..."


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(info: Mapping[str, Any]) -> str:
    encoded = msgspec.json.encode(info, enc_hook=_plain)  # NaN becomes null, which every JSON reader takes
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _padded(text: str) -> str:
    """Text with blanks behind it, if need be, so that its blocks on the disk have room for how a run ends."""
    room = -len(text.encode()) % _BLOCK
    return text if room >= _ROOM else text + " " * room + "\n" * _ROOM


def _plain(value: Any) -> Any:
    """A numpy number as Python's, anything else as its text."""
    return value.item() if hasattr(value, "item") else str(value)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return pid > 0


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Turn what the file system says into one sentence about the run's folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, EngineError):
            raise
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot write to the run folder {path}: {reason}; choose another with --run-dir"
        ) from error


def command_line(argv: Iterable[str]) -> str:
    """The words of a command as one line that a shell reads back."""
    return shlex.join(argv)


def seconds(run: Run) -> float | None:
    """How long the run took, or has been running."""
    try:
        start = datetime.fromisoformat(run.info["start"]).timestamp()
        end = datetime.fromisoformat(run.info["end"]).timestamp() if run.info.get("end") else time.time()
    except (KeyError, TypeError, ValueError):
        return None
    return end - start
