"""What a person sees of a sample: an image as a PNG, a text, or a row of a table."""

from __future__ import annotations

import io
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from narl.audit.samples import eight_bits
from narl.data.image_files import decode
from narl.data.samples import ImageFiles, Images, Inputs, Rows, Table, Texts
from narl.errors import DataError

LARGEST: Final = 1024
"""Larger images are made smaller; small ones are enlarged by the page, each pixel a square."""

_LONGEST_TEXT: Final = 100_000
_MOST_COLUMNS: Final = 500


@final
class Contents:
    """What can be seen of the samples of a run.

    Args:
        inputs: a data set's samples.
        rows: which of them are the run's, in the run's order.

    Example:
        >>> texts = Texts(np.array(["first", "second"], dtype=object))
        >>> Contents(texts, np.array([1])).of(0)
        {'kind': 'text', 'text': 'second', 'left_out': 0}
    """

    def __init__(self, inputs: Inputs, rows: Rows) -> None:
        self._inputs, self._rows = inputs, rows
        self.kind = inputs.kind

    def __len__(self) -> int:
        """How many samples."""
        return len(self._rows)

    def of(self, sample: int) -> dict[str, Any]:
        """A sample as plain values; of an image only that it is one."""
        row, inputs = int(self._rows[sample]), self._inputs
        if isinstance(inputs, Texts):
            text = str(inputs.texts[row])
            return {
                "kind": "text",
                "text": text[:_LONGEST_TEXT],
                "left_out": max(0, len(text) - _LONGEST_TEXT),
            }
        if isinstance(inputs, Table):
            cells = [*zip(inputs.number_names, map(_number, inputs.numbers[row].tolist()), strict=True)]
            cells += zip(inputs.category_names, map(str, inputs.categories[row].tolist()), strict=True)
            return {
                "kind": "table",
                "cells": [[name, value] for name, value in cells[:_MOST_COLUMNS]],
                "left_out": max(0, len(cells) - _MOST_COLUMNS),
            }
        return {"kind": "image"}

    def png(self, sample: int) -> bytes:
        """An image, pixel by pixel if it is not too large.

        Raises:
            DataError: the sample is no image, or its file cannot be read.
        """
        row, inputs = int(self._rows[sample]), self._inputs
        if isinstance(inputs, Images):
            pixels = eight_bits(inputs.pixels[row])
        elif isinstance(inputs, ImageFiles):
            pixels = decode(inputs.path(row), None, 3).transpose(1, 2, 0)
        else:
            raise DataError(f"the sample is a {inputs.kind}, not an image: look at its content")
        return _png(pixels)


def _png(pixels: NDArray[np.uint8]) -> bytes:
    import PIL.Image

    image = PIL.Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    image.thumbnail((LARGEST, LARGEST))  # never larger than it was
    stream = io.BytesIO()
    image.save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def _number(value: float) -> str:
    """Seven digits: more are of no use to the eye."""
    return f"{value:.7g}"
