"""Accuracy on clean samples that a method did not learn from: what options are chosen by, so that no test set is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from narl.bench.runs import Run
from narl.bench.tables import Table
from narl.bench.verdicts import Row, over_seeds

_LAST = 5


def heldout(runs: Sequence[Run]) -> dict[str, float | None]:
    """``heldout_mean`` and ``heldout_std`` over seeds, in per cent, of the last five epochs; None: there is none."""
    curves = [run.curves.get("heldout_accuracy") for run in runs]
    mean, deviation = over_seeds([float(np.mean(np.array(curve[-_LAST:], np.float64))) for curve in curves if curve])
    return {"heldout_mean": mean, "heldout_std": deviation}


def table(title: str, found: Sequence[Row], methods: Sequence[str]) -> list[Table]:
    """The rows by their held-out samples; no table where no variant held any out on purpose.

    Args:
        title: of the table.
        found: rows of one data set and schedule.
        methods: in the order of the lines.
    """
    there = [row for row in found if row["heldout_mean"] is not None]
    if not any("held out" in row["method"] for row in there):
        return []
    columns = list(dict.fromkeys((row["noise"], row["rate"]) for row in there))
    by_cell = {(row["method"], row["noise"], row["rate"]): row for row in there}
    lines = tuple(
        (method, *(_cell(by_cell.get((method, *column))) for column in columns))
        for method in methods
        if any((method, *column) in by_cell for column in columns)
    )
    heading = ("method", *(noise if rate is None else f"{noise} {rate:g}" for noise, rate in columns))
    note = (
        "Accuracy, %, on clean samples that were not learned from: mean of the last five epochs ± standard deviation "
        "over seeds. Options are chosen by these; methods without a clean set to learn from hold all of it out."
    )
    return [Table(f"{title}: to choose by", heading, lines, (note,))]


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    return f"{row['heldout_mean']:.1f}" + ("" if row["heldout_std"] is None else f"±{row['heldout_std']:.1f}")
