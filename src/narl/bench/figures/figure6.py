"""Figure 6: the hyperparameters that samples with right and with wrong labels end with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from narl.bench.cells import Task
from narl.bench.figures.drawing import (
    COLUMN,
    RIGHT_COLOUR,
    SYMBOLS,
    WRONG_COLOUR,
    Drawing,
    canvas,
    legend_above,
    letter,
)
from narl.bench.figures.trainings import Histogram, Library, source
from narl.bench.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = {"A-GCE": "q", "A-SL": "gamma1", "A-JS": "pi1"}
# The paper's rate first; then what table 1 has, from the highest rate on.
PLACES = [
    ("figure6", Task("CIFAR-10", "symmetric", 0.5)),
    *(("table1", Task("CIFAR-10", "symmetric", rate)) for rate in (0.6, 0.4, 0.2)),
]


def draw(library: Library) -> Drawing:
    """A histogram a loss, on CIFAR-10 with 50 % symmetric noise, or the next rate at which all three were trained."""
    runs = _runs(library)
    task = next(iter(runs.values())).cell.task

    figure = canvas(COLUMN, 1.95)
    axes = list(figure.subplots(1, len(SHOWN), sharey=True))
    letter(axes, list(SHOWN))
    for panel, (method, name) in zip(axes, SHOWN.items(), strict=True):
        _histogram(panel, runs[method], name)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("share of the group, %")
    legend_above(figure, axes[0], columns=2, title=f"{task.dataset}, {100 * (task.rate or 0):g} % symmetric noise")
    seeds = [run.cell.seed for run in runs.values()]
    return Drawing(figure, f"{source(runs['A-GCE'], seeds)}; the samples at the end of the training.")


def of_run(run: Run) -> Drawing:
    """The same of one training, a histogram a hyperparameter."""
    names = [name for name in run.samples if name != "margin"]
    figure = canvas(COLUMN, 1.95)
    axes = list(figure.subplots(1, len(names), sharey=True, squeeze=False)[0])
    letter(axes, [SYMBOLS.get(name, name) for name in names])
    for panel, name in zip(axes, names, strict=True):
        _histogram(panel, run, name)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("share of the group, %")
    legend_above(figure, axes[0], columns=2, title=str(run.cell.task))
    return Drawing(figure, f"{run.cell.method}: {source(run)}; the samples at the end of the training.")


def _histogram(panel: Axes, run: Run, name: str) -> None:
    found = Histogram.of(run, name)
    for counts, colour, hatch, label in (
        (found.right, RIGHT_COLOUR, "", "right labels"),
        (found.wrong, WRONG_COLOUR, "/////", "wrong labels"),
    ):
        shares = 100 * counts / counts.sum()
        panel.stairs(
            shares,
            found.edges,
            fill=True,
            facecolor=colour,
            edgecolor="black",
            linewidth=0.4,
            hatch=hatch,
            alpha=0.8,
            label=label,
        )
    panel.set_xlabel(SYMBOLS.get(name, name))
    panel.margins(x=0.03)
    panel.locator_params(axis="x", nbins=2)


def _runs(library: Library) -> dict[str, Run]:
    lacking = {place: [method for method in SHOWN if not library.of(*place, method)] for place in PLACES}
    # The fewest missing, and of those the first: the command that is named costs least.
    table, task = min(PLACES, key=lambda place: len(lacking[place]))
    return {method: found[0] for method, found in library.needed(table, task, list(SHOWN)).items()}
