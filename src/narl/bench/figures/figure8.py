"""Figure 8: the training loss over epochs, fixed and adjusted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from narl.bench.cells import Task
from narl.bench.figures.drawing import (
    ADJUSTED_COLOUR,
    COLUMN,
    FIXED_COLOUR,
    Drawing,
    canvas,
    legend_above,
    letter,
    panels,
)
from narl.bench.figures.trainings import Library, listed, source
from narl.bench.runs import Run
from narl.errors import ResultsError

TASK = Task("CIFAR-10", "symmetric", 0.4)
LOSSES = ("GCE", "JS")
_LOOKS = {"fixed": ("", FIXED_COLOUR, "--"), "adjusted": ("A-", ADJUSTED_COLOUR, "-")}


def draw(library: Library) -> Drawing:
    """Mean training loss an epoch: the mean over seeds, and a band of one standard deviation to each side."""
    found = library.needed("table1", TASK, [method for loss in LOSSES for method in (loss, f"A-{loss}")])
    every = [run for runs in found.values() for run in runs]
    at = sorted({float(epoch) for run in every for epoch in run.settings.get("milestones", ())})

    figure = canvas(COLUMN, 2.2)
    (axes,) = panels(figure, 1, len(LOSSES))
    letter(axes, LOSSES)
    for panel, loss in zip(axes, LOSSES, strict=True):
        for kind, (prefix, colour, dashes) in _LOOKS.items():
            values = _losses(found[prefix + loss])
            epochs, mean = np.arange(1, values.shape[1] + 1), values.mean(axis=0)
            panel.plot(epochs, mean, color=colour, linestyle=dashes, label=kind)
            if len(values) > 1:
                spread = values.std(axis=0, ddof=1)
                panel.fill_between(epochs, mean - spread, mean + spread, color=colour, alpha=0.25, linewidth=0)
        # An epoch's loss stands at its number; the rate falls between two of them.
        for place, milestone in enumerate(at):
            label = "" if place else "learning rate ÷ 10"
            panel.axvline(milestone + 0.5, color="grey", linestyle=":", linewidth=0.8, zorder=0, label=label)
        panel.set(xlabel="epoch", xlim=(1, values.shape[1]))
    axes[0].set_ylabel("training loss")
    legend_above(figure, axes[0], columns=3)
    seeds = [run.cell.seed for run in every]
    return Drawing(figure, f"{source(every[0], seeds)}; mean over seeds, the band one standard deviation to each side.")


def _losses(runs: list[Run]) -> NDArray[np.float64]:
    """One row a seed, one column an epoch."""
    found = [[np.nan if value is None else value for value in run.curves.get("loss", [])] for run in runs]
    lengths = {len(row) for row in found}
    if len(lengths) > 1 or 0 in lengths:
        raise ResultsError(
            f"the trainings of {runs[0].cell.method} on {runs[0].cell.task} have losses of {listed(_texts(lengths))} "
            f"epochs: remove the files of those that are not whole, and narl bench run makes them again"
        )
    return np.array(found, dtype=np.float64)


def _texts(lengths: set[int]) -> list[str]:
    return [str(length) for length in sorted(lengths)]
