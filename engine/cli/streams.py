"""Standard streams that are closed, or whose reader has gone; quick to import."""

from __future__ import annotations

import os
import select
import sys


def open_standard_streams() -> None:
    """Lead stdin, stdout and stderr to nowhere if they are closed, as some daemons leave them.

    Otherwise the next file that is opened takes their number, and gets what is printed.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # open until the process ends


def reader_gone() -> bool:
    """Return whether stdout or stderr is a pipe whose reader, `head` perhaps, has seen enough."""
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def flush() -> None:
    """Write out what stdout still holds; drop it if its reader has gone."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
