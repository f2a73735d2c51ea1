"""Data sets of the Hugging Face hub, by name."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np

from narl.data.class_labels import shortened
from narl.data.image_files import decode, probe
from narl.data.raw_table import Chunk
from narl.data.samples import ImageFiles, Images, Inputs
from narl.data.source import Found, Layout, Request, string_array
from narl.data.table_files import arrow_chunk
from narl.data.tables import read_table
from narl.errors import DataError, MissingExtraError

PREFIX = "hub:"
_PARTS = {"train": ("train",), "test": ("test", "validation", "valid", "val", "dev")}
_ROWS = 1024
_IN_MEMORY = 2**30


@final
class Hub(Layout):
    """``hub:NAME`` or ``hub:NAME:CONFIG``: what ``datasets.load_dataset`` loads, without running anybody's script.

    The training part is the split ``train``; the test part is ``test`` or else ``validation``.
    """

    name = "hub"

    def matches(self, path: Path) -> bool:
        """By the prefix."""
        return str(path).startswith(PREFIX)

    def parts(self, path: Path) -> frozenset[str]:
        """Those whose splits are there."""
        splits = _splits(*_name(path))
        return frozenset(part for part, names in _PARTS.items() if set(names) & set(splits))

    def read(self, path: Path, request: Request) -> Found:
        """The rows of the split."""
        name, config = _name(path)
        splits = _splits(name, config)
        split = next((split for split in _PARTS[request.part] if split in splits), None)
        if split is None:
            raise DataError(
                f"{path} has no split for its {request.part} part (it has {shortened(splits)}): give a file instead"
            )
        dataset = _load(name, config, split)
        return convert(dataset, request, source=str(path), cache=_cache(dataset))


def convert(dataset: Any, request: Request, *, source: str, cache: Path) -> Found:
    """The samples of a loaded ``datasets.Dataset``.

    Args:
        dataset: its features tell images and classes, whose names are kept.
        request: what is wanted.
        source: where it comes from, for messages.
        cache: folder for images that are not files and don't fit into memory decoded.
    """
    kinds = {name: type(feature).__name__ for name, feature in dataset.features.items()}
    classes = {name: tuple(dataset.features[name].names) for name, kind in kinds.items() if kind == "ClassLabel"}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    if request.columns.image:
        images = [name for name in images if name == request.columns.image]
    elif request.columns.has_inputs:
        images = []
    if len(images) > 1:
        way = "say which with --image" if request.labelled else "give one with a single such column"
        raise DataError(f"{source} has several image columns ({shortened(images)}): {way}")
    if images:
        return _with_images(dataset, images[0], request, source, cache, classes)
    return read_table(lambda: _chunks(dataset), request, source=source, folder=cache, class_names=classes)


def _with_images(
    dataset: Any, image: str, request: Request, source: str, cache: Path, classes: Mapping[str, tuple[str, ...]]
) -> Found:
    # The paths take the images' place in the table, so that labels and ids are found as in any other.
    inputs = _images(dataset, image, source, cache)
    paths = inputs.paths.tolist() if isinstance(inputs, ImageFiles) else [f"{row}.png" for row in range(len(inputs))]

    def chunks() -> Iterator[Chunk]:
        start = 0
        for count, cells in _chunks(dataset.remove_columns([image])) if len(dataset.features) > 1 else ():
            yield count, {**cells, image: paths[start : start + count]}
            start += count
        if not start:
            yield len(paths), {image: paths}

    asked = replace(request, columns=replace(request.columns, image=image), check_files=False)
    found = read_table(chunks, asked, source=source, folder=cache, class_names=classes)
    return replace(found, inputs=inputs)


def _chunks(dataset: Any) -> Iterator[Chunk]:
    for batch in dataset.with_format("arrow").iter(batch_size=_ROWS):
        yield arrow_chunk(batch)


def _images(dataset: Any, column: str, source: str, cache: Path) -> Inputs:
    """Images of one size in memory where they fit; otherwise files, those of the data set or written to the cache."""
    from datasets import Image

    raw = dataset.select_columns([column]).cast_column(column, Image(decode=False))
    headers = [probe(image) for image in _opened(raw, column, source)]
    width, height, _ = headers[0]
    channels = 1 if {mode for _, _, mode in headers} <= {"L", "1"} else 3
    if {header[:2] for header in headers} == {(width, height)} and (
        len(headers) * width * height * channels <= _IN_MEMORY
    ):
        pixels = np.empty((len(headers), height, width, channels), dtype=np.uint8)
        for row, image in enumerate(_opened(raw, column, source)):
            pixels[row] = decode(image, None, channels).transpose(1, 2, 0)
        return Images(pixels)
    paths = [
        image if isinstance(image, str) else _kept(cache / str(row), image.getvalue())
        for row, image in enumerate(_opened(raw, column, source))
    ]
    return ImageFiles(cache, string_array(paths, source))


def _opened(raw: Any, column: str, source: str) -> Iterator[str | io.BytesIO]:
    """Where every image is: the path of a file, or its bytes."""
    entries = (entry for batch in raw.iter(batch_size=_ROWS) for entry in batch[column])
    for row, entry in enumerate(entries):
        if entry is None or not (entry.get("bytes") or entry.get("path")):
            raise DataError(f"{source}: image column {column!r} is empty in row {row} (counted from 0): leave it out")
        if not entry.get("bytes"):
            yield str(entry["path"])
            continue
        image = io.BytesIO(entry["bytes"])
        image.name = f"{row} of {source}"
        yield image


def _kept(path: Path, content: bytes) -> str:
    """Write the bytes unless they are there."""
    try:
        if not path.is_file() or path.stat().st_size != len(content):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(f".{path.name}.{os.getpid()}")
            temporary.write_bytes(content)
            temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"image cannot be written to the cache, {path} ({error.strerror}): free space, or set HF_HOME"
        ) from error
    return str(path)


def _name(path: Path) -> tuple[str, str | None]:
    name, _, config = str(path).removeprefix(PREFIX).partition(":")
    if not name:
        raise DataError("hub: names no data set: write hub:NAME or hub:NAME:CONFIG, as in hub:ag_news")
    return name, config or None


def _datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("reading from the Hugging Face hub needs datasets: pip install 'narl[hub]'") from error
    return datasets


def _splits(name: str, config: str | None) -> list[str]:
    try:
        return list(_datasets().get_dataset_split_names(name, config))
    except Exception as error:
        raise _failed(name, config, error) from error


def _load(name: str, config: str | None, split: str) -> Any:
    try:
        return _datasets().load_dataset(name, config, split=split)
    except Exception as error:
        raise _failed(name, config, error) from error


def _failed(name: str, config: str | None, error: Exception) -> Exception:
    """The library raises whatever its many parts raise: of its own, of the network's, of the file formats'."""
    if isinstance(error, MissingExtraError):
        return error
    what = name if config is None else f"{name} ({config})"
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return DataError(f"the hub's data set {what} cannot be loaded ({reason}): check its name and the connection")


def _cache(dataset: Any) -> Path:
    return Path(_datasets().config.HF_DATASETS_CACHE) / "narl-images" / str(dataset._fingerprint)
