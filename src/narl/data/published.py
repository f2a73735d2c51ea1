"""TinyImageNet-200, ANIMAL-10N, Food-101N and mini-WebVision in the folders they are published in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np

from narl.data.class_labels import ClassLabels, natural_key
from narl.data.folders import images_under
from narl.data.samples import ImageFiles
from narl.data.source import Found, Layout, Request, first_missing, read_lines, string_array
from narl.data.synsets import class_names, read_words
from narl.errors import DataError

_BOTH = frozenset({"train", "test"})
_ANIMALS = ("cat", "lynx", "wolf", "coyote", "cheetah", "jaguar", "chimpanzee", "orangutan", "hamster", "guinea pig")
_ANIMAL_FILE = re.compile(r"([0-9])_.*\.jpe?g", re.IGNORECASE)
_MINI = 50


@final
class TinyImageNet(Layout):
    """``train/WNID/images/*.JPEG``, ``val/images`` with ``val/val_annotations.txt`` (the test part), ``wnids.txt``.

    Classes are in the order of their synset ids, with their first word from ``words.txt``.
    """

    name = "tiny-imagenet"

    def matches(self, path: Path) -> bool:
        """By ``wnids.txt`` and ``val/val_annotations.txt``."""
        return (path / "wnids.txt").is_file() and (path / "val" / "val_annotations.txt").is_file()

    def parts(self, path: Path) -> frozenset[str]:
        """Both."""
        return _BOTH

    def read(self, path: Path, request: Request) -> Found:
        """The images of the part."""
        synsets = sorted(line.strip() for line in read_lines(path / "wnids.txt"))
        position = {synset: index for index, synset in enumerate(synsets)}
        if request.part == "train":
            pairs = []
            for synset in synsets:
                listed = images_under(path / "train" / synset)[0] if (path / "train" / synset).is_dir() else []
                if not listed:
                    raise DataError(f"{path / 'train' / synset} holds no images: unpack the published archive again")
                pairs += [(f"train/{synset}/{image}", synset) for image in listed]
        else:
            rows = [line.split("\t") for line in read_lines(path / "val" / "val_annotations.txt")]
            pairs = [(f"val/images/{row[0]}", row[1].strip()) for row in rows if len(row) > 1]
        strange = next((synset for _, synset in pairs if synset not in position), None)
        if strange is not None:
            raise DataError(f"{path}: the class {strange!r} is not in wnids.txt: unpack the published archive again")
        names = class_names(synsets, read_words(path / "words.txt"))
        return _found(path, [image for image, _ in pairs], [position[synset] for _, synset in pairs], names, request)


@final
class Animal10N(Layout):
    """``training/LABEL_NUMBER.jpg`` and ``testing/LABEL_NUMBER.jpg``, LABEL from 0 (cat) to 9 (guinea pig).

    Reference: Song, Kim, Lee. SELFIE: refurbishing unclean samples for robust deep learning. ICML 2019.
    """

    name = "animal10n"

    def matches(self, path: Path) -> bool:
        """By the names of the folders and of the first files in them."""
        training = path / "training"
        if not training.is_dir() or not (path / "testing").is_dir():
            return False
        return any(_ANIMAL_FILE.fullmatch(entry.name) for entry, _ in zip(training.iterdir(), range(10), strict=False))

    def parts(self, path: Path) -> frozenset[str]:
        """Both."""
        return _BOTH

    def read(self, path: Path, request: Request) -> Found:
        """The images of the part, by label and number."""
        folder = "training" if request.part == "train" else "testing"
        if not (path / folder).is_dir():
            raise DataError(f"there is no folder {path / folder}: unpack the published archive again")
        matched = [(entry.name, _ANIMAL_FILE.fullmatch(entry.name)) for entry in (path / folder).iterdir()]
        labels = {name: int(match.group(1)) for name, match in matched if match}
        files = sorted(labels, key=natural_key)
        return _found(path, [f"{folder}/{name}" for name in files], [labels[name] for name in files], _ANIMALS, request)


@final
class Food101N(Layout):
    """``meta/imagelist.tsv``, ``meta/verified_val.tsv``, ``meta/classes.txt`` and ``images/CLASS/*.jpg``.

    The training part is the image list without the images of ``verified_val.tsv``; ids are its keys, ``CLASS/….jpg``,
    as in ``meta/verified_train.tsv``. The test part is that of Food-101, where its folder ``food-101`` lies in the
    same folder or beside it; otherwise the images of ``verified_val.tsv`` whose label was found right.

    Reference: Lee, He, Zhang, Yang. CleanNet: transfer learning for scalable image classifier training with label
    noise. CVPR 2018.
    """

    name = "food101n"

    def matches(self, path: Path) -> bool:
        """By ``meta/imagelist.tsv`` and ``meta/classes.txt``."""
        return (path / "meta" / "imagelist.tsv").is_file() and (path / "meta" / "classes.txt").is_file()

    def parts(self, path: Path) -> frozenset[str]:
        """The training part, and a test part where there is one of the two."""
        tested = _food101(path) is not None or (path / "meta" / "verified_val.tsv").is_file()
        return _BOTH if tested else frozenset({"train"})

    def read(self, path: Path, request: Request) -> Found:
        """The images of the part, in the order of its list."""
        meta = path / "meta"
        classes = tuple(line.strip() for line in read_lines(meta / "classes.txt") if line.strip() != "class_name")
        position = {name: index for index, name in enumerate(classes)}
        root = path / "images"
        food101 = _food101(path)
        if request.part == "test" and food101 is not None:
            root = food101 / "images"
            keys = [f"{line.strip()}.jpg" for line in read_lines(food101 / "meta" / "test.txt")]
        elif request.part == "test":
            keys = [key for key, right in _verified(meta / "verified_val.tsv") if right]
        else:
            checked = (
                {key for key, _ in _verified(meta / "verified_val.tsv")}
                if (meta / "verified_val.tsv").is_file()
                else set()
            )
            listed = [line.strip() for line in read_lines(meta / "imagelist.tsv")]
            keys = [key for key in listed if not key.startswith("class_name") and key not in checked]
        labels = [position.get(key.partition("/")[0], -1) for key in keys]
        if -1 in labels:
            raise DataError(
                f"{path}: the class of {keys[labels.index(-1)]!r} is not in meta/classes.txt: unpack the archive again"
            )
        return _found(root, keys, labels, classes, request)


@final
class MiniWebVision(Layout):
    """The first 50 classes of WebVision 1.0: ``info/train_filelist_google.txt``, ``info/val_filelist.txt``, images.

    Training images are Google's (``google/q0001/….jpg LABEL``), test images those of ``val_images_256``; classes are
    named by ``info/synsets.txt``.

    Reference: Jiang, Zhou, Leung, Li, Fei-Fei. MentorNet: learning data-driven curriculum for very deep neural networks
    on corrupted labels. ICML 2018.
    """

    name = "mini-webvision"

    def matches(self, path: Path) -> bool:
        """By ``info/train_filelist_google.txt``."""
        return (path / "info" / "train_filelist_google.txt").is_file()

    def parts(self, path: Path) -> frozenset[str]:
        """The training part, and the test part where its list is there."""
        return _BOTH if (path / "info" / "val_filelist.txt").is_file() else frozenset({"train"})

    def read(self, path: Path, request: Request) -> Found:
        """The images of the part, in the order of its list."""
        train = request.part == "train"
        listing = path / "info" / ("train_filelist_google.txt" if train else "val_filelist.txt")
        images, labels = [], []
        for number, line in enumerate(read_lines(listing), 1):
            image, _, label = line.strip().rpartition(" ")
            if not image or not label.isdecimal():
                raise DataError(
                    f"{listing}, entry {number}: {line[:80]!r} is not 'IMAGE LABEL': unpack the lists again"
                )
            if int(label) < _MINI:
                images.append(image.strip() if train else f"val_images_256/{image.strip()}")
                labels.append(int(label))
        words = read_words(path / "info" / "synsets.txt")
        names = class_names(words, words)[:_MINI] or tuple(f"class {index}" for index in range(_MINI))
        return _found(path, images, labels, names, request)


def _food101(path: Path) -> Path | None:
    for folder in (path / "food-101", path.parent / "food-101"):
        if (folder / "meta" / "test.txt").is_file():
            return folder
    return None


def _verified(path: Path) -> list[tuple[str, bool]]:
    rows = [line.split("\t") for line in read_lines(path)]
    return [(row[0].strip(), row[-1].strip() == "1") for row in rows if not row[0].startswith("class_name")]


def _found(root: Path, paths: list[str], labels: Sequence[int], classes: tuple[str, ...], request: Request) -> Found:
    if not paths:
        raise DataError(f"{root} holds no images of the {request.part} part: unpack the published archive again")
    lost = first_missing(root, paths) if request.check_files else None
    if lost is not None:
        raise DataError(
            f"there is no image {root / lost}, which the lists name: unpack the published archive again, or leave "
            "unreadable images out (--skip-unreadable)"
        )
    names = string_array(paths, str(root))
    indices = np.array(labels, dtype=np.int64)
    if len(indices) and indices.max() >= len(classes):
        raise DataError(f"{root} has a label {indices.max()} but {len(classes)} class names: unpack the archive again")
    return Found(ImageFiles(root, names), names, ClassLabels(indices, classes) if request.labelled else None)
