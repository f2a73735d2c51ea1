"""Figure 5: fixed and adjusted losses where most labels of some classes are wrong."""

from __future__ import annotations

import numpy as np

from narl.bench.cells import Task
from narl.bench.figures.drawing import (
    ADJUSTED_COLOUR,
    COLUMN,
    FIXED_COLOUR,
    TUNED_COLOUR,
    Drawing,
    canvas,
    legend_above,
    panels,
)
from narl.bench.figures.trainings import Library, source
from narl.bench.protocols import FIXED

TASK = Task("CIFAR-10", "asymmetric", 0.6)
_LOOKS = {"fixed": (FIXED_COLOUR, "///"), "fixed, tuned": (TUNED_COLOUR, "..."), "adjusted": (ADJUSTED_COLOUR, "")}
_BOX = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}


def draw(library: Library) -> Drawing:
    """Mean test accuracy of the last five epochs: bars of means over seeds, their standard deviation, a dot a seed.

    Fixed losses whose hyperparameters were chosen on the clean set stand between the two, where there are any.
    """
    found = library.needed("figure5", TASK, [method for loss in FIXED for method in (loss, f"A-{loss}")])
    tuned = {loss: library.of("figure5", TASK, loss, tuned=True) for loss in FIXED}
    groups = {
        "fixed": {loss: found[loss] for loss in FIXED},
        "fixed, tuned": {loss: runs for loss, runs in tuned.items() if runs},
        "adjusted": {loss: found[f"A-{loss}"] for loss in FIXED},
    }
    groups = {name: losses for name, losses in groups.items() if losses}

    figure = canvas(COLUMN, 2.3)
    ((panel,),) = panels(figure, 1, 1)
    width = 0.8 / len(groups)
    for place, (name, losses) in enumerate(groups.items()):
        colour, hatch = _LOOKS[name]
        shift = (place - (len(groups) - 1) / 2) * width
        shares = {loss: np.array([100 * run.last5 for run in runs]) for loss, runs in losses.items()}
        x = np.array([FIXED.index(loss) for loss in losses]) + shift
        bars = panel.bar(
            x,
            [float(values.mean()) for values in shares.values()],
            0.92 * width,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            linewidth=0,
            label=name,
        )
        panel.bar_label(bars, fmt="%.1f", label_type="center", fontsize=7, bbox=_BOX, rotation=90 * (len(groups) > 2))
        for at, values in zip(x, shares.values(), strict=True):
            if len(values) > 1:
                panel.errorbar(at, values.mean(), values.std(ddof=1), color="black", linewidth=0.8, capsize=2)
            beside = np.linspace(-0.25, 0.25, len(values)) * width if len(values) > 1 else 0.0
            panel.plot(at + beside, values, "o", color="black", markerfacecolor="white", markersize=2.6, mew=0.6)
    panel.set(xticks=range(len(FIXED)), xticklabels=FIXED, ylabel="test accuracy, %", ylim=(0, 100))
    legend_above(figure, panel, columns=3)
    every = [run for losses in groups.values() for runs in losses.values() for run in runs]
    seeds = [run.cell.seed for run in every]
    return Drawing(figure, f"{source(every[0], seeds)}; means over the last five epochs and over seeds.")
