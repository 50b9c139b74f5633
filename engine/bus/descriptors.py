"""How many file descriptors this process may still open: without one, libzmq aborts the process."""

from __future__ import annotations

import os
import resource

SPARE = 50
"""So many are kept free: no more peers are taken on while fewer are left."""

_ENOUGH = SPARE + 20
_MOST = 1 << 20  # a higher limit makes programs slow that close all descriptors up to it


def raise_limit() -> None:
    """Let this process open as many as its user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def shortage(*, before: bool = False, promised: int = 0) -> str:
    """Return what this process has too little of to take on more peers; empty if there is room.

    `promised` are not open yet and may soon be.  After a shortage `before`, a few more must be free.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return ""
    left = limit - _open() - promised
    if left >= (_ENOUGH if before else SPARE):
        return ""
    return (
        f"{max(0, left)} of its {limit} file descriptors to spare, fewer than the {SPARE} that it keeps "
        "free; a peer takes about ten (ulimit -n gives more)"
    )


def _open() -> int:
    try:
        # Linux 6.2 and later tell the number as the size of the directory; before, it was 0.
        return os.stat("/proc/self/fd").st_size or len(os.listdir("/proc/self/fd"))
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]  # none is left to list them
