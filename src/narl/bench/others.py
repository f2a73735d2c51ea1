"""What others have published on CIFAR-10N, beside ours."""

from __future__ import annotations

from collections.abc import Sequence

from narl.bench import paper
from narl.bench.tables import Table, model_title
from narl.bench.verdicts import Row

_DATASET, _HARDEST = "CIFAR-10N", "worst"


def beside_published(rows: Sequence[Row]) -> list[Table]:
    """Two tables where the rows are of CIFAR-10N, none elsewhere.

    Published numbers are mostly of the best epoch, which the test set has chosen. So ours are shown at their best epoch
    too, here and only here. The second table shows what is lost from the best epoch to the last.

    Args:
        rows: of a comparison.

    Returns:
        Published and ours at the best epoch; a rerun and ours at the best epoch and the last.
    """
    ours = [row for row in rows if row["dataset"] == _DATASET and row["seeds"]]
    if not any(row["dataset"] == _DATASET for row in rows):
        return []
    return [_best(ours), _best_and_last(ours)]


def _best(ours: Sequence[Row]) -> Table:
    numbers: dict[str, dict[str, float]] = {}
    for number in _of("published"):
        numbers.setdefault(number.method, {})[number.labels] = number.accuracy
    for row in ours:
        numbers.setdefault(_name(row), {})[row["noise"]] = row["best_mean"]
    labels = list(dict.fromkeys(number.labels for number in _of("published")))
    lines = [(method, *(_shown(found.get(one)) for one in labels)) for method, found in numbers.items()]
    notes = [f"Test accuracy, %, of the best epoch: {paper.SOURCES['published']}."]
    notes.append("The test set has chosen that epoch: compare by it, do not report it.")
    return Table(
        f"{_DATASET} as published, and ours: best epoch", ("method", *labels), tuple(lines), (*notes, *_of_us(ours))
    )


def _best_and_last(ours: Sequence[Row]) -> Table:
    numbers: dict[str, dict[str, float]] = {}
    for number in _of("rerun"):
        numbers.setdefault(number.method, {})[number.epoch] = number.accuracy
    for row in (row for row in ours if row["noise"] == _HARDEST):
        numbers[_name(row)] = {"best": row["best_mean"], "last": row["last5_mean"]}
    lines = [
        (method, _shown(found["best"]), _shown(found["last"]), f"{found['last'] - found['best']:+.2f}")
        for method, found in numbers.items()
    ]
    source = f"{paper.SOURCES['rerun'][0].upper()}{paper.SOURCES['rerun'][1:]}"
    notes = (f"Test accuracy, %. {source}; for ours, last is the mean of the last five epochs.", *_of_us(ours))
    title = f"{_DATASET}, {_HARDEST} labels: what is lost after the best epoch"
    return Table(title, ("method", "best epoch", "last", "difference"), tuple(lines), notes)


def _of(source: str) -> list[paper.Published]:
    return [number for number in paper.published(_DATASET) if number.source == source]


def _name(row: Row) -> str:
    return f"ours: {row['method']} ({row['schedule']})"


def _of_us(ours: Sequence[Row]) -> list[str]:
    return [f"Ours: {model_title(ours[0]['model'])}, mean over seeds."] if ours else []


def _shown(accuracy: float | None) -> str:
    return "–" if accuracy is None else f"{accuracy:.2f}"
