"""Choosing a fixed loss's hyperparameters by validation on the clean set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from narl.train.run_folder import RunFolder

FILE = "tuning.json"
_LAST = 5

Candidate = Mapping[str, float]


def choose(
    folder: RunFolder, candidates: Sequence[Candidate], train: Callable[[Candidate, Path], bool]
) -> dict[str, float] | None:
    """Train each candidate in a folder of its own and keep the one that does best on the held-out clean samples.

    The score is the mean accuracy of the last five epochs on the clean samples, and between equals the mean cross
    entropy; the test set is not looked at.
    Candidates that were finished before an interruption are not trained again.

    Args:
        folder: of the run that tunes.
        candidates: settings of the hyperparameters.
        train: trains one in a folder, and says whether it got to the end.

    Returns:
        The best candidate; None if training was stopped before the end.
    """
    if (folder.path / FILE).exists():
        return dict(folder.read_json(FILE)["chosen"])
    rows: list[dict[str, Any]] = []
    for candidate in candidates:
        path = folder.path / "tuning" / title(candidate)
        if not train(candidate, path):
            return None
        history = RunFolder.open(path).metrics()
        last = history[-_LAST:]
        means = {key: sum(record[f"heldout_{key}"] for record in last) / len(last) for key in ("accuracy", "loss")}
        rows.append({"options": dict(candidate), **{f"clean_{key}": value for key, value in means.items()}})
    chosen = best(rows)
    folder.write_json(FILE, {"chosen": chosen, "candidates": rows})
    return chosen


def best(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The options with the highest accuracy on clean samples, and between equals the least cross entropy.

    Example:
        >>> even = {"options": {"q": 0.1}, "clean_accuracy": 0.8, "clean_loss": 0.7}
        >>> best([even, {"options": {"q": 0.3}, "clean_accuracy": 0.8, "clean_loss": 0.6}])
        {'q': 0.3}
    """
    return dict(max(rows, key=lambda row: (row["clean_accuracy"], -row["clean_loss"]))["options"])


def title(candidate: Mapping[str, object]) -> str:
    """A candidate's name, and that of its folder; or options of any kind.

    Example:
        >>> title({"gamma1": 0.1, "gamma2": 1.0}), title({"doubt": "posterior", "certain": True})
        ('gamma1=0.1,gamma2=1', 'doubt=posterior,certain=true')
    """
    return ",".join(f"{name}={_short(value)}" for name, value in candidate.items())


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
