"""The validation set of ILSVRC12, the usual second test set of mini-WebVision."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import final

import numpy as np

from narl.data.class_labels import ClassLabels, natural_key, synset_of
from narl.data.folders import images_under
from narl.data.samples import ImageFiles
from narl.data.source import Found, Layout, Request, read_lines, string_array
from narl.data.synsets import class_names, read_words
from narl.errors import DataError

_IMAGE = re.compile(r"ILSVRC2012_val_[0-9]{8}\.JPEG", re.IGNORECASE)
_WNID = re.compile(r"n[0-9]{8}")
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"
_WORD_FILES = ("LOC_synset_mapping.txt", "synset_words.txt", "words.txt")


@final
class Ilsvrc12Validation(Layout):
    """The 50,000 validation images of ImageNet's 1,000 classes.

    Taken as they are: ``WNID/ILSVRC2012_val_….JPEG``; or all in one folder, with the labels in Kaggle's
    ``LOC_val_solution.csv`` or in the development kit's ``ILSVRC2012_validation_ground_truth.txt`` and ``meta.mat``.
    The images lie in DATA or in ``DATA/val``, the other files there or in ``ILSVRC2012_devkit_t12/data``. Words for
    the classes come from ``LOC_synset_mapping.txt``, ``synset_words.txt`` or ``words.txt`` where one is there.

    When it is read for a training set of fewer ImageNet classes, as mini-WebVision's 50, the images of the other
    classes are left out.

    Reference: Russakovsky et al. ImageNet large scale visual recognition challenge. IJCV 2015.
    """

    name = "ilsvrc12-val"

    def matches(self, path: Path) -> bool:
        """By image names, or folders named by synsets in ``val`` without a ``train`` beside it."""
        if not path.is_dir():
            return False
        images = _images(path)
        if images != path and (path / "train").is_dir():
            return False
        first = [entry for entry, _ in zip(images.iterdir(), range(20), strict=False)]
        if any(_IMAGE.fullmatch(entry.name) for entry in first):
            return True
        folders = [entry for entry in first if _WNID.fullmatch(entry.name) and entry.is_dir()]
        inside = (entry for folder in folders[:1] for entry in folder.iterdir())
        return any(_IMAGE.fullmatch(entry.name) for entry in inside)

    def read(self, path: Path, request: Request) -> Found:
        """The images of all classes, or of those that the training set has."""
        images = _images(path)
        folders = sorted(entry.name for entry in images.iterdir() if _WNID.fullmatch(entry.name) and entry.is_dir())
        if folders:
            pairs = [(f"{folder}/{name}", folder) for folder in folders for name in images_under(images / folder)[0]]
        else:
            names = sorted((e.name for e in images.iterdir() if _IMAGE.fullmatch(e.name)), key=natural_key)
            truth = _truth(path, names) if request.labelled else {}
            pairs = [(name, truth.get(name.partition(".")[0], "")) for name in names]
        if not pairs:
            raise DataError(
                f"{images} holds no images called ILSVRC2012_val_….JPEG: unpack ILSVRC2012_img_val.tar there"
            )
        wanted = {synset_of(name) for name in request.classes or ()}
        if None not in wanted and wanted:
            pairs = [(name, synset) for name, synset in pairs if synset in wanted]
            if not pairs:
                raise DataError(f"{images} holds no image of the training set's {len(wanted)} classes: check both sets")
        ids = string_array([name if images == path else f"{images.name}/{name}" for name, _ in pairs], str(path))
        inputs = ImageFiles(path, ids)
        if not request.labelled:
            return Found(inputs, ids)
        synsets = sorted({synset for _, synset in pairs})
        unlabelled = next((name for name, synset in pairs if not synset), None)
        if unlabelled is not None:
            raise DataError(f"{path}: image {unlabelled} has no label in the list: use the list of the same release")
        position = {synset: index for index, synset in enumerate(synsets)}
        words: dict[str, str] = {}
        for folder in _beside(path):
            for file in _WORD_FILES:
                words = words or read_words(folder / file)
        indices = np.array([position[synset] for _, synset in pairs], dtype=np.int64)
        return Found(inputs, ids, ClassLabels(indices, class_names(synsets, words)))


def _images(path: Path) -> Path:
    return path / "val" if (path / "val").is_dir() else path


def _beside(path: Path) -> tuple[Path, ...]:
    return (path, _images(path), path / "ILSVRC2012_devkit_t12" / "data", path.parent)


def _truth(path: Path, names: list[str]) -> dict[str, str]:
    """Synset of each image, by its name without ending."""
    for folder in _beside(path):
        if (folder / "LOC_val_solution.csv").is_file():
            rows = csv.reader(read_lines(folder / "LOC_val_solution.csv"))
            return {
                row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].split() and row[0] != "ImageId"
            }
        if (folder / _TRUTH).is_file() and (folder / "meta.mat").is_file():
            numbers = [line.strip() for line in read_lines(folder / _TRUTH)]
            synsets = _meta(folder / "meta.mat")
            if len(numbers) != len(names):
                raise DataError(
                    f"{folder / _TRUTH} has {len(numbers)} labels for {len(names)} images: unpack both again"
                )
            stems = [name.partition(".")[0] for name in names]
            return {stem: synsets.get(number, "") for stem, number in zip(stems, numbers, strict=True)}
    raise DataError(
        f"{path}: the validation images are in one folder without labels: add LOC_val_solution.csv, or {_TRUTH} and "
        "meta.mat of the development kit, or sort the images into folders named by synset"
    )


def _meta(path: Path) -> dict[str, str]:
    """The development kit's class numbers, as text, and their synsets."""
    from scipy.io import loadmat

    try:
        rows = loadmat(path, squeeze_me=True)["synsets"]
        return {str(int(row["ILSVRC2012_ID"])): str(row["WNID"]) for row in np.atleast_1d(rows)}
    except Exception as error:  # what damaged bytes make of the reader
        raise DataError(f"{path} cannot be read ({type(error).__name__}): unpack the development kit again") from error
