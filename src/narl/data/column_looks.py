"""What a column looks like, by its name and by its words."""

from __future__ import annotations

from pathlib import Path

from narl.data.class_labels import Words
from narl.data.column_questions import has_comma
from narl.data.image_files import is_image
from narl.data.raw_table import as_number, is_missing

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
TRUE_LABELS = ("true_label", "y_true")
"""Columns of true labels, in order of preference: as ``narl noise`` calls them in tables and in arrays."""
_FEW = 20
_WORDS_OF_A_TEXT = 3.0
_LONG = 40


def label_like(name: str) -> bool:
    """Whether a column is called as labels are.

    Example:
        >>> [name for name in ("Target", "gold_label", "label_2", "true_class", "age") if label_like(name)]
        ['Target', 'gold_label', 'label_2', 'true_class']
    """
    plain = name.strip().casefold()
    usual = plain in LABEL_NAMES or plain in TRUE_LABELS
    return usual or plain.endswith(("_label", "_labels")) or plain.startswith(("label_", "true_", "gold_"))


def look(words: Words, folder: Path) -> str:
    """What a column of words looks like: image, lost image, text, category, mixed, commas, unclear or empty."""
    distinct = [word for word in dict.fromkeys(words.tolist()) if not is_missing(word)]
    if not distinct:
        return "empty"
    if all(map(is_image, distinct)):
        first = distinct[0]
        return "image" if len(first) < 4096 and "\0" not in first and (folder / first).is_file() else "lost image"
    if any(map(has_comma, distinct)) and all(has_comma(word) or as_number(word) is not None for word in distinct):
        return "commas"
    spaces = sum(len(word.split()) for word in distinct) / len(distinct)
    length = sum(map(len, distinct)) / len(distinct)
    differ = len(distinct) > len(words) / 2
    if (differ and (spaces >= _WORDS_OF_A_TEXT or length > _LONG)) or spaces >= 2 * _WORDS_OF_A_TEXT:
        return "text"
    numbers = sum(as_number(word) is not None for word in distinct)
    if len(distinct) > _FEW and numbers > len(distinct) / 2:
        return "mixed"
    return "unclear" if differ and len(distinct) > _FEW else "category"


def named_text(name: str) -> bool:
    """Whether a column is called as texts are."""
    return name.strip().casefold() in TEXT_NAMES
