"""Files that are either whole or absent: written under a temporary name, forced to disk, renamed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.ENOENT, errno.EROFS, errno.EIO, errno.ESTALE)
"""What the system says of a full disk, a folder that is gone, and a file system that fails."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path of the same suffix that takes the place of `path` when the block succeeds.

    What stood at `path` stays as it was until then, and for good when the block fails.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def overwrite(path: Path, text: str) -> None:
    """Write a text over an existing file's own blocks, for a disk that is too full to `write_text`.

    Raises OSError where the file is absent, or takes more blocks than it has and there are none.
    """
    data = text.encode()
    descriptor = os.open(path, os.O_WRONLY)
    try:
        if len(data) > max(os.fstat(descriptor).st_size, os.fstat(descriptor).st_blocks * 512):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # rather than a part of it
        data += b" " * (os.fstat(descriptor).st_size - len(data))  # spaces behind JSON mean nothing
        os.pwrite(descriptor, data, 0)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file, or leave what was there."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def claim(path: Path, text: str) -> bool:
    """Create `path` with `text` unless it exists; False when somebody else was first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return True
