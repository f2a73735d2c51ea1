"""Checkpoints: a tree of tensors and plain values as one safetensors file, which is whole or is refused.

The file is an ordinary safetensors file: other programs read its tensors under names such as ``model.fc.weight``. Its
metadata hold the tree's structure as JSON and a digest of every other byte of the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, final

import torch
from safetensors import SafetensorError, safe_open

from narl._version import __version__
from narl.atomic import temporary_path
from narl.errors import CheckpointError, OptionError, RunFolderError
from narl.train.trees import DTYPES, Tree, flatten, unflatten
from narl.train.writing import cannot_write, replacing

KIND = "checkpoint"
FORMAT = 1

# The digest stands at one place, so that it can be filled in last and left out when the file is checked.
_BEFORE_DIGEST = b'{"__metadata__":{"digest":"'
_DIGEST_BYTES = 32
_BLANK = b"0" * (2 * _DIGEST_BYTES)
_HEADER_LIMIT = 100_000_000  # safetensors' own
_CHUNK = 1 << 20
_NAME = re.compile(r"epoch-(\d{4,})-step-(\d{8,})\.safetensors")


def save(path: str | PathLike[str], tree: Tree) -> None:
    """Write a tree as one file, all of it or nothing.

    Floats are kept exactly, tensors with their dtype and their memory format. Tensors that share memory are written one
    by one and no longer share it when loaded; all are loaded on the CPU.

    Args:
        path: the file; its folder exists. A file that is there gives way when the new one is on the disk.
        tree: nested dict (keys str or int), list and tuple of str, int, float, bool, None and Tensor.

    Raises:
        RunFolderError: where the disk is full or read-only. The old file is then as it was.
        OptionError: where the tree holds anything else.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(f"{folder}/a.safetensors", {"step": 3, "state": {0: torch.ones(2)}})
        ...     load(f"{folder}/a.safetensors")
        {'step': 3, 'state': {0: tensor([1., 1.])}}
    """
    structure, tensors = flatten(tree)
    about = {"kind": KIND, "format": FORMAT, "version": __version__, "structure": structure}
    header: dict[str, Any] = {"__metadata__": {"digest": _BLANK.decode(), "narl": json.dumps(about)}}
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())  # every tensor at a multiple of its size
    start = 0
    for name in names:
        tensor = tensors[name]
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)

    # safetensors' own writer wants all tensors copied, and tells a full disk from other faults in words only.
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with replacing(Path(path)) as file:
        for part in (len(head).to_bytes(8, "little"), head):
            file.write(part)
            digest.update(part)
        for name in names:
            content = tensors[name].cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            file.write(content)
            digest.update(content)
        file.seek(8 + len(_BEFORE_DIGEST))
        file.write(digest.hexdigest().encode())


def load(path: str | PathLike[str]) -> Tree:
    """Read the tree of a file that :func:`save` wrote.

    Args:
        path: the file.

    Returns:
        The tree, with all tensors on the CPU.

    Raises:
        CheckpointError: where the file is missing, cut short, changed in a single bit, or something else.
    """
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            _check_digest(file, name)
        with safe_open(name, framework="pt") as stored:
            about = json.loads((stored.metadata() or {}).get("narl", "null"))
            tensors = {key: stored.get_tensor(key) for key in stored.keys()}  # noqa: SIM118 (not a dict)
        if not isinstance(about, dict) or about.get("kind") != KIND:
            raise CheckpointError(f"{name} is not a checkpoint of narl: give a file from a run's checkpoints")
        if about.get("format") != FORMAT:
            raise CheckpointError(
                f"{name} has format {about.get('format')}, written by narl {about.get('version')}; narl {__version__} "
                f"reads format {FORMAT}: upgrade narl"
            )
        return unflatten(about["structure"], tensors)
    except CheckpointError:
        raise
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {name}: check the path") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {name}: {error.strerror or error}; check the path") from error
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise CheckpointError(f"{name} is damaged ({reason}): use an earlier checkpoint") from error


@final
@dataclass(frozen=True, eq=False)
class Found:
    """The newest checkpoint that is whole.

    Args:
        tree: what it holds; None where there is none.
        path: its file; None where there is none.
        rejected: newer ones that are not whole, newest first, each with the reason.
    """

    tree: Tree
    path: Path | None
    rejected: list[tuple[Path, str]]

    @property
    def remarks(self) -> list[str]:
        """What a person should know about those passed over."""
        instead = f"{self.path.name} is used instead" if self.path else "none is left, so the run begins anew"
        return [f"{reason} ({instead})" for _, reason in self.rejected]


@final
class Checkpoints:
    """The last few checkpoints of a run, in a folder of their own.

    Args:
        folder: made when the first one is saved.
        keep: how many to keep; with two, a damaged one leaves the one before.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     checkpoints = Checkpoints(folder)
        ...     for epoch in range(5):
        ...         _ = checkpoints.save({"epoch": epoch}, epoch=epoch, step=100 * epoch)
        ...     checkpoints.latest().tree, [path.name for path in checkpoints.paths()]
        ({'epoch': 4}, ['epoch-0004-step-00000400.safetensors', 'epoch-0003-step-00000300.safetensors'])
    """

    def __init__(self, folder: str | PathLike[str], keep: int = 2) -> None:
        if keep < 1:
            raise OptionError(f"cannot keep {keep} checkpoints: keep one at least")
        self.folder = Path(folder)
        self.keep = keep

    def paths(self) -> list[Path]:
        """The checkpoints' files, newest first, whole or not."""
        return sorted((path for path in self._files() if _NAME.fullmatch(path.name)), key=_position, reverse=True)

    def save(self, tree: Tree, epoch: int, step: int) -> Path:
        """Write a checkpoint, then remove all but the last few.

        Args:
            tree: as for :func:`save`.
            epoch: epochs so far.
            step: steps so far.

        Returns:
            The new file.

        Raises:
            RunFolderError: where the disk is full or read-only. The checkpoints before are then all there.
        """
        path = self.folder / f"epoch-{epoch:04d}-step-{step:08d}.safetensors"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(self.folder, error) from error
        self._remove_temporaries()
        save(path, tree)
        # Later ones than this were refused when the run was resumed: they are of a future that never came.
        paths = self.paths()
        position = paths.index(path)
        for other in paths[:position] + paths[position + self.keep :]:
            _remove(other)
        return path

    def positions(self) -> list[tuple[int, int]]:
        """Epoch and step of each checkpoint, newest first, whole or not."""
        return [_position(path) for path in self.paths()]

    def has(self, position: tuple[int, int]) -> bool:
        """Whether there is a whole checkpoint of that epoch and step."""
        found = self.latest(position)
        return found.path is not None and _position(found.path) == position

    def latest(self, until: tuple[int, int] | None = None) -> Found:
        """The newest checkpoint that is whole, and why newer ones were passed over.

        Args:
            until: epoch and step of the newest that may be taken; None: any.

        Returns:
            A :class:`Found` without a tree where there is none: a run that was stopped before its first checkpoint.
        """
        rejected: list[tuple[Path, str]] = []
        for path in self.paths():
            if until is not None and _position(path) > until:
                continue
            try:
                return Found(load(path), path, rejected)
            except CheckpointError as error:
                rejected.append((path, str(error)))
        return Found(None, None, rejected)

    def clear(self) -> None:
        """Remove all checkpoints, and nothing else that may lie in the folder."""
        self._remove_temporaries()
        for path in self.paths():
            _remove(path)

    def _files(self) -> list[Path]:
        try:
            return list(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            reason = error.strerror or error
            raise RunFolderError(f"cannot read {self.folder}: {reason}; check its permissions") from error

    def _remove_temporaries(self) -> None:
        """What a kill left; before the next one is written, so that a full disk has the space."""
        for path in self._files():
            name = path.name.removeprefix(".").removesuffix(".tmp")
            if _NAME.fullmatch(name) and path == temporary_path(self.folder / name):
                _remove(path)


def _position(path: Path) -> tuple[int, int]:
    """Epoch and step of a checkpoint's file."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1]), int(match[2])


def _remove(path: Path) -> None:
    # One file too many does no harm; a run that ends because of it would.
    with suppress(OSError):
        path.unlink(missing_ok=True)


def _check_digest(file: BinaryIO, name: str) -> None:
    """Every byte of the file but the digest's own against the digest."""
    size = os.fstat(file.fileno()).st_size
    length = file.read(8)
    header_bytes = int.from_bytes(length, "little")
    if size < 8 or header_bytes > min(size - 8, _HEADER_LIMIT):
        raise CheckpointError(f"{name} is cut short, or is not a checkpoint of narl: use an earlier checkpoint")
    header = bytearray(file.read(header_bytes))
    here = slice(len(_BEFORE_DIGEST), len(_BEFORE_DIGEST) + len(_BLANK))
    if not header.startswith(_BEFORE_DIGEST) or len(header) < here.stop:
        raise CheckpointError(f"{name} is not a checkpoint of narl: give a file from a run's checkpoints")
    promised, header[here] = bytes(header[here]), _BLANK
    digest = hashlib.blake2b(length + header, digest_size=_DIGEST_BYTES)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    if digest.hexdigest().encode() != promised:
        raise CheckpointError(
            f"{name} is damaged: its content does not fit its digest, so it was cut short or changed; "
            "use an earlier checkpoint"
        )
