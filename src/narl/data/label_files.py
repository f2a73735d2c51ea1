"""Other labels for a data set, in a file of their own, such as CIFAR-10N's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.data.array_pickles import read_pickle
from narl.data.arrays import load, load_one
from narl.data.class_labels import Words, shortened, words_of
from narl.data.column_looks import LABEL_NAMES
from narl.data.raw_table import collect
from narl.data.source import nearest_file, read_lines
from narl.data.table_files import SUFFIXES, chunks_of
from narl.errors import DataError, nearest

_CLEAN = "clean_label"


@final
@dataclass(frozen=True, eq=False)
class LabelFile:
    """Labels of a file.

    Args:
        where: the file and what was taken of it, for messages.
        words: one label a sample.
        clean: the true labels as the file has them, to see that it is in the order of the data.
    """

    where: str
    words: Words
    clean: Words | None = None


def read_labels(spec: str, ids: NDArray[np.str_]) -> LabelFile:
    """Read the labels of a file.

    ``.npz``, ``.npy``, ``.pt`` and ``.txt`` (one label a line) are in the order of the samples. So are tables, unless
    they have a column ``id``.

    Args:
        spec: ``"FILE"`` or ``"FILE:KEY"``, KEY the array or column.
        ids: of the samples that labels are wanted for, ``(N,)``.

    Returns:
        N labels.
    """
    path, key = _split(spec)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return _from_table(path, SUFFIXES[suffix], key, ids)
    clean = None
    if suffix == ".txt":
        found = LabelFile(str(path), np.array([line.strip() for line in read_lines(path)], dtype=object))
    elif suffix == ".npy":
        found = LabelFile(str(path), words_of(load_one(path), str(path)))
    elif suffix in (".npz", ".pt", ".pth"):
        arrays = load(path) if suffix == ".npz" else _of_torch(path)
        chosen = _key(arrays, key, path)
        where = f"{path}: {chosen!r}"
        if chosen != _CLEAN and _CLEAN in arrays:
            clean = words_of(np.asarray(arrays[_CLEAN]), f"{path}: {_CLEAN!r}")
        found = LabelFile(where, words_of(np.asarray(arrays[chosen]), where), clean)
    else:
        raise DataError(
            f"labels cannot be read from {path}: give a .npz, .npy, .pt, .txt, .csv, .jsonl or .parquet file"
        )
    if key is not None and suffix in (".txt", ".npy"):
        raise DataError(f"{path} holds one list of labels: leave out {':' + key!r}")
    if len(found.words) != len(ids):
        raise DataError(
            f"{found.where} has {len(found.words)} labels for {len(ids)} samples: give one a sample, in their order"
        )
    return found


def _split(spec: str) -> tuple[Path, str | None]:
    path = Path(spec)
    if path.is_file():
        return path, None
    left, colon, key = spec.rpartition(":")
    if colon and Path(left).is_file():
        return Path(left), key
    path = Path(left) if colon and Path(left).suffix else path
    if path.is_dir():
        raise DataError(f"labels {path} is a folder: name the file, and what to take of it as FILE:KEY")
    raise DataError(f"there is no file of labels {path}: {nearest_file(path)}")


def _key(arrays: Mapping[str, Any], key: str | None, path: Path) -> str:
    if key is not None:
        if key not in arrays:
            raise DataError(f"{path} has no {key!r}: {nearest(key, arrays)[:300]}")
        return key
    usual = [name for name in arrays if name in LABEL_NAMES]
    if len(arrays) == 1:
        return next(iter(arrays))
    if len(usual) == 1:
        return usual[0]
    raise DataError(f"{path} holds several arrays ({shortened(list(arrays))}): say which as {path.name}:KEY")


def _of_torch(path: Path) -> dict[str, Any]:
    """The arrays, tensors and lists that ``torch.save`` wrote."""
    import torch

    try:
        return {key: value for key, value in read_pickle(path).items() if isinstance(value, (np.ndarray, list))}
    except DataError as arrays_only:
        try:
            read = torch.load(path, map_location="cpu", weights_only=True)
        except Exception:  # tells how to load the file unsafely
            raise arrays_only from None
    read = read if isinstance(read, dict) else {"labels": read}
    return {str(key): value.numpy() for key, value in read.items() if isinstance(value, torch.Tensor)}


def _from_table(path: Path, layout: str, key: str | None, ids: NDArray[np.str_]) -> LabelFile:
    chunks = chunks_of(path, layout)
    _, first = next(chunks(), (0, {}))
    others = [name for name in first if name != "id"]
    chosen = others[0] if key is None and len(others) == 1 else _key(dict.fromkeys(others), key, path)
    table = collect(chunks, str(path), words=[chosen, "id"], skip=[name for name in others if name != chosen])
    where = f"{path}: column {chosen!r}"
    words = table.words[chosen]
    if "id" not in table.words:
        if len(words) != len(ids):
            raise DataError(
                f"{where} has {len(words)} labels for {len(ids)} samples: give one a sample, or a column id"
            )
        return LabelFile(where, words)
    labels = dict(zip(table.words["id"].tolist(), words.tolist(), strict=True))
    if len(labels) < table.length:
        raise DataError(f"{path}: column 'id' names a sample twice: give each one label")
    lost = [name for name in ids.tolist() if name not in labels]
    if lost:
        raise DataError(f"{path} has no label for {len(lost)} of {len(ids)} samples ({shortened(lost)}): add them")
    return LabelFile(where, np.array([labels[name] for name in ids.tolist()], dtype=object))
