"""Figure 1: the loss against the label's probability, on samples with wrong and with right labels."""

from __future__ import annotations

import numpy as np
import torch

from narl import losses
from narl.bench.cells import Task
from narl.bench.figures.drawing import (
    ADJUSTED_COLOUR,
    COLUMN,
    FIXED_COLOUR,
    PLAIN_COLOUR,
    Drawing,
    canvas,
    legend_above,
    letter,
    panels,
)
from narl.bench.figures.trainings import Histogram, Library, source

TASK = Task("CIFAR-10", "symmetric", 0.4)
BAND = (0.1, 0.9)
_PROBABILITIES = np.linspace(0.002, 1 - 1e-9, 400)  # both ends have logits
_TOP = 5.0


def draw(library: Library) -> Drawing:
    """Cross entropy, fixed GCE, and GCE with the hyperparameters that the samples ended with.

    GCE falls with q at every probability, so that quantiles of q are quantiles of the loss: the band holds the loss of
    the middle 80 % of the samples, the line is their median.
    """
    run = library.needed("table1", TASK, ["A-GCE"])["A-GCE"][0]
    found = Histogram.of(run, "q")
    fixed = losses.get("gce").defaults["q"]

    figure = canvas(COLUMN, 2.25)
    (axes,) = panels(figure, 1, 2, sharey=True)
    letter(axes, ["wrong labels", "right labels"])
    for panel, wrong in zip(axes, (True, False), strict=True):
        low, middle, high = (found.quantile(share, wrong=wrong) for share in (BAND[0], 0.5, BAND[1]))
        panel.plot(_PROBABILITIES, -np.log(_PROBABILITIES), color=PLAIN_COLOUR, linestyle=":", label="CE")
        panel.plot(_PROBABILITIES, _gce(fixed), color=FIXED_COLOUR, linestyle="--", label=f"GCE, $q$ = {fixed:g}")
        panel.plot(_PROBABILITIES, _gce(middle), color=ADJUSTED_COLOUR, label="A-GCE, median")
        panel.fill_between(
            _PROBABILITIES,
            _gce(high),
            _gce(low),
            color=ADJUSTED_COLOUR,
            alpha=0.25,
            linewidth=0,
            label="A-GCE, 80 % of samples",
        )
        panel.text(0.97, 0.95, f"median $q$ = {middle:.2f}", transform=panel.transAxes, ha="right", va="top")
        panel.set(xlabel="label's probability $p$", xlim=(0, 1), xticks=(0, 0.5, 1), ylim=(0, _TOP))
    axes[0].set_ylabel("loss")
    legend_above(figure, axes[0], columns=2)
    return Drawing(figure, f"A-GCE on {source(run)}; the band holds 80 % of the samples.")


def _gce(q: float) -> list[float]:
    # Two classes suffice: the loss depends on the label's probability alone.
    p = torch.tensor(np.stack([_PROBABILITIES, 1 - _PROBABILITIES], axis=1))
    values: list[float] = losses.gce(p.log(), torch.zeros(len(p), dtype=torch.long), q).tolist()
    return values
