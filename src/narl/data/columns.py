"""Which column of a table is what: named by the user, or told by its name and what it holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np

from narl.data.class_labels import Words, shortened
from narl.data.image_files import is_image
from narl.data.raw_table import RawTable, argument, as_number, is_missing
from narl.errors import DataError, nearest

# fmt: off
LABEL_NAMES = frozenset({
    "label", "labels", "target", "targets", "class", "y", "category",
    "class_name", "class_label", "given_label", "noisy_label",
})
TEXT_NAMES = frozenset({
    "text", "texts", "sentence", "question", "review", "comment", "tweet",
    "content", "document", "body", "message", "utterance",
})
# fmt: on
TRUE_LABEL = "true_label"
_FEW = 20
_WORDS_OF_A_TEXT = 3.0
_LONG = 40


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
        if plain == "id" or name == TRUE_LABEL or (plain in LABEL_NAMES and columns.label is None and labelled):
            words.add(name)
    return {name for name in words if name is not None} - set(columns.numbers)


def resolve(
    table: RawTable, columns: Columns, *, folder: Path, labelled: bool, optional: bool, strict: bool
) -> Columns:
    """Say what every column is.

    Args:
        table: what was read.
        columns: what the user said.
        folder: where image paths start.
        labelled: whether a label is looked for.
        optional: whether it is no error that there is none.
        strict: columns that are not there are errors, and those that are not mentioned are taken for what they look
            like; otherwise, for a further file of a known kind, they are passed over.

    Returns:
        All columns: what is used, and in ``ignore`` what is not.
    """
    chosen = _Chosen(table, columns, folder, labelled, optional, strict)
    return chosen.resolved()


class _Chosen:
    """The columns of one table while it is found out what they are."""

    def __init__(
        self, table: RawTable, columns: Columns, folder: Path, labelled: bool, optional: bool, strict: bool
    ) -> None:
        self.table, self.folder = table, folder
        self.labelled, self.optional, self.strict = labelled, optional, strict
        self.columns = self._named(columns)
        self.look = {name: look(words, folder) for name, words in table.words.items()}
        taken = {self.columns.label, self.columns.true_label, self.columns.id, self.columns.image, self.columns.text}
        taken |= {*self.columns.numbers, *self.columns.categories, *self.columns.ignore}
        self.read = {*table.numbers, *table.words}
        self.open = [name for name in table.names if name in self.read - taken and not self._empty(name)]

    def resolved(self) -> Columns:
        columns = self.columns
        if columns.true_label is None and TRUE_LABEL in self.open:
            columns = replace(columns, true_label=self._take(TRUE_LABEL))
        if columns.id is None:
            ids = [name for name in self.open if name.strip().casefold() == "id"]
            columns = replace(columns, id=self._take(ids[0]) if len(ids) == 1 else None)
        if columns.label is None:
            columns = replace(columns, label=self._label())
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
            raise DataError(
                f"{self.table.source} has no column {name!r} (--{flag}): {nearest(name, self.table.names)[:300]}"
            )
        if columns.image and columns.text:
            raise DataError(
                f"--image {argument(columns.image)} and --text {argument(columns.text)} are both given: give one"
            )
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

    def _label(self) -> str | None:
        named = [name for name in self.open if name.strip().casefold() in LABEL_NAMES]
        if not self.labelled:
            if len(named) == 1:
                self.open.remove(named[0])
            return None
        if len(named) == 1:
            return self._take(named[0])
        if len(named) > 1:
            raise DataError(
                f"{self.table.source} has {len(named)} columns that could be the label ({shortened(named)}): "
                "say which with --label"
            )
        if self.optional:
            return None
        inputs = [name for name in self.open if self.look.get(name) in ("image", "text") or _named_text(name)]
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
        texts = [name for name in self.open if name in self.look and _named_text(name)]
        if columns.numbers or columns.categories:
            images, texts = [], []
        if len(images) > 1 or len(texts) > 1 or (images and texts):
            flags = "--image or --text" if images and texts else "--image" if images else "--text"
            raise DataError(
                f"{source} has several columns to learn from ({shortened(images + texts)}): say which with {flags}"
            )
        if images:
            return replace(columns, image=images[0])
        if texts:
            return replace(columns, text=texts[0])
        texts = [name for name in self.open if self.look.get(name) == "text"]
        if len(texts) == 1 and self.open == texts and not columns.has_inputs:
            return replace(columns, text=texts[0])
        unclear = [name for name in self.open if self.look.get(name) not in (None, "category")]
        if unclear:
            raise DataError(self._question(unclear[0]))
        numbers = tuple(name for name in self.open if name in self.table.numbers)
        categories = tuple(name for name in self.open if name in self.look)
        columns = replace(columns, numbers=(*columns.numbers, *numbers), categories=(*columns.categories, *categories))
        if not columns.has_inputs:
            empty = [name for name in self.table.names if name in self.read and self._empty(name)]
            also = f"; {shortened(empty)} is empty" if empty else ""
            raise DataError(f"{source} has no column to learn from{also}: add numbers, texts or paths of images")
        return columns

    def _question(self, name: str) -> str:
        words, kind = self.table.words[name], self.look[name]
        if kind == "lost image":
            lost = next(word for word in words if not is_missing(word))
            return (
                f"{self.table.source}: column {name!r} names images, but there is no {self.folder / lost}: "
                f"mend the paths, or say --ignore {argument(name)}"
            )
        if kind == "mixed":
            row, word = next((r, w) for r, w in enumerate(words) if not is_missing(w) and as_number(w) is None)
            return (
                f"{self.table.source}: column {name!r} mixes numbers and words (row {row}, counted from 0, has "
                f"{shortened([word])}): mend the cells, say --categories {argument(name)} or --ignore {argument(name)}"
            )
        example = next(word for word in words if not is_missing(word))
        return (
            f"{self.table.source}: column {name!r} ({shortened([example])}, …) could be text, categories or nothing to "
            f"learn from: say --text {argument(name)}, --categories {argument(name)} or --ignore {argument(name)}"
        )


def look(words: Words, folder: Path) -> str:
    """What a column of words looks like: image, lost image, text, category, mixed, unclear or empty."""
    distinct = [word for word in dict.fromkeys(words.tolist()) if not is_missing(word)]
    if not distinct:
        return "empty"
    if all(map(is_image, distinct)):
        first = distinct[0]
        return "image" if len(first) < 4096 and "\0" not in first and (folder / first).is_file() else "lost image"
    spaces = sum(len(word.split()) for word in distinct) / len(distinct)
    length = sum(map(len, distinct)) / len(distinct)
    differ = len(distinct) > len(words) / 2
    if (differ and (spaces >= _WORDS_OF_A_TEXT or length > _LONG)) or spaces >= 2 * _WORDS_OF_A_TEXT:
        return "text"
    numbers = sum(as_number(word) is not None for word in distinct)
    if len(distinct) > _FEW and numbers > len(distinct) / 2:
        return "mixed"
    return "unclear" if differ and len(distinct) > _FEW else "category"


def _named_text(name: str) -> bool:
    return name.strip().casefold() in TEXT_NAMES
