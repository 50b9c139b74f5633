"""What all tests rely on."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Let tests send signals to processes, also where pytest was started in the background or by nohup.

    Those ignore Ctrl-C, or the end of the terminal, and so does what they start.
    """
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
