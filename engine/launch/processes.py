"""The backend for one machine: every seat a process of its own.

Processes are started fresh (exec, never a fork of a process with threads), each leads a process group, so
that what it starts ends with it.  Nothing outlives the launcher, not even its ``kill -9``: a janitor process
sees its end and kills the groups, and the kernel sends each process a SIGKILL of its own.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import IO

import msgspec

from engine.bus.keys import RunKeys
from engine.bus.transport import Transport
from engine.launch import janitor
from engine.launch.backend import Ended, OnEnd, OnLine, Order, cause

ROOT = str(Path(__file__).parents[2])
BOOT = f"import sys; sys.path.insert(0, {ROOT!r}); from engine.launch.worker import main; main()"
ORDER, PARENT, SOCKETS = "ENGINE_ORDER", "ENGINE_PARENT", "ENGINE_SOCKETS"
TCP, KEY_FILE = "ENGINE_TCP", "ENGINE_KEY_FILE"
_TAIL = 60  # lines of output that are kept to explain a death
_LONGEST_LINE = 64 << 10
_DRAIN_SECONDS = 2.0
_END_SECONDS = 30.0
_LOOK = os.WEXITED | os.WNOWAIT | os.WNOHANG


class Processes:
    """Starts seats as processes of this machine, which meet in a private folder of sockets."""

    def __init__(
        self, *, tcp: str | None = None, keys: RunKeys | None = None, key_file: Path | None = None
    ) -> None:
        self._tcp, self._keys, self._key_file = tcp, keys, key_file
        self._folder: Path | None = None
        self._locked: int | None = None
        self._janitor: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._running: set[Process] = set()

    def open(self) -> Transport:
        """Make a private folder (mode 0700) and the janitor; return a transport with its socket in there."""
        from engine.bus.zeromq import ZeroMQ, lock, sweep

        sweep()
        # A short path: those of sockets take 107 bytes.
        self._folder = Path(tempfile.gettempdir()) / f"engine-{secrets.token_hex(6)}"
        self._janitor = subprocess.Popen(
            [sys.executable, "-I", "-S", janitor.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._tell(f"folder {self._folder}")  # before it is there, so that it cannot be left
        self._folder.mkdir(mode=0o700)
        self._locked = lock(self._folder)
        return ZeroMQ(ipc=self._folder, tcp=self._tcp, keys=self._keys)

    def start(self, order: Order, *, on_end: OnEnd, on_line: OnLine) -> Process:
        """Start a process for a seat; call it from a thread that lives as long as the process may."""
        assert self._folder is not None, "open() comes first"
        name = order.seat or order.role
        paper = self._folder / f"{name}.json"
        paper.write_bytes(msgspec.json.encode(order))
        environment = {ORDER: str(paper), PARENT: str(os.getpid()), SOCKETS: str(self._folder)}
        if self._tcp is not None and self._key_file is not None:
            # The same host, but a port of its own.
            host = self._tcp[: self._tcp.find("]") + 1] or self._tcp.partition(":")[0]
            environment |= {TCP: host, KEY_FILE: str(self._key_file)}
        process = Process(environment, on_line=on_line)
        self._tell(f"group {process.pid}")
        with self._lock:
            self._running.add(process)

        def ended(how: Ended) -> None:
            self._tell(f"forget {process.pid}")
            with self._lock:
                self._running.discard(process)
            on_end(how)

        process.watch(ended)
        return process

    def close(self) -> None:
        """Kill what still runs, remove the folder, let the janitor go."""
        with self._lock:
            running = list(self._running)
        for process in running:
            process.kill()
        by = time.monotonic() + _END_SECONDS
        for process in running:
            process.join(max(0.0, by - time.monotonic()))
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._locked is not None:
            os.close(self._locked)
            self._locked = None
        if self._janitor is not None:
            self._tell("done")
            assert self._janitor.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._janitor.stdin.close()
            try:
                self._janitor.wait(5)
            except subprocess.TimeoutExpired:
                self._janitor.kill()
                self._janitor.wait()
            self._janitor = None

    def _tell(self, line: str) -> None:
        with self._lock:
            if self._janitor is None or self._janitor.stdin is None:
                return
            with contextlib.suppress(BrokenPipeError):  # somebody killed it: the kernel's signal remains
                self._janitor.stdin.write(f"{line}\n".encode())
                self._janitor.stdin.flush()


class Process:
    """One worker process, its output read line by line and its end waited for, each by a thread."""

    def __init__(self, environment: dict[str, str], *, on_line: OnLine) -> None:
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=_TAIL)
        self._popen = subprocess.Popen(
            [sys.executable, "-c", BOOT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**_own_environment(), "PYTHONUNBUFFERED": "1", **environment},
            process_group=0,
        )
        self.pid: int | None = self._popen.pid
        self._reader = threading.Thread(target=self._read, name=f"output-{self.pid}", daemon=True)
        self._waiter = threading.Thread(target=self._wait, name=f"wait-{self.pid}", daemon=True)
        self._on_end: OnEnd | None = None
        self._reaping = threading.Lock()

    def watch(self, on_end: OnEnd) -> None:
        """Begin to read and to wait."""
        self._on_end = on_end
        self._reader.start()
        self._waiter.start()

    def terminate(self) -> None:
        """Ask the process to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> bool:
        """Kill its whole group; False where the process had ended by itself."""
        ended = self._popen.returncode is not None
        if not ended:
            with contextlib.suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, self._popen.pid, _LOOK) is not None
        self._signal(signal.SIGKILL, group=True)
        return not ended

    def join(self, timeout: float) -> None:
        """Wait until its end was told, for at most `timeout` seconds."""
        self._waiter.join(timeout)

    def _signal(self, number: int, *, group: bool = False) -> None:
        with self._reaping:
            if self._popen.returncode is not None:
                return  # its number may be somebody else's by now
            with contextlib.suppress(ProcessLookupError):
                # Not by Popen.send_signal, which reaps the process behind the back of `_wait`.
                (os.killpg if group else os.kill)(self._popen.pid, number)

    def _wait(self) -> None:
        # Without reaping it yet: until then its number, and its group's, belong to nobody else.
        with contextlib.suppress(ChildProcessError):  # somebody else reaped it: this program's own SIGCHLD
            os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL, group=True)  # what it started and left
        with self._reaping:
            code = self._popen.wait()
        self._reader.join(_DRAIN_SECONDS)
        if self._on_end is not None:
            self._on_end(Ended(code, cause(code), "\n".join(self._tail)))

    def _read(self) -> None:
        pipe: IO[bytes] | None = self._popen.stdout
        assert pipe is not None
        with pipe:
            while data := pipe.readline(_LONGEST_LINE):
                line = data.decode("utf-8", "replace").rstrip("\r\n")
                if not line.startswith('{"'):  # progress and log records explain nothing
                    self._tail.append(line)
                self._on_line(line)


def _own_environment() -> dict[str, str]:
    """The environment of this process, without what it was told as a process of another run."""
    theirs = {ORDER, PARENT, SOCKETS, TCP, KEY_FILE}
    return {name: value for name, value in os.environ.items() if name not in theirs}
