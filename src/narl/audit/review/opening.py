"""From the folder of a run to a desk: its verdicts, and its samples read once more."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from narl import audit
from narl.audit.review.answers import FILE
from narl.audit.review.contents import Contents
from narl.audit.review.desk import Desk
from narl.audit.samples import read_samples, rows_of
from narl.audit.verdicts import Verdicts
from narl.data.samples import Rows, Samples
from narl.errors import NarlWarning
from narl.train.run_folder import RunFolder


def open_desk(run: Path, *, order: str = "informative", once: bool = False) -> Desk:
    """The desk for a run.

    Args:
        run: its folder.
        order: what comes first.
        once: whether a sample is shown to one labeller only.

    Returns:
        The desk; close it in the end.

    Raises:
        RunFolderError: the folder is no run, or has no record of its samples.
        DataError: the data is not what the run was trained on.
    """
    folder = RunFolder.open(run)
    samples = read_samples(folder)
    verdicts = audit.from_run(run)
    rows = rows_of(verdicts.ids, samples, str(folder.config["settings"]["data"]))
    _warn_of_changes(verdicts, samples, rows)
    desk = Desk(verdicts, Contents(samples.inputs, rows), run / FILE, order=order, once=once)
    if desk.strangers:
        warnings.warn(
            f"{desk.strangers:,} answers in {run / FILE} are about samples that this run has not; they are kept",
            NarlWarning,
            stacklevel=2,
        )
    return desk


def _warn_of_changes(verdicts: Verdicts, samples: Samples, rows: Rows) -> None:
    now = np.array(samples.classes, dtype=object)[samples.labels[rows]]
    then = np.array(verdicts.class_names, dtype=object)[verdicts.given]
    changed = int((now != then).sum())
    if changed:
        warnings.warn(
            f"{changed:,} labels have changed since the run was trained: what is reviewed are the labels of then",
            NarlWarning,
            stacklevel=3,
        )
