"""The lock of a run folder: which process uses it, and whether the folder is narl's at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from narl.errors import RunFolderError
from narl.train.writing import cannot_write

FILE = ".lock"
_MARK = "narl run, last used by process "


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from using a folder.

    The system drops the lock of a process that ends, however it ends; the file stays. Where the system or the file
    system has no such locks (Windows, some network disks) nothing is locked.

    Args:
        folder: of the run.

    Raises:
        RunFolderError: where another process uses the run, with its number, or the folder cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, held(Path(folder)):
        ...     os.listdir(folder)
        ['.lock']
    """
    path = folder / FILE
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise cannot_write(path, error) from error
    try:
        if not _acquire(descriptor):
            raise RunFolderError(f"{folder} is in use by process {_user(path)}: wait until it ends, or stop it")
        size = os.fstat(descriptor).st_size
        try:
            # One short write over the last one, never an empty file between: it marks the folder as narl's.
            line = f"{_MARK}{os.getpid():>10}\n".encode()
            while line:
                line = line[os.write(descriptor, line) :]
            os.fsync(descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(descriptor, size)  # half a mark is none
            raise cannot_write(path, error) from error
        yield
    finally:
        os.close(descriptor)


def never_began(folder: Path, entries: Collection[str]) -> bool:
    """Whether a folder is from a creation that was killed: the lock comes first, the configuration last.

    Args:
        folder: perhaps a run.
        entries: the names in it.
    """
    if "config.json" in entries or FILE not in entries:
        return False
    try:
        content = (folder / FILE).read_bytes()
    except OSError:
        return False
    return content.startswith(_MARK.encode()) or (not content and len(entries) == 1)


def _acquire(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
    return True


def _user(path: Path) -> str:
    """The process that a lock names."""
    content = ""
    with suppress(OSError):
        content = path.read_text(errors="replace")
    return content.removeprefix(_MARK).strip() or "unknown"
