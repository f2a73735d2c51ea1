"""The sets of a run: what is trained on, learned from, chosen by and tested on, checked to share no sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from narl.data import clean as clean_sets
from narl.data import overlap, read
from narl.data.id_file import is_id_file, read_id_file
from narl.data.joining import joined
from narl.data.samples import Labels, Samples, Table
from narl.errors import DataError, OptionError
from narl.train.settings import Settings

_MANY_CLEAN = 0.2  # of the training samples
_HELD_OUT_TEST = 0.1
_LOOKED_AT = 20_000


@final
@dataclass(frozen=True, eq=False)
class Sets:
    """The sets of a run.

    Args:
        train: what the classifier is trained on, with the given labels; clean samples that are trained on as well come
            last, with the checked ones.
        clean: what the loss is learned from; None without one.
        heldout: clean samples that choose the epoch; None without any.
        test: what accuracy is measured on; None without one.
        columns: what a table's columns were taken for.
        notes: what a person should know about how the sets came to be.
        checked: ids of those training samples that are clean ones; none unless the settings say so.
        also: further test sets, by name.
        wrong: share of the clean samples that had been given another label; None where that is not known.
        unjudged: how many of the test set's samples would else be trained on, with labels that nobody has checked.
    """

    train: Samples
    clean: Samples | None
    heldout: Samples | None
    test: Samples | None
    columns: read.Columns
    notes: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    also: Mapping[str, Samples] = field(default_factory=dict)
    wrong: float | None = None
    unjudged: int = 0

    @property
    def unchecked(self) -> NDArray[np.int64]:
        """Rows of the training samples whose labels nobody has checked."""
        return np.flatnonzero(~np.isin(self.train.ids, np.array(self.checked, dtype=np.str_)))

    @property
    def unseen(self) -> tuple[Samples, ...]:
        """The clean samples that the classifier is not trained on."""
        parts = (self.heldout,) if self.checked else (self.clean, self.heldout)
        return tuple(samples for samples in parts if samples is not None)

    def not_learned_from(self) -> Sets:
        """For a method that learns nothing from clean samples: those that it is not trained on choose the epoch."""
        if self.clean is None:
            return self
        return replace(self, clean=None, heldout=self.heldout if self.checked else self.clean)

    @property
    def mislabelled(self) -> NDArray[np.bool_] | None:
        """Which training samples have a wrong label, ``(N,)``, where the truth is known."""
        return None if self.train.true_labels is None else self.train.labels != self.train.true_labels

    def fingerprint(self) -> str:
        """Changes when a sample, a label or a class is added, removed or changed in any set.

        Of images in files, all sizes and the contents of at most 10,000 count.
        """
        digest = hashlib.blake2b(digest_size=16)
        for name in self.also:
            digest.update(json.dumps(name).encode())
        for samples in (self.train, self.clean, self.heldout, self.test, *self.also.values()):
            if samples is None:
                digest.update(b"none")
                continue
            digest.update(json.dumps([samples.classes, samples.ids.tolist()]).encode())
            for labels in (samples.labels, samples.true_labels):
                digest.update(b"none" if labels is None else np.ascontiguousarray(labels).tobytes())
            digest.update(samples.inputs.fingerprint())
        return digest.hexdigest()


def prepare(settings: Settings, *, heldout: float) -> Sets:
    """Read the data and make the sets.

    Args:
        settings: where they are and how they are split.
        heldout: share of the clean set that chooses the epoch.

    Returns:
        Sets that share no sample, unless the settings allow it.
    """
    notes: list[str] = []
    train, columns = read.read_detected(
        settings.data,
        layout=settings.layout,
        columns=settings.columns,
        labels=settings.labels,
        skip_unreadable=settings.skip_unreadable,
    )
    known = replace(settings, columns=columns)
    if train.kind == "image" and columns.image is None and columns != read.Columns() and Path(settings.data).is_dir():
        raise OptionError(
            f"--label, --text and the like name columns of tables, {settings.data} is a folder: leave them out"
        )
    own_test = settings.test == "auto" and read.has_part(settings.data, "test", layout=settings.layout)
    test = _read(known, settings.data, "test", train.classes) if own_test else None
    given = train
    train, clean = _take_named(known, train, notes)
    if settings.limit is not None and settings.limit < len(train):
        train = clean_sets.limit(train, settings.limit, seed=settings.seed)
    unjudged = 0
    if test is None:
        before = len(train)
        train, test = _hold_out_test(known, train, notes)
        unjudged = before - len(train) if test is not None and test.true_labels is None else 0
    if clean is None:
        train, clean = _take_clean(known, train, notes)
    if clean is not None:
        _check_clean(clean, settings.clean)
    wrong = None if clean is None else _wrong_among(given, clean, settings.clean)
    if clean is not None and settings.train_on_clean:
        train = _replaced(train, clean, notes)
    also = {name: _further(known, name, path, train) for name, path in settings.also_test.items()}
    train = _without_overlap(settings.overlap, train, clean, {"test": test, **also}, notes)
    kept = None
    if clean is not None and heldout:
        clean, kept = clean_sets.split(clean, heldout, seed=settings.seed)
    checked: tuple[str, ...] = ()
    if clean is not None and settings.train_on_clean:
        unchecked = len(train)
        train = joined(train, clean if _is_own(settings.clean) else _renamed(clean, train))
        checked = tuple(train.ids[unchecked:].tolist())
        notes.append(f"{len(checked)} clean samples are trained on as well, with their checked labels")
    elif clean is not None and len(clean) >= _MANY_CLEAN * len(train):
        notes.append(
            f"{len(clean)} clean samples beside {len(train)} others are many to leave out of the training: "
            "--train-on-clean trains on them as well"
        )
    if (train.class_counts == 0).any():
        empty = [name for name, count in zip(train.classes, train.class_counts, strict=True) if not count]
        raise DataError(
            f"no training sample is left of class {empty[0]!r}: take fewer out for the clean and the test set, "
            "or leave the class out"
        )
    notes.extend(
        f"column {name!r} tells the label exactly: if it is another form of it, leave it out with --ignore {name}"
        for name in _telling(train)
    )
    if train.true_labels is not None:
        notes.append("true labels are known: used in the clean and the test set and in reports, not in training")
    return Sets(train, clean, kept, test, columns, tuple(notes), checked, also, wrong, unjudged)


def _read(settings: Settings, path: str, part: str, classes: Sequence[str]) -> Samples:
    """A further set of the training data's kind, with its true labels where they are known."""
    columns = settings.columns
    if columns.true_label is not None:
        columns = replace(columns, label=columns.true_label, true_label=None)  # given labels play no part here
    samples = read.read(
        path,
        part=part,
        layout=settings.layout if path == settings.data else "auto",
        columns=columns,
        classes=classes,
        skip_unreadable=settings.skip_unreadable,
    )
    return _trusted(samples)


def _hold_out_test(settings: Settings, train: Samples, notes: list[str]) -> tuple[Samples, Samples | None]:
    if settings.test == "none":
        return train, None
    share = _HELD_OUT_TEST if settings.test == "auto" else _as_share(settings.test)
    if share is None:
        return train, _read(settings, settings.test, "test", train.classes)
    train, test = clean_sets.split(train, share, seed=settings.seed)
    if test.true_labels is None:
        held = len(test) / (len(train) + len(test))
        notes.append(
            f"{len(test)} samples ({held:.0%}) are held out as the test set, with their given labels: where those are "
            "wrong the accuracy is too low. Give checked ones with --test, or --test none."
        )
    return train, _trusted(test)


def _further(settings: Settings, name: str, path: str, train: Samples) -> Samples:
    """A further test set, with the training set's classes."""
    samples = _read(settings, path, "test", train.classes)
    if samples.kind != train.kind:
        raise DataError(
            f"--also-test {name}={path} holds {samples.kind}s, the training data {train.kind}s: give the same"
        )
    return samples


def _trusted(samples: Samples) -> Samples:
    """With the true labels as labels, where they are known."""
    return samples if samples.true_labels is None else replace(samples, labels=samples.true_labels)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _as_share(text: str) -> float | None:
    if not _is_number(text):
        return None
    share = float(text)
    if not 0 < share < 1:
        raise OptionError(f"--test {text} is no share: give a number between 0 and 1, a file, a folder, auto or none")
    return share


def _telling(train: Samples) -> list[str]:
    """Columns of a table that have one value for each class, and that of the class."""
    table = train.inputs
    if not isinstance(table, Table):
        return []
    columns: dict[str, NDArray[Any]] = dict(zip(table.number_names, table.numbers.T, strict=True))
    columns |= {name: values.astype(str) for name, values in zip(table.category_names, table.categories.T, strict=True)}
    return [name for name, values in columns.items() if any(_same_groups(values, y) for y in _labels(train))]


def _labels(samples: Samples) -> list[Labels]:
    return [labels for labels in (samples.labels, samples.true_labels) if labels is not None]


def _same_groups(values: NDArray[Any], labels: Labels) -> bool:
    """Whether equal values have equal labels, and the other way round."""
    _, codes = np.unique(values[:_LOOKED_AT], return_inverse=True)
    pairs = len(np.unique(codes.astype(np.int64) * (int(labels.max()) + 1) + labels[:_LOOKED_AT]))
    return pairs == len(np.unique(codes)) == len(np.unique(labels[:_LOOKED_AT]))


def _take_named(settings: Settings, train: Samples, notes: list[str]) -> tuple[Samples, Samples | None]:
    """Clean samples that are named by id: before a draw could give them to another set."""
    if settings.clean.isdecimal() or not _is_own(settings.clean):
        return train, None
    rest, clean = clean_sets.take_ids(train, *read_id_file(settings.clean))
    _note_copies(train, rest, clean, notes)
    return rest, clean


def _take_clean(settings: Settings, train: Samples, notes: list[str]) -> tuple[Samples, Samples | None]:
    if settings.clean == "none":
        return train, None
    if _is_number(settings.clean) and not settings.clean.isdecimal():
        raise OptionError(
            f"--clean {settings.clean} is no number of samples: give a whole one, a file, a folder or none"
        )
    if settings.clean.isdecimal():
        rest, drawn = clean_sets.draw_clean(train, int(settings.clean), seed=settings.seed)
        if train.true_labels is None:
            notes.append(
                f"the labels of {len(drawn)} training samples are taken as right, as --clean {settings.clean} says"
                + ("" if settings.train_on_clean else "; they are not trained on")
            )
        _note_copies(train, rest, drawn, notes)
        return rest, drawn
    samples = _read(settings, settings.clean, "train", train.classes)
    if samples.kind != train.kind:
        raise DataError(
            f"--clean {settings.clean} holds {samples.kind}s, the training data {train.kind}s: give the same"
        )
    return train, samples


def _is_own(clean: str) -> bool:
    """Whether a clean set consists of samples of the training data."""
    return clean != "none" and (clean.isdecimal() or is_id_file(clean))


def _replaced(train: Samples, clean: Samples, notes: list[str]) -> Samples:
    """The training samples that are no clean ones, nor copies: those are trained on with the checked labels alone."""
    left = overlap.without_shared(train, [clean])
    if len(left) < len(train):
        notes.append(f"training samples that are also clean ones: {len(train) - len(left)}; their checked labels count")
    return left


def _wrong_among(given: Samples, clean: Samples, name: str) -> float | None:
    """The share of clean samples that had been given another label; None if they are others, or have the given ones."""
    if not _is_own(name):
        return None
    order = np.argsort(given.ids)
    wrong = given.labels[order[np.searchsorted(given.ids, clean.ids, sorter=order)]] != clean.labels
    named = not name.isdecimal() and read_id_file(name)[1] is not None
    return float(wrong.mean()) if named or given.true_labels is not None else None


def _renamed(clean: Samples, train: Samples) -> Samples:
    """Samples from elsewhere under names that no training sample has."""
    mark = "clean:"
    while np.char.startswith(train.ids, mark).any():
        mark = f"clean:{mark}"
    return replace(clean, ids=np.char.add(mark, clean.ids))


def _check_clean(clean: Samples, name: str) -> None:
    missing = [label for label, count in zip(clean.classes, clean.class_counts, strict=True) if not count]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise DataError(
            f"the clean set (--clean {name}) has no sample of class {missing[0]!r}{more}: it needs one or more of "
            "every class"
        )


def _note_copies(train: Samples, rest: Samples, clean: Samples, notes: list[str]) -> None:
    copies = len(train) - len(rest) - len(clean)
    if copies:
        notes.append(f"{copies} more training samples are left out: they are copies of clean ones")


def _without_overlap(
    rule: str, train: Samples, clean: Samples | None, tests: Mapping[str, Samples | None], notes: list[str]
) -> Samples:
    if rule not in ("refuse", "drop", "allow"):
        raise OptionError(f"overlap = {rule!r} is unknown: use 'refuse', 'drop' or 'allow'")
    others = {name: samples for name, samples in (("clean", clean), *tests.items()) if samples is not None}
    if rule == "drop":
        left = overlap.without_shared(train, list(others.values()))
        if len(left) < len(train):
            notes.append(f"training samples that are also clean or test samples: {len(train) - len(left)}, left out")
        train = left
    if rule == "allow":
        found = overlap.overlaps({"train": train, **others}, together=tests)
        notes.extend(f"allowed: {entry.describe()}" for entry in found)
    else:
        overlap.check_disjoint({"train": train, **others}, together=tests)
    return train
