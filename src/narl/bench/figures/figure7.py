"""Figure 7: what an adjuster makes of a margin, a line a family."""

from __future__ import annotations

from narl.bench.cells import Task
from narl.bench.figures.drawing import (
    FAMILY_COLOURS,
    FAMILY_STYLES,
    PAGE,
    SYMBOLS,
    Drawing,
    canvas,
    legend_above,
    letter,
    panels,
)
from narl.bench.figures.trainings import Library, curves, source
from narl.bench.protocols import ADJUSTED
from narl.bench.runs import Run

METHOD = "A-SL"
_ELSE = Task("CIFAR-10", "asymmetric", 0.4)  # its classes have three sizes, and so its families mean something
_TIMES = {1: ["at the end"], 3: ["after a third", "after two thirds", "at the end"]}

_SEEN = {"scaled": "margin (logits' spread)", "rank": "rank of the margin (normal score)"}


def draw(library: Library) -> Drawing:
    """Hyperparameter against margin, a row a hyperparameter, a column a snapshot.

    Of the trainings of A-SL it takes the one whose families differ most in size, and without any, of the other adjusted
    losses.
    """
    return of_run(_run(library))


def of_run(run: Run) -> Drawing:
    """The same of one training's adjuster."""
    margins, centres, snapshots = curves(run)
    names = list(snapshots[0])
    taken = run.adjuster.get("taken") or range(1, len(snapshots) + 1)
    words = [f"after {share:.0%}" if isinstance(share, float) else f"snapshot {share}" for share in taken]
    times = _TIMES.get(len(snapshots), words)

    figure = canvas(PAGE, 0.9 + 1.35 * len(names))
    rows = panels(figure, len(names), len(snapshots), sharey="row")
    letter(rows[0], times)
    for row, name in zip(rows, names, strict=True):
        for panel, snapshot in zip(row, snapshots, strict=True):
            for family, (centre, line) in enumerate(zip(centres, snapshot[name], strict=True)):
                panel.plot(
                    margins,
                    line,
                    color=FAMILY_COLOURS[family % len(FAMILY_COLOURS)],
                    linestyle=FAMILY_STYLES[family % len(FAMILY_STYLES)],
                    label=f"classes of about {centre:,.0f} samples",
                )
            panel.axvline(0, color="grey", linewidth=0.6, zorder=0)
            panel.set_xlim(margins[0], margins[-1])
        row[0].set_ylabel(SYMBOLS.get(name, name))
    for panel in rows[-1]:
        panel.set_xlabel(_SEEN.get(str(run.adjuster.get("input", "")).partition("+")[0], "margin (logits)"))
    legend_above(figure, rows[0][0], columns=min(len(centres), 3))
    return Drawing(figure, f"{run.cell.method} on {source(run)}.")


def _run(library: Library) -> Run:
    found = [
        run
        for run in library.runs
        if run.cell.schedule == library.schedule and run.cell.label in ADJUSTED and run.adjuster
    ]
    if not found:
        raise library.missing("table1", _ELSE, [METHOD])
    return min(found, key=lambda run: (run.cell.method != METHOD, run.cell.method, -_spread(run), run.cell.slug))


def _spread(run: Run) -> float:
    _, centres, _ = curves(run)
    return max(centres) / min(centres)
