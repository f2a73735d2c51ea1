"""The demonstration's picture: hyperparameter against margin, over where the samples are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from narl.bench.figures.drawing import FAMILY_COLOURS, FAMILY_STYLES, RIGHT_COLOUR, WRONG_COLOUR

if TYPE_CHECKING:
    from narl.adjuster import Adjuster
    from narl.bench.digits import Verdict


def hyperparameters_by_margin(adjuster: Adjuster | None, verdict: Verdict, path: Path) -> bool:
    """Draw what the adjuster gives as a function of the margin, a line a family, over where the samples are.

    Args:
        adjuster: the learned one.
        verdict: the training samples' margins, and which are mislabelled.
        path: the picture to write.

    Returns:
        Whether it was drawn: False if matplotlib is not installed.
    """
    if adjuster is None or importlib.util.find_spec("matplotlib") is None:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    low, high = (float(verdict.margins.quantile(share)) for share in (0.002, 0.998))
    grid = torch.linspace(low, high, 400)
    curves = adjuster.curves(grid)
    names = list(curves)

    figure = Figure(figsize=(7, 1.6 + 2.2 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(names) + 1, 1, sharex=True, height_ratios=[1, *[1.4] * len(names)], squeeze=False)[:, 0]

    samples, *panels = axes
    bins = torch.linspace(low, high, 60).tolist()
    for wanted, colour, name in ((False, RIGHT_COLOUR, "right"), (True, WRONG_COLOUR, "wrong")):
        margins = verdict.margins[verdict.mislabelled == wanted].clamp(low, high)
        samples.hist(margins.tolist(), bins=bins, color=colour, alpha=0.75, label=f"label is {name}")
    samples.set_ylabel("training samples")
    samples.legend(frameon=False)

    for panel, name in zip(panels, names, strict=True):
        for family, centre in enumerate(adjuster.centres):
            panel.plot(
                grid.tolist(),
                curves[name][:, family].tolist(),
                color=FAMILY_COLOURS[family % len(FAMILY_COLOURS)],
                linestyle=FAMILY_STYLES[family % len(FAMILY_STYLES)],
                linewidth=2,
                label=f"classes of about {centre:.0f} samples",
            )
        panel.set_ylabel(name)
        panel.grid(alpha=0.3)
    panels[0].legend(frameon=False, title="task family")
    panels[-1].set_xlabel("margin: the label's logit minus the largest other one")
    for panel in axes:
        panel.axvline(0, color="grey", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"What the learned adjuster makes of a margin (A-{adjuster.robust_loss.title})")
    figure.savefig(path, dpi=150)
    return True
