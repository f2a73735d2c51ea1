"""The samples that a run was trained on, read once more to be looked at."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.data import read
from narl.data.samples import Rows, Samples
from narl.errors import DataError
from narl.train.run_folder import RunFolder
from narl.train.settings import Settings


def read_samples(folder: RunFolder) -> Samples:
    """The data that a run was trained on, read as it was then; clean and test samples are among it."""
    with folder.understood() as config:
        settings = Settings.from_json(config["settings"])
        columns = Settings.from_json({"data": "", "columns": config["columns"]}).columns
    return read.read(
        settings.data,
        layout=settings.layout,
        columns=columns,
        labels=settings.labels,
        skip_unreadable=settings.skip_unreadable,
    )


def rows_of(ids: NDArray[np.str_], samples: Samples, where: str) -> Rows:
    """Where samples stand in a data set.

    Args:
        ids: their names.
        samples: the data set.
        where: what it is called in messages.

    Raises:
        DataError: one of them is not there.
    """
    order = np.argsort(samples.ids, kind="stable")
    places = np.minimum(np.searchsorted(samples.ids, ids, sorter=order), len(order) - 1)
    rows = order[places]
    missing = samples.ids[rows] != ids
    if missing.any():
        raise DataError(
            f"{int(missing.sum()):,} samples of the run are not in {where} any more, first "
            f"{str(ids[missing.argmax()])!r}: restore the data that the run was trained on"
        )
    return rows


def eight_bits(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """Pixels that can be shown, whatever range they have.

    Args:
        pixels: ``(H, W, C)``, uint8 or floats. Floats in 0 … 1 or 0 … 255 are taken for what they are; of others the
            least becomes black and the largest white.

    Example:
        >>> eight_bits(np.array([[[-1.0], [1.0]]])).ravel().tolist()
        [0, 255]
    """
    if pixels.dtype == np.uint8:
        return pixels
    values = np.nan_to_num(pixels.astype(np.float64), posinf=0, neginf=0)
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if low < 0 or high > 255:
        values = (values - low) / ((high - low) or 1.0)
        high = 1.0
    return np.asarray(np.round(values * 255 if high <= 1 else values), dtype=np.uint8)
