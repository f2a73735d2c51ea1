"""CIFAR-10 and CIFAR-100 as published for Python, read without running anything that their pickles may ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.data.array_pickles import read_pickle
from narl.data.class_labels import ClassLabels
from narl.data.samples import Images
from narl.data.source import Found, Layout, Request
from narl.errors import DataError

_SIDE = 32


@final
class Cifar(Layout):
    """The folder ``cifar-10-batches-py`` or ``cifar-100-python``, or the folder that it is in.

    Reference: Krizhevsky. Learning multiple layers of features from tiny images. Technical report, 2009.
    """

    def __init__(self, name: str, folder: str, train: tuple[str, ...], test: str, meta: str, prefix: str) -> None:
        self.name = name
        self._folder = folder
        self._files = {"train": train, "test": (test,)}
        self._meta = meta
        self._labels = f"{prefix}labels"
        self._names = f"{prefix}label_names"

    def matches(self, path: Path) -> bool:
        """By the names of the files."""
        folder = self._inside(path)
        return (folder / self._meta).is_file() and (folder / self._files["train"][0]).is_file()

    def parts(self, path: Path) -> frozenset[str]:
        """Both, always."""
        return frozenset({"train", "test"})

    def read(self, path: Path, request: Request) -> Found:
        """The images in the order of the batches."""
        folder = self._inside(path)
        batches = [read_pickle(folder / name) for name in self._files[request.part]]
        pixels = np.concatenate(
            [_pixels(batch, folder / n) for batch, n in zip(batches, self._files[request.part], strict=True)]
        )
        ids = np.array([f"{request.part}/{row}" for row in range(len(pixels))])
        if not request.labelled:
            return Found(Images(pixels), ids)
        names = _names(read_pickle(folder / self._meta).get(self._names), folder / self._meta)
        lists = [batch.get(self._labels) for batch in batches]
        indices = np.array(
            [label for listed in lists for label in _listed(listed, folder, self._labels)], dtype=np.int64
        )
        if len(indices) != len(pixels) or not ((indices >= 0) & (indices < len(names))).all():
            raise DataError(
                f"{folder}: {len(indices)} labels for {len(pixels)} images, or one outside 0 … {len(names) - 1}: "
                "unpack the published archive again"
            )
        return Found(Images(pixels), ids, ClassLabels(indices, names))

    def _inside(self, path: Path) -> Path:
        return path / self._folder if (path / self._folder).is_dir() else path


CIFAR10 = Cifar(
    "cifar10", "cifar-10-batches-py", tuple(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta", ""
)
CIFAR100 = Cifar("cifar100", "cifar-100-python", ("train",), "test", "meta", "fine_")


def _pixels(batch: dict[str, Any], path: Path) -> NDArray[np.uint8]:
    data = batch.get("data")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3 * _SIDE**2:
        raise DataError(
            f"{path} holds no array data of shape (N, {3 * _SIDE**2}) and type uint8: give the published file"
        )
    return np.ascontiguousarray(data.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1))


def _listed(labels: Any, folder: Path, key: str) -> list[int]:
    if isinstance(labels, np.ndarray):
        labels = labels.tolist()
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise DataError(f"{folder}: a batch holds no list {key!r} of whole numbers: give the published files")
    return labels


def _names(names: Any, path: Path) -> tuple[str, ...]:
    if not isinstance(names, list) or not names:
        raise DataError(f"{path} holds no class names: give the published file")
    return tuple(name.decode("latin1") if isinstance(name, bytes) else str(name) for name in names)
