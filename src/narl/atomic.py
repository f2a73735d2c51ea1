"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


def temporary_path(path: Path) -> Path:
    """Where a file is written before it gets its name. One name a file: what a kill leaves is overwritten later.

    Example:
        >>> temporary_path(Path("run/model")).as_posix()
        'run/.model.tmp'
    """
    return path.with_name(f".{path.name}.tmp")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` when all of it is on the disk.

    Args:
        path: the file; its folder exists. One process at a time writes it.

    Raises:
        OSError: where it cannot be written. ``path`` is then as before and nothing lies beside it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "a") as file:
        ...         _ = file.write(b"whole")
        ...     (Path(folder) / "a").read_bytes()
        b'whole'
    """
    temporary = temporary_path(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power cut, where the system can do that."""
    # The files are whole with or without this, and some file systems (and Windows) cannot sync a folder.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
