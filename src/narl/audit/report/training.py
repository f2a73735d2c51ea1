"""What a report shows of the training: curves, hyperparameters by margin, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from narl.audit.verdicts import Verdicts
from narl.errors import RunFolderError
from narl.train.record import RIVAL, SampleRecord
from narl.train.run_folder import RunFolder

_SHARES = {
    "test_accuracy": "accuracy on the test set",
    "test_top5_accuracy": "test labels among the five most probable",
    "heldout_accuracy": "accuracy on held-out clean samples",
    "train_agreement": "agreement with the given labels",
}
_LOSSES = {"loss": "training loss", "meta_loss": "loss on clean batches", "test_loss": "test loss"}
_ACCURACY = "_accuracy"
_FEWEST, _BINS = 20, 40


def curves(metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Metrics by epoch.

    Args:
        metrics: a record an epoch.

    Returns:
        Epochs, and values by what they are; None before the first epoch.

    Example:
        >>> curves([{"epoch": 1, "loss": 0.5, "meta_loss": None}])
        {'epochs': [1], 'shares': {}, 'losses': {'training loss': [0.5]}}
    """
    if not metrics:
        return None

    def known(names: Mapping[str, str]) -> dict[str, list[float | None]]:
        lists = {shown: [_number(record.get(name)) for record in metrics] for name, shown in names.items()}
        return {shown: values for shown, values in lists.items() if any(value is not None for value in values)}

    epochs = [record.get("epoch", number) for number, record in enumerate(metrics, start=1)]
    further = {name: f"accuracy on {name.removesuffix(_ACCURACY)}" for name in metrics[-1] if _is_further(name)}
    return {"epochs": epochs, "shares": known({**_SHARES, **further}), "losses": known(_LOSSES)}


def _is_further(name: str) -> bool:
    """Whether a metric is the accuracy on a further test set."""
    return name.endswith(_ACCURACY) and not name.endswith(f"_top5{_ACCURACY}") and name not in _SHARES


def hyperparameters(folder: RunFolder, verdicts: Verdicts) -> list[dict[str, Any]]:
    """How the loss was set at the end, by margin and family: one entry a hyperparameter.

    Args:
        folder: of the run.
        verdicts: in the order of the run's record.

    Returns:
        Of every family the median and the middle eight tenths in bins of as many samples each; nothing where the
        method has no hyperparameters of its own for every sample.
    """
    try:
        record = SampleRecord.open(folder.path)
        written = record.written
    except RunFolderError:
        return []
    if not written or not np.array_equal(record.ids, verdicts.ids):
        return []
    margins = record.read("margin", written - 1).astype(np.float64)
    sizes = np.bincount(verdicts.given, minlength=len(verdicts.class_names))
    found = []
    for name in record.fields:
        if name in ("margin", RIVAL):
            continue
        values = record.read(name, written - 1).astype(np.float64)
        families = []
        for family in np.unique(verdicts.family).tolist():
            mine = (verdicts.family == family) & np.isfinite(margins) & np.isfinite(values)
            if mine.sum() >= _FEWEST:
                families.append(
                    {"name": _family_name(family, sizes[verdicts.given[mine]])} | _bins(margins, values, mine)
                )
        if families:
            found.append({"name": name, "families": families})
    return found


def settings(folder: RunFolder) -> list[list[str]]:
    """How the run was made: group, name, value."""
    rows: list[list[str]] = []
    with folder.understood() as config:
        asked, recipe = dict(config["settings"]), dict(config["recipe"])
        rows += [["Data", "data", str(asked.pop("data"))], ["Data", "kind", str(config["kind"])]]
        rows += [["Data", f"{part} samples", f"{count:,}"] for part, count in config["samples"].items() if count]
        rows += [["Data", "note", str(note)] for note in config["notes"]]
        asked = {name: value for name, value in asked.items() if name not in recipe}
        recipe["parameters"] = f"{config['parameters']:,}"
        rows += [["Training", *pair] for pair in _pairs(recipe)]
        rows += [["Asked for", *pair] for pair in _pairs(asked)]
    with suppress(RunFolderError):  # it says nothing about labels
        rows += [["Machine", *pair] for pair in _pairs(folder.read_json("environment.json"))]
    return rows


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values; what is open or empty is left out."""
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += [(f"{name}: {inner}", text) for inner, text in _pairs(value)]
        elif value is not None and value != [] and value != "" and value is not False:
            listed = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.append((name.replace("_", " "), listed))
    return found


def _family_name(family: int, sizes: NDArray[np.int64]) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    span = f"{low:,} samples" if low == high else f"{low:,}–{high:,} samples"
    return f"classes of {span}" if family < 0 else f"family {family}: classes of {span}"


def _bins(margins: NDArray[np.float64], values: NDArray[np.float64], mine: NDArray[np.bool_]) -> dict[str, Any]:
    order = np.argsort(margins[mine], kind="stable")
    sorted_margins, sorted_values = margins[mine][order], values[mine][order]
    parts = np.array_split(np.arange(len(order)), min(_BINS, len(order) // 5))
    quantiles = [np.quantile(sorted_values[part], (0.1, 0.5, 0.9)) for part in parts]
    low, middle, high = np.round(np.array(quantiles), 5).T.tolist()
    margin = [round(float(np.median(sorted_margins[part])), 4) for part in parts]
    return {"margin": margin, "low": low, "median": middle, "high": high, "samples": len(order)}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and np.isfinite(value) else None
