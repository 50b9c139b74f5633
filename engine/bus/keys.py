"""The keys of one run: who holds them may connect, and nobody else.

One pair proves that a listener belongs to the run, another that a connecting peer does; every
process of the run holds both, from a file that only its user may read.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from engine.errors import UsageError

_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_KEY_CHARS = 40
_FILE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class RunKeys:
    """Two CURVE pairs, in Z85; secrets are not shown by `repr`."""

    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    client_secret: str = field(repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            check_key(getattr(self, one.name), one.name)

    def save(self, path: Path) -> None:
        """Write a new file that only this user may read; raises `UsageError` where one exists."""
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(f"cannot write the key file {path}: {error.strerror}") from error
        with open(fd, "w", encoding="ascii") as file:
            os.fchmod(fd, 0o600)  # whatever the umask says
            file.write(json.dumps(asdict(self), indent=1) + "\n")


def generate_keys() -> RunKeys:
    """Return new keys for one run."""
    from engine.bus.zeromq import curve_pair

    server_public, server_secret = curve_pair()
    client_public, client_secret = curve_pair()
    return RunKeys(server_public, server_secret, client_public, client_secret)


def load_keys(path: Path) -> RunKeys:
    """Read a file that `RunKeys.save` wrote.

    Raises `UsageError` for a file that is missing, no key file, another user's, or open to others.
    """
    try:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            content = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read the key file {path}: {error.strerror}") from error
    if not stat.S_ISREG(about.st_mode):
        raise UsageError(f"{path} is no file, and so no key file")
    if about.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"the key file {path} belongs to another user; make keys of your own")
    if about.st_mode & 0o077:
        mode = stat.S_IMODE(about.st_mode)
        raise UsageError(
            f"the key file {path} may be read or changed by others (mode {mode:04o}); "
            f"if nobody did, close it with `chmod 600 {path}`, else make new keys"
        )
    try:
        if len(content) > _FILE_BYTES:
            raise ValueError("it is too long")
        found = json.loads(content)
        if not isinstance(found, dict) or set(found) != {one.name for one in fields(RunKeys)}:
            raise ValueError("it does not hold the four keys of a run")
        return RunKeys(**found)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no key file of a run: {error}") from None


def check_key(key: object, what: str) -> str:
    """Return `key` if it is a CURVE key in Z85, 40 characters; else raise `UsageError`, not naming it."""
    if not isinstance(key, str) or len(key) != _KEY_CHARS or not _Z85.issuperset(key):
        raise UsageError(f"{what} is no key: a key is {_KEY_CHARS} characters of Z85")
    return key
