"""Run a command that cannot outlive who started it, nor a deadline: ``leash.py PARENT SECONDS COMMAND ...``.

The kernel kills it when its parent's starting thread ends, however that ends, and when its time is over.
Both hold across exec; what the command starts is its own affair, and a launcher's children end with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the command."""
    parent, seconds, *command = sys.argv[1:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):
        sys.exit("its parent is gone")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(seconds))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
