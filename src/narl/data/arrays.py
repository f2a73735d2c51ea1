"""Arrays in ``.npz`` and ``.npy`` files."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from narl.data.class_labels import ClassLabels, Words, from_words, in_order, shortened, words_of
from narl.data.samples import Images, Inputs, Table, Texts
from narl.data.source import Found, Layout, Request
from narl.errors import DataError, nearest

Array: TypeAlias = NDArray[Any]

_INPUTS = ("x", "X", "images", "image", "data", "features", "text", "texts")
_LABELS = ("y", "Y", "labels", "label", "target", "targets")
_TRUE = ("true", "y_true", "true_labels", "true_label")
_CLASSES = ("classes", "class_names", "label_names", "target_names")
_PARTS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}


@final
class Arrays(Layout):
    """An ``.npz`` with arrays ``x`` and ``y``, or ``x_train``, ``y_train``, ``x_test`` and ``y_test``; or an ``.npy``.

    ``images`` and ``labels``, ``data`` and ``target`` and the like do as well; ``classes`` may hold the class names,
    ``y_true`` the true labels.

    Labels of ``NAME.npy`` are looked for in ``NAME-labels.npy``, ``NAME_labels.npy`` and, for ``x….npy``, ``y….npy``.
    """

    name = "arrays"

    def matches(self, path: Path) -> bool:
        """By the ending."""
        return path.is_file() and path.suffix.lower() in (".npz", ".npy")

    def parts(self, path: Path) -> frozenset[str]:
        """Those that the names of the arrays tell apart."""
        names = set(_names(path)) if path.suffix.lower() == ".npz" else set()
        return frozenset(part for part in _PARTS if _find(names, _INPUTS, part) is not None)

    def read(self, path: Path, request: Request) -> Found:
        """The arrays of the part as images, texts or rows of numbers, by their shape."""
        arrays = load(path) if path.suffix.lower() == ".npz" else _with_labels(path, request)
        parts = frozenset(part for part in _PARTS if _find(arrays, _INPUTS, part) is not None)
        part = request.part if parts else None
        wanted = request.columns.image or request.columns.text
        key = wanted if wanted in arrays else _find(arrays, _INPUTS, part)
        if key is None:
            raise DataError(
                f"{path} has no array of inputs for the {request.part} part (it has {shortened(list(arrays))}): "
                "call it x, or x_train and x_test"
            )
        inputs = as_inputs(arrays[key], f"{path}: array {key!r}")
        labels, true_labels = _labels(arrays, path, request, part, len(inputs)) if request.labelled else (None, None)
        prefix = f"{request.part}/" if parts else ""
        ids = np.array([f"{prefix}{row}" for row in range(len(inputs))])
        return Found(inputs, ids, labels, true_labels)


def load(path: Path) -> Mapping[str, Array]:
    """The arrays of an ``.npz`` file, each read when it is asked for."""
    return _Lazy(path)


def load_one(path: Path) -> Array:
    """The array of an ``.npy`` file."""
    try:
        with path.open("rb") as file:
            return np.asarray(np.load(file, allow_pickle=False))
    except FileNotFoundError:
        raise DataError(f"there is no file {path}: check the path") from None
    except Exception as error:  # what damaged bytes make of numpy's readers: ValueError, EOFError, TokenError, …
        raise DataError(_damaged(path, error)) from error


def as_inputs(array: Array, where: str) -> Inputs:
    """What an array holds, by its shape: ``(N,)`` texts, ``(N, d)`` numbers, ``(N, H, W)`` or more: images."""
    if array.dtype.kind in "US" and array.ndim == 1:
        return Texts(words_of(array, where))
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3, 4):
        raise DataError(
            f"{where} has shape {array.shape} and type {array.dtype}: "
            "give images (N, H, W, C), numbers (N, d) or texts (N,)"
        )
    if array.size == 0:
        raise DataError(f"{where} is empty, of shape {array.shape}: give one row a sample")
    if array.ndim == 2:
        numbers = _finite(array, where, np.result_type(array.dtype, np.float32))
        names = tuple(f"x{index}" for index in range(array.shape[1]))
        return Table(numbers, np.empty((len(array), 0), dtype=object), names)
    return Images(_pixels(array, where))


def _pixels(array: Array, where: str) -> Array:
    if array.ndim == 3:
        array = array[..., None]
    if array.shape[3] not in (1, 3):
        if array.shape[1] not in (1, 3):
            raise DataError(f"{where} has shape {array.shape}: give images (N, H, W, C) with one or three channels")
        array = array.transpose(0, 2, 3, 1)
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    if array.dtype.kind in "iu" and array.min() >= 0 and array.max() <= 255:
        return np.ascontiguousarray(array.astype(np.uint8))
    return _finite(array, where)


def _finite(array: Array, where: str, kind: DTypeLike = np.float32) -> NDArray[np.floating[Any]]:
    with np.errstate(over="ignore"):
        values: NDArray[np.floating[Any]] = np.ascontiguousarray(array, dtype=kind)
    fits = np.abs(values) <= np.finfo(np.float32).max
    if not fits.all():
        position = np.unravel_index(int(np.argmin(fits)), values.shape)
        place = ", ".join(map(str, position[1:]))
        column = f"column {place}" if values.ndim == 2 else f"pixel ({place})"
        raise DataError(
            f"{where} has NaN, infinity or too large a number in row {position[0]}, {column} (counted from 0): "
            "fill such values in or leave these rows out"
        )
    return values


def _labels(
    arrays: Mapping[str, Array], path: Path, request: Request, part: str | None, count: int
) -> tuple[ClassLabels | None, ClassLabels | None]:
    key = _chosen(arrays, path, request.columns.label, _LABELS, part)
    if key is None:
        if request.optional:
            return None, None
        raise DataError(
            f"{path} has no array of labels for the {request.part} part (it has {shortened(list(arrays))}): call it y, "
            "or y_train and y_test, or name it with --label"
        )
    true_key = _chosen(arrays, path, request.columns.true_label, _TRUE, part)
    words = [_words(arrays, path, key, count)]
    if true_key is not None:
        words.append(_words(arrays, path, true_key, count))
    named = _find(arrays, _CLASSES, None)
    where = f"{path}: array {key!r}"
    both = from_words(np.concatenate(words), where, typed=arrays[key].dtype.kind in "US")
    if named is not None:
        both = _with_names(both, words_of(arrays[named], f"{path}: array {named!r}"), where)
    labels = ClassLabels(both.indices[:count], both.names)
    return labels, None if true_key is None else ClassLabels(both.indices[count:], both.names)


def _with_names(labels: ClassLabels, names: Words, where: str) -> ClassLabels:
    """Numbers stand for positions among the names; names for themselves."""
    classes = tuple(names.tolist())
    if len(set(classes)) < len(classes):
        raise DataError(f"{where}: two classes have the same name ({shortened(classes)}): give each its own")
    lookup = []
    for name in labels.names:
        if name in classes:
            lookup.append(classes.index(name))
        elif name.isdecimal() and int(name) < len(classes) and in_order(labels.names)[0].lstrip("-").isdecimal():
            lookup.append(int(name))
        else:
            raise DataError(
                f"{where} has the label {name!r}, but there are {len(classes)} class names: {shortened(classes)}"
            )
    return ClassLabels(np.array(lookup, dtype=np.int64)[labels.indices], classes)


def _words(arrays: Mapping[str, Array], path: Path, key: str, count: int) -> Words:
    words = words_of(arrays[key], f"{path}: array {key!r}")
    if len(words) != count:
        raise DataError(f"{path}: array {key!r} has {len(words)} labels for {count} samples: give one a sample")
    return words


def _chosen(
    arrays: Mapping[str, Array], path: Path, asked: str | None, usual: tuple[str, ...], part: str | None
) -> str | None:
    """In a file with both parts the user names the training arrays; the test part has its own."""
    if asked is not None and part != "test":
        if asked not in arrays:
            raise DataError(f"{path} has no array {asked!r}: {nearest(asked, arrays)[:300]}")
        return asked
    if asked is not None:
        for name in _PARTS["test"]:
            if (key := asked.replace("train", name)) != asked and key in arrays:
                return key
    return _find(arrays, usual, part)


def _find(names: Mapping[str, Array] | set[str], usual: tuple[str, ...], part: str | None) -> str | None:
    if part is None:
        return next((name for name in usual if name in names), None)
    written = [form for name in usual for end in _PARTS[part] for form in (f"{name}_{end}", f"{end}_{name}")]
    return next((name for name in written if name in names), None)


def _names(path: Path) -> list[str]:
    return list(_Lazy(path))


def _with_labels(path: Path, request: Request) -> dict[str, Array]:
    arrays = {"x": load_one(path)}
    stem = path.stem
    beside = [f"{stem}-labels.npy", f"{stem}_labels.npy"]
    if stem[:1] in ("x", "X"):
        beside += [f"y{stem[1:]}.npy", f"Y{stem[1:]}.npy"]
    found = next((path.with_name(name) for name in beside if path.with_name(name).is_file()), None)
    if found is not None and request.labelled:
        arrays["y"] = load_one(found)
    return arrays


@final
class _Lazy(Mapping[str, Array]):
    """Arrays of an ``.npz`` file: one that is not asked for is not read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as file:
                self._names = [name.removesuffix(".npy") for name in file.namelist()]
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise DataError(_damaged(path, error)) from error
        if not self._names:
            raise DataError(f"{path} holds no arrays: write it with numpy.savez")

    def __getitem__(self, name: str) -> Array:
        if name not in self._names:
            raise KeyError(name)
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return np.asarray(arrays[name])
        except Exception as error:  # as above
            raise DataError(_damaged(self.path, error, name)) from error

    def __contains__(self, name: object) -> bool:
        return name in self._names  # a mapping's own would read the array

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _damaged(path: Path, error: Exception, name: str | None = None) -> str:
    what = f"{path}" if name is None else f"{path}: array {name!r}"
    if "pickle" in str(error).lower() or "Object arrays" in str(error):
        return f"{what} holds Python objects, which are never unpickled: save it with a plain type (numbers or str)"
    reason = " ".join(str(error).split())[:150] or type(error).__name__
    return f"{what} cannot be read ({reason}): save it again with numpy"
