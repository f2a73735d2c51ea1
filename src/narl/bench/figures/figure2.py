"""Figure 2: the room in which a loss, summed over all labels, moves, against the number of classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from narl.bench.figures.drawing import (
    ADJUSTED_COLOUR,
    FIXED_COLOUR,
    PAGE,
    PRINTED_COLOUR,
    Drawing,
    canvas,
    letter,
    panels,
)
from narl.bench.figures.trainings import Library
from narl.theory import Bounds, bounds, noise_aware_bounds, printed_bounds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CLASSES = [int(c) for c in np.unique(np.geomspace(2, 1000, 80).round())]
# Between cross entropy and MAE; the second is the loss's default.
QS = (0.5, 0.7, 0.9)
PI1S = (0.1, 0.5, 0.9)
LAMS = (6.0, 12.0)  # the default, and where an adjuster begins
_D = 2.0
_STYLES = (":", "--", "-.")


def draw(library: Library) -> Drawing:
    """C_U - C_L of fixed losses and of the same losses with ideal hyperparameters. It needs no trainings."""
    figure = canvas(PAGE, 2.5)
    (axes,) = panels(figure, 1, 4)
    letter(axes, ["GCE", "JS", *(rf"PolySoft, $\lambda$ = {lam:g}" for lam in LAMS)])
    for q, dashes in zip(QS, _STYLES, strict=True):
        _line(axes[0], [bounds("gce", c, q=q) for c in CLASSES], f"GCE, $q$ = {q:g}", FIXED_COLOUR, dashes)
    for pi1, dashes in zip(PI1S, _STYLES, strict=True):
        _line(axes[1], [bounds("js", c, pi1=pi1) for c in CLASSES], rf"JS, $\pi_1$ = {pi1:g}", FIXED_COLOUR, dashes)
    for panel, loss, name in ((axes[0], "gce", "A-GCE"), (axes[1], "js", "A-JS")):
        _line(panel, [noise_aware_bounds(loss, c) for c in CLASSES], name, ADJUSTED_COLOUR, "-")
    for panel, lam in zip(axes[2:], LAMS, strict=True):
        _polysoft(panel, lam)
    for panel in axes:
        panel.set(xscale="log", yscale="log", xlabel="number of classes $c$", xlim=(2, 1000))
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), alignment="left")
    axes[0].set_ylabel("$C_U - C_L$")
    return Drawing(
        figure, "From theory alone. As printed: the paper's bounds of PolySoft, where narl.theory finds others."
    )


def _polysoft(panel: Axes, lam: float) -> None:
    fixed = [bounds("polysoft", c, lam=lam, d=_D) for c in CLASSES]
    fixed_printed = [printed_bounds("polysoft", c, lam=lam, d=_D) for c in CLASSES]
    aware = [noise_aware_bounds("polysoft", c, tight=True, lam=lam, d=_D) for c in CLASSES]
    aware_printed = [noise_aware_bounds("polysoft", c, lam=lam, d=_D) for c in CLASSES]
    _line(panel, fixed, "PolySoft", FIXED_COLOUR, "--")
    _line(panel, fixed_printed, "PolySoft, as printed", PRINTED_COLOUR, "-.")
    _line(panel, aware, "A-PolySoft", ADJUSTED_COLOUR, "-")
    _line(panel, aware_printed, "A-PolySoft, as printed", PRINTED_COLOUR, ":")


def _line(panel: Axes, found: list[Bounds], label: str, colour: str, dashes: str) -> None:
    # Above c = e^λ the printed gap is negative, so no gap at all: the line ends there.
    gaps = [each.gap if each.gap >= 0 else math.nan for each in found]
    panel.plot(CLASSES, gaps, color=colour, linestyle=dashes, label=label)
