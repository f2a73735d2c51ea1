"""Files of a run: whatever happens while one is written, there is the old one or the new one afterwards."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from narl import atomic
from narl.errors import NarlError, OptionError, RunFolderError

_WAYS_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free some space"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "allow writing there"),
    errno.EFBIG: "raise the limit on the size of files",
}


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """The error for a file that could not be written.

    Example:
        >>> cannot_write(Path("run/model"), OSError(errno.ENOSPC, "No space left on device")).args[0]
        'cannot write run/model: No space left on device; free some space; nothing of the run so far is lost'
    """
    way_out = _WAYS_OUT.get(error.errno or 0, "check the disk")
    return RunFolderError(
        f"cannot write {path}: {error.strerror or error}; {way_out}; nothing of the run so far is lost"
    )


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` when all of it is on the disk.

    Args:
        path: the file; its folder exists. One process at a time writes it.

    Raises:
        RunFolderError: where the disk is full or read-only. ``path`` is then as before and nothing lies beside it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(Path(folder) / "a") as file:
        ...         _ = file.write(b"whole")
        ...     (Path(folder) / "a").read_bytes()
        b'whole'
    """
    try:
        with atomic.replacing(path) as file:
            yield file
    except NarlError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def to_json(value: object, indent: int | None = None) -> bytes:
    """JSON that every reader takes: numpy's scalars become plain, NaN and infinity become null.

    Example:
        >>> to_json({"loss": np.float64(0.5), "meta_loss": float("nan"), "epoch": np.int64(3)})
        b'{"loss": 0.5, "meta_loss": null, "epoch": 3}'
    """
    return json.dumps(_plain(value), allow_nan=False, indent=indent).encode()


def write_json(path: Path, value: object, indent: int | None = 2) -> None:
    """Write a JSON file, all of it or nothing.

    Raises:
        RunFolderError: where the disk is full or read-only.
        OptionError: where the value has no JSON.
    """
    content = to_json(value, indent) + b"\n"
    with replacing(path) as file:
        file.write(content)


def read_json(path: Path) -> Any:
    """What a JSON file holds.

    Raises:
        FileNotFoundError: where there is none: the caller knows what that means.
        RunFolderError: where it cannot be read, or is no JSON.
    """
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path} is damaged ({error}): restore it, or start the run anew") from error


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Write a file of JSON lines, all of it or nothing."""
    content = b"".join(to_json(record) + b"\n" for record in records)
    with replacing(path) as file:
        file.write(content)


def append_line(path: Path, record: Mapping[str, Any]) -> None:
    """Add a JSON line; it is on the disk afterwards. A line that a kill had torn gives way to it.

    Raises:
        RunFolderError: where the disk is full or read-only, with the file as before.
    """
    line = memoryview(to_json(record) + b"\n")
    if _is_torn(path):
        write_lines(path, read_lines(path))
    try:
        # Unbuffered: a buffer would try once more at closing, after the file was cut back.
        with path.open("ab", buffering=0) as file:
            end = os.fstat(file.fileno()).st_size
            try:
                while line:
                    line = line[file.write(line) :]
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), end)
                raise
    except OSError as error:
        raise cannot_write(path, error) from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none where there is no file. A torn last line does not count.

    Raises:
        RunFolderError: where a line before the last is no JSON object.
    """
    try:
        *lines, last = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"cannot read {path}: {error.strerror or error}; check its permissions") from error
    records = []
    for number, line in enumerate(lines, 1):
        record = _record(line)
        if record is None:
            raise RunFolderError(f"line {number} of {path} is no JSON object: restore the file, or remove that line")
        records.append(record)
    # An editor may have taken the last newline away; only a whole record parses.
    ending = _record(last)
    return records if ending is None else [*records, ending]


def _is_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return False
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _plain(value: object) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    raise OptionError(
        f"a {type(value).__name__} cannot be written as JSON: give plain numbers, strings, lists or dicts"
    )
