"""Cleans up when a launcher dies without a word: a small process that outlives it for a moment.

It reads lines from its stdin: ``group PID`` and ``folder PATH`` to remember, ``forget PID`` when a process
has ended, ``done`` when the launcher has cleaned up itself.  The end of stdin without ``done`` means that
the launcher is gone: every remembered process group is killed, then every remembered folder is removed.

It is run as a file, imports nothing of engine, and so takes some 20 ms to start.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys


def main() -> None:
    """Obey stdin until it ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the launcher, which says done
    groups: set[int] = set()
    folders: list[str] = []
    for line in sys.stdin:
        word, _, rest = line.rstrip("\n").partition(" ")
        if word == "group":
            groups.add(int(rest))
        elif word == "forget":
            groups.discard(int(rest))
        elif word == "folder":
            folders.append(rest)
        elif word == "done":
            return
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
