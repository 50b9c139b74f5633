"""Every error that `engine` raises on purpose, and the words that errors share.

The tree::

    EngineError
    ├── UsageError (ValueError)            a command or call that cannot be meant; exit code 2
    ├── ConfigError (ValueError)           a key, type or value of a configuration; exit code 3
    │   ├── EnvError                       an environment that is unknown or cannot be used; exit code 3
    │   └── MissingExtra (ImportError)     a package of an optional extra is not installed; exit code 3
    ├── TreeError (TypeError)              data that cannot become a tree of tensors
    ├── MiddlewareError (TypeError)        a middleware that breaks its contract
    ├── ConflictError                      two members that write one field or hold one stateful object
    ├── UnknownField (AttributeError)      a ctx field that nobody wrote
    ├── UnknownName (LookupError)          a middleware, event or handler that does not exist
    ├── FolderError                        the run's folder can no longer be written; exit code 2
    ├── StateError                         state that cannot be saved, loaded or named
    ├── DeadlineExceeded (TimeoutError)    a wait that ran past its timeout
    ├── CodecError (ValueError)            a value that cannot be sent, or bytes that are no message
    │   └── PayloadTooLarge                more bytes than one message may hold
    ├── PeerLost (ConnectionError)         another process of the run died or cannot be reached
    │   └── HubLost                        the process that holds the run together did
    ├── NoSuchService (LookupError)        a remote call of a method that nobody serves
    ├── Overloaded                         a remote call that was refused: too many wait already
    ├── RemoteError                        a served call failed in its process; a note holds the traceback
    ├── Finishing                          an unbounded wait that ended because the task is finishing
    └── Abandoned                          an iteration in flight that cannot complete, since another failed

An error that leaves a middleware keeps its own type and gains a note that names the
middleware, the iteration and the role.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


class EngineError(Exception):
    """The root: `except EngineError` catches whatever `engine` itself raises."""

    exit_code = 1


class UsageError(EngineError, ValueError):
    """A command or call that cannot be meant as it was written."""

    exit_code = 2


class ConfigError(EngineError, ValueError):
    """A configuration key, type or value that is not accepted."""

    exit_code = 3


class EnvError(ConfigError):
    """An environment that is unknown, misbehaves, or has spaces nobody can learn on."""


class MissingExtra(ConfigError, ImportError):
    """A package of an optional extra is needed and absent."""


class TreeError(EngineError, TypeError):
    """Data that cannot become, or is not, a tree of tensors."""


class MiddlewareError(EngineError, TypeError):
    """A middleware that breaks its contract: a second yield, a returned value, no callable."""


class ConflictError(EngineError):
    """Two members that write one field or hold one object that changes."""


class UnknownField(EngineError, AttributeError):
    """A field of ctx was read that nobody wrote."""


class UnknownName(EngineError, LookupError):
    """A middleware, event or handler was named that does not exist."""


class FolderError(EngineError):
    """The folder of a run can no longer be written: the disk is full, or it was deleted or moved."""

    exit_code = 2


class StateError(EngineError):
    """State that cannot be saved, loaded or named."""


class DeadlineExceeded(EngineError, TimeoutError):
    """A wait that ran past its timeout."""


class CodecError(EngineError, ValueError):
    """A value that cannot be sent, or bytes that are no message of the bus."""


class PayloadTooLarge(CodecError):
    """More bytes, buffers or levels than one message may hold."""


class PeerLost(EngineError, ConnectionError):
    """Another process of the run died or cannot be reached; ``peer`` and ``cause`` say which and why."""

    def __init__(self, message: str, *, peer: str = "", cause: str = "") -> None:
        super().__init__(message)
        self.peer = peer
        self.cause = cause


class HubLost(PeerLost):
    """The process that holds the run together died or cannot be reached."""


class NoSuchService(EngineError, LookupError):
    """A remote call of a method that nobody serves."""


class Overloaded(EngineError):
    """A remote call that was refused at once, because too many wait already."""


class RemoteError(EngineError):
    """A served call failed in its own process; a note holds the traceback from there.

    ``kind`` is the name of the error's type there, ``peer`` who raised it.  An error of a type that
    Python itself brings can also be caught as that type.
    """

    def __init__(self, message: str, *, kind: str = "", peer: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.peer = peer

    def __str__(self) -> str:
        return str(self.args[0])  # also where the error is a KeyError, which would quote it


class Finishing(EngineError):
    """Ends an unbounded wait of a task that is finishing; nothing was changed by the wait."""


class Abandoned(EngineError):
    """Thrown into the second halves of an iteration in flight that will not complete; see `__cause__`."""


def foremost(errors: Sequence[E]) -> E:
    """Return the first error; a `Finishing`, which a run ends quietly by, only where it is all there is."""
    return next((error for error in errors if not isinstance(error, Finishing)), errors[0])


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest of `known`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
