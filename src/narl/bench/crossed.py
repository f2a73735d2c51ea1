"""Cross-validation: every label judged by a classifier that was trained without it, by narl and by cleanlab.

Each fold is a training of its own, so that folds can be stacked. What they say of the labels is kept in one small file
a task and seed; cleanlab can score it later and elsewhere.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from narl import audit
from narl.atomic import replacing
from narl.audit import folds
from narl.audit.runs import log_probabilities
from narl.audit.verdicts import Classes, Numbers
from narl.bench import findings, runs
from narl.bench.audits import folds_of
from narl.bench.cells import Cell
from narl.bench.runs import Run
from narl.data.content import groups
from narl.errors import ConfigError, MissingExtraError
from narl.train.planning import Plan
from narl.train.trained import Trained

if TYPE_CHECKING:
    from narl.bench.work import Place

OUT_OF_FOLD = "out-of-fold"
CLEANLAB = "cleanlab"


def without(plan: Plan, fold: tuple[int, int] | None) -> Plan:
    """The plan, trained without a part of the training set, and without clean samples: cross-validation has none.

    Args:
        plan: of the whole training set.
        fold: which part of how many, from 1; None: nothing is left out.
    """
    if fold is None:
        return plan
    train = plan.sets.train.take(np.flatnonzero(_parts(plan, fold[1]) != fold[0] - 1))
    return replace(plan, sets=replace(plan.sets, train=train, clean=None, heldout=None))


def _parts(plan: Plan, count: int) -> NDArray[np.int64]:
    train = plan.sets.train
    return folds.assign(train.labels.astype(np.int64), groups(train.inputs), train.classes, count, plan.settings.seed)


def write_held(cell: Cell, plan: Plan, folder: Path, results: Path, device: str) -> Path:
    """Write what a fold's classifier says of the labels that it was trained without.

    Args:
        cell: the fold.
        plan: of the whole training set, whose true labels are known.
        folder: of the run.
        results: where the fold's result will be.
        device: where to compute predictions.

    Returns:
        The file, beside the result: logarithms of probabilities as float16, which says as much about a probability
        near 0 as about one near 1.
    """
    assert cell.fold is not None
    held = np.flatnonzero(_parts(plan, cell.fold[1]) == cell.fold[0] - 1)
    train = plan.sets.train
    assert train.true_labels is not None
    said = log_probabilities(Trained(folder, device).predict(train.take(held).inputs))
    return _write(
        cell.result(results).with_suffix(".npz"),
        rows=held.astype(np.int32),
        log_probabilities=said.astype(np.float16),
        given=train.labels[held].astype(np.int16),
        true=train.true_labels[held].astype(np.int16),
    )


def combine(cell: Cell, trained: Path, work: Path, results: Path) -> Run:
    """Make one result of all folds, and one file of what they said.

    Args:
        cell: all folds together: ``fold=(0, K)``.
        trained: folder with the results of the folds.
        work: folder; the file is written to ``out-of-fold/`` in it.
        results: folder of the results.

    Returns:
        The result, with how well narl finds the wrong labels from what the folds said.
    """
    parts = [runs.read_file(one.result(trained)) for one in folds_of(cell)]
    said = [np.load(one.result(trained).with_suffix(".npz")) for one in folds_of(cell)]
    order = np.argsort(np.concatenate([one["rows"] for one in said]), kind="stable")
    whole = {
        name: np.concatenate([one[name] for one in said])[order] for name in ("log_probabilities", "given", "true")
    }
    logits, given, true = _read(whole)
    first = parts[0]
    run = replace(
        first,
        cell=cell,
        last5=float(np.mean([part.last5 for part in parts])),
        best=float(np.mean([part.best for part in parts])),
        curves={},
        noise_rate=round(float((given != true).mean()), 5),
        auroc={},
        samples={},
        adjuster={},
        seconds=round(sum(part.seconds for part in parts), 1),
        settings={**first.settings, "train_samples": len(given)},
        audit={"narl": findings.of_verdicts(audit.from_logits(logits, given), true)},
    )
    _write(out_of_fold(cell, work), **whole, about=np.array(json.dumps(run.to_json())))
    run.write(results)
    return run


def place_of_folds(place: Place) -> Place:
    """The same, with the results of single folds beside their runs: of a cross-validation only the whole counts."""
    return replace(place, results=place.work / "folds")


def combine_trained(cells: Sequence[Cell], place: Place) -> list[Path]:
    """Combine what has been trained whole.

    Args:
        cells: all folds together: ``fold=(0, K)``.
        place: where they were trained.

    Returns:
        Files of what the folds said that cleanlab has not scored.
    """
    trained = place_of_folds(place).results
    unscored = []
    for cell in cells:
        kept, written = out_of_fold(cell, place.work), cell.result(place.results)
        if not kept.exists() and all(part.result(trained).exists() for part in folds_of(cell)):
            combine(cell, trained, place.work, place.results)
        if kept.exists() and (not written.exists() or CLEANLAB not in runs.read_file(written).audit):
            unscored.append(kept)
    return unscored


def out_of_fold(cell: Cell, work: Path) -> Path:
    """The file of what all folds said of the labels."""
    return work / OUT_OF_FOLD / f"{cell.slug.replace('/', '--')}.npz"


def score_with_cleanlab(path: Path, results: Path) -> Run:
    """Add to a result how well cleanlab finds the wrong labels, from what all folds said.

    Args:
        path: file of what they said.
        results: folder of the results.

    Raises:
        MissingExtraError: cleanlab is not installed.
        ConfigError: the file is no such file.
    """
    try:
        with np.load(path) as arrays:
            run = runs.from_json(json.loads(str(arrays["about"])))
            logits, given, true = _read(arrays)
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path} is not what narl bench audit writes ({error}): give its {OUT_OF_FOLD} folder"
        ) from None
    written = run.cell.result(results)
    before = runs.read_file(written) if written.exists() else run
    run = replace(before, audit={**before.audit, CLEANLAB: by_cleanlab(np.exp(logits), given, true)})
    run.write(results)
    return run


def has_cleanlab() -> bool:
    """Whether it is installed."""
    return importlib.util.find_spec(CLEANLAB) is not None


def by_cleanlab(probabilities: Numbers, given: Classes, true: Classes) -> dict[str, Any]:
    """How well cleanlab finds wrong labels, used as its makers recommend: all of its defaults.

    Args:
        probabilities: out of sample, ``(N, c)``.
        given: the given labels, ``(N,)``.
        true: the true ones, ``(N,)``.

    Raises:
        MissingExtraError: cleanlab is not installed.

    Reference: Northcutt, Jiang, Chuang. Confident learning: estimating uncertainty in dataset labels. JAIR 2021.
    """
    if not has_cleanlab():
        raise MissingExtraError("cleanlab is not installed: pip install cleanlab")
    version, find_label_issues, get_label_quality_scores = (
        getattr(importlib.import_module(f"cleanlab{module}"), name)
        for module, name in (
            ("", "__version__"),
            (".filter", "find_label_issues"),
            (".rank", "get_label_quality_scores"),
        )
    )
    rows = probabilities / probabilities.sum(axis=1, keepdims=True)
    score = np.asarray(get_label_quality_scores(given, rows), dtype=np.float64)
    flagged = np.asarray(find_label_issues(given, rows), dtype=np.bool_)
    predicted, wrong = rows.argmax(axis=1), given != true
    return {
        **findings.ranking(score, wrong),
        **findings.flagging(flagged, wrong),
        **findings.suggesting(np.where(flagged, predicted, given), given, true),
        "predicted_accuracy": round(float((predicted == true).mean()), 5),
        "calibration_error": None,
        "uncalibrated_error": findings.calibration(1 - score, wrong),
        "version": version,
    }


def _read(arrays: Any) -> tuple[Numbers, Classes, Classes]:
    logits, given, true = (arrays[name] for name in ("log_probabilities", "given", "true"))
    return logits.astype(np.float64), given.astype(np.int64), true.astype(np.int64)


def _write(path: Path, **arrays: NDArray[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return path


def missing(cells: Sequence[Cell], work: Path, results: Path) -> list[Cell]:
    """What is to be cross-validated (``fold=(0, K)``) and has neither a result nor a file of what was said."""
    return [cell for cell in cells if not cell.result(results).exists() and not out_of_fold(cell, work).exists()]
