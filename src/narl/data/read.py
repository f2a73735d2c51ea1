"""Read samples from wherever they are: files, folders, published data sets, the hub."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike, fspath

import numpy as np
from numpy.typing import NDArray

from narl.data import image_files
from narl.data.class_labels import ClassLabels, from_words, onto, shortened
from narl.data.columns import DETECTED, Columns
from narl.data.hub import Hub
from narl.data.known_layouts import AUTO, LAYOUTS, choose
from narl.data.label_files import read_labels
from narl.data.samples import ImageFiles, Inputs, Samples, Unlabelled
from narl.data.source import Found, Request
from narl.data.tables import TableFile
from narl.errors import DataError, NarlWarning, OptionError, nearest

__all__ = ["Columns", "detect_columns", "has_part", "layouts", "read", "read_detected", "read_inputs"]

_PARTS = ("train", "test")


def layouts() -> tuple[str, ...]:
    """Names of the layouts that can be read, ``"auto"`` apart.

    Example:
        >>> "folder" in layouts()
        True
    """
    return tuple(LAYOUTS)


def read(
    path: str | PathLike[str],
    *,
    part: str = "train",
    layout: str = AUTO,
    columns: Columns = DETECTED,
    labels: str | None = None,
    classes: Sequence[str] | None = None,
    skip_unreadable: bool = False,
) -> Samples:
    """Read samples with their labels.

    Args:
        path: a file or folder, or ``hub:NAME``.
        part: ``"train"`` or ``"test"``. A source that doesn't tell parts apart is read whole for either.
        layout: one of :func:`layouts`; ``"auto"``: by what is there.
        columns: what the columns of a table are; what is not said is detected.
        labels: a file with other given labels, ``"FILE"`` or ``"FILE:KEY"``. The source's own labels, if it has any,
            become the true labels.
        classes: class names of the training set, to which the labels are mapped.
        skip_unreadable: decode every image once and leave out those that cannot be read, with a warning that counts
            and names them.

    Returns:
        The samples, with class names, and with true labels where they are known.

    Raises:
        DataError: something is not as it should be; the message names it.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "iris.csv").write_text("width,length,species\\n1.5,2,rose\\n2.5,3,tulip\\n")
        ...     samples = read(f"{folder}/iris.csv")
        >>> samples.classes, samples.inputs.numbers.tolist(), samples.ids.tolist()
        (('rose', 'tulip'), [[1.5, 2.0], [2.5, 3.0]], ['0', '1'])
    """
    return read_detected(
        path,
        part=part,
        layout=layout,
        columns=columns,
        labels=labels,
        classes=classes,
        skip_unreadable=skip_unreadable,
    )[0]


def read_detected(
    path: str | PathLike[str],
    *,
    part: str = "train",
    layout: str = AUTO,
    columns: Columns = DETECTED,
    labels: str | None = None,
    classes: Sequence[str] | None = None,
    skip_unreadable: bool = False,
    ask_true_label: bool = True,
) -> tuple[Samples, Columns]:
    """Like :func:`read`, and what the columns were taken for, without reading a table twice.

    ``ask_true_label`` is False where the user has no way to say which column has the true labels: no message then
    asks for it.
    """
    request = Request(
        part=part,
        columns=columns,
        optional=labels is not None,
        classes=None if classes is None else tuple(classes),
        check_files=not skip_unreadable,
        true_labels=ask_true_label,
    )
    found = _found(path, layout, request)
    if labels is not None:
        found = _relabelled(found, labels)
    if found.labels is None:
        raise DataError(f"{fspath(path)} has no labels: name their column with --label, or give a file with --labels")
    where = fspath(path)
    if request.classes is None:
        samples = _as_samples(found, found.labels)
    else:
        given = onto(found.labels, request.classes, where)
        true = None if found.true_labels is None else onto(found.true_labels, request.classes, where)
        samples = Samples(found.inputs, given, request.classes, found.ids, true)
    if skip_unreadable and (rows := _readable(samples.inputs, where)) is not None:
        samples = samples.take(rows)
    if request.classes is None and part == "train":
        _check_classes(samples, where)
    return samples, columns if found.columns is None else found.columns


def read_inputs(
    path: str | PathLike[str],
    *,
    part: str = "test",
    layout: str = AUTO,
    columns: Columns = DETECTED,
    skip_unreadable: bool = False,
) -> Unlabelled:
    """Read samples to predict; labels are not looked at.

    Args:
        path: a file or folder, or ``hub:NAME``; a folder of images needs no class folders.
        part: of a source that has parts; where it has no test part it is read whole.
        layout: one of :func:`layouts`, or ``"auto"``.
        columns: what the training table's columns were, from :func:`detect_columns`.
        skip_unreadable: as for :func:`read`.
    """
    request = Request(part=part, columns=columns, labelled=False, check_files=not skip_unreadable)
    found = _found(path, layout, request)
    if skip_unreadable and (rows := _readable(found.inputs, fspath(path))) is not None:
        return Unlabelled(found.inputs.take(rows), found.ids[rows])
    return Unlabelled(found.inputs, found.ids)


def has_part(path: str | PathLike[str], part: str, layout: str = AUTO) -> bool:
    """Whether the source brings this part; one that doesn't tell parts apart is all training set."""
    _check_part(part)
    source, chosen = choose(path, layout)
    parts = chosen.parts(source)
    return part in parts if parts else part == "train"


def detect_columns(
    path: str | PathLike[str], columns: Columns = DETECTED, *, layout: str = AUTO, own_labels: bool = True
) -> Columns:
    """What the columns of a table are taken for, to be given again for further files of its kind.

    Args:
        path: a source; for one that is no table ``columns`` come back as they are.
        columns: what is known already.
        layout: one of :func:`layouts`, or ``"auto"``.
        own_labels: False where the labels come from a file of their own and the table need not have any.

    Returns:
        All of them; ``ignore`` holds those that are not used.
    """
    _, chosen = choose(path, layout)
    if not isinstance(chosen, (TableFile, Hub)):
        return columns
    found = _found(path, layout, Request(columns=columns, check_files=False, optional=not own_labels))
    return columns if found.columns is None else found.columns


def _found(path: str | PathLike[str], layout: str, request: Request) -> Found:
    _check_part(request.part)
    source, chosen = choose(path, layout)
    parts = chosen.parts(source)
    if parts and request.part not in parts and not request.labelled:
        request = replace(request, part="train")
    if parts and request.part not in parts:
        raise DataError(
            f"{source} has no {request.part} part, only {', '.join(sorted(parts))}: name a file or folder of its own"
        )
    try:
        found = chosen.read(source, request)
    except OSError as error:
        raise DataError(f"{error.filename or source} cannot be read: {error.strerror or error}") from error
    if not len(found.ids):
        raise DataError(f"{source} holds no samples: give at least two")
    return found


def _check_part(part: str) -> None:
    if part not in _PARTS:
        raise OptionError(f"part {part!r} is unknown: {nearest(part, _PARTS)}")


def _relabelled(found: Found, labels: str) -> Found:
    """The labels of the file as the given ones, the source's own as the true ones."""
    file = read_labels(labels, found.ids)
    own = found.labels if found.labels is not None else found.true_labels
    if own is None:
        return replace(found, labels=from_words(file.words, file.where, typed=True))
    if all(name.lstrip("-").isdecimal() for name in own.names):
        # Numbered classes: the file may hold one that the source happens not to.
        names = np.array(own.names, dtype=object)
        both = from_words(np.concatenate([file.words, names[own.indices]]), file.where)
        given = ClassLabels(both.indices[: len(found.ids)], both.names)
        own = ClassLabels(both.indices[len(found.ids) :], both.names)
    else:
        read = from_words(file.words, file.where, typed=True)
        given = ClassLabels(onto(read, own.names, file.where), own.names)
    if file.clean is not None:
        clean = onto(from_words(file.clean, file.where, typed=True), own.names, file.where)
        if len(clean) != len(own.indices) or (clean != own.indices).any():
            raise DataError(
                f"{file.where} is for samples in another order: the true labels in the file differ from the data's; "
                "use the file that belongs to this data set"
            )
    return replace(found, labels=given, true_labels=own)


def _as_samples(found: Found, labels: ClassLabels) -> Samples:
    true = None if found.true_labels is None else found.true_labels.indices
    return Samples(found.inputs, labels.indices, labels.names, found.ids, true)


def _readable(inputs: Inputs, where: str) -> NDArray[np.int64] | None:
    """The rows whose images can be read, with a warning about the others; None: all."""
    if not isinstance(inputs, ImageFiles):
        return None
    bad = image_files.unreadable([inputs.path(row) for row in range(len(inputs))])
    if not bad:
        return None
    if len(bad) == len(inputs):
        raise DataError(f"none of the {len(bad)} images of {where} can be read: {bad[0][1]}")
    named = shortened([str(inputs.paths[row]) for row, _ in bad])
    warnings.warn(
        f"{len(bad)} of {len(inputs)} images of {where} cannot be read and are left out: {named}", NarlWarning, 4
    )
    return np.delete(np.arange(len(inputs)), [row for row, _ in bad])


def _check_classes(samples: Samples, where: str) -> None:
    if len(samples.classes) < 2:
        raise DataError(
            f"{where} has one class only ({shortened(samples.classes)}): a classifier needs two or more; check the "
            "labels (--label)"
        )
    empty = [name for name, count in zip(samples.classes, samples.class_counts, strict=True) if not count]
    if empty and samples.true_labels is None:
        raise DataError(f"{where} has no sample of {shortened(empty)}: add some, or leave the class out")
