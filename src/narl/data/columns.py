"""Which column of a table is what: named by the user, or told by its name and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from narl.data.class_labels import shortened
from narl.data.column_looks import LABEL_NAMES, TRUE_LABELS, label_like, look, named_text
from narl.data.column_questions import Answers, listed, question
from narl.data.raw_table import RawTable
from narl.errors import DataError, nearest


@final
@dataclass(frozen=True)
class Columns:
    """What the columns of a table are; what is not said is detected.

    Args:
        label: the given labels.
        true_label: the true labels, where they are known.
        id: a name for every sample.
        image: paths of image files, from the table's folder.
        text: texts.
        numbers: columns to take as numbers.
        categories: columns to take as categories.
        ignore: columns to leave out.

    Example:
        >>> Columns(label="species", ignore=("date",)).label
        'species'
    """

    label: str | None = None
    true_label: str | None = None
    id: str | None = None
    image: str | None = None
    text: str | None = None
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    @property
    def has_inputs(self) -> bool:
        """Whether they say what the classifier looks at."""
        return bool(self.image or self.text or self.numbers or self.categories)


DETECTED = Columns()
"""Everything is detected."""


def kept_as_words(columns: Columns, names: Iterable[str], *, labelled: bool) -> set[str]:
    """Columns whose cells count as they are written, even where they look like numbers."""
    words = {columns.label, columns.true_label, columns.id, columns.image, columns.text, *columns.categories}
    for name in names:
        plain = name.strip().casefold()
        if plain == "id" or name in TRUE_LABELS or (plain in LABEL_NAMES and columns.label is None and labelled):
            words.add(name)
    return {name for name in words if name is not None} - set(columns.numbers)


def resolve(
    table: RawTable,
    columns: Columns,
    *,
    folder: Path,
    labelled: bool,
    optional: bool,
    strict: bool,
    true_labels: bool = True,
) -> Columns:
    """Say what every column is.

    Args:
        table: what was read.
        columns: what the user said.
        folder: where image paths start.
        labelled: whether a label is looked for; if not, for samples to predict, messages name no flags.
        optional: whether it is no error that there is none.
        strict: columns that are not there are errors, and those that are not mentioned are taken for what they look
            like; otherwise, for a further file of a known kind, they are passed over.
        true_labels: whether the user can say which column has the true labels.

    Returns:
        All columns: what is used, and in ``ignore`` what is not.
    """
    chosen = _Chosen(table, columns, folder, labelled, optional, strict, true_labels)
    return chosen.resolved()


class _Chosen:
    """The columns of one table while it is found out what they are."""

    def __init__(
        self,
        table: RawTable,
        columns: Columns,
        folder: Path,
        labelled: bool,
        optional: bool,
        strict: bool,
        true_labels: bool,
    ) -> None:
        self.table, self.folder = table, folder
        self.labelled, self.optional, self.strict = labelled, optional, strict
        self.true_labels = true_labels
        self.columns = self._named(columns)
        self.look = {name: look(words, folder) for name, words in table.words.items()}
        taken = {self.columns.label, self.columns.true_label, self.columns.id, self.columns.image, self.columns.text}
        taken |= {*self.columns.numbers, *self.columns.categories, *self.columns.ignore}
        self.read = {*table.numbers, *table.words}
        self.open = [name for name in table.names if name in self.read - taken and not self._empty(name)]

    def resolved(self) -> Columns:
        columns = self.columns
        truth = [name for name in TRUE_LABELS if name in self.open]
        if columns.true_label is None and truth:
            columns = replace(columns, true_label=self._take(truth[0]))
        if columns.id is None:
            ids = [name for name in self.open if name.strip().casefold() == "id"]
            columns = replace(columns, id=self._take(ids[0]) if len(ids) == 1 else None)
        if columns.label is None:
            columns = replace(columns, label=self._label(columns))
        if not columns.image and not columns.text and (self.strict or not columns.has_inputs):
            columns = self._inputs(columns)
        used = {columns.label, columns.true_label, columns.id, columns.image, columns.text}
        used |= {*columns.numbers, *columns.categories}
        left = tuple(name for name in self.table.names if name not in used)
        return replace(columns, ignore=tuple(dict.fromkeys((*columns.ignore, *left))))

    def _named(self, columns: Columns) -> Columns:
        single = {"label": columns.label, "true-label": columns.true_label, "id": columns.id}
        single |= {"image": columns.image, "text": columns.text}
        several = {"numbers": columns.numbers, "categories": columns.categories, "ignore": columns.ignore}
        pairs = [(flag, name) for flag, name in single.items() if name is not None]
        pairs += [(flag, name) for flag, names in several.items() for name in names]
        seen: dict[str, str] = {}
        absent = set()
        for flag, name in pairs:
            if name in seen and {seen[name], flag} != {"ignore"}:
                raise DataError(f"column {name!r} is named by --{seen[name]} and --{flag}: name it once")
            seen[name] = flag
            if name in self.table.names or (flag == "ignore" and not self.strict):
                continue
            unlabelled = flag == "label" and (not self.labelled or self.optional)
            if unlabelled or (flag in ("id", "true-label") and not self.strict):
                absent.add(flag)
                continue
            why = f"(--{flag})" if self.labelled else "as the training data had"
            raise DataError(
                f"{self.table.source} has no column {name!r} {why}: {nearest(name, self.table.names)[:300]}"
            )
        if self.strict:
            _refuse_mixture(columns)
        return replace(
            columns,
            label=None if "label" in absent else columns.label,
            true_label=None if "true-label" in absent else columns.true_label,
            id=None if "id" in absent else columns.id,
        )

    def _empty(self, name: str) -> bool:
        if name in self.table.numbers:
            return bool(np.isnan(self.table.numbers[name]).all())
        return self.look[name] == "empty" and name.strip().casefold() not in LABEL_NAMES

    def _take(self, name: str) -> str:
        self.open.remove(name)
        return name

    def _label(self, columns: Columns) -> str | None:
        named = [name for name in self.open if name.strip().casefold() in LABEL_NAMES]
        if not self.labelled:
            if len(named) == 1:
                self.open.remove(named[0])
            return None
        if len(named) == 1:
            return self._take(named[0])
        if len(named) > 1:
            others = "--true-label or --ignore" if columns.true_label is None and self.true_labels else "--ignore"
            self.open = [name for name in self.open if name not in named]
            unclear = {} if self._has_one_input(columns) else self._unclear()
            also = f"; {question(self.table, unclear, self.folder, self._answers(columns))}" if unclear else ""
            raise DataError(
                f"{self.table.source} has {len(named)} columns that could be the label ({shortened(named)}): "
                f"say which with --label, and what the others are with {others}{also}"
            )
        if self.optional:
            return None
        inputs = [name for name in self.open if self.look.get(name) in ("image", "text") or named_text(name)]
        likely = [name for name in self.open if self.look.get(name) == "category" and name not in inputs]
        if inputs:
            likely += [name for name in self.open if name in self.table.numbers and self._counts(name)]
        if len(likely) == 1 and len(self.open) > 1:
            return self._take(likely[0])
        raise DataError(
            f"{self.table.source} has no column called label: say which one holds the labels with --label "
            f"(columns: {shortened(self.table.names)})"
        )

    def _counts(self, name: str) -> bool:
        values = self.table.numbers[name]
        return bool(np.isfinite(values).all() and (values == np.round(values)).all())

    def _inputs(self, columns: Columns) -> Columns:
        source = self.table.source
        images = [name for name in self.open if self.look.get(name) == "image"]
        texts = [name for name in self.open if name in self.look and named_text(name)]
        if columns.numbers or columns.categories:
            images, texts = [], []
        if len(images) > 1 or len(texts) > 1 or (images and texts):
            flags = "--image or --text" if images and texts else "--image" if images else "--text"
            way = f"say which with {flags}" if self.labelled else "leave all but one out"
            raise DataError(f"{source} has several columns to learn from ({shortened(images + texts)}): {way}")
        if images:
            return replace(columns, image=images[0])
        if texts:
            return replace(columns, text=texts[0])
        texts = [name for name in self.open if self.look.get(name) == "text"]
        if len(texts) == 1 and self.open == texts and not columns.has_inputs:
            return replace(columns, text=texts[0])
        if unclear := self._unclear():
            raise DataError(f"{source}: {question(self.table, unclear, self.folder, self._answers(columns))}")
        numbers = tuple(name for name in self.open if name in self.table.numbers)
        categories = tuple(name for name in self.open if name in self.look)
        columns = replace(columns, numbers=(*columns.numbers, *numbers), categories=(*columns.categories, *categories))
        if not columns.has_inputs:
            empty = [name for name in self.table.names if name in self.read and self._empty(name)]
            also = f"; {shortened(empty)} is empty" if empty else ""
            raise DataError(f"{source} has no column to learn from{also}: add numbers, texts or paths of images")
        return columns

    def _has_one_input(self, columns: Columns) -> bool:
        """Whether there are images or texts to learn from, so that the other columns don't matter."""
        return bool(columns.image or columns.text) or any(
            self.look.get(name) == "image" or (name in self.look and named_text(name)) for name in self.open
        )

    def _unclear(self) -> dict[str, str]:
        """The columns that a person has to decide about, and why."""
        kinds = {name: self.look.get(name, "number") for name in self.open}
        if self.strict:  # labels among the inputs would give the classes away
            kinds |= {name: "label" for name in self.open if label_like(name)}
        return {name: kind for name, kind in kinds.items() if kind not in ("number", "category")}

    def _answers(self, columns: Columns) -> Answers:
        truth = columns.true_label is None and self.true_labels
        return Answers(flags=self.labelled, true_label=truth, text=not (columns.numbers or columns.categories))


def _refuse_mixture(columns: Columns) -> None:
    flags = {"--image": columns.image, "--text": columns.text}
    several = {"--numbers": columns.numbers, "--categories": columns.categories}
    given = [f"{flag} {listed([name])}" for flag, name in flags.items() if name]
    if not given:
        return
    given += [f"{flag} {listed(names)}" for flag, names in several.items() if names]
    if len(given) > 1:
        raise DataError(
            f"{given[0]} and {given[1]} are both given, but images, texts and table columns are not mixed: leave one "
            "out"
        )
