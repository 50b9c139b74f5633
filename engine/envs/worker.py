"""What runs in the process of one environment: obey requests from stdin, reply on the old stdout.

A request is a pickled ``(command, argument)``; a reply is ``("ok", value)`` or
``("error", exception or None, summary, traceback)``.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from types import FrameType
from typing import Any, BinaryIO

from engine.errors import EngineError
from engine.signals import unblock


def _failure(error: BaseException) -> tuple[str, BaseException | None, str, str]:
    summary = "".join(traceback.format_exception_only(error)).strip()
    # Our own errors say what happened; the lines that raised them are none of the user's.
    text = "" if isinstance(error, EngineError) else "".join(traceback.format_exception(error))
    try:
        # Both ways, because an error may be written and yet not be read (its __init__ decides).
        error = pickle.loads(pickle.dumps(error.with_traceback(None)))
    except Exception:
        return "error", None, summary, text
    return "error", error, summary, text


def _streams() -> tuple[BinaryIO, BinaryIO]:
    """Take stdin and stdout for the protocol; what an environment prints goes to stderr."""
    requests = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return requests, replies


def _leave_signals_to(parent: int) -> None:
    """Pay no heed to signals for the whole group, as the parent decides when to end; unless it is gone."""

    def heard(number: int, frame: FrameType | None) -> None:
        if os.getppid() != parent:
            os._exit(128 + number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # Handlers: what an environment starts would inherit that they are ignored, and not be ended by them.
        signal.signal(number, heard)
    unblock()


def main() -> None:
    """Serve one environment until told to close or until the parent is gone."""
    _leave_signals_to(os.getppid())
    requests, replies = _streams()

    def reply(value: Any) -> None:
        data = pickle.dumps(value, protocol=5)
        replies.write(data)
        replies.flush()

    env: Any = None
    innermost: Any = None

    def counted() -> tuple[list[float | None], float] | None:
        return None if innermost is None else (innermost.take(), innermost.so_far)

    try:
        sys.path[:] = pickle.load(requests)
        while True:
            command, argument = pickle.load(requests)
            try:
                if command == "close":
                    break
                if command == "make":
                    from engine.envs.make import make_anyhow
                    from engine.envs.returns import Counted

                    env = make_anyhow(pickle.loads(argument))
                    innermost = env.innermost if isinstance(env, Counted) else None
                    about = None if innermost is None else (innermost.name, innermost.wrappers)
                    spaces = (env.observation_space, env.action_space)
                    value: Any = (*spaces, dict(env.metadata), env.render_mode, about)
                elif command == "step":
                    obs, reward, terminated, truncated, _ = env.step(argument)
                    value = (obs, float(reward), bool(terminated), bool(truncated), counted())
                elif command == "reset":
                    seed, anew = argument
                    if anew and innermost is not None:
                        innermost.abandon()
                    value = env.reset(seed=seed)[0], counted()
                else:
                    value = env.render()
            except Exception as error:
                reply(_failure(error))
            else:
                reply(("ok", value))
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone
    finally:
        if env is not None:
            env.close()
