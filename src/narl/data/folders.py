"""Folders of images: one folder a class, perhaps in a folder for each part."""

from __future__ import annotations

import os
from pathlib import Path
from typing import final

import numpy as np

from narl.data.class_labels import ClassLabels, in_order, natural_key, shortened
from narl.data.image_files import is_image
from narl.data.samples import ImageFiles
from narl.data.source import Found, Layout, Request, string_array
from narl.errors import DataError

TRAIN_FOLDERS = ("train", "training")
TEST_FOLDERS = ("test", "testing", "val", "valid", "validation")
_NO_CLASSES = ("__MACOSX", "__pycache__", "lost+found")


@final
class ClassFolders(Layout):
    """``DATA/CLASS/*.jpg``, or ``DATA/train/CLASS/*.jpg`` and ``DATA/test/CLASS/*.jpg``."""

    name = "folder"

    def matches(self, path: Path) -> bool:
        """Any folder may be one; so may a single image, to predict."""
        return path.is_dir() or is_image(path.name)

    def parts(self, path: Path) -> frozenset[str]:
        """Those whose folders are there, if one is called train and holds class folders."""
        if not path.is_dir() or _part_folder(path, "train") is None:
            return frozenset()
        return frozenset({"train"} if _part_folder(path, "test") is None else {"train", "test"})

    def read(self, path: Path, request: Request) -> Found:
        """The images, in natural order of their paths."""
        root = path
        if self.parts(path):
            part = _part_folder(path, request.part)
            if part is None:
                raise DataError(
                    f"{path} has no folder for its {request.part} part: add one, or name a folder of classes"
                )
            root = part
        if not request.labelled:
            return _unlabelled(path, root)
        if not root.is_dir():
            raise DataError(f"{root} is no folder: to train, give a folder with one folder of images a class")
        return _classes(path, root, every=request.classes is None and request.part == "train")


def images_under(folder: Path) -> tuple[list[str], int]:
    """The images in a folder and its folders, relative to it, in natural order, and how many other files there are.

    Hidden files are passed over; a folder that links lead to twice is entered once.
    """
    found: list[str] = []
    others = 0
    seen: set[tuple[int, int]] = set()
    waiting = [(os.fspath(folder), "")]
    while waiting:
        here, prefix = waiting.pop()
        status = os.stat(here)
        if (status.st_dev, status.st_ino) in seen:
            continue
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if _is_folder(entry):
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))
                elif is_image(entry.name):
                    found.append(prefix + entry.name)
                else:
                    others += 1
    return sorted(found, key=natural_key), others


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _part_folder(path: Path, part: str) -> Path | None:
    for name in TRAIN_FOLDERS if part == "train" else TEST_FOLDERS:
        if (path / name).is_dir():
            return path / name
    return None


def _unlabelled(path: Path, root: Path) -> Found:
    if root.is_dir():
        listed, others = images_under(root)
        if not listed:
            raise DataError(f"{root} holds no images ({others} other files): give a folder of .jpg, .png, … files")
        listed = [_join(path, root, relative) for relative in listed]
    else:
        path, listed = root.parent, [root.name]
    names = _names(path, listed)
    return Found(ImageFiles(path, names), names)


def _classes(path: Path, root: Path, *, every: bool) -> Found:
    folders = in_order(
        entry.name
        for entry in root.iterdir()
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in _NO_CLASSES
    )
    if not folders:
        raise DataError(_no_folders(root))
    paths: list[str] = []
    labels: list[int] = []
    for index, folder in enumerate(folders):
        listed, others = images_under(root / folder)
        if not listed and every:
            raise DataError(
                f"class folder {root / folder} holds no images ({others} other files): add some or remove the folder"
            )
        paths += [_join(path, root, f"{folder}/{relative}") for relative in listed]
        labels += [index] * len(listed)
    if not paths:
        raise DataError(f"the class folders in {root} hold no images: give .jpg, .png, … files")
    names = _names(path, paths)
    return Found(ImageFiles(path, names), names, ClassLabels(np.array(labels, dtype=np.int64), folders))


def _no_folders(root: Path) -> str:
    files = sorted(entry.name for entry in root.iterdir() if not entry.name.startswith("."))
    images = [name for name in files if is_image(name)]
    if images:
        return (
            f"{root} holds images ({shortened(images)}) but no class folders: put those of each class into a "
            "folder with its name"
        )
    if files:
        return (
            f"{root} holds no class folders, only {shortened(files)[:200]}: name the file to read, or add class folders"
        )
    return f"{root} is empty: give a folder with one folder of images a class"


def _join(path: Path, root: Path, relative: str) -> str:
    return relative if path == root else f"{root.name}/{relative}"


def _names(path: Path, paths: list[str]) -> np.ndarray[tuple[int], np.dtype[np.str_]]:
    for name in paths:
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError as error:
                raise DataError(f"{path} holds a file whose name is not UTF-8 ({name!a}): rename it") from error
    return string_array(paths, f"{path}")
