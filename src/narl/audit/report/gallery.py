"""The samples that a report shows: which ones, and what is seen of them, small enough for one file."""

from __future__ import annotations

import base64
import io
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from narl.audit.samples import eight_bits
from narl.audit.verdicts import Verdicts
from narl.data.image_files import decode
from narl.data.samples import ImageFiles, Images, Inputs, Rows, Table, Texts, in_threads
from narl.errors import DataError

MOST: Final = 400
"""So many samples are shown at most."""

LARGEST_SIDE: Final = 128
"""Larger images are made smaller; smaller ones stay as they are, and the page enlarges them."""

BUDGET: Final = 3_500_000
"""Bytes that their contents may take together: with them the page stays below 10 MB."""

LONGEST_NAME: Final = 200
_LONGEST_ID = 300
_LONGEST_TEXT = 1_500
_MOST_COLUMNS = 40


def choose(verdicts: Verdicts, most: int = MOST) -> NDArray[np.intp]:
    """Samples worth showing: half of them the most suspicious, half so that every confusion has its own.

    Args:
        verdicts: of all samples.
        most: so many at most.

    Returns:
        Rows, the most suspicious first.

    Example:
        >>> from narl.audit.verdicts import NoiseEstimate
        >>> score, sure = np.array([0.1, 0.2, 0.3, 0.9]), np.eye(2)
        >>> suggested = np.array([1, 1, 0, 1])
        >>> verdicts = Verdicts(
        ...     np.array(list("abcd")), np.array([0, 0, 1, 1]), suggested, score, score, score < 0.5, None, score,
        ...     np.zeros(4, int), ("cat", "dog"), NoiseEstimate(0.5, 0.4, 0.6, sure, sure, sure))
        >>> choose(verdicts, 2).tolist()
        [0, 2]
    """
    order = verdicts.order()
    pair = (verdicts.given * len(verdicts.class_names) + verdicts.suggested)[order]
    by_pair = np.argsort(pair, kind="stable")
    _, first, sizes = np.unique(pair[by_pair], return_index=True, return_counts=True)
    rank = np.empty(len(order), dtype=np.int64)  # of a sample among those of its confusion
    rank[by_pair] = np.arange(len(order)) - np.repeat(first, sizes)
    doubted = verdicts.wrong[order] | (verdicts.suggested != verdicts.given)[order]
    worth = np.lexsort((np.arange(len(order)), rank, ~doubted))
    places = np.arange(min(len(order), most // 2))
    others = worth[~np.isin(worth, places)]
    chosen: NDArray[np.intp] = order[np.sort(np.concatenate([places, others[: most - len(places)]]))]
    return chosen


def entries(
    verdicts: Verdicts,
    chosen: NDArray[np.intp],
    inputs: Inputs | None,
    rows: Rows | None,
    true: NDArray[np.int64] | None,
) -> list[dict[str, Any]]:
    """Samples as the page shows them.

    Args:
        verdicts: of all samples.
        chosen: rows of those to show.
        inputs: the data set's samples; None where they cannot be read: then names and verdicts are shown.
        rows: where every sample stands in the data set.
        true: the true labels, where they are known.

    Returns:
        One entry a sample; fewer than were chosen where their contents would make the page too large.
    """
    made: list[dict[str, Any]] = []
    contents: list[dict[str, Any]] = [{} for _ in chosen]
    if inputs is not None and rows is not None:
        contents = in_threads(lambda place: _content(inputs, int(rows[chosen[place]])), range(len(chosen)))
    spent = 0
    for row, content in zip(chosen.tolist(), contents, strict=True):
        spent += _size(content)
        if spent > BUDGET:
            break
        probability = None if verdicts.probability is None else float(verdicts.probability[row])
        made.append(
            {
                "id": cut(str(verdicts.ids[row]), _LONGEST_ID),
                "given": int(verdicts.given[row]),
                "suggested": int(verdicts.suggested[row]),
                "confidence": round(float(verdicts.confidence[row]), 4),
                "score": round(float(verdicts.score[row]), 5),
                "wrong": bool(verdicts.wrong[row]),
                "probability": probability if probability is None else round(probability, 4),
                "margin": round(float(verdicts.margin[row]), 3),
                "true": None if true is None else int(true[row]),
                **content,
            }
        )
    return made


def cut(text: str, longest: int) -> str:
    """A text of at most so many characters.

    Example:
        >>> cut("a long name", 6)
        'a lon…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _content(inputs: Inputs, row: int) -> dict[str, Any]:
    if isinstance(inputs, Texts):
        text = str(inputs.texts[row])
        return {"text": text[:_LONGEST_TEXT], "left_out": max(0, len(text) - _LONGEST_TEXT)}
    if isinstance(inputs, Table):
        cells = [(name, f"{value:.6g}") for name, value in zip(inputs.number_names, inputs.numbers[row], strict=True)]
        cells += zip(inputs.category_names, map(str, inputs.categories[row].tolist()), strict=True)
        shown = [[cut(name, LONGEST_NAME), cut(value, LONGEST_NAME)] for name, value in cells[:_MOST_COLUMNS]]
        return {"cells": shown, "left_out": max(0, len(cells) - _MOST_COLUMNS)}
    try:
        if isinstance(inputs, Images):
            return {"image": _thumbnail(eight_bits(inputs.pixels[row]))}
        if isinstance(inputs, ImageFiles):
            return {"image": _thumbnail(decode(inputs.path(row), None, 3).transpose(1, 2, 0))}
    except DataError:
        return {"unreadable": True}
    return {}


def _thumbnail(pixels: NDArray[np.uint8]) -> str:
    """An image as a data URI: small ones without loss, since every pixel is seen."""
    import PIL.features
    import PIL.Image

    image = PIL.Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    stream = io.BytesIO()
    if max(image.size) > LARGEST_SIDE:
        image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        form = "WEBP" if PIL.features.check("webp") else "JPEG"
        image.save(stream, form, quality=75)
    else:
        form = "PNG"
        image.save(stream, form, optimize=True)
    return f"data:image/{form.lower()};base64,{base64.b64encode(stream.getvalue()).decode()}"


def _size(content: dict[str, Any]) -> int:
    """Bytes in the page, at least about: other letters than the Latin ones take six as JSON."""
    if "image" in content:
        return len(content["image"])
    words = [content["text"]] if "text" in content else [word for pair in content.get("cells", ()) for word in pair]
    return sum(len(word) + 11 * sum(not " " <= letter <= "~" for letter in word) for word in words)
